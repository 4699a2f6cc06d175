"""Properties that need a GPU: no synchronisation, CUDA graphs, streams, memory, determinism."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import everypair as ep
from everypair.torch import PairLoss, pair_loss
from everypair.torch._dispatch import forced

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = [300, 20_000, 300_000]


def batch(n, seed=0, share=0.1):
    generator = torch.Generator("cuda").manual_seed(seed)
    labels = torch.rand(n, device="cuda", generator=generator) < share
    labels[0], labels[1] = True, False
    scores = torch.randn(n, device="cuda", generator=generator) + labels
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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("n", SIZES)
def test_a_step_does_not_synchronise(n):
    scores, labels = batch(n)
    loss = PairLoss().cuda()
    step(loss, scores, labels)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = step(loss, scores, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_right(value, scores, labels)


@pytest.mark.parametrize("n", SIZES)
def test_a_captured_cuda_graph_replays_with_new_data(n):
    scores, labels = batch(n)
    loss = PairLoss().cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(loss, scores, labels)
    torch.cuda.current_stream().wait_stream(side)
    scores.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(scores, labels)
        value.backward()
    for seed in (1, 2):
        others, new_labels = batch(n, seed, share=0.3)
        with torch.no_grad():
            scores.copy_(others)
            labels.copy_(new_labels)
        graph.replay()
        torch.cuda.synchronize()
        assert_right(value, scores, labels)


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
    step(pair_loss, scores, labels)
    plain = scores.grad
    for factor in (1.0, 3.0, 2.0**16, 0.0):
        step(lambda s, y, by=factor: by * pair_loss(s, y), scores, labels)
        torch.testing.assert_close(scores.grad, factor * plain, rtol=1e-6, atol=0.0)


def test_a_retained_graph_gives_the_same_gradient_again():
    scores, labels = batch(20_000)
    loss = 3.0 * pair_loss(scores, labels)
    first, second = (torch.autograd.grad(loss, scores, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=0.0)


def test_batched_incoming_gradients():
    scores, labels = batch(300)
    loss = pair_loss(scores, labels)
    factors = torch.tensor([1.0, 2.0], device="cuda")
    found = torch.autograd.grad(loss, scores, factors, is_grads_batched=True, retain_graph=True)[0]
    (once,) = torch.autograd.grad(loss, scores)
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


@pytest.mark.parametrize("n", SIZES)
def test_unaligned_rows(n):
    scores, labels = batch(n + 1)
    part = scores.detach()[1:].requires_grad_()
    for _ in range(2):
        value = step(pair_loss, part, labels[1:])
    assert_right(value, part, labels[1:])


def test_threads_that_share_a_stream():
    cases = [batch(n, seed) for seed, n in enumerate([300, 20_000, 300_000, 5_000_000] * 2)]
    loss = PairLoss().cuda()

    def run(case):
        return [step(loss, *case) for _ in range(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, cases))
    for value, (scores, labels) in zip(found, cases, strict=True):
        assert_right(value, scores, labels)


@pytest.mark.filterwarnings("ignore")  # the compiler warns about torch itself
@pytest.mark.parametrize("n", SIZES)
def test_compiled_loss_equals_eager_loss(n):
    scores, labels = batch(n)
    compiled = torch.compile(lambda s, y: pair_loss(2.0 * s, y), fullgraph=True)
    value = step(compiled, scores, labels)
    grad = scores.grad.clone()
    assert value.item() == pytest.approx(step(lambda s, y: pair_loss(2.0 * s, y), scores, labels)
                                         .item(), rel=1e-6)  # fmt: skip
    torch.testing.assert_close(grad, scores.grad)


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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("n_grades", [5, 10**6])
@pytest.mark.parametrize("n", SIZES)
def test_ordered_pairs_without_synchronisation_and_in_a_cuda_graph(n, n_grades):
    scores, _ = batch(n)
    targets = torch.randint(0, n_grades, (n,), device="cuda").float()
    loss = PairLoss(pairs="ordered").cuda()
    step(loss, scores, targets)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = step(loss, scores, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_right(value, scores, targets, pairs="ordered")
    # The loss keeps the node alive that adds up gradients on the stream of the first steps. A
    # capture on another stream would have to wait for that stream, which CUDA forbids.
    del value
    scores.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(scores, targets)
        value.backward()
    with torch.no_grad():
        scores.copy_(batch(n, 1)[0])
        targets.copy_(targets.flip(0) // 2)
    graph.replay()
    torch.cuda.synchronize()
    assert_right(value, scores, targets, pairs="ordered")


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
