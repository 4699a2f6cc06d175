"""Time of a LightGBM round with the pair loss, relative to its built-in logloss.

python -m benchmarks.boosting_round [--n 1000000] [--rounds 30]
python -m benchmarks check       compare the rows with the limit
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import lightgbm as lgb
import numpy as np

import everypair as ep
from benchmarks import rows
from everypair.boosting import lightgbm_objective

PATH = rows.ROWS / "boosting" / "round.csv"
FEATURES, THREADS = 30, 2


def table(n: int, positives: float) -> lgb.Dataset:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, FEATURES)).astype(np.float32)
    noisy = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=n)
    y = noisy > np.quantile(noisy, 1.0 - positives)
    dataset = lgb.Dataset(X, y, params={"verbose": -1, "num_threads": THREADS})
    return dataset.construct()


def measure(n: int, positives: float, rounds: int) -> list[rows.Row]:
    """Train two boosters alternately, so that a slow phase of the machine affects both."""
    dataset = table(n, positives)
    # The same regularisation for both, so that the trees have about the same size.
    common = {
        "num_threads": THREADS,
        "verbose": -1,
        "lambda_l2": 1.0,
        "min_sum_hessian_in_leaf": 1.0,
    }
    objective = lightgbm_objective()
    boosters = {
        "logloss": (lgb.Booster({**common, "objective": "binary"}, dataset), None),
        "everypair": (lgb.Booster({**common, "objective": "none"}, dataset), objective),
    }
    samples: dict[str, list[float]] = {name: [] for name in boosters}
    for number in range(rounds + 2):
        for name in sorted(boosters, reverse=number % 2 == 1):
            booster, fobj = boosters[name]
            start = time.perf_counter()
            booster.update(fobj=fobj)
            if number >= 2:  # the first two rounds are warm-up
                samples[name].append(time.perf_counter() - start)
    found = []
    for name, seconds in samples.items():
        found.append(
            rows.row(
                suite="boosting_round",
                n=n,
                positives=positives,
                threads=THREADS,
                backend=f"lightgbm-{name}",
                surrogate="soft_hinge" if name == "everypair" else "",
                quantity="seconds",
                **rows.quantiles(seconds),
                repeats=len(seconds),
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.boosting_round")
    parser.add_argument("--n", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=PATH)
    options = parser.parse_args()
    ep.set_num_threads(THREADS)
    measured = []
    for positives in (0.5, 0.01):
        pair = measure(options.n, positives, options.rounds)
        measured += pair
        ratio = pair[1].median / pair[0].median
        print(
            f"{positives:g} positives: logloss {pair[0].median:.3f} s, everypair "
            f"{pair[1].median:.3f} s, {ratio:.2f} times (p20 {pair[1].p20 / pair[0].p20:.2f})"
        )
    rows.write(measured, options.output)


if __name__ == "__main__":
    main()
