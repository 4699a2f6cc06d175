"""Train boosters on a cluster of two processes: python -m tests.streaming.compare_on_cluster.

Prints JSON: for each contender its AUC and the AUC that one process computes; errors at the end.
"""

from __future__ import annotations

import json
import sys

import dask.dataframe as dd
import numpy as np
import pandas as pd
import xgboost
from dask.delayed import delayed
from distributed import Client, LocalCluster

import everypair as ep
from everypair.boosting import xgboost_objective
from everypair.dask import _compare, compare


def partitions():
    """Return a part without positives, two with both classes, and an empty one."""
    random = np.random.default_rng(0)
    # Few distinct values, so that one process and several have the same candidate splits.
    table = pd.DataFrame(np.round(2 * random.normal(size=(3000, 3))), columns=list("abc"))
    table["y"] = (table.a + table.b * table.c / 2 + 2 * random.normal(size=3000) > 6).astype(int)
    negative = table.y.to_numpy() == 0
    first = np.flatnonzero(negative)[:1000]
    others = np.setdiff1d(np.arange(3000), first)
    return [table.iloc[rows] for rows in (first, others[:900], others[:0], others[900:])]


def errors(frame):
    """Return the messages about wrong arguments."""
    text = frame.assign(a=frame.a.astype(str))
    for table, target, options in (
        (frame, "z", {}),
        (text, "y", {}),
        (frame, "a", {}),
        (frame, "y", {"models": ("catboost",)}),
        (frame, "y", {"losses": ("rmse",)}),
        (frame, "y", {"parameters": {"catboost": {}}}),
        (frame, "y", {"test_share": 1.0}),
    ):
        try:
            compare(table, target, **options)
        except ValueError as error:
            yield str(error)


def main():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        parts = partitions()
        frame = dd.from_delayed([delayed(part) for part in parts], meta=parts[0].iloc[:0])
        options = {"lightgbm": {"num_leaves": 7}, "xgboost": {"max_depth": 3}}
        found = compare(frame, "y", rounds=8, parameters=options)
        X, y, X_test, y_test = (part.compute() for part in _compare._split(frame, "y", 0.2, 0))
        settings = {**_compare.SETTINGS["xgboost"], "max_depth": 3, "base_score": 0.0}
        alone = xgboost.train(settings, xgboost.DMatrix(X, y), 8, obj=xgboost_objective())
        rows = []
        for contender in found:
            booster = alone if contender[:2] == ("xgboost", "pairs") else contender.booster
            if contender.model == "xgboost":
                scores = booster.predict(xgboost.DMatrix(X_test), output_margin=True)
            else:
                scores = booster.predict(X_test, raw_score=True)
            rows.append([*contender[:2], contender.result.auc, ep.auc(scores, y_test)])
        described = [str(contender) for contender in found]
        sys.stdout.write(json.dumps([rows, described, list(errors(frame))]))


if __name__ == "__main__":
    main()
