"""The CPU backend: the kernels of everypair on the memory of tensors.

Contiguous float32 and float64 tensors are read without a copy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everypair.inputs.groups import group_runs
from everypair.kernel import choose, native
from everypair.kernel.request import Request
from everypair.surrogates import PairTerm
from everypair.torch import _inputs
from everypair.torch._inputs import Order
from everypair.torch._options import LossOptions

Results = tuple[Tensor, Tensor | float, Tensor | None, Tensor | None, Tensor | None]
"""Value, pair weight (a float of one row), gradient, diagonal Hessian, Hessian times vector."""

# While the loss is smaller than this, no derivative overflows in float32 inside the kernel.
_ORDINARY_LOSS = 1e30


def share_tensors() -> None:
    """Let the compiled kernel read tensors, if torch has the functions (from version 2.10 on)."""
    functions = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if functions is not None:
        native.read_tensors(functions)


def loss_and_grad(
    scores: Tensor, labels: Tensor, weights: Tensor | None, terms: tuple[PairTerm, ...], mean: bool
) -> tuple[Tensor, float, Tensor] | None:
    """Return value, pair weight and gradient of one task, or None if `evaluate` must compute them.

    The compiled kernel reads the tensors itself, because asking torch for their properties takes
    longer in Python than a small batch. It takes contiguous tensors of common types on the CPU, and
    values that it accepts. Weights are checked, but scores and labels may be any tensors. The
    gradient has the shape of the scores, which is (n,) or (n, 1).
    """
    if not choose.uses_native() or scores.is_neg() or labels.is_neg():
        return None
    w = None if weights is None else _inputs.array_from(weights, torch.float64).reshape(-1)
    wide = scores.dtype is torch.float64
    return native.tensor_sums(scores, labels, w, terms, mean, wide=wide)


def evaluate(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None,
    vector: Tensor | None, options: LossOptions, *, grad: bool, hess: bool,
) -> Results:  # fmt: skip
    """Return the loss, the pair weight and the derivatives that are asked for.

    Scores have the shape (..., n) and all other tensors broadcast to it. Rows of the last dimension
    are evaluated one after the other. With a vector, only the last result is computed; value and
    pair weight are zero.
    """
    order: Order = (None, None)
    if groups is not None and groups.dim() == 1:  # the same groups in every row
        order, groups = group_runs(_inputs.array_from(groups)), None
    if scores.dim() == 1:
        return _evaluate_row(scores, labels, weights, order, vector, options, (grad, hess))
    shape = scores.shape
    is_plain = groups is None and order[1] is None and options.pairs == "binary"
    direct = is_plain and grad and not hess and vector is None
    rows = [_inputs.each_row(t, shape) for t in (scores, labels, weights, groups, vector)]
    results: list[Results] = []
    for k, (x, y, w, g, v) in enumerate(zip(*rows, strict=True)):
        sums = loss_and_grad(x, y, w, options.terms, options.mean) if direct else None
        if sums is not None:
            results.append((*sums, None, None))
            continue
        row_order = order if g is None else group_runs(_inputs.array_from(g))
        try:
            results.append(_evaluate_row(x, y, w, row_order, v, options, (grad, hess)))
        except ValueError as error:
            raise ValueError(f"in column {k}, {error}") from None
    values, pair_weights, *derivatives = zip(*results, strict=True)
    return (
        torch.stack(values).reshape(shape[:-1]),
        torch.tensor(pair_weights, dtype=torch.float64, device="cpu").reshape(shape[:-1]),
        *(None if rows[0] is None else torch.stack(rows).reshape(shape) for rows in derivatives),
    )  # type: ignore[return-value]


def _evaluate_row(
    scores: Tensor, labels: Tensor, weights: Tensor | None, order: Order, vector: Tensor | None,
    options: LossOptions, derivatives: tuple[bool, bool],
) -> Results:  # fmt: skip
    """Do the same for scores of shape (n,); `order` holds the groups as in `Batch`."""
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32
    terms, mean, pairs = options.terms, options.mean, options.pairs
    value = pair_weight = 0.0
    try:
        batch = _inputs.batch_from(scores, labels, weights, order, pairs)
        if vector is None:
            request = Request(batch, terms, mean, *derivatives)
            value, pair_weight, *arrays = choose.pair_sums(request)
        else:  # nothing else is asked for
            v = _inputs.array_from(vector, torch.float64)
            arrays = [None, None, choose.hessian_product(Request(batch, terms, mean, vector=v))]
    except ValueError:
        if options.check is not False or bool(scores.isfinite().all()):
            raise
        nan = torch.full_like(scores, torch.nan, dtype=dtype)
        requested = (*derivatives, vector is not None)
        return nan[0], math.nan, *(nan if one else None for one in requested)  # type: ignore[return-value]
    if dtype is torch.float32 and not -_ORDINARY_LOSS < value < _ORDINARY_LOSS:
        # float32 may overflow inside the kernel although the derivatives fit into it.
        wide_value, weight, *wide = _evaluate_row(
            scores.double(), labels, weights, order, vector, options, derivatives
        )
        return wide_value.to(dtype), weight, *_inputs.clamped(wide, scores)
    results = [None if array is None else torch.from_numpy(array) for array in arrays]
    return (
        # On the CPU, whatever the default device of torch is.
        torch.scalar_tensor(value, dtype=dtype, device="cpu"),
        pair_weight,
        *(results if scores.dtype is dtype else _inputs.clamped(results, scores)),
    )
