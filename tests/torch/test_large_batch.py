"""Gradients chunk by chunk equal those of the whole batch, in the memory of one chunk."""

from __future__ import annotations

import copy
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from everypair.torch._module import PairLoss
from everypair.torch.training.aucm import AUCMLoss
from everypair.torch.training.large_batch import large_batch_backward
from everypair.torch.training.sampler import StratifiedBatchSampler

N = 300


def data(n=N):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 6, generator=generator)
    return X, (X[:, 0] + torch.randn(n, generator=generator) > 1.5).float()


X, y = data()


def network(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), *layers, nn.Linear(32, 1))


def gradient(model):
    return torch.cat([w.grad.reshape(-1) for w in model.parameters()])


def close(got, expected, tolerance=1e-6):
    assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def seeded(call):
    """Return the result of a call and the state of the generator after it."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return call(), torch.get_rng_state()


def check(model, *args, at_once, loss=None, tolerance=1e-6, **options):
    """Compare loss and gradient by chunks with those of `at_once(twin)`.

    Return the states of the generator after both.
    """
    loss = PairLoss() if loss is None else loss
    twin, twin_loss = copy.deepcopy((model, loss))
    expected, state = seeded(lambda: at_once(twin, twin_loss))
    expected.backward()
    got, got_state = seeded(lambda: large_batch_backward(model, loss, *args, **options))
    close(gradient(model), gradient(twin), tolerance)
    close(got, expected.detach(), tolerance)
    assert not got.requires_grad
    for buffer, of_twin in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer, of_twin)
    for parameter, of_twin in zip(loss.parameters(), twin_loss.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, of_twin.grad)
    return state, got_state


@pytest.mark.parametrize("chunk", [1, 7, 100, N, 10 * N])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_equals_the_gradient_at_once(chunk, dtype, tolerance):
    rows, model = X.to(dtype), network().to(dtype)
    check(
        model, rows, y, chunk=chunk, at_once=lambda m, loss: loss(m(rows), y), tolerance=tolerance
    )


@pytest.mark.parametrize("from_loader", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_weights_and_groups_reach_the_loss(from_loader, grouped):
    options = {"weights": torch.rand(N, generator=torch.Generator().manual_seed(3))}
    options |= {"groups": torch.arange(N) % 4} if grouped else {}
    args, chunked = (X, y), {"chunk": 50, "device": "cpu", **options}
    if from_loader:
        args = (DataLoader(TensorDataset(X, y, *options.values()), batch_size=64),)
        chunked = {}
    check(network(), *args, **chunked, at_once=lambda m, loss: loss(m(X), y, **options))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.BatchNorm1d(32),
        nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32)),
    ],
    ids=["dropout", "batch normalisation", "spectral normalisation"],
)
def test_both_passes_are_those_of_one_pass_over_the_chunks(layer):
    """Random masks are replayed and drawn once, and buffers are updated once."""
    model = network(copy.deepcopy(layer))
    in_chunks = lambda m, loss: loss(torch.cat([m(part) for part in X.split(64)]), y)  # noqa: E731
    assert torch.equal(*check(model, X, y, chunk=64, at_once=in_chunks, tolerance=1e-5))
    model.zero_grad()
    check(model.eval(), X, y, chunk=64, at_once=lambda m, loss: loss(m(X), y))


def test_under_autocast_gradients_reach_the_weights():
    at_once, chunked = network(), network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = at_once(X)
        large_batch_backward(chunked, PairLoss(), X, y, chunk=64)
    PairLoss()(scores, y).backward()
    assert scores.dtype is torch.bfloat16
    close(gradient(chunked), gradient(at_once), 0.02)


def test_a_scaler_scales_the_gradient_not_the_value_and_gradients_accumulate():
    plain, scaled = network(), network()
    scaler = SimpleNamespace(scale=lambda value: 1024.0 * value)
    value = large_batch_backward(plain, PairLoss(), X, y, chunk=64)
    for calls in (1, 2):
        got = large_batch_backward(scaled, PairLoss(), X, y, chunk=64, scaler=scaler)
        close(got, value)
        close(gradient(scaled), calls * 1024.0 * gradient(plain))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, left, right):
        return self.net(torch.cat([left, right], dim=1)).squeeze(1)


def loader_of_dicts(noise=0.0, **options):
    """Return a loader of dictionaries; with noise, as augmentation would add."""

    def collate(rows):
        left, right, labels = default_collate(rows)
        return {"left": left + noise * torch.randn(left.shape), "right": right}, labels

    data = TensorDataset(X[:, :2], X[:, 2:], y)
    return DataLoader(data, batch_size=70, collate_fn=collate, **options)


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "list of batches", "loader of dicts"])
def test_inputs_of_every_kind(kind):
    left, right = X[:, :2], X[:, 2:]
    args = {
        "tuple": ((left, right), y),
        "list": ([left, right], y),
        "dict": ({"right": right, "left": left}, y),
        "list of batches": (
            [((left[:200], right[:200]), y[:200]), ((left[200:], right[200:]), y[200:])],
        ),
        "loader of dicts": (loader_of_dicts(),),
    }[kind]
    check(TwoInputs(), *args, chunk=64, at_once=lambda m, loss: loss(m(left, right), y))


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_shuffling_loader_is_replayed(own_generator, workers):
    generator = torch.Generator().manual_seed(5) if own_generator else None
    loader = loader_of_dicts(noise=0.5, shuffle=True, generator=generator, num_workers=workers)
    large_batch_backward(TwoInputs(), PairLoss(), loader)
    first, second = next(iter(loader))[1], next(iter(loader))[1]
    assert not torch.equal(first, second), "the loader must still shuffle after a replay"


def test_a_stratified_loader_is_replayed():
    loader = DataLoader(
        TensorDataset(X, y), batch_sampler=StratifiedBatchSampler(y, 40, min_per_class=4)
    )
    for _ in range(2):
        check(network(), loader, at_once=lambda m, loss: loss(m(X), y))
        next(iter(loader))


def test_several_tasks_and_losses_with_parameters():
    labels = torch.stack([y, 1 - y], dim=1)
    check(nn.Linear(6, 2), X, labels, chunk=64, at_once=lambda m, loss: loss(m(X), labels))
    aucm = AUCMLoss()
    check(network(), X, y, chunk=64, loss=aucm, at_once=lambda m, loss: loss(m(X), y))


def test_gradients_are_exchanged_once():
    quiet = []

    class Distributed(nn.Sequential):
        @contextmanager
        def no_sync(self):
            quiet.append(True)
            yield

    large_batch_backward(Distributed(network()), PairLoss(), X, y, chunk=100)
    assert len(quiet) == 2


class Kept:
    def __init__(self, tensor):
        self.tensor = tensor.detach()


def kept_at_most(call):
    """Return the most bytes that autograd keeps at any time for the backward pass."""
    sizes, totals = weakref.WeakKeyDictionary(), []

    def keep(tensor):
        kept = Kept(tensor)
        sizes[kept] = tensor.nbytes
        totals.append(sum(sizes.values()))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        call()
    return max(totals)


def test_memory_is_that_of_one_chunk():
    n, chunk = 4096, 128
    X, y = data(n=n)
    at_once = kept_at_most(lambda: PairLoss()(network()(X), y).backward())
    one_chunk = kept_at_most(lambda: network()(X[:chunk]).sum().backward())
    scores = 2 * y.numel() * y.element_size()  # the loss keeps its gradient in all scores
    chunked = kept_at_most(lambda: large_batch_backward(network(), PairLoss(), X, y, chunk=chunk))
    assert chunked <= one_chunk + scores
    assert chunked < at_once / 20


def test_a_model_with_other_scores_in_the_second_pass_raises():
    calls = []

    class Drifting(nn.Sequential):
        def forward(self, x):
            calls.append(x)
            return super().forward(x) * len(calls)

    with pytest.raises(RuntimeError, match=r"other scores the second time.*zero_grad"):
        large_batch_backward(Drifting(network()), PairLoss(), X, y, chunk=100)


@pytest.mark.parametrize("sizes", [([100, 200], [200, 100]), ([100, 100], [100]), ([50], [50, 50])])
def test_a_loader_with_other_batches_in_the_second_pass_raises(sizes):
    passes = iter(sizes)

    class Changing:
        def __iter__(self):
            return ((X[:size], y[:size]) for size in next(passes))

    for batches in (Changing(), iter([(X, y)])):
        with pytest.raises(RuntimeError, match="other batches the second time"):
            large_batch_backward(network(), PairLoss(), batches)


@pytest.mark.parametrize(
    ("args", "knobs", "says"),
    [
        ((torch.zeros(4, 6),), {}, "labels must be given"),
        (([],), {}, "at least one batch"),
        (([torch.zeros(4, 6)],), {}, "each batch must be .* got a tensor of shape .4, 6"),
        (([],), {"weights": torch.ones(4)}, "weights and groups must come with the batches"),
        ((torch.zeros(4, 6), torch.zeros(5)), {}, "got a tensor of shape .4, 6. for 5 labels"),
        ((torch.zeros(4, 6), torch.zeros(4)), {"chunk": 0}, "chunk must be .* got 0"),
        (
            (torch.zeros(4, 6), torch.zeros(4)),
            {"weights": torch.ones(3)},
            "weights must be tensors with one row per label",
        ),
    ],
)
def test_invalid_arguments_raise(args, knobs, says):
    with pytest.raises(ValueError, match=says):
        large_batch_backward(network(), PairLoss(), *args, **knobs)


def test_outputs_that_are_not_scores_raise():
    pair = nn.LSTM(6, 1)  # returns a tuple of 2
    with pytest.raises(ValueError, match=r"model must return one row of scores.*got a tuple of 2"):
        large_batch_backward(pair, PairLoss(), X, y)
    with pytest.raises(ValueError, match="loss must depend on the scores"):
        large_batch_backward(network(), lambda s, y: torch.zeros((), requires_grad=True) + 0, X, y)
