"""Sums over all pairs by array operations, for NumPy, torch operations and JAX.

This is the reliable path, on which correctness rests wherever the compiled kernel is missing or
declines a batch: sums are kept in double-double arithmetic, and nothing overflows or cancels on the
way. `pair_sums` is the one engine of pair losses and row sums, written over the operations of
`double_double.Arrays`, which `numpy`, `everypair.torch._arrays` and `everypair.jax._arrays` supply.
Nothing here imports torch or JAX, and everything here may be imported by the core and by adapters.
"""
