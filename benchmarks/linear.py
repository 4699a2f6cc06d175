"""Time PairLinearClassifier against scikit-learn's LogisticRegression(solver="lbfgs").

    python -m benchmarks.linear              # both sizes, written to benchmarks/rows/linear/
    python -m benchmarks.linear --threads 2

Both stop at a relative gradient norm of 1e-6: the norm of the gradient divided by that at zero
coefficients. LogisticRegression has only an absolute tolerance, so that is lowered from 1e-3 by
factors of 1.5, before the timing, until its solution is as accurate. Its penalty C = 1 equals alpha
= 1 / n. The rows hold the relative gradient norms of both. `python -m benchmarks check` compares
the rows with the limits.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import everypair as ep
from benchmarks.rows import ROWS, Row, installed, quantiles, row, write
from everypair.sklearn import PairLinearClassifier

COLUMNS = 50
POSITIVES = 0.01
TOL = 1e-6
SIZES = (2_000, 200_000)


@dataclass(frozen=True)
class Fit(Row):
    """One estimator in one cell; `ratio` is its time relative to LogisticRegression."""

    columns: int
    ratio: float
    relative_gradient: float
    n_iter: int
    train_auc: float
    sklearn: str
    scipy: str


def made_up(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated normal columns, shifted for the positives, and labels."""
    rng = np.random.default_rng(0)
    y = np.zeros(n, dtype=int)
    y[rng.choice(n, round(POSITIVES * n), replace=False)] = 1
    mixing = np.eye(COLUMNS) + 0.3 * rng.standard_normal((COLUMNS, COLUMNS)) / COLUMNS**0.5
    X = rng.standard_normal((n, COLUMNS)) @ mixing
    return X + 0.3 * rng.standard_normal(COLUMNS) * y[:, None], y


def logistic_gradient(X: np.ndarray, y: np.ndarray, coef: np.ndarray, intercept: float) -> float:
    residual = (1.0 / (1.0 + np.exp(-(X @ coef + intercept))) - y) / len(y)
    return float(np.linalg.norm([*(X.T @ residual + coef / len(y)), residual.sum()]))


def pair_gradient(X: np.ndarray, y: np.ndarray, coef: np.ndarray) -> float:
    _, score_grad = ep.pair_loss_and_grad(X @ coef, y)
    return float(np.linalg.norm(X.T @ score_grad + coef / len(y)))


def relative_gradient(model: object, X: np.ndarray, y: np.ndarray) -> float:
    zero, coef = np.zeros(COLUMNS), model.coef_[0]
    if isinstance(model, PairLinearClassifier):
        return pair_gradient(X, y, coef) / pair_gradient(X, y, zero)
    at_zero = logistic_gradient(X, y, zero, 0.0)
    return logistic_gradient(X, y, coef, model.intercept_[0]) / at_zero


def logistic_as_good(X: np.ndarray, y: np.ndarray) -> LogisticRegression:
    """Return the LogisticRegression with the largest tolerance that is accurate enough."""
    tol = 1e-3
    while True:
        model = LogisticRegression(solver="lbfgs", C=1.0, tol=tol, max_iter=10_000).fit(X, y)
        if relative_gradient(model, X, y) <= TOL:
            return model
        tol /= 1.5


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cell(n: int, threads: int) -> list[Fit]:
    X, y = made_up(n)
    reference = logistic_as_good(X, y)
    models = {"LogisticRegression(lbfgs)": reference}
    for solver in ("auto", "newton-cg", "lbfgs"):
        models[f"PairLinearClassifier({solver})"] = PairLinearClassifier(
            surrogate="squared_hinge", alpha=1.0 / n, tol=TOL, solver=solver
        )
    repeats = 9 if n > 10_000 else 51
    taken: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model.fit(X, y)
    # Alternately, so that a slow phase of the machine affects all of them.
    for _ in range(repeats):
        for name, model in models.items():
            taken[name].append(seconds(lambda model=model: model.fit(X, y)))
    base = statistics.median(taken["LogisticRegression(lbfgs)"])
    fits = []
    for name, model in models.items():
        found = quantiles(taken[name])
        timed = row(
            suite="linear",
            n=n,
            positives=POSITIVES,
            threads=threads,
            dtype="float64",
            backend=name,
            surrogate="" if model is reference else model.surrogate,
            quantity="seconds",
            **found,
            repeats=repeats,
        )
        fits.append(
            Fit(
                **asdict(timed),
                columns=COLUMNS,
                ratio=found["median"] / base,
                relative_gradient=relative_gradient(model, X, y),
                n_iter=int(np.max(model.n_iter_)),
                train_auc=ep.auc(model.decision_function(X), y),
                sklearn=installed("scikit-learn"),
                scipy=installed("scipy"),
            )
        )
    return fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    warnings.simplefilter("error", ConvergenceWarning)
    ep.set_num_threads(threads)
    fits: list[Fit] = []
    with threadpool_limits(threads):
        for n in SIZES:
            for fit in cell(n, threads):
                fits.append(fit)
                print(
                    f"n {fit.n:7d}  {fit.backend:32s} {1e3 * fit.median:8.2f} ms"
                    f"  {fit.ratio:5.2f} x  gradient {fit.relative_gradient:.1e}"
                    f"  {fit.n_iter:3d} iterations  AUC {fit.train_auc:.4f}"
                )
    write(fits, ROWS / "linear" / f"fit_{threads}_threads.csv")


if __name__ == "__main__":
    main()
