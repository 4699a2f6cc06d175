"""Compare random batches with exact arithmetic: ``python -m tests.fuzz``.

`batches` draws the batches and `variants` changes some of them; `oracle` computes polynomials in
integers of any size, and `smooth` the other surrogates in extended precision; `scales` says what
errors are relative to, `checks` calls the public functions on every backend and compares, and
`__main__` is the command.
"""
