"""Arithmetic of double-double numbers, on a GPU and in Triton's interpreter."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from everypair.torch.triton.common.double_double import mul, two_product

from .device import DEVICE

N = 64


@triton.jit
def product_of_doubles(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    high, low = two_product(tl.load(a + i), tl.load(b + i))
    tl.store(out + i, high)
    tl.store(out + N + i, low)


@triton.jit
def product_of_numbers(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i), tl.load(a + N + i)
    high, low = mul(x, (tl.load(b + i), tl.load(b + N + i)), True)
    tl.store(out + i, high)
    tl.store(out + N + i, low)


def high_and_low(kernel, a, b):
    """Return the two parts of the products of a and b, after a launch as the plans launch."""
    a, b = (torch.from_numpy(x).to(DEVICE) for x in (a, b))
    out = torch.empty(2 * N, dtype=torch.float64, device=DEVICE)
    kernel[(1,)](a, b, out, N, enable_fp_fusion=False)
    return out.cpu().numpy().reshape(2, N)


def exact(a):
    return [Fraction(float(x)) for x in a]


def test_the_product_of_two_doubles_is_exact():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, N)) * 10.0 ** rng.integers(-100, 100, (2, N))
    high, low = high_and_low(product_of_doubles, a, b)
    np.testing.assert_array_equal(high, a * b)
    found = [x + y for x, y in zip(exact(high), exact(low), strict=True)]
    assert found == [x * y for x, y in zip(exact(a), exact(b), strict=True)]


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_a_product_that_overflows_has_no_low_part():
    high, low = high_and_low(product_of_doubles, np.full(N, 1e200), np.full(N, -1e200))
    assert (high == -np.inf).all()
    assert not low.any()


def test_the_product_of_two_numbers_has_100_bits():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, N))
    a_low, b_low = 2.0**-54 * rng.uniform(-1.0, 1.0, (2, N)) * (a, b)
    parts = high_and_low(product_of_numbers, np.append(a, a_low), np.append(b, b_low))
    x, x_low, y, y_low, high, low = map(exact, (a, a_low, b, b_low, *parts))
    for i in range(N):
        product = (x[i] + x_low[i]) * (y[i] + y_low[i])
        assert abs(high[i] + low[i] - product) <= abs(product) / 2**100
