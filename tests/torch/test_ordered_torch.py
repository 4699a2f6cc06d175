"""Ordered pairs, survival times and partial AUC of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import everypair as ep
from everypair import surrogates
from everypair.torch import PairLoss, _arrays, pair_derivatives, pair_loss

from ..laws import ORDERED_LAWS, examples_over
from .backends import BACKENDS

globals().update(ORDERED_LAWS)


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    # Torch operations take milliseconds for each level of a small batch.
    with examples_over(3 if request.param.name == "torch" else 12):
        yield request.param


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    scores, times = rng.normal(size=n), rng.integers(0, 9, n).astype(float)
    return (*map(torch.tensor, (scores, times)), torch.tensor(rng.random(n) < 0.6))


def test_forms_of_survival_labels():
    scores, times, events = table()
    expected = ep.pair_loss(scores, (times, events), pairs="survival")
    columns = torch.stack([times, events.double()], 1)
    for labels in ((times, events), columns, torch.where(events, times, -times)):
        assert pair_loss(scores, labels, pairs="survival").item() == pytest.approx(expected)
        assert PairLoss(pairs="survival")(scores[:, None], labels).item() == pytest.approx(expected)
    whole = (times.long(), events.int())
    assert pair_loss(scores, whole, pairs="survival").item() == pytest.approx(expected)


@pytest.mark.parametrize("rates", [(0.3, 0.2), (1e-9, 0.2), (0.3, 1.0 - 1e-9)])
def test_partial_losses_of_tasks_and_groups(rates):
    scores, times, _ = table()
    labels, groups = times > 5, torch.arange(40) % 3
    both = torch.stack([scores, -scores], 1)
    options = {"groups": groups, "max_fpr": rates[0], "min_tpr": rates[1]}
    found = pair_derivatives(both, torch.stack([labels, labels], 1), **options)
    for k, x in enumerate((scores, -scores)):
        expected = ep.pair_derivatives(x, labels, **options)
        assert found.value[k].item() == pytest.approx(expected.value)
        np.testing.assert_allclose(found.grad[:, k], expected.grad, atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.tensor([0, 1, 2]), {}, "pairs='ordered'"),
        (torch.tensor([0, torch.nan, 2]), {"pairs": "ordered"}, "nan"),
        ((torch.ones(3), torch.ones(2)), {"pairs": "survival"}, "one event per time"),
        ((torch.ones(3), torch.full((3,), 2)), {"pairs": "survival"}, r"events .* got 2 .*index 0"),
        ((-torch.ones(3), torch.ones(3)), {"pairs": "survival"}, r"at least 0; got -1.0 .*index 0"),
        ([1, 2, 3], {"pairs": "survival"}, "must be a tensor"),
        (([1, 2, 3], [0, 0, 1]), {"pairs": "survival"}, "must be a tensor"),
    ],
)
def test_wrong_labels(labels, options, message):
    with pytest.raises(ValueError, match=message):
        pair_loss(torch.zeros(3), labels, **options)


@pytest.mark.parametrize("pairs", ["ordered", "survival", "uno"])
def test_no_value_is_read_back(pairs):
    """A fake tensor has no values, so that reading one raises an error."""
    terms = surrogates.get("squared_hinge").at_margin(1.0)
    with FakeTensorMode():
        scores, targets = torch.randn(50), torch.randn(50)
        groups = torch.zeros(50, dtype=torch.int64)
        for weights in (None, torch.rand(50)):
            found = _arrays.evaluate_ranked(
                scores, targets, weights, groups, scores, terms, pairs,
                mean=True, grad=True, hess=True,
            )  # fmt: skip
            assert found.grad.shape == (50,)
            kept = _arrays.hardest_weights(scores, targets > 0.0, weights, groups, 0.1, 0.2)
            assert kept.shape == (50,)
