"""The loss on a CUDA device: first whether it is right, then how fast.

python -m benchmarks.gpu [--rows FILE] [--quick]

Right: loss and gradient against the same loss in double precision by torch operations, on easy and
hard scores; at 10^8 rows, against a block that is repeated. Fast: forward and backward through
autograd, float32, medians of CUDA events, beside torch's BCE and LibAUC's AUCM in torch operations,
eagerly and as the replay of a CUDA graph.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

import everypair as ep
from everypair.torch import AUCMLoss, PairLoss, pair_loss
from everypair.torch._columns import forced

SHARES = (0.5, 0.01, 0.001)
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)
REPEATS = 51
WORST = 1e-6

Step = Callable[[], None]


def batch(n: int, share: float, kind: str = "normal") -> tuple[Tensor, Tensor]:
    """Return scores and labels; there are positives, and they score higher."""
    labels = torch.rand(n, device="cuda") < share
    labels[0], labels[1] = True, False
    scores = torch.randn(n, device="cuda") + labels
    kinds: dict[str, Callable[[], Tensor]] = {
        "normal": lambda: scores,
        "offset": lambda: scores + 1000,
        "saturated": lambda: torch.sigmoid(20 * scores),
        "ties": lambda: (4 * scores).round() / 4,
        "cauchy": lambda: torch.tan(scores),
        "separated": lambda: scores + 5 * labels,
        "tiny": lambda: 1e-5 * scores,
        "decades": lambda: scores.sign() * 10 ** (30 * torch.rand(n, device="cuda") - 15),
        "huge": lambda: 1e18 * scores,
    }
    return kinds[kind](), labels


KINDS = ("normal", "offset", "saturated", "ties", "cauchy", "separated", "tiny", "decades", "huge")


def derivatives(scores: Tensor, labels: Tensor, **knobs: object) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().clone().requires_grad_()
    loss = pair_loss(leaf, labels, **knobs)
    loss.backward()
    return loss.detach().double(), leaf.grad.double()


def error(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> float:
    """Return the larger of the two relative errors; the gradient's over its largest entry."""
    parts = [
        (a - b).abs().max() / b.abs().max().clamp(min=1e-300)
        for a, b in zip(found, wanted, strict=True)
    ]
    return max(part.item() for part in parts)


def check(sizes: tuple[int, ...]) -> float:
    worst = 0.0
    for n in (*(n for n in sizes if n <= 10**7), 5000, 20_000):
        for share in SHARES:
            for kind in KINDS:
                for dtype in (torch.float32, torch.bfloat16, torch.float64):
                    for surrogate in ("squared_hinge", "huber_hinge") if n <= 10**5 else (None,):
                        knobs = {} if surrogate is None else {"surrogate": surrogate}
                        knobs["margin"] = 0.1 if kind == "offset" else 1.0
                        scores, labels = batch(n, share, kind)
                        scores = scores.to(dtype)
                        with forced("operations"):
                            wanted = derivatives(scores.double(), labels, **knobs)
                        if dtype is torch.bfloat16:  # the gradient is rounded to the same type
                            wanted = wanted[0], wanted[1].to(dtype).double()
                        found = derivatives(scores, labels, **knobs)
                        again = derivatives(scores, labels, **knobs)
                        wrong = error(found, wanted)
                        same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
                        limit = 1e-2 if dtype is torch.bfloat16 else WORST
                        if not wrong <= limit or not same:
                            print("WRONG", n, share, kind, dtype, surrogate, wrong, same)
                        if dtype is not torch.bfloat16:
                            worst = max(worst, wrong)
    if max(sizes) >= 10**8:
        scores, labels = batch(10**6, 0.01)
        with forced("operations"):
            loss, grad = derivatives(scores.double(), labels)
        found = derivatives(scores.repeat(100), labels.repeat(100))
        worst = max(worst, error(found, (loss, grad.repeat(100) / 100)))
    print(f"largest relative error: {worst:.2e}", flush=True)
    return worst


def milliseconds(step: Step, repeats: int) -> tuple[float, float, float]:
    """Return median, 20 % and 80 % quantile."""
    for _ in range(5):
        step()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    times.sort()
    return times[len(times) // 2], times[len(times) // 5], times[len(times) * 4 // 5]


def replay(step: Step) -> Step:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def contenders(scores: Tensor, labels: Tensor) -> dict[str, Step]:
    modules: dict[str, nn.Module] = {
        "BCE": nn.BCEWithLogitsLoss(),
        "everypair": PairLoss().cuda(),
        "AUCM": AUCMLoss().cuda(),
    }

    def step(module: nn.Module) -> Step:
        leaf = scores.clone().requires_grad_()

        def run() -> None:
            leaf.grad = None
            module(leaf, labels).backward()

        return run

    return {name: step(module) for name, module in modules.items()}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/rows/gpu/loss_and_grad.csv"))
    parser.add_argument("--quick", action="store_true", help="no check, up to 10^6 rows")
    given = parser.parse_args()
    sizes = tuple(n for n in SIZES if not given.quick or n <= 10**6)
    torch.manual_seed(0)
    worst = float("nan") if given.quick else check(sizes)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = []
    for n in sizes:
        for share in SHARES:
            scores, labels = batch(n, share)
            labels = labels.float()
            for mode in ("eager", "graph"):
                steps = contenders(scores, labels)
                if mode == "graph":
                    steps = {name: replay(step) for name, step in steps.items()}
                found = {
                    name: milliseconds(step, 15 if n > 10**7 else REPEATS)
                    for name, step in steps.items()
                }
                for name, (median, low, high) in found.items():
                    rows.append(
                        {
                            "n": n,
                            "positives": share,
                            "mode": mode,
                            "contender": name,
                            "median_ms": round(median, 5),
                            "p20_ms": round(low, 5),
                            "p80_ms": round(high, 5),
                            "bce_ratio": round(median / found["BCE"][0], 3),
                            "worst_error": worst,
                            "gpu": torch.cuda.get_device_name(),
                            "torch": torch.__version__,
                            "everypair": ep.__version__,
                            "commit": commit,
                            "date": date.today().isoformat(),
                        }
                    )
                told = "  ".join(f"{k} {v[0]:.4f}" for k, v in found.items())
                ratio = found["everypair"][0] / found["BCE"][0]
                print(f"{n:>9} {share:<6} {mode:<6} {told}  ratio {ratio:.2f}", flush=True)
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    with given.rows.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    if worst > WORST:
        sys.exit(1)


if __name__ == "__main__":
    main()
