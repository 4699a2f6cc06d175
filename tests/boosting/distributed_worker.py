"""One of two XGBoost workers: python -m tests.boosting.distributed_worker RANK ARGUMENTS.

Prints JSON: for each case the gradient and the Hessian of this worker's rows, the scores of all
rows after training, and the history of the metric; then the AUC of this worker's rows.
"""

from __future__ import annotations

import json
import sys

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
    matrix = xgb.DMatrix(table[chosen], label=labels[chosen])
    if weights is not None:
        matrix.set_weight(weights[chosen])
    return matrix


def main():
    rank, found = int(sys.argv[1]), {}
    with xgb.collective.CommunicatorContext(dmlc_task_id=sys.argv[1], **json.loads(sys.argv[2])):
        assert xgb.collective.get_rank() == rank
        for case in CASES:
            table, labels, weights, worker = rows_of(case)
            mine = worker == rank
            matrix = matrix_of(table, labels, weights, mine)
            grad, hess = xgboost_distributed_objective()(SCORES[mine], matrix)
            history, evaluation = {}, {}
            if weights is None:
                evaluation = {"evals": [(matrix, "all")], "evals_result": history}
                evaluation |= {"custom_metric": xgboost_distributed_metric(), "verbose_eval": False}
            booster = xgb.train(
                PARAMETERS, matrix, ROUNDS, obj=xgboost_distributed_objective(), **evaluation
            )
            scores = booster.predict(xgb.DMatrix(table), output_margin=True)
            found[case] = [grad.tolist(), hess.tolist(), scores.tolist(), history]
            if case == "even":
                local = xgboost_metric()(scores[mine], matrix)[1]
        for name, kind in (("weights", "set_weight"), ("groups", "set_group")):
            table, labels, _, worker = rows_of("even")
            matrix = matrix_of(table, labels, None, worker == rank)
            if rank == 1:  # on one of the workers only; both raise
                getattr(matrix, kind)(np.ones(500))
            for use in (xgboost_distributed_metric(), xgboost_distributed_objective()):
                try:
                    use(SCORES[worker == rank], matrix)
                except ValueError as error:
                    found.setdefault(f"{name} are refused", []).append(str(error))
    sys.stdout.write(json.dumps([found, local]))


if __name__ == "__main__":
    main()
