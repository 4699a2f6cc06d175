"""Properties that need a GPU: no synchronisation, CUDA graphs, streams, memory, determinism."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

import everypair as ep
from everypair import surrogates
from everypair.torch import (
    PESG,
    SAG,
    AUCMLoss,
    EpochMonitor,
    PairLoss,
    large_batch_backward,
    pair_loss,
)
from everypair.torch._dispatch import forced

from .test_large_batch import data, gradient, network

if torch.cuda.is_available():
    from everypair.torch.triton import cached_launch, plans

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = [300, 20_000, 300_000]


def batch(n, seed=0, share=0.1, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(seed)
    labels = torch.rand(n, device="cuda", generator=generator) < share
    labels[0], labels[-1] = True, False
    scores = torch.randn(n, device="cuda", generator=generator, dtype=dtype) + labels
    return scores.requires_grad_(), labels.float()


def step(loss, scores, labels):
    scores.grad = None
    value = loss(scores, labels)
    value.backward()
    return value


def assert_right(value, scores, labels, **options):
    options = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    wanted, grad = ep.pair_loss_and_grad(scores.detach().double().cpu(), labels.cpu(), **options)
    assert value.item() == pytest.approx(wanted, rel=1e-6)
    error = (scores.grad.double().cpu() - torch.from_numpy(grad)).abs().max()
    assert error <= 1e-6 * abs(grad).max()


@contextmanager
def without_synchronisation():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def targets(n, n_grades, seed=0):
    """Return labels, or with a number of grades, ordered targets."""
    generator = torch.Generator("cuda").manual_seed(seed)
    if n_grades is None:
        return batch(n, seed, share=0.3)[1]
    return torch.randint(0, n_grades, (n,), device="cuda", generator=generator).float()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("n_grades", [None, 5, 10**6])
@pytest.mark.parametrize("n", SIZES)
def test_steps_do_not_synchronise_and_are_replayed_in_a_cuda_graph(n, n_grades):
    scores, labels = batch(n)[0], targets(n, n_grades)
    pairs = "binary" if n_grades is None else "ordered"
    loss = PairLoss(pairs=pairs).cuda()
    step(loss, scores, labels)
    with without_synchronisation():
        value = step(loss, scores, labels)
    assert_right(value, scores, labels, pairs=pairs)
    # The loss keeps the node alive that adds up gradients on the stream of the first steps. A
    # capture on another stream would have to wait for that stream, which CUDA forbids.
    del value
    scores.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(scores, labels)
        value.backward()
    for seed in (1, 2):
        with torch.no_grad():
            scores.copy_(batch(n, seed)[0])
            labels.copy_(targets(n, n_grades, seed))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(value, scores, labels, pairs=pairs)


def test_concurrent_streams():
    cases = [batch(n, seed) for seed, n in enumerate([20_000] * 6 + [300] * 2)]
    loss = PairLoss().cuda()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in cases]
    for _ in range(3):  # later passes repeat the launches of the first
        found = []
        for stream, (scores, labels) in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                found.append(step(loss, scores, labels))
        torch.cuda.synchronize()
    for value, (scores, labels) in zip(found, cases, strict=True):
        assert_right(value, scores, labels)


@pytest.mark.parametrize("n", [*SIZES, 5_000_000])
def test_the_incoming_gradient_multiplies_the_gradient(n):
    scores, labels = batch(n)
    (once,) = torch.autograd.grad(pair_loss(scores, labels), scores)
    for factor in (1.0, 3.0, 2.0**16, 0.0):
        loss = factor * pair_loss(scores, labels)
        for _ in range(2):  # the graph is retained
            (found,) = torch.autograd.grad(loss, scores, retain_graph=True)
            torch.testing.assert_close(found, factor * once, rtol=1e-6, atol=0.0)
    factors = torch.tensor([1.0, 2.0], device="cuda")
    loss = pair_loss(scores, labels)
    (found,) = torch.autograd.grad(loss, scores, factors, is_grads_batched=True)
    torch.testing.assert_close(found, factors[:, None] * once)


@pytest.mark.parametrize("n", [*SIZES, 700_000])
def test_tasks_are_independent(n):
    columns = [batch(n, seed, share=0.02 + 0.1 * seed) for seed in range(8)]
    scores = torch.stack([column.detach() for column, _ in columns], 1).requires_grad_()
    labels = torch.stack([column for _, column in columns], 1)
    values = pair_loss(scores, labels, reduction="none")
    values.sum().backward()
    for k, (column, column_labels) in enumerate(columns):
        column.grad = scores.grad[:, k]
        assert_right(values[k], column, column_labels)


def test_threads_that_share_a_stream():
    cases = [batch(n, seed) for seed, n in enumerate([300, 20_000, 300_000, 5_000_000] * 2)]
    loss = PairLoss().cuda()

    def run(case):
        return [step(loss, *case) for _ in range(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, cases))
    for value, (scores, labels) in zip(found, cases, strict=True):
        assert_right(value, scores, labels)


def doubled(scores, labels):
    return pair_loss(2.0 * scores, labels)


@pytest.mark.filterwarnings("ignore")  # the compiler warns about torch itself
@pytest.mark.parametrize("n", SIZES)
def test_compiled_loss_equals_eager_loss(n):
    scores, labels = batch(n)
    results = []
    for loss in (doubled, torch.compile(doubled, fullgraph=True)):
        value = step(loss, scores, labels)
        results.append((value.detach(), scores.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        *((n, {}) for n in SIZES),
        (20_000, {"surrogate": "huber_hinge"}),
        (20_000, {"surrogate": "square"}),
        (20_000, {"weights": True}),
        (20_000, {"groups": True}),
    ],
    ids=str,
)
def test_results_are_deterministic(n, options):
    scores, labels = batch(n)
    rows = {"weights": torch.rand(n, device="cuda"), "groups": torch.arange(n, device="cuda") % 7}
    options = {name: rows.get(name, option) for name, option in options.items()}
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(5):
            value = step(lambda s, y: pair_loss(s, y, **options), scores, labels)
            runs.append((value.item(), scores.grad.cpu().numpy().tobytes()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(set(runs)) == 1
    assert_right(value, scores, labels, **options)


@pytest.mark.parametrize("surrogate", ["logistic", "sigmoid"])
def test_smooth_surrogates_of_large_batches(surrogate):
    """Most blocks of rows are so narrow that moments sum them; the others are at the ends."""
    scores, labels = batch(5_000_000)
    value = step(lambda s, y: pair_loss(s, y, surrogate=surrogate), scores, labels)
    with forced("operations"):
        leaf = scores.detach().double().requires_grad_()
        wanted = step(lambda s, y: pair_loss(s, y, surrogate=surrogate), leaf, labels)
    assert value.item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(scores.grad.double(), leaf.grad, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("options", [{}, {"surrogate": "linear_hinge"}], ids=["buckets", "sort"])
def test_memory_of_a_large_batch(options):
    n = 5_000_000
    scores, labels = batch(n)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(lambda s, y: pair_loss(s, y, **options), scores, labels)
    assert torch.cuda.max_memory_allocated() - before <= 40 * n


def test_one_class_is_counted_on_the_device():
    loss = PairLoss()
    scores, _ = batch(20_000)
    for labels in (torch.ones(20_000), torch.arange(20_000) % 2, torch.zeros(20_000)):
        step(loss, scores, labels.cuda())
    assert loss.n_one_class.is_cuda
    assert loss.n_one_class.item() == 2
    step(loss, scores[:, None], torch.ones(20_000).cuda())
    assert loss.n_one_class.item() == 3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_scores_on_a_second_gpu():
    scores, labels = (part.detach().to("cuda:1") for part in batch(20_000))
    scores.requires_grad_()
    assert_right(step(pair_loss, scores, labels), scores, labels)


@pytest.mark.parametrize("n", [300, 20_000])
def test_second_derivatives_equal_those_of_operations(n):
    scores, labels = batch(n)
    vector = torch.randn(n, device="cuda")

    def hvp(backend):
        with forced(backend):
            loss = pair_loss(scores, labels)
            (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
            return torch.autograd.grad(grad, scores, vector)[0]

    torch.testing.assert_close(hvp("triton"), hvp("operations"), rtol=1e-4, atol=1e-9)


# Launches that are repeated, against those of the plans.

REPLAYED = [1, 300, 4_000, 20_000, 300_000]


def plain(scores, labels, terms, one_class=None):
    value, _, grad, _, _ = plans.evaluate(
        scores, labels, None, None, terms, mean=True, grad=True, one_class=one_class
    )
    return value, grad


def assert_replayed(scores, labels, terms):
    counters = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]
    value, _, grad = cached_launch.loss_and_grad(scores, labels, terms, True, False, counters[0])
    expected, expected_grad = plain(scores, labels, terms, counters[1])
    assert torch.equal(value, expected)
    assert torch.equal(grad, expected_grad)
    assert torch.equal(*counters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["squared_hinge", "square", "linear_hinge", "huber_hinge"])
def test_replays_equal_the_plain_path(name, dtype):
    terms = surrogates.get(name).at_knots(0.7)
    for n in 2 * REPLAYED:
        for seed in range(3):
            scores, labels = batch(n, seed, dtype=dtype)
            for given in (labels, labels.bool(), labels.long(), torch.ones_like(labels)):
                assert_replayed(scores.detach(), given, terms)


@pytest.mark.parametrize("n", REPLAYED[1:])
def test_strided_unaligned_and_two_dimensional_scores(n):
    scores, labels = (part.detach() for part in batch(2 * n + 2))
    columns = scores[: 2 * n].view(n, 2), labels[: 2 * n].view(n, 2)
    for given, classes in (
        (scores[: 2 * n : 2], labels[: 2 * n : 2]), (scores[1 : n + 1], labels[1 : n + 1]), columns,
    ) * 2:  # fmt: skip
        found = []
        for way in ("triton", "operations", None):
            leaf = given.detach().requires_grad_()
            with forced(way) if way else nullcontext():
                value = pair_loss(leaf, classes)
            found.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
        expected, expected_grad = found[1]
        for value, grad in found:
            torch.testing.assert_close(value, expected, rtol=2e-6, atol=0.0)
            largest = expected_grad.abs().max().item()
            torch.testing.assert_close(grad, expected_grad, rtol=0.0, atol=2e-6 * largest)


# The training tools give the same results as on the CPU.


def test_dropout_is_replayed():
    X, y = data(1000)
    model, twin = (network(nn.Dropout(0.5)).cuda() for _ in range(2))
    torch.cuda.manual_seed(4)
    large_batch_backward(model, PairLoss(), X, y, chunk=128, device="cuda")
    after = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(4)
    scores = torch.cat([twin(part) for part in X.cuda().split(128)])
    assert torch.equal(torch.cuda.get_rng_state(), after)
    PairLoss()(scores, y.cuda()).backward()
    torch.testing.assert_close(gradient(model), gradient(twin), rtol=1e-5, atol=1e-6)


def test_memory_is_bounded_by_one_chunk():
    X, y = (part.cuda() for part in data(200_000))

    def peak(backward):
        model = network(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 32)).cuda()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        backward(model)
        return torch.cuda.max_memory_allocated() - before

    at_once = peak(lambda model: PairLoss(surrogate="square")(model(X), y).backward())
    chunked = peak(
        lambda model: large_batch_backward(model, PairLoss(surrogate="square"), X, y, chunk=2000)
    )
    assert chunked < at_once / 10


def test_half_precision_with_a_scaler():
    X, y = (part.cuda() for part in data(1000))
    model, twin = network().cuda(), network().cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    with torch.autocast("cuda", dtype=torch.float16):
        large_batch_backward(model, PairLoss(), X, y, chunk=128, scaler=scaler)
    PairLoss()(twin(X), y).backward()
    torch.testing.assert_close(gradient(model) / 256, gradient(twin), rtol=0.05, atol=1e-3)


def test_optimisers_give_the_same_steps_as_on_the_cpu():
    X, y = data(200)

    def trained(device):
        model, loss = network().to(device), AUCMLoss().to(device)
        pesg, sag = PESG(model.parameters(), loss), SAG(model.parameters(), n_batches=2, lr=0.01)
        for step in range(6):
            if step == 4:
                pesg.update_regularizer(2.0)
            for optimizer, index in ((pesg, {}), (sag, {"index": step % 2})):
                optimizer.zero_grad()
                loss(model(X.to(device)).sigmoid(), y.to(device)).backward()
                optimizer.step(**index)
        return torch.cat([w.detach().cpu().reshape(-1) for w in model.parameters()])

    torch.testing.assert_close(trained("cuda"), trained("cpu"), rtol=1e-4, atol=1e-5)


def test_the_monitor_accepts_scores_on_the_gpu():
    X, y = data(1000)
    records = []
    for device in ("cpu", "cuda"):
        monitor = EpochMonitor()
        for rows in torch.arange(1000).split(300):
            monitor.update("subtrain", X[rows, 0].to(device), y[rows].to(device))
        records.append(monitor.end_epoch())
    assert records[0] == records[1]
