"""The methods of the paper's related work, from their own formulas, equal calls of everypair."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from scipy.optimize import minimize, minimize_scalar
from scipy.stats import mannwhitneyu
from sklearn.svm import LinearSVC

import everypair as ep
from everypair.sklearn import PairLinearClassifier, PairLinearRanker
from everypair.surrogates import Surrogate, Term

from .tolerances import assert_close


def sample(seed=0, n=80, d=4, positives=0.3):
    """Return columns, labels {0, 1} and the scores of a model of them."""
    rng = np.random.default_rng(seed)
    y = (rng.permutation(n) < positives * n).astype(int)
    X = rng.standard_normal((n, d)) + 0.7 * y[:, None]
    return X, y, X @ rng.standard_normal(d)


def difference_rows(X, y):
    """Return the rows ``x_i - x_j`` of all pairs with ``y_i > y_j``."""
    i, j = np.nonzero(y[:, None] > y)
    return X[i] - X[j]


def ranking_svm(X, y, alpha, loss):
    """Fit a linear support vector machine to the differences of all pairs, half of them turned."""
    D = difference_rows(X, y)
    sign = np.where(np.arange(len(D)) % 2, 1, -1)
    C = 1.0 / (alpha * len(D))
    options = {"dual": True, "fit_intercept": False, "max_iter": 1_000_000, "tol": 1e-10}
    svm = LinearSVC(loss=loss, C=C, random_state=0, **options)
    return svm.fit(sign[:, None] * D, sign).coef_[0], D


@pytest.mark.parametrize("kind", ["two classes", "grades"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_ranking_svms_of_joachims_airola_and_lee(kind, loss):
    X, y, _ = sample(n=60)
    if kind == "grades":
        y = y + (X[:, 0] > 0.5) + 0.5 * (X[:, 1] > 1.0)  # real utilities, with ties
    alpha = 0.05
    w, D = ranking_svm(X, y, alpha, loss)
    surrogate = {"hinge": "linear_hinge"}.get(loss, loss)
    Model = PairLinearClassifier if kind == "two classes" else PairLinearRanker
    model = Model(surrogate=surrogate, alpha=alpha, solver="newton-cg", tol=1e-8).fit(X, y)

    def objective(coef):
        hinge = np.maximum(0.0, 1.0 - D @ coef)
        return (hinge if loss == "hinge" else hinge**2).mean() + alpha / 2 * coef @ coef

    coef = model.coef_.ravel()
    assert objective(coef) <= objective(w) * (1 + 1e-5)
    if loss == "squared_hinge":
        np.testing.assert_allclose(coef, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("targets", ["two classes", "grades"])
def test_rankrls_of_pahikkala(targets):
    """The closed form with the Laplacian of the graph whose edges are the pairs that count."""
    X, y, _ = sample()
    alpha = 0.1
    if targets == "grades":  # the square surrogate asks for a lead of the margin, whatever y is
        y = y + (X[:, 0] > 0.5)
    W = (y[:, None] != y).astype(float)
    n_pairs = W.sum() / 2
    laplacian = np.diag(W.sum(axis=1)) - W
    leads = np.sign(y[:, None] - y).sum(axis=1)  # the sum over pairs of x_i - x_j is X.T @ leads
    gram = 2.0 * X.T @ laplacian @ X / n_pairs + alpha * np.eye(X.shape[1])
    w = np.linalg.solve(gram, 2.0 * X.T @ leads / n_pairs)
    if targets == "two classes":  # the usual form: labels of 0 and 1 differ by the margin
        np.testing.assert_allclose(laplacian @ y, leads, rtol=1e-12)
    Model = PairLinearClassifier if targets == "two classes" else PairLinearRanker
    model = Model(surrogate="square", alpha=alpha, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(model.coef_.ravel(), w, rtol=1e-8, atol=1e-8 * np.abs(w).max())


def test_polynomials_of_calders_and_jaroszewicz():
    """A polynomial of the difference, summed over pairs by the moments of each class."""
    _, y, s = sample()
    c0, c1, c2 = 0.4, 0.3, 0.2
    pos, neg = s[y == 1], s[y == 0]
    M, N = ([np.sum(x**k) for k in range(3)] for x in (pos, neg))
    total = c0 * M[0] * N[0] + c1 * (M[0] * N[1] - M[1] * N[0])
    total += c2 * (M[0] * N[2] - 2 * M[1] * N[1] + M[2] * N[0])
    mine = Surrogate("polynomial", [Term(c0, c1, c2)])
    assert_close(ep.pair_loss(s, y, surrogate=mine, margin=0.0, reduction="sum"), total, float)


def test_partial_auc_of_narasimhan_and_agarwal():
    """The hinge loss over the negatives with the highest scores."""
    _, y, s = sample(n=100)
    n_kept = 14
    pos, neg = s[y == 1], np.sort(s[y == 0])[-n_kept:]
    expected = np.maximum(0.0, 1.0 - pos[:, None] + neg).mean()
    share = n_kept / (y == 0).sum()
    loss = ep.pair_loss(s, y, surrogate="linear_hinge", max_fpr=share)
    assert loss == pytest.approx(expected, rel=1e-12)


def saddle(w, X, y, a, b, alpha, m=1.0):
    """Return the mean over rows of the saddle function of Ying et al., with a margin of m."""
    f, p = X @ w, (y == 1).mean()
    pos, neg = y == 1, y == 0
    rows = (1 - p) * (f - a) ** 2 * pos + p * (f - b) ** 2 * neg
    rows += 2 * (m + alpha) * (p * f * neg - (1 - p) * f * pos) - p * (1 - p) * alpha**2
    return rows.mean()


def test_the_saddle_value_of_solam_is_the_square_loss():
    """Least in a and b, greatest in alpha, it is p (1 - p) times the loss minus m squared."""
    for seed in range(20):
        X, y, _ = sample(seed)
        w, p = np.random.default_rng(seed).standard_normal(4), y.mean()
        a, b = (X @ w)[y == 1].mean(), (X @ w)[y == 0].mean()
        for m in (0.5, 1.0):
            loss = ep.pair_loss(X @ w, y, surrogate="square", margin=m)
            value = saddle(w, X, y, a, b, b - a, m)
            assert value == pytest.approx(p * (1 - p) * (loss - m**2), rel=1e-10, abs=1e-12)
        for da, db, dalpha in np.eye(3):
            worse = saddle(w, X, y, a + da, b + db, b - a)
            assert (worse > saddle(w, X, y, a, b, b - a)) == bool(da or db)
            assert saddle(w, X, y, a, b, b - a + dalpha) <= saddle(w, X, y, a, b, b - a)


def test_aucm_has_its_hinge_on_the_difference_of_means():
    """Yuan et al.: the best a, b and alpha leave the variances and a hinge on two means."""
    torch = pytest.importorskip("torch")
    from everypair.torch import AUCMLoss

    for seed in range(10):
        _, y, s = sample(seed)
        s = 1.0 / (1.0 + np.exp(-s))
        pos, neg, p = s[y == 1], s[y == 0], y.mean()
        lead = pos.mean() - neg.mean()
        for m in (0.1, 1.0):
            loss = AUCMLoss(margin=m).double()
            with torch.no_grad():
                loss.a.fill_(pos.mean())
                loss.b.fill_(neg.mean())
                loss.alpha.fill_(max(0.0, m - lead))
                value = loss(torch.from_numpy(s), torch.from_numpy(y)).item()
            hinge = max(0.0, m - lead) ** 2
            expected = p * (1 - p) * (pos.var() + neg.var() + hinge)
            assert value == pytest.approx(expected, rel=1e-6)
            if hinge:  # then it is the square loss over pairs, as in SOLAM
                square = ep.pair_loss(s, y, surrogate="square", margin=m)
                assert expected == pytest.approx(p * (1 - p) * square, rel=1e-10)


def test_the_auc_is_the_statistic_of_mann_and_whitney():
    _, y, s = sample()
    s = np.round(s)  # ties count half in both
    statistic = mannwhitneyu(s[y == 1], s[y == 0]).statistic
    assert ep.auc(s, y) == pytest.approx(statistic / (y.sum() * (1 - y).sum()), rel=1e-12)


def test_rankboost_of_freund_weights_rows_by_the_gradient():
    """Its distribution over pairs is a product of weights of rows, exp(-s) and exp(s)."""
    _, y, s = sample()
    loss, grad = ep.pair_loss_and_grad(s, y, surrogate="exponential")
    pos, neg = np.exp(-s[y == 1]), np.exp(s[y == 0])
    assert loss == pytest.approx(pos.mean() * neg.mean(), rel=1e-12)
    assert_close(-grad[y == 1] / loss, pos / pos.sum(), float)
    assert_close(grad[y == 0] / loss, neg / neg.sum(), float)


def test_adaboost_and_rankboost_have_one_minimum():
    """Rudin: with the best intercept, the exponential loss over rows is 2 sqrt(that over pairs)."""
    X, y, s = sample()
    sign = 2 * y - 1
    best = minimize_scalar(lambda b: np.exp(-sign * (s - b)).sum(), tol=1e-12).fun
    pairs = ep.pair_loss(s, y, surrogate="exponential", reduction="sum")
    assert best == pytest.approx(2 * np.sqrt(pairs), rel=1e-10)

    columns = np.c_[X, np.ones(len(y))]
    over_rows = minimize(
        lambda w: np.log(np.exp(-sign * (columns @ w)).sum()), np.zeros(5), tol=1e-9
    )
    model = PairLinearClassifier(surrogate="exponential", alpha=0.0, tol=1e-9).fit(X, y)
    np.testing.assert_allclose(model.coef_[0], over_rows.x[:4], rtol=1e-3, atol=1e-4)


def test_the_balanced_logistic_loss_bounds_the_errors_of_pairs():
    """Kotlowski: a balanced convex loss over rows, with any threshold, bounds 1 - AUC."""
    rng = np.random.default_rng(0)
    for seed in range(50):
        _, y, s = sample(seed)
        s = s * rng.choice([0.1, 1.0, 10.0]) + rng.standard_normal()
        pos, neg = (
            np.logaddexp(0.0, -s[y == 1]) / np.log(2),
            np.logaddexp(0.0, s[y == 0]) / np.log(2),
        )
        assert 1.0 - ep.auc(s, y) <= pos.mean() + neg.mean()


def test_weights_of_classes_and_repeated_classes_do_not_change_the_mean():
    """So class weights (Cui) and random over-sampling change losses over rows only."""
    _, y, s = sample()
    beta = 0.99
    effective = [(1 - beta**n) / (1 - beta) for n in np.bincount(y)]
    weights = 1.0 / np.array(effective)[y]
    times = np.where(y == 1, 3, 1)
    for surrogate in ep.surrogates.names():
        plain = ep.pair_derivatives(s, y, surrogate=surrogate)
        weighted = ep.pair_derivatives(s, y, surrogate=surrogate, weights=weights)
        assert weighted.value == pytest.approx(plain.value, rel=1e-12)
        assert_close(weighted.grad, plain.grad, float)
        repeated = ep.pair_loss(np.repeat(s, times), np.repeat(y, times), surrogate=surrogate)
        assert repeated == pytest.approx(plain.value, rel=1e-12)
