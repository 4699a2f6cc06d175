"""Check and time the loss on a CUDA device.

python -m benchmarks.gpu [--rows FOLDER] [--only PART]

`check` compares loss and gradient with the same loss in float64 by torch operations, on easy and
hard scores; at 10^8 rows it compares with a block that is repeated. `times` measures forward and
backward through autograd in float32 (medians of CUDA events), and torch's BCE and LibAUC's AUCM in
torch operations, called eagerly and replayed as a CUDA graph. `questions` times weights, other
surrogates, types and derivatives, by the kernels and by torch operations.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import everypair as ep
from benchmarks.rows import write_csv
from everypair.torch import AUCMLoss, PairLoss, pair_derivatives, pair_loss
from everypair.torch._dispatch import forced

SHARES = (0.5, 0.01, 0.001)
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)
REPEATS = 51
LIMITS = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float64: 1e-12}

Step = Callable[[], object]
Facts = dict[str, object]


def batch(n: int, share: float, kind: str = "normal") -> tuple[Tensor, Tensor]:
    """Return scores and labels of both classes; positives score higher on average."""
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
    """Return the larger relative error of loss and gradient (over its largest entry)."""
    parts = [
        (a - b).abs().max() / b.abs().max().clamp(min=1e-300)
        for a, b in zip(found, wanted, strict=True)
    ]
    return max(part.item() for part in parts)


def check() -> float:
    """Print every error above its limit, and return the largest error with float32 scores."""
    worst = 0.0
    for n in (10**3, 10**4, 10**5, 10**6, 10**7):
        for share, kind, dtype in product(SHARES, KINDS, LIMITS):
            asked = [{}, {"surrogate": "huber_hinge"}, {"weights": torch.rand(n, device="cuda")}]
            if dtype is torch.bfloat16 or n == 10**7:  # compiling and the references are slow
                del asked[1:]
            if dtype is torch.float64 and kind in ("decades", "huge"):
                del asked[1:2]  # there torch operations lose digits by cancellation
            for knobs in asked:
                knobs["margin"] = 0.1 if kind == "offset" else 1.0
                scores, labels = batch(n, share, kind)
                scores = scores.to(dtype)
                with forced("operations"):
                    wanted = derivatives(scores.double(), labels, **knobs)
                if dtype is torch.bfloat16:  # the gradient is rounded to the same type
                    wanted = wanted[0], wanted[1].to(dtype).double()
                found, again = (derivatives(scores, labels, **knobs) for _ in range(2))
                wrong = error(found, wanted)
                same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
                if not wrong <= LIMITS[dtype] or not same:
                    print("WRONG", n, share, kind, dtype, [*knobs], wrong, same, flush=True)
                if dtype is torch.float32:
                    worst = max(worst, wrong)
    scores, labels = batch(10**6, 0.01)
    with forced("operations"):
        loss, grad = derivatives(scores.double(), labels)
    found = derivatives(scores.repeat(100), labels.repeat(100))
    worst = max(worst, error(found, (loss, grad.repeat(100) / 100)))
    print(f"largest relative error: {worst:.2e}", flush=True)
    return worst


def milliseconds(steps: dict[str, Step], repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return median, 20 % and 80 % quantile of each step; the steps are run alternately."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-5, repeats):
        for name, step in steps.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            step()
            end.record()
            torch.cuda.synchronize()
            if turn >= 0:
                found[name].append(start.elapsed_time(end))
    return {
        name: (part[repeats // 2], part[repeats // 5], part[repeats * 4 // 5])
        for name, part in ((name, sorted(part)) for name, part in found.items())
    }


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


def times(known: Facts) -> list[Facts]:
    """Time loss and gradient for each size, share of positives and contender."""
    rows = []
    for n in SIZES:
        for share in SHARES:
            scores, labels = batch(n, share)
            labels = labels.float()
            for mode in ("eager", "graph"):
                steps = contenders(scores, labels)
                if mode == "graph":
                    steps = {name: replay(step) for name, step in steps.items()}
                found = milliseconds(steps, 15 if n > 10**7 else REPEATS)
                where = {"n": n, "positives": share, "mode": mode}
                for name, quantiles in found.items():
                    ratio = round(quantiles[0] / found["BCE"][0], 3)
                    rows.append(
                        {**where, "contender": name, **row(quantiles), "bce_ratio": ratio, **known}
                    )
                medians = "  ".join(f"{k} {v[0]:.4f}" for k, v in found.items())
                ratio = found["everypair"][0] / found["BCE"][0]
                print(f"{n:>9} {share:<6} {mode:<6} {medians}  ratio {ratio:.2f}", flush=True)
    return rows


def row(quantiles: tuple[float, float, float]) -> Facts:
    names = ("median_ms", "p20_ms", "p80_ms")
    return {name: round(x, 5) for name, x in zip(names, quantiles, strict=True)}


def questions(n: int) -> dict[str, Step]:
    """Return the calls to be timed on n rows, 10 % of them positive."""
    scores, labels = batch(n, 0.1)
    weights, vector = torch.rand(n, device="cuda"), torch.randn(n, device="cuda")
    grades = torch.randint(0, 5, (n,), dtype=torch.int8, device="cuda")

    def loss_and_grad(scores: Tensor, labels: Tensor = labels, **knobs: object) -> Step:
        leaf = scores.clone().requires_grad_()

        def run() -> None:
            leaf.grad = None
            pair_loss(leaf, labels, **knobs).backward()

        return run

    def hvp() -> None:
        leaf = scores.clone().requires_grad_()
        (grad,) = torch.autograd.grad(pair_loss(leaf, labels), leaf, create_graph=True)
        torch.autograd.grad(grad, leaf, vector)

    return {
        "squared hinge": loss_and_grad(scores),
        "weights": loss_and_grad(scores, weights=weights),
        "float64": loss_and_grad(scores.double()),
        "bfloat16": loss_and_grad(scores.bfloat16()),
        "8 tasks": loss_and_grad(scores.reshape(n // 8, 8), labels.reshape(n // 8, 8)),
        "Huber hinge": loss_and_grad(scores, surrogate="huber_hinge"),
        "linear hinge": loss_and_grad(scores, surrogate="linear_hinge"),
        "square": loss_and_grad(scores, surrogate="square"),
        "logistic": loss_and_grad(scores, surrogate="logistic"),
        "ordered, 5 grades": loss_and_grad(scores, grades, pairs="ordered"),
        "ordered, all distinct": loss_and_grad(scores, vector, pairs="ordered"),
        "Hessian times vector": hvp,
        "diagonal of the Hessian": lambda: pair_derivatives(scores, labels),
    }


def by_operations(step: Step) -> Step:
    def run() -> None:
        with forced("operations"):
            step()

    return run


def ask(known: Facts, path: Path) -> None:
    """Time the calls of `questions` by kernels and by torch operations; write after each size."""
    rows = []
    for n in (10**4, 10**5, 10**6, 10**7):
        for question, step in questions(n).items():
            found = milliseconds({"kernels": step, "operations": by_operations(step)}, 11)
            for way, quantiles in found.items():
                rows.append({"n": n, "question": question, "way": way, **row(quantiles), **known})
            medians = "  ".join(f"{way} {quantiles[0]:.3f}" for way, quantiles in found.items())
            print(f"{n:>9} {question:<24} {medians}", flush=True)
        write_csv(rows, path)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/rows/gpu"))
    parser.add_argument("--only", choices=("check", "times", "questions"), action="append")
    given = parser.parse_args()
    parts = given.only or ("check", "times", "questions")
    torch.manual_seed(0)
    worst = check() if "check" in parts else float("nan")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    known: Facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "everypair": ep.__version__,
        "commit": commit,
        "date": date.today().isoformat(),
    }
    if "times" in parts:
        write_csv(times({"worst_error": worst, **known}), given.rows / "loss_and_grad.csv")
    if "questions" in parts:
        ask(known, given.rows / "questions.csv")
    if worst > LIMITS[torch.float32]:
        sys.exit(1)


if __name__ == "__main__":
    main()
