"""Whatever arrives at the door: shapes that are welcome, and messages for those that are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everypair as ep
from everypair import _dispatch
from everypair.torch import PairLoss, pair_loss
from everypair.torch._dispatch import forced

WAYS = {"kernel": torch.enable_grad, "operations": lambda: forced("operations")}


@pytest.fixture(params=WAYS)
def way(request):
    with WAYS[request.param]():
        yield


SCORES = torch.tensor([0.5, 2.0, 0.0, 1.0])
LABELS = torch.tensor([1, 1, 0, 0])
LOSS = 0.625


@pytest.mark.parametrize("scores", [SCORES, SCORES[:, None]], ids=["(n,)", "(n, 1)"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None]], ids=["(n,)", "(n, 1)"])
@pytest.mark.parametrize(
    "weights", [None, torch.ones(4), torch.ones(4, 1)], ids=lambda w: "weights"
)
def test_one_column_comes_in_either_shape(way, scores, labels, weights):
    leaf = scores.clone().requires_grad_()
    loss = pair_loss(leaf, labels, weights=weights)
    loss.backward()
    assert loss.shape == ()
    assert loss.item() == LOSS
    assert leaf.grad.shape == scores.shape


@pytest.mark.parametrize("surrogate", ep.surrogates.names())
def test_several_tasks_are_several_losses(way, surrogate):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(30, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 2, (30, 4), generator=generator)
    weights = torch.rand(30, 4, generator=generator)
    groups = torch.arange(30) % 3
    knobs = {"surrogate": surrogate, "weights": weights, "groups": groups}
    alone = torch.stack(
        [
            pair_loss(scores[:, k], labels[:, k], **{**knobs, "weights": weights[:, k]})
            for k in range(4)
        ]
    )
    torch.testing.assert_close(pair_loss(scores, labels, **knobs, reduction="none"), alone)
    torch.testing.assert_close(pair_loss(scores, labels, **knobs), alone.mean())
    (want,) = torch.autograd.grad(alone.mean(), scores)
    (found,) = torch.autograd.grad(pair_loss(scores, labels, **knobs), scores)
    torch.testing.assert_close(found, want)


def test_a_sum_over_tasks_is_the_sum_of_their_sums(way):
    scores, labels = torch.stack([SCORES, -SCORES], 1), torch.stack([LABELS, LABELS], 1)
    want = sum(pair_loss(s, LABELS, reduction="sum") for s in scores.T)
    torch.testing.assert_close(pair_loss(scores, labels, reduction="sum"), want)


def test_reductions_and_their_shapes(way):
    both = torch.stack([SCORES, SCORES], 1)
    assert pair_loss(SCORES, LABELS, reduction="none").shape == ()
    assert pair_loss(SCORES[:, None], LABELS, reduction="none").shape == (1,)
    assert pair_loss(both, LABELS[:, None].expand(4, 2), reduction="none").shape == (2,)
    assert pair_loss(SCORES, LABELS, reduction="sum").item() == 4 * LOSS


def test_a_label_that_is_nan_leaves_its_row_out(way):
    scores = torch.tensor([[0.5, 0.5], [2.0, 2.0], [0.0, 0.0], [1.0, 9.0]], requires_grad=True)
    labels = torch.tensor([[1, 1], [1, 1], [0, 0], [0, torch.nan]])
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
    for knobs in ({}, {"weights": weights}):
        losses = pair_loss(scores, labels, reduction="none", **knobs)
        kept = {k: w[:3] for k, w in knobs.items()}
        torch.testing.assert_close(losses[1], pair_loss(scores[:3, 1], LABELS[:3], **kept))
        losses.sum().backward()
        assert scores.grad[3, 1] == 0.0


def test_missing_labels_in_one_column(way):
    labels = torch.tensor([1, 1, 0, torch.nan])
    found = pair_loss(SCORES[:, None], labels[:, None])
    torch.testing.assert_close(found, pair_loss(SCORES[:3], LABELS[:3]))


def test_labels_coded_with_minus_one_may_be_missing_too(way):
    labels = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, torch.nan]])
    found = pair_loss(torch.stack([SCORES, SCORES], 1), labels, reduction="none")
    torch.testing.assert_close(found[0].item(), LOSS)


def test_a_surrogate_of_ones_own(way):
    steep = ep.Surrogate("steep", [ep.Term(0.0, 3.0, 0.0, knot=0.0)])
    assert pair_loss(SCORES, LABELS, surrogate=steep).item() == 1.5
    assert "steep" in repr(PairLoss(surrogate=steep, margin=0.5))


def test_the_numpy_backend_serves_where_there_is_no_kernel():
    scores = SCORES.clone().requires_grad_()
    with _dispatch.backend("numpy"):
        loss = pair_loss(scores, LABELS)
        loss.backward()
    assert loss.item() == LOSS
    assert scores.grad.tolist() == [-1.0, 0.0, 0.25, 0.75]


def test_negated_views_are_read_as_they_look():
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
    "labels must be whole numbers, bools or floats; got torch.complex64": (SCORES, LABELS + 0j),
    "labels must be on the device of the scores; got labels on cpu and scores on meta": (
        SCORES.to("meta"),
        LABELS,
    ),
    "labels must be on the device of the scores; got labels on meta and scores on cpu": (
        SCORES,
        LABELS.to("meta"),
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_scores_and_labels(message):
    with pytest.raises(ValueError, match=message):
        pair_loss(*BAD[message])


BAD_KNOBS = {
    r"weights must have the shape \(4,\) .* got \(5,\)": {"weights": torch.ones(5)},
    "weights must be on the device of the scores; got weights on meta": {
        "weights": torch.ones(4, device="meta")
    },
    "weights must not require a gradient": {"weights": torch.ones(4, requires_grad=True)},
    "weights must be real numbers; got torch.complex64": {"weights": torch.ones(4) + 0j},
    r"groups must have the shape \(4,\) .* got \(4, 2\)": {"groups": torch.zeros(4, 2).long()},
    "groups must be whole numbers, .* got torch.float32": {"groups": torch.zeros(4)},
    "groups must be a tensor; got list": {"groups": ["a", "b", "a", "b"]},
    "margin must be a finite number of at least 0; got -1": {"margin": -1},
    "surrogate must be one of .* Did you mean 'huber_hinge'": {"surrogate": "huber"},
    "reduction must be 'mean' .* got 'avg'": {"reduction": "avg"},
}


@pytest.mark.parametrize("message", BAD_KNOBS)
def test_bad_knobs(message):
    with pytest.raises(ValueError, match=message):
        pair_loss(SCORES, LABELS, **BAD_KNOBS[message])


@pytest.mark.parametrize("knob", ["margin", "surrogate", "reduction"])
def test_a_module_refuses_bad_knobs_when_it_is_made(knob):
    with pytest.raises(ValueError, match=f"{knob} must be"):
        PairLoss(**{knob: "nonsense"})


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
def test_labels_that_are_none(way, message, labels, requires_grad):
    scores = SCORES.clone().requires_grad_(requires_grad)
    with pytest.raises(ValueError, match=message):
        pair_loss(scores, torch.tensor(labels))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_weights_that_are_none(way, bad):
    with pytest.raises(ValueError, match=rf"weights must be .* got {bad} \(first at index 1\)"):
        pair_loss(SCORES, LABELS, weights=torch.tensor([1.0, bad, 1.0, 1.0]))


def test_a_bad_value_in_a_column_is_found_there(way):
    labels = torch.stack([LABELS, torch.tensor([1, 3, 0, 0])], 1)
    message = r"in column 1, labels must .* got 3 \(first at index 1\)"
    with pytest.raises(ValueError, match=message):
        pair_loss(MANY, labels)
    scores = torch.tensor([[0.0, 0.0], [1.0, torch.inf], [0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"in column 1, scores must be finite; got inf .* 1\)"):
        pair_loss(scores, LABELS[:, None].expand(4, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_scores_that_are_not_finite(way, bad, dtype):
    scores = torch.tensor([0.5, 2.0, bad, 1.0], dtype=dtype, requires_grad=True)
    with pytest.raises(ValueError, match=rf"scores must be finite; got {bad} \(first at index 2\)"):
        pair_loss(scores, LABELS)
    loss = pair_loss(scores, LABELS, check=False)
    assert loss.isnan()
    loss.backward()
    assert scores.grad.dtype is dtype


def test_unchecked_labels_on_the_cpu_are_checked_all_the_same():
    with pytest.raises(ValueError, match="got 2"):
        PairLoss(check=False)(SCORES, torch.tensor([1, 1, 0, 2]))


def test_nan_in_one_column_leaves_the_others_alone(way):
    scores = torch.stack([SCORES, SCORES], 1)
    scores[0, 1] = torch.nan
    losses = pair_loss(scores, LABELS[:, None].expand(4, 2), reduction="none", check=False)
    assert losses[0].item() == LOSS
    assert losses[1].isnan()
