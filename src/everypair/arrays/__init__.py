"""Pair losses by array operations: one algorithm for NumPy, torch operations and JAX.

`pair_sums` holds the algorithm; `sorted_moments`, `class_moments` and `smooth_terms` sum the
different kinds of terms. All are written over the operations of `double_double.Arrays`, which
`numpy`, `everypair.torch._arrays` and `everypair.jax._arrays` supply. Nothing here imports torch or
JAX, and everything here may be imported by the core and by the adapters.
"""
