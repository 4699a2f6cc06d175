"""Speed, accuracy and size of everypair beside its neighbours, as tidy rows.

>>> from benchmarks.harness import powers_of_ten
>>> powers_of_ten(2, 4)
(100, 1000, 10000)
"""
