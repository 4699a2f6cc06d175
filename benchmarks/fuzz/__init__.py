"""Compare random batches with exact arithmetic: ``python -m benchmarks.fuzz``.

`batches` draws the batches, `oracle` computes them in integers of any size, `scales` says what
errors are relative to, `checks` calls the public functions on every backend and compares, and
`__main__` is the command.
"""
