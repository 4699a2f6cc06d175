"""Tolerances of all tests, in one table.

Errors are relative to the largest entry of the expected array, as the documentation promises: 1e-12
for float64 scores and 1e-6 for narrower types. `test_promise` checks what holds for single entries.
"""

from __future__ import annotations

import numpy as np

RELATIVE = {
    np.dtype(np.float16): 2e-3,  # from casting the result to float16
    np.dtype(np.float32): 1e-6,
    np.dtype(np.float64): 1e-12,
}

# Gradients of certified plans: the largest error of an entry, relative to itself, among the entries
# of at least NOTABLE times the largest of their class. 1e-3 is promised.
NOTABLE, CERTIFIED_ENTRY = 1e-3, 5e-4


def assert_close(got, expected, dtype, *, scale=0.0):
    """Compare in the maximum norm, relative to `expected` or to `scale` if that is larger.

    `scale` is the magnitude of the numbers whose difference is `expected`, if known.
    """
    dtype = np.dtype(dtype)
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    size = max(np.abs(expected).max(initial=0.0), scale)
    # Results below the smallest subnormal of their type cannot be distinguished.
    allowed = RELATIVE[dtype] * size + np.finfo(dtype).smallest_subnormal
    error = np.abs(got - expected).max(initial=0.0)
    assert error <= allowed, f"error {error:.3g} of {size:.3g}, {allowed:.3g} allowed"
