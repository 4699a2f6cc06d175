"""Pair losses by array operations: one algorithm for NumPy, torch operations and JAX.

`pair_sums` holds the algorithm. It is written over the operations of `double_double.Arrays`, which
`numpy`, `everypair.torch._arrays` and `everypair.jax._arrays` supply. Nothing here imports torch or
JAX, and everything here may be imported by the core and by the adapters.
"""
