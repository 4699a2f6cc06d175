"""The pair loss as an objective of XGBoost, LightGBM and CatBoost.

This package does not import those libraries. An objective is a callable that reads the arguments of
the library's native interface and of its scikit-learn interface.

>>> import numpy as np
>>> from everypair.boosting import lightgbm_objective
>>> objective = lightgbm_objective()
>>> grad, hess = objective(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
>>> grad.round(4).tolist()  # at equal scores: as the logistic loss with the best intercept
[-0.75, 0.25, 0.25, 0.25]
>>> hess.round(4).tolist()
[0.1875, 0.1875, 0.1875, 0.1875]
"""

from everypair.boosting._catboost import catboost_objective
from everypair.boosting._lightgbm import lightgbm_metric, lightgbm_objective
from everypair.boosting._scaled_loss import SOFT_HINGE
from everypair.boosting._xgboost import xgboost_metric, xgboost_objective

__all__ = [
    "SOFT_HINGE",
    "catboost_objective",
    "lightgbm_metric",
    "lightgbm_objective",
    "xgboost_metric",
    "xgboost_objective",
]
