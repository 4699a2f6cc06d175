"""Validation of input: allowed shapes and types, and the messages of errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from everypair.torch import PairLoss, pair_derivatives, pair_loss

SCORES = torch.tensor([0.5, 2.0, 0.0, 1.0])
LABELS = torch.tensor([1, 1, 0, 0])
LOSS = 0.625


@pytest.mark.parametrize("scores", [SCORES, SCORES[:, None]], ids=["(n,)", "(n, 1)"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None]], ids=["(n,)", "(n, 1)"])
@pytest.mark.parametrize(
    "weights",
    [None, torch.ones(4), torch.full((4, 1), 1e-200, dtype=torch.float64)],
    ids=["unweighted", "(n,)", "(n, 1), whose products underflow"],
)
def test_one_task_may_have_one_or_two_dimensions(torch_backend, scores, labels, weights):
    leaf = scores.clone().requires_grad_()
    loss = pair_loss(leaf, labels, weights=weights)
    loss.backward()
    assert loss.shape == ()
    assert loss.item() == LOSS
    assert leaf.grad.shape == scores.shape


@pytest.mark.parametrize("groups", [None, torch.zeros(4, dtype=torch.int64)])
@pytest.mark.parametrize("scores", [SCORES, torch.stack([SCORES, SCORES], 1)], ids=["one", "two"])
def test_the_default_device_does_not_move_the_loss(scores, groups):
    labels = LABELS.reshape(4, *[1] * (scores.dim() - 1)).expand_as(scores)
    for requires_grad in (True, False):
        leaf = scores.clone().requires_grad_(requires_grad)
        with torch.device("meta"):
            loss = pair_loss(leaf, labels, groups=groups)
        assert loss.item() == LOSS


@pytest.mark.parametrize(
    ("surrogate", "pairs"),
    [("linear_hinge", "binary"), ("logistic", "binary"), ("squared_hinge", "ordered")],
)
def test_each_task_is_a_loss_of_its_own(torch_backend, surrogate, pairs):
    """Of four tasks, the last has one class; a label that is NaN leaves its row out of one task."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(30, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 2, (30, 4), generator=generator) * 2.0 - 1.0
    labels[:, 3] = 1.0
    labels[5] = labels[::3, 0] = torch.nan
    weights, groups = torch.rand(30, 4, generator=generator), torch.arange(30) % 3
    options = {"surrogate": surrogate, "pairs": pairs, "weights": weights, "groups": groups}
    found = pair_derivatives(scores, labels, **options)
    for k in range(4):
        known = ~labels[:, k].isnan()
        data = {"weights": weights[known, k], "groups": groups[known]}
        alone = pair_derivatives(scores[known, k], labels[known, k], **{**options, **data})
        for of_tasks, of_task in zip(found, alone, strict=True):
            task = of_tasks[..., k]
            torch.testing.assert_close(task if task.dim() == 0 else task[known], of_task)
        assert not found.grad[~known, k].any()
        assert not found.hess[~known, k].any()
    losses = pair_loss(scores, labels, **options, reduction="none")
    torch.testing.assert_close(losses.detach(), found.value)
    criterion = PairLoss(surrogate=surrogate, pairs=pairs)
    loss = criterion(scores, labels, weights, groups)
    assert criterion.n_one_class == 1
    torch.testing.assert_close(loss.detach(), found.value[:3].mean())
    torch.testing.assert_close(torch.autograd.grad(loss, scores)[0], found.grad / 3)
    options["weights"] = weights[:, 0]  # the same for all tasks
    one, all_tasks = (pair_derivatives(scores[:, :t], labels[:, :t], **options) for t in (1, 4))
    torch.testing.assert_close(all_tasks.grad[:, :1], one.grad)


@pytest.mark.parametrize("column", [0, 1])
def test_a_score_that_is_not_finite_affects_its_own_task_only(torch_backend, column):
    scores = torch.stack([SCORES, -SCORES], 1)
    scores[2, column] = torch.inf
    labels = LABELS[:, None].expand(4, 2)
    found = pair_derivatives(scores, labels, check=False)
    alone = pair_derivatives(scores[:, 1 - column], LABELS)
    for tensor, sound in zip(found, alone, strict=True):
        assert tensor[..., column].isnan().all()
        torch.testing.assert_close(tensor[..., 1 - column], sound)
    losses = pair_loss(scores.requires_grad_(), labels, check=False, reduction="none")
    assert losses.isnan().tolist() == [column == 0, column == 1]
    for function in (pair_loss, pair_derivatives):
        with pytest.raises(ValueError, match=f"in column {column}, scores must .* got inf .* 2"):
            function(scores, labels, check=True)


def test_reductions_and_their_shapes(torch_backend):
    both, labels = torch.stack([SCORES, -SCORES], 1), LABELS[:, None].expand(4, 2)
    assert pair_loss(SCORES, LABELS, reduction="none").shape == ()
    assert pair_loss(SCORES[:, None], LABELS, reduction="none").shape == (1,)
    assert pair_loss(both, labels, reduction="none").shape == (2,)
    assert pair_loss(SCORES, LABELS, reduction="sum").item() == 4 * LOSS
    want = sum(pair_loss(s, LABELS, reduction="sum") for s in both.T)
    torch.testing.assert_close(pair_loss(both, labels, reduction="sum"), want)


def test_negated_views_are_resolved():
    imaginary = torch.complex(torch.zeros(4), -SCORES).conj()
    scores = imaginary.imag
    assert scores.is_neg()
    assert pair_loss(scores, LABELS).item() == LOSS
    assert pair_loss(scores.detach().requires_grad_(), LABELS).item() == LOSS


MANY = torch.zeros(4, 2)
BAD = {
    "scores must be a tensor; got list": ([0.5, 1.0], LABELS),
    "labels must be a tensor; got ndarray": (SCORES, np.array([1, 1, 0, 0])),
    "scores must be floats, .* got torch.int64": (LABELS, LABELS),
    "scores must be floats, .* got torch.complex64": (SCORES + 0j, LABELS),
    r"scores must have the shape \(n,\) or \(n, tasks\); got \(2, 2, 1\)": (
        SCORES.reshape(2, 2, 1),
        LABELS,
    ),
    r"scores must have the shape \(n,\) or \(n, tasks\); got \(\)": (SCORES[0], LABELS),
    r"scores must hold at least one row and one task; got the shape \(0,\)": (
        SCORES[:0],
        LABELS[:0],
    ),
    r"scores must hold .* got the shape \(4, 0\)": (MANY[:, :0], MANY[:, :0]),
    r"labels must have the shape \(4,\) for scores of shape \(4,\); got \(3,\)": (
        SCORES,
        LABELS[:3],
    ),
    r"labels must have the shape \(4, 2\) for scores .* got \(4, 3\)": (MANY, torch.zeros(4, 3)),
    r"labels must have one column per task; got the shape \(4,\) .* \(4, 2\)": (MANY, LABELS),
    r"labels must have one column per task; got the shape \(4, 1\)": (MANY, LABELS[:, None]),
    r"for two logits scores\[:, 1\] - scores\[:, 0\]": (MANY, LABELS),
    "labels must be whole numbers, bools or floats; got torch.complex64": (SCORES, LABELS + 0j),
    r"labels must have the shape .* got \(4,\)\. .* one row of 4 tasks: pass scores\[0\]": (
        SCORES[None],
        LABELS,
    ),
    "scores must be a dense tensor; got the layout torch.sparse_coo": (SCORES.to_sparse(), LABELS),
    "labels must be a dense tensor; .* Pass labels.to_dense": (SCORES, LABELS.to_sparse()),
    "labels must be on the device of the scores; got labels on cpu and scores on meta": (
        SCORES.to("meta"),
        LABELS,
    ),
    "labels must be on the device of the scores; got labels on meta and scores on cpu": (
        SCORES,
        LABELS.to("meta"),
    ),
}


BAD_DATA = {
    r"weights must have the shape \(4,\) .* got \(5,\)": {"weights": torch.ones(5)},
    "weights must be on the device of the scores; got weights on meta": {
        "weights": torch.ones(4, device="meta")
    },
    "weights must not require a gradient": {"weights": torch.ones(4, requires_grad=True)},
    "weights must be real numbers; got torch.complex64": {"weights": torch.ones(4) + 0j},
    r"groups must have the shape \(4,\) .* got \(4, 2\)": {"groups": torch.zeros(4, 2).long()},
    "groups must be whole numbers, .* got torch.float32": {"groups": torch.zeros(4)},
    "groups must be a tensor; got list": {"groups": ["a", "b", "a", "b"]},
}
BAD_OPTIONS = {
    "margin must be a finite number of at least 0; got -1": {"margin": -1},
    "surrogate must be one of .* Did you mean 'huber_hinge'": {"surrogate": "huber"},
    "reduction must be 'mean' .* got 'avg'": {"reduction": "avg"},
    "pairs must be": {"pairs": "all"},
    "max_fpr and min_tpr must be left out": {"pairs": "ordered", "max_fpr": 0.5},
}


def trained(scores, labels, **options):
    """Call `pair_loss` as a training does: scores with a gradient take a path of their own."""
    if isinstance(scores, torch.Tensor) and scores.is_floating_point():
        scores = scores.detach().requires_grad_()
    return pair_loss(scores, labels, **options)


@pytest.mark.parametrize("message", [*BAD, *BAD_DATA, *BAD_OPTIONS])
@pytest.mark.parametrize("function", [pair_loss, trained, pair_derivatives])
def test_bad_arguments_raise(function, message):
    options = {**BAD_DATA, **BAD_OPTIONS}.get(message, {})
    with pytest.raises(ValueError, match=message):
        function(*BAD.get(message, (SCORES, LABELS)), **options)


PROCESS_OPTIONS = {
    "'world' or None; got 'all'": {"process_group": "all"},
    "gradients must be": {"gradients": "mean"},
}


@pytest.mark.parametrize("message", [*BAD_OPTIONS, *PROCESS_OPTIONS])
def test_the_module_checks_options_when_it_is_created(message):
    with pytest.raises(ValueError, match=message):
        PairLoss(**{**BAD_OPTIONS, **PROCESS_OPTIONS}[message])


def test_options_of_the_module_are_shown_and_checked_when_they_change():
    for text in ("pairs='survival', censoring='uno'", "max_fpr=0.1", "process_group='world'"):
        assert text in repr(copy.deepcopy(eval(f"PairLoss({text})")))
    assert PairLoss(surrogate="logistic").margin == 0.0
    criterion = PairLoss(margin=0.5)
    with pytest.raises(ValueError, match="margin must be"):
        criterion.margin = -1
    assert criterion.margin == 0.5
    criterion.margin = 2.0
    assert criterion(torch.tensor([1.0, 2.0]), torch.tensor([1, 0])).item() == 9.0


def test_derivatives_have_no_reduction_per_task():
    with pytest.raises(ValueError, match=r"reduction must be 'mean' .* got 'none'"):
        pair_derivatives(SCORES, LABELS, reduction="none")


@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_labels_that_require_a_gradient_raise(pairs, requires_grad):
    scores = SCORES.clone().requires_grad_(requires_grad)
    labels = LABELS.float().requires_grad_()
    if pairs == "survival":
        labels = (labels + 1.0, LABELS.bool())
    with pytest.raises(ValueError, match=r"labels must not require .* Pass labels.detach\(\)"):
        PairLoss(pairs=pairs)(scores, labels)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(
    ("message", "labels"),
    [
        (r"coded \{0, 1\} or \{-1, \+1\}; got 2 \(first at index 3\)", [1, 1, 0, 2]),
        (r"got 0.5 \(first at index 1\)", [1, 0.5, 0, 0]),
        (r"got nan \(first at index 2\)", [1, 1, np.nan, 0]),
        (r"not a mix; got 0 \(first at index 2\) and -1 \(first at index 3\)", [1, 1, 0, -1]),
    ],
)
def test_labels_with_bad_values_raise(torch_backend, message, labels, requires_grad):
    scores = SCORES.clone().requires_grad_(requires_grad)
    with pytest.raises(ValueError, match=message):
        pair_loss(scores, torch.tensor(labels))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_weights_with_bad_values_raise(torch_backend, bad):
    with pytest.raises(ValueError, match=rf"weights must be .* got {bad} \(first at index 1\)"):
        pair_loss(SCORES, LABELS, weights=torch.tensor([1.0, bad, 1.0, 1.0]))


def test_the_error_names_the_column_of_a_bad_label(torch_backend):
    labels = torch.stack([LABELS, torch.tensor([1, 3, 0, 0])], 1)
    message = r"in column 1, labels must .* got 3 \(first at index 1\)"
    with pytest.raises(ValueError, match=message):
        pair_loss(MANY, labels)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_scores_that_are_not_finite_raise_or_give_nan(torch_backend, bad, dtype):
    scores = torch.tensor([0.5, 2.0, bad, 1.0], dtype=dtype, requires_grad=True)
    with pytest.raises(ValueError, match=rf"scores must be finite; got {bad} \(first at index 2\)"):
        pair_loss(scores, LABELS)
    loss = pair_loss(scores, LABELS, check=False)
    assert loss.isnan()
    loss.backward()
    assert scores.grad.dtype is dtype


def test_whole_numbers_that_float64_does_not_hold_are_refused():
    scores, times = torch.zeros(2), torch.tensor([2**53, 2**53 + 1])
    for labels in (times, (times, torch.ones(2))):
        with pytest.raises(ValueError, match="float64 holds; got 9007199254740993"):
            pair_loss(scores, labels, pairs="survival")


def test_labels_on_the_cpu_are_checked_even_with_check_false():
    with pytest.raises(ValueError, match="got 2"):
        PairLoss(check=False)(SCORES, torch.tensor([1, 1, 0, 2]))
