"""Linear models for scikit-learn that are trained on all pairs.

>>> import numpy as np
>>> from everypair.sklearn import PairLinearClassifier
>>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["fine", "fine", "fraud", "fraud"]
>>> PairLinearClassifier().fit(X, y).predict([[0.5], [2.5]])
array(['fine', 'fraud'], dtype='<U5')
"""

try:
    import sklearn  # type: ignore[import-untyped]  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.sklearn needs scikit-learn. In a checkout of everypair: pip install '.[sklearn]'"
    ) from error

from everypair.sklearn._classifier import PairLinearClassifier
from everypair.sklearn._cross_validation import PairLinearClassifierCV
from everypair.sklearn._ranker import PairLinearRanker, PairLinearSurvival

__all__ = [
    "PairLinearClassifier",
    "PairLinearClassifierCV",
    "PairLinearRanker",
    "PairLinearSurvival",
]
