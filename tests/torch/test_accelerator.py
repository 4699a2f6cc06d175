"""The training tools on a GPU give the same results as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from everypair.torch._module import PairLoss
from everypair.torch.training.aucm import PESG, AUCMLoss
from everypair.torch.training.large_batch import large_batch_backward
from everypair.torch.training.monitor import EpochMonitor
from everypair.torch.training.sag import SAG

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def network(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), *layers, nn.Linear(32, 1)).cuda()


def data(n=1000):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 6, generator=generator)
    return X, (X[:, 0] + torch.randn(n, generator=generator) > 1.5).float()


def gradient(model):
    return torch.cat([w.grad.reshape(-1) for w in model.parameters()])


def test_dropout_is_replayed():
    X, y = data()
    model, twin = network(nn.Dropout(0.5)), network(nn.Dropout(0.5))
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
        model = network(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 32))
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
    X, y = (part.cuda() for part in data())
    model, twin = network(), network()
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
    X, y = data()
    records = []
    for device in ("cpu", "cuda"):
        monitor = EpochMonitor()
        for rows in torch.arange(1000).split(300):
            monitor.update("subtrain", X[rows, 0].to(device), y[rows].to(device))
        records.append(monitor.end_epoch())
    assert records[0] == records[1]
