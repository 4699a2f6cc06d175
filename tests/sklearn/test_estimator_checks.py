"""All checks of scikit-learn for estimators."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from everypair.sklearn import (
    PairLinearClassifier,
    PairLinearClassifierCV,
    PairLinearRanker,
    PairLinearSurvival,
)

ESTIMATORS = [
    PairLinearClassifier(),
    # One of the checks compares two fits to 1e-7, closer than the default tolerance promises.
    PairLinearClassifier(solver="lbfgs", tol=1e-8),
    PairLinearClassifier(surrogate="linear_hinge", threshold="prevalence", tol=1e-8),
    PairLinearClassifierCV(alphas=3, cv=3),
    PairLinearRanker(solver="newton-cg", tol=2e-9),
    PairLinearSurvival(tol=2e-9),
]


@parametrize_with_checks(ESTIMATORS)
def test_passes_the_check(estimator, check):
    check(estimator)
