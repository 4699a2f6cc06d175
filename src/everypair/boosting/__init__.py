"""The pair loss as an objective of XGBoost, LightGBM and CatBoost.

This package does not import those libraries. An objective is a callable that reads the arguments of
the library's native interface and of its scikit-learn interface.
"""

from everypair.boosting._catboost import catboost_objective
from everypair.boosting._lightgbm import lightgbm_metric, lightgbm_objective
from everypair.boosting._scaled_loss import SOFT_HINGE
from everypair.boosting._xgboost import (
    xgboost_distributed_metric,
    xgboost_distributed_objective,
    xgboost_metric,
    xgboost_objective,
)

__all__ = [
    "SOFT_HINGE",
    "catboost_objective",
    "lightgbm_metric",
    "lightgbm_objective",
    "xgboost_distributed_metric",
    "xgboost_distributed_objective",
    "xgboost_metric",
    "xgboost_objective",
]
