"""The loss over the pairs of all ranks equals that of a single process with all rows."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from everypair.torch import PairLoss, large_batch_backward, pair_loss
from everypair.torch.distributed import global_pair_loss
from tests.strategies import BUMPY
from tests.tolerances import assert_close

N_RANKS = 4
SURROGATES = ("square", "squared_hinge", "linear_hinge", "logistic", "sigmoid", BUMPY)


@st.composite
def global_batches(draw):
    """Draw a batch, how its rows are divided among ranks, and the options of the loss."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, tasks = draw(st.integers(1, 60)), draw(st.sampled_from((None, 1, 3)))
    shape = (n,) if tasks is None else (n, tasks)
    dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    pairs = draw(st.sampled_from(("binary",) * 5 + ("ordered", "survival")))
    # Scores on a grid, so that there are ties and pairs on the knot.
    scores = torch.from_numpy(rng.integers(-24, 24, shape) / 8 + draw(st.sampled_from((0, 1024))))
    if pairs == "binary":
        labels = torch.from_numpy(rng.random(shape) < draw(st.sampled_from((0.1, 0.5, 0.8))))
        labels = labels.to(draw(st.sampled_from((torch.bool, torch.int64, torch.float32))))
    elif pairs == "ordered":
        labels = torch.from_numpy(rng.integers(0, 5, shape))
    else:
        labels = torch.from_numpy(rng.choice((-1.0, 1.0), shape) * rng.integers(1, 30, shape))
    if tasks is not None and labels.is_floating_point() and draw(st.booleans()):
        labels = labels.masked_fill(torch.from_numpy(rng.random(shape) < 0.3), torch.nan)
    options = {
        "surrogate": draw(st.sampled_from(SURROGATES)),
        "margin": draw(st.sampled_from((None, 0.0, 0.5))),
        "reduction": draw(st.sampled_from(("mean", "sum", "none"))),
        "pairs": pairs,
        "gradients": draw(st.sampled_from(("average", "sum"))),
    }
    if pairs == "survival":
        options["censoring"] = draw(st.sampled_from(("harrell", "uno")))
    elif pairs == "binary" and draw(st.integers(0, 5)) == 0:
        options |= {"max_fpr": 0.3, "min_tpr": 0.2}
    rows = {"scores": scores.to(dtype), "labels": labels}
    if draw(st.booleans()):
        scale = draw(st.sampled_from((1.0, 1e-170, 1e150)))
        scale = scale if options["reduction"] != "sum" and pairs == "binary" else 1.0
        of_row = shape if draw(st.booleans()) else (n,)
        rows["weights"] = torch.from_numpy(rng.integers(0, 4, of_row) * scale)
    if draw(st.booleans()):
        rows["groups"] = torch.from_numpy(rng.integers(-2, 3, n))
    rank_of_row = rng.choice(N_RANKS, n, p=rng.dirichlet([draw(st.sampled_from((0.1, 5.0)))] * 4))
    return rows, torch.from_numpy(rank_of_row), options


def divided(rows, rank_of_row):
    """Return the rows of each rank."""
    return [{k: v[rank_of_row == rank] for k, v in rows.items()} for rank in range(N_RANKS)]


def loss_and_grad(rows, options, function=global_pair_loss):
    """Return the loss and its gradient; with several values, of the sum of their multiples."""
    scores = rows["scores"].clone().requires_grad_()
    loss = function(scores, **{k: v for k, v in rows.items() if k != "scores"}, **options)
    (loss * torch.arange(1.0, 1 + loss.numel()).reshape(loss.shape)).sum().backward()
    return loss.detach(), scores.grad


def of_all_ranks(pool, rows, rank_of_row, options):
    """Return the global loss, and the gradient of all rows."""
    n_averaged = 1 if options.get("gradients") == "sum" else N_RANKS
    found = pool.run(loss_and_grad, divided(rows, rank_of_row), [options] * N_RANKS)
    grad = torch.empty_like(rows["scores"])
    for rank, (loss, of_rank) in enumerate(found):
        assert loss.equal(found[0][0]), f"rank {rank} has {loss}, rank 0 {found[0][0]}"
        grad[rank_of_row == rank] = of_rank / n_averaged
    return found[0][0], grad


@given(case=global_batches())
@settings(max_examples=4 * settings().max_examples)
def test_loss_and_gradient_equal_those_of_a_single_process(pool, case):
    rows, rank_of_row, options = case
    loss, grad = of_all_ranks(pool, rows, rank_of_row, options)
    scores = rows["scores"]
    assert loss.dtype is (torch.float64 if scores.dtype is torch.float64 else torch.float32)
    assert grad.dtype is scores.dtype
    of_process = {name: option for name, option in options.items() if name != "gradients"}
    wide = {**rows, "scores": scores.double()}
    expected, expected_grad = loss_and_grad(wide, of_process, pair_loss)
    dtype = str(loss.dtype).removeprefix("torch.")
    assert_close(loss, expected, dtype)
    if scores.dtype is torch.bfloat16:
        torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-2, atol=1e-5)
    else:
        assert_close(grad, expected_grad, dtype)


def some_rows(n=40, seed=0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=n)).to(dtype)
    labels = torch.from_numpy(rng.random(n) < 0.3)
    return {"scores": scores, "labels": labels}, torch.from_numpy(rng.integers(0, N_RANKS, n))


@pytest.mark.parametrize("pairs", ["binary", "ordered"])
def test_ranks_without_rows_have_no_loss(pool, pairs):
    rows = {"scores": torch.zeros(0), "labels": torch.zeros(0)}
    loss, grad = of_all_ranks(pool, rows, torch.zeros(0), {"pairs": pairs})
    assert (loss, grad.shape) == (0.0, (0,))


def test_an_unchecked_nan_gives_nan_on_all_ranks(pool):
    rows, rank_of_row = some_rows()
    rows["scores"][7] = torch.nan
    found = pool.run(loss_and_grad, divided(rows, rank_of_row), [{"check": False}] * N_RANKS)
    assert all(loss.isnan() for loss, _ in found)


def test_without_a_process_group_the_error_tells_what_to_do():
    with pytest.raises(RuntimeError, match="torchrun"):
        global_pair_loss(torch.zeros(2), torch.tensor([0, 1]))


# Errors


def _error(rows, options):
    try:
        global_pair_loss(rows.pop("scores"), rows.pop("labels"), **rows, **options)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scores", torch.tensor([0.0, torch.nan, 1.0]), "must be finite; got nan (first at index"),
        ("labels", torch.tensor([0, 3, 1]), "labels must hold two classes"),
        ("labels", [0, 1, 1], "labels must be a tensor; got list"),
        ("scores", None, "scores must be a tensor; got NoneType"),
        ("labels", torch.zeros(2), "labels must have the shape (3,)"),
        ("weights", torch.tensor([1.0, -1.0, 0.0]), "weights must be"),
        ("surrogate", "hing", "surrogate"),
        ("margin", -1.0, "margin"),
        ("gradients", "mean", "gradients must be"),
        ("reduction", "average", "reduction must be"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(pool, name, value, message):
    rows = [{"scores": torch.randn(3), "labels": torch.tensor([0, 1, 1])} for _ in range(N_RANKS)]
    if name == "weights":
        rows = [{**own, "weights": torch.ones(3)} for own in rows]
    options = [{} for _ in range(N_RANKS)]
    (rows if name in ("scores", "labels", "weights") else options)[2][name] = value
    errors = pool.run(_error, rows, options, timeout=60)
    assert message in errors[2]
    assert not errors[2].startswith("rank")
    for rank in (0, 1, 3):
        assert errors[rank] == f"rank 2 of 4 has an error: {errors[2]}"
    # The group can still be used.
    of_all_ranks(pool, *some_rows(), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(3).double()}, "torch.float64"),
        ({"scores": torch.zeros(3, 1)}, "shape (n, 1)"),
        ({"weights": torch.ones(3)}, "weights"),
        ({"groups": torch.ones(3).long()}, "groups"),
        ({"surrogate": "square"}, "surrogate"),
        ({"margin": 0.5}, "margin=0.5"),
        ({"reduction": "sum"}, "reduction='sum'"),
        ({"pairs": "ordered"}, "pairs='ordered'"),
    ],
)
def test_different_options_or_types_raise_on_all_ranks(pool, change, message):
    rows = [{"scores": torch.zeros(3), "labels": torch.tensor([0, 1, 1])} for _ in range(N_RANKS)]
    rows[3] |= change
    for error in pool.run(_error, rows, [{}] * N_RANKS, timeout=60):
        assert error.startswith("all ranks must call the loss with the same options and types")
        assert message in error.partition("rank 3")[2]


# Autograd and training


def _used_twice(rows):
    scores = rows["scores"].clone().requires_grad_()
    labels = rows["labels"]
    (global_pair_loss(scores, labels) + 2 * global_pair_loss(2 * scores, labels)).backward()
    both, scores.grad = scores.grad, None
    loss = global_pair_loss(scores, labels)
    loss.backward(retain_graph=True)
    loss.backward()
    again, scores.grad = scores.grad, None
    return both, again


def test_two_uses_in_one_step_and_two_backward_passes(pool):
    rows, rank_of_row = some_rows(dtype=torch.float64)
    s, y = rows["scores"].requires_grad_(), rows["labels"]
    expected = torch.autograd.grad(pair_loss(s, y) + 2 * pair_loss(2 * s, y), s)[0]
    expected_again = torch.autograd.grad(2 * pair_loss(s, y), s)[0]
    rows["scores"] = s.detach()
    for rank, (both, again) in enumerate(pool.run(_used_twice, divided(rows, rank_of_row))):
        assert_close(both / N_RANKS, expected[rank_of_row == rank], "float64", scale=0.1)
        assert_close(again / N_RANKS, expected_again[rank_of_row == rank], "float64", scale=0.1)


def _second_derivatives(rows):
    """Return the messages of attempts, and whether the loss still works after them."""
    scores = rows["scores"].clone().requires_grad_()
    messages = []
    for attempt in (
        lambda loss: loss.backward(create_graph=True),
        lambda loss: torch.autograd.grad((loss * 2.0).exp(), scores, create_graph=True),
    ):
        try:
            attempt(global_pair_loss(scores, rows["labels"]))
        except RuntimeError as error:
            messages.append(str(error))
    return messages, loss_and_grad(rows, {})[0]


def test_a_second_derivative_raises_on_all_ranks_and_none_hangs(pool):
    rows, rank_of_row = some_rows()
    expected = pair_loss(**rows)
    found = pool.run(_second_derivatives, divided(rows, rank_of_row), timeout=60)
    for messages, loss in found:
        assert len(messages) == 2
        assert all("cannot be differentiated twice" in message for message in messages)
        assert all("create_graph=True" in message for message in messages)
        assert_close(loss, expected, "float32")


def fully_sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (N_RANKS,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


HOW = {
    "DDP": nn.parallel.DistributedDataParallel,
    "compiled": nn.parallel.DistributedDataParallel,
    "large batches": nn.parallel.DistributedDataParallel,
    "FSDP2": fully_sharded,
    "one process": lambda model: model,
}


def trained(rank, how):
    """Return the losses of three steps, and the weights, of a training with the rows of a rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    X = torch.randn(60, 5)
    y = X[:, 0] + torch.randn(60) > 1.5
    loss = PairLoss(surrogate="logistic", process_group=None if how == "one process" else "world")
    if how != "one process":
        # Rank 3 has no row and rank 2 no positive one.
        rank_of_row = torch.where(y, torch.arange(60) % 2, torch.arange(60) % 3)
        if how == "large batches":
            rank_of_row[:10] = 3
        X, y = X[rank_of_row == rank], y[rank_of_row == rank]
    model = HOW[how](model)

    def loss_of(X, y):
        return loss(model(X), y)

    if how == "compiled":
        loss_of = torch.compile(loss_of, backend="aot_eager")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    values = []
    for _ in range(3):
        optimiser.zero_grad()
        if how == "large batches":
            value = large_batch_backward(model, loss, X, y, chunk=7)
        else:
            value = loss_of(X, y)
            value.backward()
        values.append(value.item())
        optimiser.step()
    weights = [p.full_tensor() if how == "FSDP2" else p for p in model.parameters()]
    return values, [w.detach() for w in weights]


@pytest.mark.parametrize("how", ["DDP", "FSDP2", "compiled", "large batches"])
def test_training_equals_that_of_a_single_process(pool, how):
    with torch.random.fork_rng():
        expected, expected_weights = trained(0, "one process")
    for values, weights in pool.run(trained, range(N_RANKS), [how] * N_RANKS):
        assert_close(values, expected, "float32")
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)


def test_the_example_trains_as_a_single_process_does(tmp_path):
    """Run the command in the docstring of the example, which fails if its weights are different.

    The machine's own name cannot be resolved here, as in many containers.
    """
    root = Path(__file__).parents[2]
    text = (root / "examples" / "distributed_training.py").read_text()
    [command] = (line for line in text.splitlines() if line.startswith("    torchrun "))
    (tmp_path / "sitecustomize.py").write_text(
        "import socket\nsocket.getfqdn = lambda name='': 'nowhere.invalid'\n"
    )
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:], "--check"],
        capture_output=True, text=True, timeout=300, cwd=root,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("weights differ by") == 2


# The module and its group


def _in_two_groups(rank, rows):
    pairs_of_ranks = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    module = PairLoss(process_group=pairs_of_ranks[rank // 2])
    before = module(rows["scores"], rows["labels"])
    module(rows["scores"], torch.ones_like(rows["labels"]))
    try:
        PairLoss(process_group=pairs_of_ranks[1 - rank // 2])(rows["scores"], rows["labels"])
    except RuntimeError as error:
        return before, int(module.n_one_class), str(error)
    return None


def test_a_module_uses_its_group_only(pool):
    rows, rank_of_row = some_rows()
    found = pool.run(_in_two_groups, range(N_RANKS), divided(rows, rank_of_row))
    for rank, (loss, n_one_class, error) in enumerate(found):
        own = rank_of_row // 2 == rank // 2
        assert_close(loss, pair_loss(rows["scores"][own], rows["labels"][own]), "float32")
        assert n_one_class == 1
        assert "process_group must contain this process" in error


def test_neither_module_nor_loss_nor_error_keeps_the_group_alive():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    scores, labels = torch.randn(4, requires_grad=True), torch.tensor([0, 1, 1, 0])
    module = PairLoss(process_group="world")
    loss = module(scores, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(ValueError, match="finite") as error:
        module(scores * torch.nan, labels)
    dist.destroy_process_group()
    gc.collect()
    assert group() is None, (module, loss, error)


# Communication


def _bytes_sent(rows, options):
    """Return the bytes that this rank sends to the other ranks."""
    sent = []
    gather, exchange = dist.all_gather, dist.all_to_all_single

    def counted_gather(tensors, tensor, **others):
        sent.append((len(tensors) - 1) * tensor.nbytes)
        return gather(tensors, tensor, **others)

    def counted_exchange(received, tensor, *splits, **others):
        sent.append(tensor.nbytes)
        return exchange(received, tensor, *splits, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", counted_gather)
        patch.setattr(dist, "all_to_all_single", counted_exchange)
        loss_and_grad(rows, options)
    return sum(sent)


def test_bytes_depend_on_the_rows_of_the_smaller_class_only(pool):
    def sent(n_pos, n_neg, **options):
        rows = {"scores": torch.randn(n_pos + n_neg), "labels": torch.arange(n_pos + n_neg) < n_pos}
        rank_of_row = torch.arange(n_pos + n_neg) % N_RANKS
        return pool.run(_bytes_sent, divided(rows, rank_of_row), [options] * N_RANKS)

    assert sent(8, 80) == sent(8, 8000) == sent(8000, 8)
    assert sent(4, 4, pairs="ordered") < sent(4, 80, pairs="ordered")
    # Of no pair: an agreement of 8 numbers. Else 2 more, and for each row a score and a gradient.
    assert sent(0, 40) == [3 * 64] * N_RANKS
    assert sent(800, 8000) == [3 * (64 + 16 + 200 * 4) + 600 * 4] * N_RANKS
    # All rows of the smaller class on one rank:
    rows = {"scores": torch.randn(4000), "labels": torch.arange(4000) < 40}
    own = divided(rows, torch.where(rows["labels"], 1, 2))
    for of_rank in pool.run(_bytes_sent, own, [{}] * N_RANKS):
        assert of_rank <= 3 * (64 + 16 + 40 * 4) + 40 * 4
