"""PairLinearClassifier: containers, labels, weights, thresholds, warnings and errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

import everypair as ep
from everypair.sklearn import PairLinearClassifier
from everypair.sklearn._classifier import threshold_from

from .tables import table


@pytest.mark.parametrize("solver", ["auto", "lbfgs"])
def test_sparse_matrices_are_not_converted_to_dense(solver):
    # As a dense matrix this would take 1.6 GB.
    n, d = 1000, 2 * 10**5
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 300, (n, 5))
    X = sp.csr_matrix((np.ones(5 * n), columns.ravel(), 5 * np.arange(n + 1)), shape=(n, d))
    y = (columns < 30).sum(axis=1) > 1
    model = PairLinearClassifier(alpha=0.01, solver=solver).fit(X, y)
    assert ep.auc(model.decision_function(X), y) > 0.95


@pytest.mark.parametrize(
    "labels",
    [[0, 1], [-1, 1], [False, True], ["ham", "spam"], [2.0, 5.0], np.array(["a", "b"], object)],
    ids=str,
)
def test_labels_of_any_kind(labels):
    data = table()
    y = np.asarray(labels)[data.y]
    model = PairLinearClassifier().fit(data.X, y)
    assert list(model.classes_) == list(labels)
    assert set(model.predict(data.X)) == set(labels)
    above = model.decision_function(data.X) > 0
    assert ((model.predict(data.X) == labels[1]) == above).all()


def test_thresholds():
    data = table()
    model = PairLinearClassifier().fit(data.X, data.y)
    scores = data.X @ model.coef_[0]

    def balanced(threshold):
        above = scores > threshold
        return above[data.y == 1].mean() + (~above)[data.y == 0].mean()

    assert balanced(model.threshold_) >= max(map(balanced, scores)) - 1e-12
    assert model.intercept_[0] == -model.threshold_
    model = PairLinearClassifier(threshold="prevalence").fit(data.X, data.y)
    assert model.predict(data.X).sum() == data.y.sum()
    model = PairLinearClassifier(threshold=0.25).fit(data.X, data.y)
    assert (model.predict(data.X) == (scores > 0.25)).all()
    for rule in ("balanced", "prevalence"):
        for ties in (np.zeros(2), np.array([1.0, np.nextafter(1.0, 2.0)])):
            assert threshold_from(rule, ties, np.array([False, True]), None) == ties[0]


def test_a_solution_that_is_not_reached_warns():
    data = table()
    with pytest.warns(ConvergenceWarning, match=r"after 1 iterations.*Increase max_iter") as seen:
        PairLinearClassifier(max_iter=1).fit(data.X, data.y)
    assert "newton-cg" in str(seen[0].message)
    assert seen[0].filename == __file__
    with pytest.warns(ConvergenceWarning, match="raise tol"):
        PairLinearClassifier(tol=0.0, max_iter=10_000).fit(data.X, data.y)


def test_a_warm_start_begins_at_the_last_coefficients():
    data = table()
    model = PairLinearClassifier(warm_start=True, solver="lbfgs").fit(data.X, data.y)
    cold = model.n_iter_
    assert model.fit(data.X, data.y).n_iter_ == 1 < cold
    assert model.fit(data.X[:, :3], data.y).coef_.shape == (1, 3)


@pytest.mark.parametrize("solver", ["newton-cg", "lbfgs"])
def test_verbose_writes_a_line_an_iteration(solver, capsys):
    data = table()
    model = PairLinearClassifier(verbose=1, solver=solver).fit(data.X, data.y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[-1].startswith(f"iteration {model.n_iter_:3d}  objective")


def test_groups_by_metadata_routing():
    data = table(n=400)
    names = np.array(["a", "b", "c", "d"])[data.groups]
    direct = PairLinearClassifier().fit(data.X, data.y, groups=names)
    with config_context(enable_metadata_routing=True):
        model = PairLinearClassifier().set_fit_request(groups=True)
        routed = make_pipeline(model).fit(data.X, data.y, groups=names)
    np.testing.assert_array_equal(routed[-1].coef_, direct.coef_)


def test_calibration_makes_probabilities_and_the_error_about_them_names_it():
    data, model = table(n=600), PairLinearClassifier()
    calibrated = CalibratedClassifierCV(model).fit(data.X, data.y)
    assert calibrated.predict_proba(data.X)[:, 1].mean() == pytest.approx(0.3, abs=0.03)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match="CalibratedClassifierCV"):
        model.predict_proba(data.X)


def test_more_classes_by_one_versus_rest():
    data = table(n=300)
    y = data.y + (data.X[:, 0] > 0.2)
    assert OneVsRestClassifier(PairLinearClassifier()).fit(data.X, y).score(data.X, y) > 0.5
    with pytest.raises(ValueError, match=r"3 classes.*OneVsRestClassifier"):
        PairLinearClassifier().fit(data.X, y)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"alpha": -1.0}, "alpha must be a finite number of at least 0; got -1.0"),
        ({"alpha": "small"}, "alpha must be a finite number of at least 0; got 'small'"),
        ({"margin": np.inf}, "margin must be a finite number of at least 0; got inf"),
        ({"tol": None}, "tol must be a finite number of at least 0; got None"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1; got 0"),
        ({"solver": "sag"}, "solver must be one of 'auto', 'newton-cg', 'lbfgs'; got 'sag'"),
        ({"surrogate": "hinge"}, "surrogate must be one of"),
        ({"threshold": "best"}, "threshold must be 'balanced'.*got 'best'"),
        ({"threshold": np.nan}, "threshold must be 'balanced'.*got nan"),
    ],
    ids=str,
)
def test_invalid_parameters_raise(knobs, message):
    with pytest.raises(ValueError, match=message):
        PairLinearClassifier(**knobs).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": [1, 1, 1, 1]}, "y must hold two classes"),
        ({"sample_weight": [0, 1, 0, 1]}, "must leave a pair .* weights above 0"),
        ({"sample_weight": [-1, 1, 1, 1]}, "[Nn]egative"),
        ({"groups": [0, 1]}, "groups must have one value per row; got 2 for 4 rows"),
        ({"groups": ["a", None, "a", "a"]}, "got None .first at index 1"),
        ({"groups": [0, 1, 0, 1]}, "must leave a pair .* pass coarser groups"),
        ({"X": 1e-200 * np.eye(4)}, "X must have entries whose squares .* largest is 1e-200"),
        ({"X": -1e200 * np.eye(4)}, "X must have entries whose squares .* largest is 1e\\+200"),
    ],
    ids=str,
)
def test_invalid_data_raise(data, message):
    with pytest.raises(ValueError, match=message):
        PairLinearClassifier().fit(**{"X": np.eye(4), "y": [0, 1, 0, 1], **data})
