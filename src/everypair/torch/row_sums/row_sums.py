"""The public function `pair_row_sums` on tensors, and how it is differentiated.

With ``r_i = sum over j of w_j f(m - (s_i - o_j))`` and a gradient v of r, the derivatives are

    scores    -v_i sum over j of w_j f'        others    w_j sum over i of v_i f'
    weights   sum over i of v_i f

They are sums of the same kind, per row or per other row, of a derivative of f. So one autograd
function whose backward calls itself has derivatives up to the order that surrogates have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from everypair import surrogates
from everypair.arrays.pair_sums import needs_low_parts
from everypair.arrays.row_sums import RowSums
from everypair.arrays.terms import by_kind
from everypair.inputs import messages, pair_options
from everypair.row_sums._plan import Plan, own_pair
from everypair.surrogates import Surrogate
from everypair.torch import _dispatch
from everypair.torch._arrays import TorchArrays
from everypair.torch._compat import skip_compiler
from everypair.torch._inputs import array_from, check_groups, check_rows, check_scores

Groups = tuple[Tensor, Tensor] | None


class Pairs(NamedTuple):
    """All pairs of a row and another row, ready to be summed.

    Attributes
    ----------
    plan : Plan
    of_arrays : bool
        Whether the plan takes NumPy arrays, and not tensors.
    self_pair : list of three floats or None
        If rows and other rows are the same: value, slope and curvature of the pair of a row with
        itself, which does not count.
    third_is_zero : bool
        Whether third derivatives of the surrogate are zero.
    finite : () bool tensor
        Whether all scores are finite; if not, all results are NaN.
    """

    plan: Any
    of_arrays: bool
    self_pair: list[float] | None
    third_is_zero: bool
    finite: Tensor

    def sums(self, weights: Tensor, orders: Sequence[int], per_other: bool) -> list[Tensor]:
        """Return the sums, in float64; see `RowSums.sums`."""
        w = weights.detach().double()
        if self.of_arrays:
            arrays = self.plan.sums(array_from(w), orders, per_other=per_other)
            result = [torch.from_numpy(a).to(weights.device) for a in arrays]
        else:
            result = self.plan.sums(w, orders, per_other=per_other)
        if self.self_pair is not None:
            result = [sums - w * self.self_pair[k] for sums, k in zip(result, orders, strict=True)]
        return [torch.where(self.finite, sums, torch.nan) for sums in result]


@skip_compiler
def pair_row_sums(
    scores: Tensor,
    others: Tensor | None = None,
    *,
    surrogate: str | Surrogate = "sigmoid",
    margin: float | None = None,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    other_groups: Tensor | None = None,
    check: bool | None = None,
) -> Tensor:
    r"""Sum a surrogate over all other rows, for each row; differentiable twice.

    .. math:: r_i = \sum_j w_j \, \phi(m - (s_i - o_j))

    Differentiable in scores, others and weights. Without `others`, the sum is over the other rows
    of the scores, :math:`o_j = s_j` with :math:`j \ne i`. With the default surrogate, r_i is a
    smooth count of the rows that score higher than row i. Takes O(n log n) time and O(n) memory,
    forward and backward.

    Parameters
    ----------
    scores : (n,) or (n, 1) floating tensor
    others : (m,) or (m, 1) floating tensor, optional
    surrogate, margin
        Those of `everypair.pair_row_sums`.
    weights : (m,) tensor, optional
        Weights of the others, or of the scores without `others`. Of any sign.
    groups, other_groups : (n,) and (m,) tensors of whole numbers, optional
        Only pairs inside a group count. With `others`, both or none are needed.
    check : bool, optional
        Whether to raise if a score or a weight is not finite. The default is True on the CPU and
        False elsewhere, where it would wait for the device. Without the check, a score that is not
        finite makes all results NaN.

    Returns
    -------
    (n,) tensor
        float64 if scores or others are float64, else float32.

    Raises
    ------
    ValueError
        If an argument is not as described.

    See Also
    --------
    everypair.pair_row_sums : The same function on arrays, with more about sign and error.

    Notes
    -----
    On the CPU the sums are computed by everypair's NumPy layer (by the compiled kernel if it is
    installed), elsewhere by torch operations; on devices without float64, on the CPU.
    `torch.compile` breaks the graph at this function, and `torch.vmap` does not support it. A third
    derivative raises an error, except for truncated polynomials, where it is zero.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import pair_row_sums
    >>> scores = torch.tensor([0.0, 100.0, 200.0], requires_grad=True)
    >>> sums = pair_row_sums(scores)
    >>> sums.round().int().tolist()  # how many rows score higher
    [2, 1, 0]
    >>> pair_row_sums(scores, surrogate="square", margin=0).sum().backward()
    >>> scores.grad.tolist()
    [-1200.0, 0.0, 1200.0]
    """
    chosen = surrogates.get(surrogate)
    margin = pair_options.check_margin(margin, chosen.default_margin)
    check_scores(scores, "scores")
    x = scores.reshape(-1)
    if others is None:
        y = x
    else:
        check_scores(others, "others", device=scores.device)
        y = others.reshape(-1)
    dtype = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.float32
    w = torch.ones_like(y, dtype=dtype)
    if weights is not None:
        check_rows(weights, "weights", y.shape, 1, y.device)
        w = weights.reshape(-1)
    codes = _codes(groups, other_groups, x, None if others is None else y)
    if x.numel() == 0 or y.numel() == 0:
        return (x * 0.0 + (y * w).sum() * 0.0).to(dtype)
    if scores.is_cpu if check is None else check:
        for tensor, name in ((x, "scores"), (y, "others"), (w, "weights")):
            _raise_if_not_finite(tensor, name)
    pairs = all_pairs(x, y, chosen, margin, codes, wide=dtype is torch.float64)
    return row_sums(x, y, w, pairs, 0, False, dtype)


def all_pairs(
    x: Tensor, y: Tensor, surrogate: Surrogate, margin: float, groups: Groups, *, wide: bool
) -> Pairs:
    """Prepare the sums over all pairs of rows x (n,) and other rows y (m,).

    If `y` is `x`, pairs of rows with themselves do not count. `wide` asks for the accuracy of
    float64. The first argument of `row_sums` is `x`, and not a copy, for gradients.
    """
    terms = surrogate.at_margin(margin)
    self_pair = own_pair(terms, wide=wide) if y is x else None
    x, y = x.detach().double(), y.detach().double()
    on_cpu = _dispatch.choose_backend(x) == "cpu" or x.device.type == "mps"
    plan: Plan | RowSums
    if on_cpu:
        codes = None if groups is None else (array_from(groups[0]), array_from(groups[1]))
        plan = Plan(array_from(x), array_from(y), terms, codes, wide=wide)
    else:
        compensated = needs_low_parts(terms, wide=wide, weighted=True, grouped=groups is not None)
        xp = TorchArrays(x, compensated=compensated)
        plan = RowSums(xp, x, y, groups, by_kind(terms, wide=wide))
    finite = x.isfinite().all() & y.isfinite().all()
    return Pairs(plan, on_cpu, self_pair, surrogate.is_polynomial, finite)


class _RowSums(Function):
    """Sums for each of the rows `x` over the rows `y`.

    `x` are the rows and `y` the other rows, or the reverse with `per_other`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(x, y, weights)
        ctx.options = pairs, order, per_other, dtype = options
        # The slopes that backward needs share most of their work with the values.
        orders = (order, order + 1) if ctx.needs_input_grad[0] and order < 2 else (order,)
        sums, *ctx.slopes = pairs.sums(weights, orders, per_other)
        return cast("Tensor", sums.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weights = ctx.saved_tensors
        pairs, order, per_other, dtype = ctx.options
        sign = 1.0 if per_other else -1.0
        for_own = for_other = for_weights = None
        if order == 2 and any(ctx.needs_input_grad[:2]) and not pairs.third_is_zero:
            raise RuntimeError(
                "pair_row_sums must not be differentiated three times with a smooth surrogate, "
                "whose third derivative is not implemented. Detach the second derivative, or use a "
                "surrogate of polynomials, whose third derivative is zero between knots."
            )
        if ctx.needs_input_grad[0] and order < 2:
            slopes = ctx.slopes[0]
            if torch.is_grad_enabled():  # for the derivatives of the gradient
                slopes = row_sums(x, y, weights, pairs, order + 1, per_other, dtype)
            for_own = (sign * grad * slopes).to(x.dtype)
        if ctx.needs_input_grad[1] and order < 2:
            slopes = _again(y, x, grad, pairs, order + 1, not per_other, dtype)
            for_other = (-sign * weights * slopes).to(y.dtype)
        if ctx.needs_input_grad[2]:
            for_weights = _again(y, x, grad, pairs, order, not per_other, dtype)
            for_weights = for_weights.to(weights.dtype)
        return for_own, for_other, for_weights, *[None] * 4


row_sums = cast("Callable[..., Tensor]", _RowSums.apply)
"""(x, y, weights, pairs, order, per_other, dtype): see `_RowSums`."""


def _again(x: Tensor, y: Tensor, weights: Tensor, *options: Any) -> Tensor:
    """Return `row_sums` in a backward; part of a graph only if there is one."""
    if torch.is_grad_enabled():
        return row_sums(x, y, weights, *options)
    pairs, order, per_other, dtype = options
    return cast("Tensor", pairs.sums(weights, (order,), per_other)[0].to(dtype))


def _codes(
    groups: Tensor | None, other_groups: Tensor | None, x: Tensor, others: Tensor | None
) -> Groups:
    """Return the numbers of the groups of rows and others, after checking them."""
    arguments = [groups] if others is None else [groups, other_groups]
    if (others is None and other_groups is not None) or len({g is None for g in arguments}) > 1:
        raise ValueError(
            "groups and other_groups must be given together with others, and groups alone without "
            "others; one of them is missing or too much."
        )
    if groups is None:
        return None
    check_groups(groups, "groups", x.shape, x.device)
    if others is None or other_groups is None:
        (codes,) = group_codes(groups.reshape(-1))
        return codes, codes
    check_groups(other_groups, "other_groups", others.shape, others.device)
    codes, other_codes = group_codes(groups.reshape(-1), other_groups.reshape(-1))
    return codes, other_codes


def group_codes(*groups: Tensor) -> list[Tensor]:
    """Return numbers from 0 for the groups of several sets of rows, equal for equal groups."""
    codes = torch.unique(torch.cat(groups), return_inverse=True)[1]
    return list(codes.split([of_set.numel() for of_set in groups]))


def _raise_if_not_finite(tensor: Tensor, name: str) -> None:
    finite = tensor.detach().isfinite()
    if not bool(finite.all()):
        i = int(finite.int().argmin())
        messages.raise_not_finite(name, tensor[i].item(), i)
