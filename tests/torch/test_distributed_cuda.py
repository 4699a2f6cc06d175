"""The loss over the pairs of all ranks on a GPU: NCCL with one process, Gloo with two."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from everypair.torch import pair_loss
from everypair.torch.distributed import global_pair_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPTIONS = (
    {},
    {"weights": True},
    {"groups": True},
    {"surrogate": "logistic"},
    {"reduction": "sum"},
    {"pairs": "ordered"},
    {"max_fpr": 0.1},
)


def some_rows(tasks, dtype):
    generator = torch.Generator().manual_seed(0)
    shape = (5000,) if tasks is None else (5000, tasks)
    rows = {
        "scores": torch.randn(shape, generator=generator, dtype=dtype),
        "labels": (torch.rand(shape, generator=generator) < 0.02).float(),
        "weights": torch.rand(5000, generator=generator, dtype=dtype),
        "groups": torch.randint(0, 4, (5000,), generator=generator),
    }
    return {name: tensor.cuda() for name, tensor in rows.items()}


def compare(rank, size, backend, store):
    """Compare every option with a single process; an error ends the process."""
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    for tasks in (None, 3):
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            for given in OPTIONS:
                rows = some_rows(tasks, dtype)
                optional = {name: rows.pop(name) for name in ("weights", "groups")}
                rows |= {name: optional[name] for name in optional if given.get(name)}
                options = {name: value for name, value in given.items() if name not in optional}
                own = torch.arange(5000, device="cuda") % 3 % size == rank
                part = {name: tensor[own] for name, tensor in rows.items()}
                rows["scores"].requires_grad_()
                part["scores"].requires_grad_()
                expected, loss = pair_loss(**rows, **options), global_pair_loss(**part, **options)
                expected.backward()
                loss.backward()
                torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0.0)
                whole = rows["scores"].grad
                error = (part["scores"].grad / size - whole[own]).abs().max() / whole.abs().max()
                assert error <= tolerance, (tasks, dtype, given, error)
    bad = torch.full((3,), torch.nan if rank == size - 1 else 0.0, device="cuda")
    with pytest.raises(ValueError, match="scores must be finite"):
        global_pair_loss(bad, torch.tensor([0, 1, 1], device="cuda"))
    dist.destroy_process_group()


@pytest.mark.parametrize(("backend", "size"), [("nccl", 1), ("cpu:gloo,cuda:nccl", 1), ("gloo", 2)])
def test_equals_a_single_process(backend, size, tmp_path):
    mp.spawn(compare, (size, backend, tmp_path / "store"), size)
