"""The public functions `pair_loss` and `pair_derivatives`, on tensors."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from torch import Tensor

from everypair.inputs import pair_options
from everypair.surrogates import Surrogate
from everypair.torch import _dispatch
from everypair.torch._autograd import loss_and_pair_weight
from everypair.torch._inputs import Labels, checked, in_columns, in_rows
from everypair.torch._options import loss_options


class PairDerivatives(NamedTuple):
    """A loss, its gradient and the diagonal of its Hessian, none of them part of a graph.

    Attributes
    ----------
    value : () or (tasks,) tensor
        float64 for float64 scores, float32 for all others.
    grad, hess : (n,) or (n, tasks) tensor
        With the dtype of the scores.
    """

    value: Tensor
    grad: Tensor
    hess: Tensor


def pair_loss(
    scores: Tensor,
    labels: Labels,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    check: bool | None = None,
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> Tensor:
    r"""Average a surrogate over all pairs that should be in order; differentiable in the scores.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in P} \sum_{j \in N} \phi(m - (s_i - s_j))

    Takes O(n log n) time at most, and O(n) memory. On the CPU the compiled kernel reads the tensors
    without a copy.

    Parameters
    ----------
    scores : (n,) or (n, tasks) floating tensor
        Model outputs; larger means more positive. Logits are fine. Tasks have no pairs in common.
    labels : tensor of the shape of the scores
        Coded {0, 1}, {-1, +1} or bool, of any type. With two-dimensional scores, a label that is
        NaN is missing: its row is left out of that task. With ``pairs="ordered"``, grades or real
        numbers. With ``pairs="survival"``, a tuple (times, events) of such tensors, times that are
        negative where they are censored, or for one task columns (time, event) of shape (n, 2).
        Labels that require a gradient raise an error.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or a `Surrogate`.
    margin : float, optional
        The lead in score that a positive should have over a negative; at least 0. The default is
        that of the surrogate: 1 for the square and the hinges, 0 for the smooth ones.
    weights : (n,) or (n, tasks) tensor, optional
        A pair weighs the product of its two weights. Finite and at least 0; no gradient, as labels.
    groups : (n,) tensor of whole numbers, optional
        Only pairs inside a group count, for example a query, a patient or a day.
    reduction : {"mean", "sum", "none"}
        The mean divides by the total weight of all pairs; over tasks, it is the mean of those that
        have a pair. "none" gives one mean for each task.
    check : bool, optional
        Whether to raise on bad values: scores that are not finite, labels of other codes, negative
        weights. The default is True on the CPU, where checking is free, and False elsewhere, where
        it would wait for the device. Without the check, a score that is not finite gives a loss of
        NaN, a label is positive if it is larger than zero, and a label that is NaN may count as
        negative or be left out. On the CPU, labels and weights are always checked.
    pairs, censoring, max_fpr, min_tpr
        Those of `everypair.pair_loss`: which pairs count. The rows of a partial AUC are selected by
        the scores of this call, and the selection is not differentiated. On an accelerator, ordered
        pairs take as many sums as n has bits, because counting the targets would wait for the
        device; 8 if labels are bytes.

    Returns
    -------
    Tensor
        Of shape (), or (tasks,) with ``reduction="none"``. Zero, with a gradient of zero, if there
        is no pair, as with one class only. float64 for float64 scores, float32 for all others.

    Raises
    ------
    ValueError
        If an argument is not as described; the message names it, the value and what to do.
    OverflowError
        On the CPU, if the loss or its gradient exceeds the range of float64. Otherwise a loss that
        is too large for its type is infinite.

    See Also
    --------
    PairLoss : The same as a module, which counts batches without a pair.
    pair_derivatives : Value, gradient and diagonal Hessian together, without a graph.

    Notes
    -----
    Can be differentiated twice, in reverse and in forward mode (a third derivative of a smooth
    surrogate raises an error); works with `torch.compile`, `torch.export`, `torch.func` and
    `torch.vmap`. At the knot of a surrogate with a kink, the slope is that from below. The gradient
    of finite scores is finite: entries beyond the range of the scores' type are clamped to it. This
    does not hold for float32 and float64 on a GPU: there such entries are infinite, for example in
    a sum over scores of 1e36.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import pair_loss
    >>> scores = torch.tensor([0.5, 2.0, 0.0, 1.0], requires_grad=True)
    >>> loss = pair_loss(scores, torch.tensor([1, 1, 0, 0]))  # shortfalls 0.5, 1.5, -1 and 0
    >>> loss.item()
    0.625
    >>> loss.backward()
    >>> scores.grad
    tensor([-1.0000,  0.0000,  0.2500,  0.7500])

    Two tasks. The first row has no label in the second task, which then has one class only:

    >>> labels = torch.tensor([[1, torch.nan], [1, 0], [0, 0], [0, 0]])
    >>> pair_loss(scores[:, None].expand(4, 2), labels, reduction="none").tolist()
    [0.625, 0.0]
    """
    options = loss_options(surrogate, margin, reduction, check, pairs, censoring, max_fpr, min_tpr)
    return loss_and_pair_weight(scores, labels, weights, groups, options)[0]


def pair_derivatives(
    scores: Tensor,
    labels: Labels,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    check: bool | None = None,
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> PairDerivatives:
    """Return the mean over all pairs with its gradient and diagonal Hessian in the scores.

    One evaluation on the device of the scores, without a graph, as for a Newton step or a round of
    gradient boosting. The formula is that of `pair_loss`.

    Parameters
    ----------
    scores, labels, surrogate, margin, weights, groups, check, pairs, censoring, max_fpr, min_tpr
        Those of `pair_loss`.
    reduction : {"mean", "sum"}
        The mean divides by the total weight of all pairs, for each task.

    Returns
    -------
    PairDerivatives
        The fields `value`, `grad` and `hess`. Tasks are not reduced: scores of shape (n, tasks)
        give one value for each task, and each column of `grad` and `hess` holds the derivatives of
        the loss of its own task.

    Raises
    ------
    ValueError
        If an argument is not as described; the message names it, the value and what to do.

    See Also
    --------
    everypair.pair_derivatives : The same function on arrays.

    Notes
    -----
    The Hessian is the second derivative almost everywhere: a jump of the slope at a knot adds
    nothing to it, so the Hessian of the linear hinge is zero. Entries beyond the range of the
    scores' type are clamped to it, like those of the gradient.

    `torch.compile` breaks the graph at this function. For `torch.vmap`, pass the batches as tasks.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import pair_derivatives
    >>> found = pair_derivatives(torch.tensor([0.5, 2.0, 0.0, 1.0]), torch.tensor([1, 1, 0, 0]))
    >>> found.value.item()
    0.625
    >>> found.grad
    tensor([-1.0000,  0.0000,  0.2500,  0.7500])
    >>> found.hess
    tensor([1.0000, 0.0000, 0.5000, 0.5000])
    """
    pair_options.check_reduction(reduction)
    options = loss_options(surrogate, margin, reduction, check, pairs, censoring, max_fpr, min_tpr)
    labels, weights, options = checked(scores, labels, weights, groups, options)
    rows = in_rows(scores.detach(), labels, weights, groups)
    result = _dispatch.evaluate(*rows, options, grad=True, hess=True)
    grad, hess = (
        in_columns(cast("Tensor", derivative), scores).to(scores.dtype)
        for derivative in (result.grad, result.hess)
    )
    return PairDerivatives(result.value.reshape(scores.shape[1:]), grad, hess)
