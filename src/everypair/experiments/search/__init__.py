"""Run the trials of a grid in several processes, and keep their records in a database.

`store` keeps trials and records, `runner` runs what is missing, `work` is what a worker process
does. Import these three; modules that begin with an underscore belong to them.
"""
