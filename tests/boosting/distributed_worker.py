"""What one of two XGBoost workers does, in a process of its own."""

from __future__ import annotations

import numpy as np
import xgboost as xgb

from everypair.boosting import (
    xgboost_distributed_metric,
    xgboost_distributed_objective,
    xgboost_metric,
)

CASES = ("even", "no positives on 0", "no negatives on 1", "no rows on 1", "weights")
SCORES = np.random.default_rng(1).normal(size=600).astype(np.float32)
PARAMETERS = {"max_depth": 3, "base_score": 0.0, "disable_default_eval_metric": True}
ROUNDS = 4


def rows_of(case):
    """Return table, labels, weights and the worker of each row."""
    random = np.random.default_rng(0)
    # Few distinct values, so that one worker and several have the same candidate splits.
    table = np.round(2 * random.normal(size=(600, 3)))
    labels = table[:, 0] + table[:, 1] + random.normal(size=600) > 3
    worker = np.where(np.arange(600) < 100, 0, 1)
    if case == "no positives on 0":
        worker[labels] = 1
    elif case == "no negatives on 1":
        worker = labels.astype(int)
    elif case == "no rows on 1":
        worker[:] = 0
    weights = random.integers(0, 4, 600).astype(float) if case == "weights" else None
    return table[:, :2], labels, weights, worker


def matrix_of(table, labels, weights, chosen):
    weights = None if weights is None else weights[chosen]
    return xgb.DMatrix(table[chosen], label=labels[chosen], weight=weights)


def results_of(rank, arguments):
    """Return, for each case, gradient and Hessian of this worker's rows, and trained scores.

    Also returns the AUC of this worker's rows, and the history of the metric of all rows, both for
    the first case; and errors about weights and groups that only worker 1 has.
    """
    results, history = {}, {}
    with xgb.collective.CommunicatorContext(dmlc_task_id=str(rank), **arguments):
        for case in CASES:
            table, labels, weights, worker = rows_of(case)
            matrix = matrix_of(table, labels, weights, worker == rank)
            derivatives = xgboost_distributed_objective()(SCORES[worker == rank], matrix)
            booster = xgb.train(
                PARAMETERS, matrix, ROUNDS, obj=xgboost_distributed_objective(),
                evals=[(matrix, "all")] if weights is None else [], evals_result=history,
                custom_metric=xgboost_distributed_metric(), verbose_eval=False,
            )  # fmt: skip
            scores = booster.predict(xgb.DMatrix(table), output_margin=True)
            results[case] = derivatives, scores
            if case == "even":
                local = xgboost_metric()(scores[worker == rank], matrix)[1]
                of_all = history["all"]["auc_pairs"][-1]
        messages = []
        table, labels, _, worker = rows_of("even")
        for kind in ("set_weight", "set_group"):
            matrix = matrix_of(table, labels, None, worker == rank)
            if rank == 1:  # on one of the workers only; both raise
                getattr(matrix, kind)(np.ones(500))
            for use in (xgboost_distributed_metric(), xgboost_distributed_objective()):
                try:
                    use(SCORES[worker == rank], matrix)
                except ValueError as error:
                    messages.append(str(error))
    return results, local, of_all, messages
