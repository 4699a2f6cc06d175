"""The loss over every pair and its derivatives, as functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from everypair import _inputs, surrogates
from everypair._inputs import check_margin
from everypair.torch import _dispatch
from everypair.torch._autograd import pair_values
from everypair.torch._dispatch import Question
from everypair.torch._inputs import check_reduction, data_for, score_rows

if TYPE_CHECKING:
    from torch import Tensor

    from everypair.surrogates import KnotTerm, Surrogate

__all__ = ["PairDerivatives", "loss_and_pair_weight", "pair_derivatives", "pair_loss"]


class PairDerivatives(NamedTuple):
    """A loss, its gradient and the diagonal of its Hessian, none of them part of a graph.

    Attributes
    ----------
    value : () or (tasks,) tensor
        float64 for float64 scores, float32 for all others.
    grad, hess : tensor
        Of the shape and the dtype of the scores.
    """

    value: Tensor
    grad: Tensor
    hess: Tensor


def pair_loss(
    scores: Tensor,
    labels: Tensor,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    check: bool | None = None,
) -> Tensor:
    """Average a surrogate over every (positive, negative) pair; differentiable in the scores.

    Takes the time of a sort at most, and O(n) memory. On the CPU the compiled kernel reads the
    tensors where they are.

    Parameters
    ----------
    scores : (n,) or (n, tasks) floating tensor
        Larger means more positive; logits are fine. Several tasks have no pairs in common.
    labels : tensor of the shape of the scores
        Coded {0, 1}, {-1, +1} or bool, of any type. With two-dimensional scores, a label that is
        NaN is missing: its row takes no part in that task.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or one of your own.
    margin : float
        The lead in score that a positive should have over a negative; at least 0.
    weights : (n,) or (n, tasks) tensor, optional
        A pair weighs the product of its two weights. Finite and at least 0.
    groups : (n,) tensor of whole numbers, optional
        Only pairs inside a group count: queries, patients, days.
    reduction : {"mean", "sum", "none"}
        The mean divides by the total weight of all pairs; over tasks, it is the mean of those that
        have a pair. "none" gives one mean for each task.
    check : bool, optional
        Whether bad values raise: scores that are not finite, labels of other codes, negative
        weights. By default they do on the CPU, where checking is free, and not elsewhere, where the
        program would have to wait for the device. Unchecked, a score that is not finite gives a
        loss of NaN, a label is positive if it is larger than zero, and one that is NaN may count as
        negative or not at all. On the CPU, labels and weights are always checked.

    Returns
    -------
    Tensor
        A number, or one for each task. Zero, with a gradient of zero, where there is no pair, as
        with one class only. float64 for float64 scores, float32 for all others.

    Raises
    ------
    ValueError
        If an argument is not as described; the message says which, where and what to do.

    See Also
    --------
    PairLoss : The same as a module, which counts the batches without a pair.
    pair_derivatives : Value, gradient and diagonal Hessian at once, without a graph.

    Notes
    -----
    Can be differentiated twice, in reverse and in forward mode; works under `torch.compile`,
    `torch.export`, `torch.func` and `torch.vmap`. At the knot of a surrogate with a kink, the slope
    is that from below. The gradient of finite scores is finite: entries beyond the range of the
    scores' type are cut to it (not so on a GPU for float32 and float64, where they are infinite, as
    in a sum over scores of 1e36). The loss itself may be infinite if it is larger than its type
    holds.

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

    Two tasks; the first row has no label in the second one, which is left with one class:

    >>> labels = torch.tensor([[1, torch.nan], [1, 0], [0, 0], [0, 0]])
    >>> pair_loss(scores[:, None].expand(4, 2), labels, reduction="none").tolist()
    [0.625, 0.0]
    """
    terms = surrogates.get(surrogate).at_knots(check_margin(margin))
    return loss_and_pair_weight(
        scores, labels, weights, groups, terms, check_reduction(reduction), check
    )[0]


def pair_derivatives(
    scores: Tensor,
    labels: Tensor,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    check: bool | None = None,
) -> PairDerivatives:
    """Average a surrogate over every pair, with gradient and diagonal Hessian in the scores.

    One evaluation where the scores are, on any device, without a graph: what a Newton step or a
    round of gradient boosting asks for.

    Parameters
    ----------
    scores, labels, surrogate, margin, weights, groups, check
        Those of `pair_loss`.
    reduction : {"mean", "sum"}
        The mean divides by the total weight of all pairs, task by task.

    Returns
    -------
    PairDerivatives
        The fields `value`, `grad` and `hess`. Tasks are not reduced: scores of shape (n, tasks)
        give one value for each task, and each column of `grad` and `hess` belongs to the loss of
        its own task. These are the derivatives of the sum over tasks of
        ``pair_loss(..., reduction="none")``.

    Raises
    ------
    ValueError
        If an argument is not as described; the message says which, where and what to do.

    See Also
    --------
    everypair.pair_derivatives : The same on arrays.

    Notes
    -----
    The Hessian is the second derivative almost everywhere: a jump of the slope at a knot adds
    nothing to it, so that of the linear hinge is zero. Entries beyond the range of the scores' type
    are cut to it, as those of the gradient are.

    `torch.compile` runs it between two graphs. For `torch.vmap`, pass the batches as tasks.

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
    terms = surrogates.get(surrogate).at_knots(check_margin(margin))
    mean = _inputs.check_reduction(reduction)
    data = data_for(scores, labels, weights, groups)
    of_tasks = scores.dim() == 2
    question = Question(
        terms,
        mean,
        scores.is_cpu if check is None else check,
        of_tasks and labels.is_floating_point(),
    )
    rows = score_rows(scores.detach())
    answer = _dispatch.evaluate(rows, *data, question, grad=True, hess=True)
    value, dtype = answer.values, scores.dtype
    grad, hess = cast("Tensor", answer.grad).to(dtype), cast("Tensor", answer.hess).to(dtype)
    if not of_tasks:
        return PairDerivatives(value, grad, hess)
    n_tasks = scores.shape[1]
    return PairDerivatives(
        value.reshape(n_tasks), grad.reshape(n_tasks, -1).t(), hess.reshape(n_tasks, -1).t()
    )


def loss_and_pair_weight(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    groups: Tensor | None,
    terms: tuple[KnotTerm, ...],
    reduction: str,
    check: bool | None,
    one_class: Tensor | None = None,
) -> tuple[Tensor, Tensor | float | None]:
    """Return the reduced loss, and the pair weight of each task.

    There is none where `one_class`, a counter of batches of one class, has been advanced already.
    """
    data = data_for(scores, labels, weights, groups)
    of_tasks = scores.dim() == 2
    question = Question(
        terms,
        reduction != "sum",
        scores.is_cpu if check is None else check,
        of_tasks and labels.is_floating_point(),
        one_class if not of_tasks or scores.shape[1] == 1 else None,
    )
    values, pair_weight = pair_values(scores, data, question)
    if not of_tasks:
        return values, pair_weight
    if reduction == "none":
        return values.reshape(scores.shape[1]), pair_weight
    if values.dim() == 1:
        values = values.sum()
        if reduction == "mean":
            values = values / (cast("Tensor", pair_weight) > 0.0).sum().clamp(min=1)
    return values, pair_weight
