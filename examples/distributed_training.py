"""Train on several processes with the loss over the pairs of all of them.

    torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 examples/distributed_training.py

With --local-addr, the processes find one another also if the machine's own name cannot be resolved.
Runs on GPUs with NCCL if each process has one, otherwise on the CPU with Gloo. The weights are
those of a training in a single process; `--check` compares them.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from everypair.torch import PairLoss, StratifiedBatchSampler


def rare_events(n: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (n, 10) and labels (n,), of which about 0.5 % are positive."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 10, generator=generator)
    noise = torch.randn(n, generator=generator)
    return X, X[:, :3].sum(1) + noise > 5.2


def train(model: nn.Module, loss: nn.Module, loader: DataLoader, device: torch.device) -> None:
    """Train for two epochs; rank 0 prints the last loss of each, which is the same on all ranks."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimiser.zero_grad()
            value = loss(model(inputs.to(device)).squeeze(1), labels.to(device))
            value.backward()
            optimiser.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {value.item():.4f}", flush=True)


def new_model() -> nn.Module:
    """Return a model with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def run(device: torch.device, check: bool) -> None:
    """Train on this rank; with `check`, train again in a single process and compare the weights."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    X, y = rare_events()
    data = TensorDataset(X, y)
    # Global batches of 1000 rows. Each has positives; the share of a rank need not.
    sampler = StratifiedBatchSampler(
        y, 1000 // world_size, rank=rank, world_size=world_size, stratify="global"
    )
    model = DistributedDataParallel(new_model().to(device))
    train(model, PairLoss(process_group="world"), DataLoader(data, batch_sampler=sampler), device)
    if not check:
        return
    whole = StratifiedBatchSampler(y, sampler.batch_size * world_size)
    alone = new_model().to(device)
    train(alone, PairLoss(), DataLoader(data, batch_sampler=whole), device)
    difference = max(
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), alone.parameters(), strict=True)
    )
    print(f"rank {rank}: weights differ by {difference:.1g} at most", flush=True)
    if difference > 1e-4:
        raise SystemExit("the weights are not those of a single process")


def main() -> None:
    """Set up the process group and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with a single process")
    check = parser.parse_args().check
    has_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    run(device, check)  # releases the model before the group is destroyed
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
