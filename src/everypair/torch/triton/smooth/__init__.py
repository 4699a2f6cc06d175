"""Smooth surrogates on a GPU: sums of powers of exp(-rate |d|) over all pairs, after one sort.

`plan.by_powers` computes a job and `terms.takes` tells which surrogates it takes. `state` holds the
running sums as device functions, `sums` the kernels that sort and add up, `walk` the kernel that
computes the loss and its derivatives, and `narrow` what both do with blocks of nearly equal scores.
"""
