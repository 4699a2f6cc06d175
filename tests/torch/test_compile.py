"""The operators in the graphs of torch.compile and torch.export."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.library import opcheck

from everypair import surrogates
from everypair.torch import PairLoss, _operators, pair_loss
from everypair.torch._options import encoded

from ..strategies import BUMPY

# The compiler warns about torch itself.
pytestmark = pytest.mark.filterwarnings("ignore")

TERMS = encoded(BUMPY.at_margin(1.0))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def sample(columns=None, dtype=torch.float32, n=20):
    generator = torch.Generator().manual_seed(0)
    shape = (n,) if columns is None else (columns, n)
    scores = torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)
    return scores, torch.rand(shape, generator=generator) < 0.4


def data(kind):
    """Return scores, labels, weights and groups."""
    if kind == "plain":
        return *sample(), None, None
    if kind == "half":
        return *sample(dtype=torch.float16), None, None
    scores, labels = sample(columns=3, dtype=torch.float64)
    labels = labels.double()
    labels[0, 0] = torch.nan
    return scores, labels, torch.rand(20), torch.arange(20) % 3


@pytest.mark.usefixtures("torch_backend")
@pytest.mark.parametrize("kind", ["plain", "half", "everything"])
def test_the_operators_pass_opcheck(kind):
    inputs = data(kind)
    options = (TERMS, True, True, kind == "everything", "binary")
    vector = torch.randn_like(inputs[0], dtype=torch.float64).requires_grad_()
    opcheck(_operators.pair_sums_op, (*inputs, None, *options))
    opcheck(_operators.pair_sums_op, (*inputs, vector.float(), *options))


@pytest.mark.filterwarnings("error:.*lru_cache")
@pytest.mark.parametrize("name", ["squared_hinge", "huber_hinge", "logistic", "exponential"])
def test_surrogates_are_expanded_while_compiling(name):
    """The first call of a new surrogate, and calls after changes of the margin, are compiled."""
    scores, labels = sample()
    own = surrogates.get(name).scaled(1.7)
    criterion = PairLoss(surrogate=own)
    compiled = torch.compile(criterion, fullgraph=True, backend="eager")
    for margin in (criterion.margin, 0.3, 0.7, 2.0):
        criterion.margin = margin
        wanted = pair_loss(
            scores, labels, surrogate=surrogates.get(name).scaled(1.7), margin=margin
        )
        torch.testing.assert_close(compiled(scores, labels), wanted)


HAS_HEADERS = (Path(sysconfig.get_path("include")) / "Python.h").exists()
NEEDS_HEADERS = pytest.mark.skipif(not HAS_HEADERS, reason="the headers of Python are missing")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_HEADERS)])
def test_a_training_step_compiles_to_one_graph(backend):
    criterion = PairLoss(surrogate="huber_hinge")
    model = torch.nn.Linear(3, 1)
    inputs, (_, labels) = torch.randn(20, 3), sample()

    def step(inputs, labels):
        return criterion(model(inputs), labels)

    step(inputs, labels).backward()
    want, model.weight.grad = model.weight.grad, None
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    loss = compiled(inputs, labels)
    loss.backward()
    torch.testing.assert_close(loss, step(inputs, labels))
    torch.testing.assert_close(model.weight.grad, want)
    assert criterion.n_one_class == 0
    compiled(inputs, torch.zeros_like(labels)).backward()
    assert criterion.n_one_class == 1


def with_options(kind):
    """Return scores, labels and the options of a loss."""
    if kind == "everything":
        scores, labels, weights, groups = data(kind)
        options = {"surrogate": BUMPY, "weights": weights, "groups": groups}
        return scores.detach().t().contiguous(), labels.t(), options
    scores, times = torch.randn(2, 20)
    return scores, times if kind == "ordered" else (times.exp(), times > 0.0), {"pairs": kind}


@pytest.mark.parametrize("kind", ["everything", "ordered", "survival"])
def test_losses_with_options_compile_to_one_graph(kind):
    scores, labels, options = with_options(kind)

    def loss(scores, labels):
        return pair_loss(scores, labels, **options)

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)):
        leaf = scores.clone().requires_grad_()
        value = function(leaf, labels)
        results.append((value, *torch.autograd.grad(value, leaf)))
    torch.testing.assert_close(*results)


def test_vmap_inside_a_compiled_function():
    _, labels = sample()
    many = torch.randn(4, 20)

    def losses(many):
        return torch.vmap(lambda scores: pair_loss(scores, labels))(many)

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(many), losses(many))


def test_vmap_over_an_operator():
    scores, labels, weights, groups = data("everything")
    options = (TERMS, True, True, True, "binary")
    vectors = torch.randn(4, 3, 20)

    def hvp(vector):
        return _operators.pair_sums_op(scores, labels, weights, groups, vector, *options)[2]

    torch.testing.assert_close(torch.vmap(hvp)(vectors), torch.stack([*map(hvp, vectors)]))


def test_bad_values_raise_from_a_compiled_loss():
    scores, labels = sample()
    compiled = torch.compile(pair_loss, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="got 2"):
        compiled(scores, torch.where(labels, 2, 0))


def test_export_with_any_number_of_rows():
    scores, labels = sample()
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(
        PairLoss(), (scores.detach(), labels), dynamic_shapes=({0: rows}, {0: rows})
    )
    assert "everypair.pair_sums" in str(program.graph)
    exported = program.module()
    for n in (20, 7):
        torch.testing.assert_close(
            exported(scores.detach()[:n], labels[:n]), pair_loss(scores.detach()[:n], labels[:n])
        )
    exported(scores.detach()[:5], torch.zeros(5, dtype=torch.bool))
    assert exported.n_one_class == 1


def test_fake_tensors_have_a_loss_of_the_right_shape():
    with torch._subclasses.FakeTensorMode():
        scores = torch.randn(5, 3, requires_grad=True)
        loss = pair_loss(scores, torch.zeros(5, 3), reduction="none")
    assert loss.shape == (3,)
    assert loss.requires_grad


def test_packages_that_only_some_functions_need_are_loaded_by_them():
    names = "'torch._dynamo', 'matplotlib'"
    program = f"import everypair.torch, sys; sys.exit(not sys.modules.keys().isdisjoint([{names}]))"
    subprocess.run([sys.executable, "-c", program], check=True)
