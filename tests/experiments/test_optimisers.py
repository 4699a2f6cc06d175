"""Optimisers have the right options, and combinations that do not work are refused."""

from __future__ import annotations

import pytest
import torch

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings
from everypair.experiments.training import optimisers
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.experiments.training.optimisers import OPTIMISERS, TrainingTask, check
from everypair.torch import PESG, SAG


def made(name, *, loss="squared_hinge", n_batches=4, model=None, **settings):
    settings = Settings(**settings)
    model = model or torch.nn.Linear(3, 1)
    objective = OBJECTIVES[loss].make(settings, torch.tensor([1.0, 0.0]))
    task = TrainingTask(rate=0.5, n_batches=n_batches, seed=0, settings=settings)
    return OPTIMISERS[name].make(list(model.parameters()), objective, task)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0, "weight_decay": 0}),
        ("momentum", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0}),
        ("adam", torch.optim.Adam, {"betas": (0.9, 0.999), "weight_decay": 0, "capturable": False}),
        ("lbfgs", torch.optim.LBFGS, {"line_search_fn": "strong_wolfe"}),
        ("sag", SAG, {"weight_decay": 0.0}),
    ],
)
def test_optimisers_have_the_options_of_the_paper(name, kind, options):
    optimiser = made(name)
    assert isinstance(optimiser, kind)
    (group,) = optimiser.param_groups
    assert group["lr"] == 0.5
    assert {name: group[name] for name in options} == options


@pytest.mark.parametrize(("protocol", "decay"), [("corrected", 0.0), ("paper", 1e-4)])
def test_pesg_has_weight_decay_under_protocol_paper_only(protocol, decay):
    optimiser = made("pesg", loss="aucm", protocol=protocol)
    assert isinstance(optimiser, PESG)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [decay, decay]
    assert [group["lr"] for group in optimiser.param_groups] == [0.5, 0.5]


@pytest.mark.parametrize(("protocol", "moves"), [("corrected", True), ("paper", False)])
def test_the_reference_of_pesg_is_updated_under_protocol_corrected_only(protocol, moves):
    model = torch.nn.Linear(3, 1)
    optimiser = made("pesg", loss="aucm", model=model, protocol=protocol)
    before = optimiser.state[model.weight]["reference"].clone()
    model(torch.ones(2, 3)).sum().backward()
    optimiser.step()
    OPTIMISERS["pesg"].end_epoch(optimiser, Settings(protocol=protocol))
    assert torch.equal(optimiser.state[model.weight]["reference"], before) is not moves


def test_sag_stores_one_gradient_per_batch_and_refuses_too_many(monkeypatch):
    assert made("sag", n_batches=7).n_batches == 7
    monkeypatch.setattr(optimisers, "SAG_MEMORY", 4 * 4 * 8)
    assert made("sag", n_batches=7)  # eight copies of four floats: it just fits
    with pytest.raises(UserError, match=r"each of 8 batches: .* Use larger batches"):
        made("sag", n_batches=8)


def test_lbfgs_needs_the_full_batch():
    check("squared_hinge", "lbfgs", batch=0)
    with pytest.raises(UserError, match=r"batch must be 0 \(all rows at once\).* got 50"):
        check("squared_hinge", "lbfgs", batch=50)


@pytest.mark.parametrize(("loss", "optimiser"), [("aucm", "sgd"), ("logistic", "pesg")])
def test_aucm_and_pesg_are_only_used_together(loss, optimiser):
    with pytest.raises(UserError, match=f"for the loss {loss}; got {optimiser!r}"):
        check(loss, optimiser, batch=50)


def test_names_and_batch_sizes_are_checked():
    check("aucm", "pesg", batch=50)
    with pytest.raises(UserError, match=r"optimiser must be one of .* Did you mean sgd\?"):
        check("logistic", "sdg", batch=50)
    with pytest.raises(UserError, match="loss must be one of"):
        check("hinge?", "sgd", batch=50)
    with pytest.raises(UserError, match="batch must be at least 1"):
        check("logistic", "sgd", batch=-1)
