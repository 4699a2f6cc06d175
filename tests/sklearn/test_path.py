"""PairLinearClassifierCV chooses the alpha with the best validation AUC."""

from __future__ import annotations

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold

import everypair as ep
from everypair.sklearn import PairLinearClassifier, PairLinearClassifierCV

from .tables import table


def test_agrees_with_a_grid_search():
    data = table(n=150, d=40)
    alphas = [1e-4, 1e-2, 1.0, 100.0]
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    with parallel_config("threading"):
        path = PairLinearClassifierCV(alphas=alphas, cv=folds, n_jobs=2).fit(data.X, data.y)
    search = GridSearchCV(PairLinearClassifier(), {"alpha": alphas}, scoring="roc_auc", cv=folds)
    search.fit(data.X, data.y)
    assert search.best_score_ - path.scores_.mean(axis=0).max() < 1e-2
    assert path.alpha_ == path.alphas_[path.scores_.mean(axis=0).argmax()]
    assert list(path.alphas_) == alphas[::-1]
    by_fold = [search.cv_results_[f"split{i}_test_score"][::-1] for i in range(4)]
    np.testing.assert_allclose(path.scores_, by_fold, atol=1e-2)
    last = PairLinearClassifier(alpha=path.alpha_).fit(data.X, data.y)
    np.testing.assert_array_equal(path.coef_, last.coef_)
    assert path.objective_ == last.objective_


def test_folds_do_not_split_groups_and_auc_is_within_groups():
    data = table(n=300)
    groups = np.arange(300) // 10
    weights = data.weights
    model = PairLinearClassifierCV(alphas=[0.1], cv=3).fit(data.X, data.y, weights, groups)
    for k, (train, validation) in enumerate(StratifiedGroupKFold(3).split(data.X, data.y, groups)):
        fold = PairLinearClassifier(alpha=0.1)
        fold.fit(data.X[train], data.y[train], weights[train], groups[train])
        scores, rows = fold.decision_function(data.X[validation]), validation
        area = ep.auc(scores, data.y[rows], weights=weights[rows], groups=groups[rows])
        assert model.scores_[k, 0] == pytest.approx(area)
    # A splitter of the user may ignore the groups, which the loss uses all the same.
    PairLinearClassifierCV(alphas=[0.1], cv=StratifiedKFold(3)).fit(data.X, data.y, groups=groups)


def test_folds_without_pairs_are_ignored():
    data = table(n=40)
    one_class = np.flatnonzero(data.y == 0)
    half = np.arange(20), np.arange(20, 40)
    folds = [half, (np.arange(40), one_class)]
    model = PairLinearClassifierCV(alphas=2, cv=folds).fit(data.X, data.y)
    assert np.isnan(model.scores_[1]).all()
    with pytest.raises(ValueError, match="cv must leave both classes"):
        PairLinearClassifierCV(alphas=2, cv=folds[1:]).fit(data.X, data.y)


@pytest.mark.parametrize("alphas", [0, [], [-1.0]], ids=str)
def test_invalid_alphas_raise(alphas):
    with pytest.raises(ValueError, match=r"alphas? must"):
        PairLinearClassifierCV(alphas=alphas).fit([[0.0], [1.0]], [0, 1])
