"""Every model returns one score per row, and its weights follow from the seed alone."""

from __future__ import annotations

import pytest
import torch

from everypair.experiments.errors import UserError
from everypair.experiments.training.models import MODELS, build

SHAPES = {
    "linear": [(7,), (1, 8, 8)],
    "mlp": [(7,), (3, 32, 32)],
    "resnet20": [(1, 8, 8), (3, 32, 32), (3, 50, 50), (3, 96, 96)],
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def test_every_model_has_cases():
    assert set(SHAPES) == set(MODELS)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_returns_one_finite_score_per_row(name, shape):
    model = build(name, shape, sigmoid=False, seed=0)
    scores = model(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (3,)
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_weights_follow_from_the_seed_and_the_global_generator_is_unchanged(name):
    shape = SHAPES[name][0]
    before = torch.random.get_rng_state()
    first, again, other = (build(name, shape, sigmoid=False, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_a_sigmoid_has_no_weights(name):
    shape = SHAPES[name][0]
    raw, squeezed = (build(name, shape, sigmoid=s, seed=0).eval() for s in (False, True))
    squeezed.load_state_dict(raw.state_dict())
    inputs = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(squeezed(inputs), raw(inputs).sigmoid())
    assert "sigmoid=True" in repr(squeezed)


def test_resnet20_has_the_published_layers_and_weights():
    model = build("resnet20", (3, 32, 32), sigmoid=False, seed=0)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 20
    # He et al. report 0.27 million weights, with ten outputs instead of one.
    assert sum(p.numel() for p in model.parameters()) == 269_722 - 9 * 65
    features = model.body.blocks(torch.zeros(1, 16, 32, 32))
    assert features.shape == (1, 64, 8, 8)


def test_resnet20_refuses_inputs_that_are_not_images():
    with pytest.raises(UserError, match=r"images of at least 8 x 8 .* \(30,\)\. Choose linear or"):
        build("resnet20", (30,), sigmoid=False, seed=0)
    with pytest.raises(UserError, match="8 x 8"):
        build("resnet20", (3, 4, 4), sigmoid=False, seed=0)


def test_an_unknown_model_is_refused():
    with pytest.raises(UserError, match="model must be one of linear, mlp, resnet20; got 'resnet'"):
        build("resnet", (3, 32, 32), sigmoid=False, seed=0)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (30,)), ("resnet20", (3, 8, 8))])
def test_bfloat16_scores_are_float32_without_ties(name, shape):
    inputs = torch.randn(300, *shape)
    model, exact = (
        build(name, shape, sigmoid=False, seed=0, bf16=bf16).eval() for bf16 in (True, False)
    )
    with torch.no_grad():
        scores = model(inputs)
        torch.testing.assert_close(scores, exact(inputs), rtol=0.05, atol=0.05)
    assert scores.dtype == torch.float32
    assert len(scores.unique()) > 290
