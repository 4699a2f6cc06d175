"""Every pair as the objective of XGBoost, LightGBM and CatBoost.

Nothing here imports those libraries: an objective is a callable that reads what the library hands
it, through the native and the scikit-learn interface alike.

>>> import numpy as np
>>> from everypair.boosting import lightgbm_objective
>>> objective = lightgbm_objective()
>>> grad, hess = objective(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
>>> grad  # of a class, as of the logistic loss: a half for each row, times the other class's share
array([-0.375,  0.125,  0.125,  0.125])
>>> hess.round(4).tolist()
[0.1875, 0.0625, 0.0625, 0.0625]
"""

from everypair.boosting._catboost import catboost_objective
from everypair.boosting._lightgbm import lightgbm_metric, lightgbm_objective
from everypair.boosting._scaling import SOFT_HINGE
from everypair.boosting._xgboost import xgboost_metric, xgboost_objective

__all__ = [
    "SOFT_HINGE",
    "catboost_objective",
    "lightgbm_metric",
    "lightgbm_objective",
    "xgboost_metric",
    "xgboost_objective",
]
