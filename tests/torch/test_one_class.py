"""Batches without a pair: zero loss and gradient, a graph, and a count."""

from __future__ import annotations

import copy

import pytest
import torch

from everypair.torch import PairLoss


@pytest.mark.parametrize(
    ("labels", "others"),
    [
        ([0, 0, 0], {}),
        ([1, 1, 1], {}),
        ([-1, -1, -1], {}),
        ([1, 0, 0], {"weights": torch.tensor([0.0, 1.0, 1.0])}),
        ([1, 0, 0], {"groups": torch.tensor([0, 1, 1])}),
        ([2, 2, 2], {"pairs": "ordered"}),
    ],
    ids=str,
)
def test_a_batch_without_a_pair_is_counted_and_has_a_graph(torch_backend, labels, others):
    model = torch.nn.Linear(2, 1)
    data = {name: value for name, value in others.items() if name != "pairs"}
    criterion = PairLoss(pairs=others.get("pairs", "binary"))
    for count in (1, 2):
        loss = criterion(model(torch.randn(3, 2)), torch.tensor(labels), **data)
        assert loss.item() == 0.0
        assert criterion.n_one_class == count
        loss.backward()
        assert not model.weight.grad.any()
    with torch.no_grad():
        criterion(torch.randn(1), torch.ones(1))
    assert criterion.n_one_class == 3
    criterion(torch.randn(3), torch.tensor([1, 0, 1]))
    assert criterion.n_one_class == 3


def test_the_count_is_not_in_the_state_dict():
    criterion = PairLoss()
    criterion(torch.randn(3), torch.zeros(3))
    assert not criterion.state_dict()
    assert copy.deepcopy(criterion).n_one_class == 1
    assert [name for name, _ in criterion.named_buffers()] == ["n_one_class"]
    assert not list(criterion.parameters())
    criterion.load_state_dict(torch.nn.BCEWithLogitsLoss().state_dict())


@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
def test_the_meta_device_neither_counts_nor_keeps_the_counter(pairs):
    with torch.device("meta"):
        criterion = PairLoss(pairs=pairs)
    for count in (1, 2):
        for device in ("meta", "cpu"):
            scores = torch.randn(3, 1, device=device, requires_grad=True)
            criterion(scores, -torch.ones(3, 1, device=device)).backward()  # no pair of any kind
        assert criterion.n_one_class == count


def test_vmap_adds_up_the_counts():
    criterion = PairLoss()
    labels = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    for count, function in ((2, criterion), (4, torch.func.grad(criterion))):
        torch.vmap(function, in_dims=(None, 0))(torch.randn(3), labels)
        assert criterion.n_one_class == count
    torch.vmap(criterion, in_dims=(0, None))(torch.randn(5, 3), torch.zeros(3))
    assert criterion.n_one_class == 9


def test_an_ensemble_of_losses_has_separate_counts():
    losses = [PairLoss() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(losses)
    labels = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]])

    def loss(buffers, scores, labels):
        return torch.func.functional_call(losses[0], (parameters, buffers), (scores, labels))

    torch.vmap(loss)(buffers, torch.randn(3, 3), labels)
    assert buffers["n_one_class"].tolist() == [0, 1, 1]
    torch.vmap(loss, in_dims=(0, None, None))(buffers, torch.randn(3), torch.zeros(3))
    assert buffers["n_one_class"].tolist() == [1, 2, 2]
