"""The choice of a backend and of a plan for a batch: the compiled kernel, or NumPy.

`choose` holds the choice and the results, and `pair_sums` evaluates every kind of batch. The NumPy
path is the reliable one: correctness rests on it when the compiled kernel declines a batch, for
example because terms cancel. Imports `surrogates`, `inputs` and `arrays`.
"""
