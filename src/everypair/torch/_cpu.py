"""The CPU backend: the kernels of everypair on the memory of tensors.

Contiguous float32 and float64 tensors are read without a copy. Derivatives are returned in the
order of `everypair.kernel.request.Result`: grad, hess, hvp.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from everypair.inputs.groups import group_runs
from everypair.kernel import choose, native
from everypair.kernel.hessian_product import hessian_product
from everypair.kernel.request import Request
from everypair.surrogates import PairTerm
from everypair.torch import _inputs
from everypair.torch._inputs import Order

Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]

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
    vector: Tensor | None, terms: tuple[PairTerm, ...], pairs: str, **asked: bool,
) -> Tensors:  # fmt: skip
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times `vector`.

    Scores have the shape (..., n) and all other tensors broadcast to it. Rows of the last dimension
    are evaluated one after the other. `asked` holds the flags `mean`, `grad`, `hess` and `check`.
    With a vector, only the last result is computed; value and pair weight are zero.
    """
    order: Order = (None, None)
    if groups is not None and groups.dim() == 1:  # the same groups in every row
        order, groups = group_runs(_inputs.array_from(groups)), None
    if scores.dim() == 1:
        return _evaluate_row(scores, labels, weights, order, vector, terms, pairs, **asked)
    shape = scores.shape
    is_plain = groups is None and order[1] is None and pairs == "binary"
    only_grad = asked["grad"] and is_plain and not asked["hess"] and vector is None
    rows = [_inputs.each_row(t, shape) for t in (scores, labels, weights, groups, vector)]
    results: list[Tensors] = []
    for k, (x, y, w, g, v) in enumerate(zip(*rows, strict=True)):
        found = loss_and_grad(x, y, w, terms, asked["mean"]) if only_grad else None
        if found is not None:
            results.append((found[0], _scalar(found[1], torch.float64), found[2], None, None))
            continue
        own_order = order if g is None else group_runs(_inputs.array_from(g))
        try:
            results.append(_evaluate_row(x, y, w, own_order, v, terms, pairs, **asked))
        except ValueError as error:
            raise ValueError(f"in column {k}, {error}") from None
    value, pair_weights, *derivatives = (
        None if parts[0] is None else torch.stack(cast("list[Tensor]", parts))
        for parts in zip(*results, strict=True)
    )
    return (
        cast("Tensor", value).reshape(shape[:-1]),
        cast("Tensor", pair_weights).reshape(shape[:-1]),
        *(None if d is None else d.reshape(shape) for d in derivatives),
    )  # type: ignore[return-value]


def _evaluate_row(
    scores: Tensor, labels: Tensor, weights: Tensor | None, order: Order, vector: Tensor | None,
    terms: tuple[PairTerm, ...], pairs: str, *, mean: bool, grad: bool, hess: bool, check: bool,
) -> Tensors:  # fmt: skip
    """Do the same for scores of shape (n,); `order` holds the groups as in `Batch`."""
    dtype = _inputs.value_dtype(scores)
    try:
        batch = _inputs.batch_from(scores, labels, weights, order, pairs)
        if vector is None:
            value, pair_weight, *arrays = choose.pair_sums(
                Request(batch, terms, mean, grad=grad, hess=hess)
            )
        else:  # nothing else is asked for
            v = _inputs.array_from(vector, torch.float64)
            value = pair_weight = 0.0
            arrays = [None, None, hessian_product(Request(batch, terms, mean, vector=v))]
    except ValueError:
        if check or bool(scores.isfinite().all()):
            raise
        nan = torch.full_like(scores, torch.nan, dtype=dtype)
        nans = [nan if asked else None for asked in (grad, hess, vector is not None)]
        return nan[0], nan[0].double(), *nans  # type: ignore[return-value]
    if dtype is torch.float32 and not -_ORDINARY_LOSS < value < _ORDINARY_LOSS:
        # float32 may overflow inside the kernel although the derivatives fit into it.
        wide_value, mass, *wide = _evaluate_row(
            scores.double(), labels, weights, order, vector, terms, pairs,
            mean=mean, grad=grad, hess=hess, check=check,
        )  # fmt: skip
        return wide_value.to(dtype), mass, *_inputs.clamped(wide, scores)
    derivatives = [None if array is None else torch.from_numpy(array) for array in arrays]
    return (
        _scalar(value, dtype),
        _scalar(pair_weight, torch.float64),
        *(derivatives if scores.dtype is dtype else _inputs.clamped(derivatives, scores)),
    )


def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    """Return a tensor on the CPU, whatever the default device of torch is."""
    return torch.scalar_tensor(value, dtype=dtype, device="cpu")
