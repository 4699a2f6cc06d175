"""Families of models for tables: fits, cross-validation, the winner and the saved model."""

from __future__ import annotations

import json
import zipfile
from functools import cache

import numpy as np
import pandas as pd
import pytest

import everypair as ep
from everypair.experiments.contenders import cross_validation, outcome, parts, ranking
from everypair.experiments.contenders.blend import LEAST, blend_weights
from everypair.experiments.contenders.calibration import calibrate
from everypair.experiments.data import sources
from everypair.experiments.errors import UserError
from everypair.experiments.families import FAMILIES, Fit, Rows, grid_of
from everypair.experiments.families.linear import Tails
from everypair.experiments.intervals import placements, same_rows_interval
from everypair.experiments.plan import TableFile

PACKAGES = {
    "linear": "sklearn",
    "lightgbm": "lightgbm",
    "xgboost": "xgboost",
    "catboost": "catboost",
}
PACKAGES |= {"mlp": "torch"}


def made_up_rows(n=300, seed=0, groups=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)).astype(np.float32)
    X[:, 3] = X[:, 3] > 1
    y = X[:, 0] + X[:, 3] + rng.standard_normal(n) > 1.5
    return Rows(X, y, None if groups is None else rng.integers(groups, size=n))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = made_up_rows(400)
    frame = pd.DataFrame(rows.X, columns=list("abcd"))
    frame["kind"] = np.where(rows.X[:, 3] > 0, "u", "v")
    frame["fraud"] = np.where(rows.y, "yes", "no")
    path = tmp_path_factory.mktemp("contenders") / "my.csv"
    frame.to_csv(path, index=False)
    return path


class Contest:
    """Trials on a table, each of which is run once."""

    def __init__(self, **table):
        self.dataset = sources.load("table", table=TableFile(label="fraud", **table))
        self._parts = cache(lambda seed: parts.parts_of(self.dataset, seed))
        self._run = cache(lambda trial: cross_validation.run(trial, self._parts(trial.cell.seed)))

    def run(self, folder, families, losses, seeds):
        """Save the scores of the trials in a folder and return their records."""
        trials = grid_of(families, losses, seeds).trials()
        for trial in trials:
            ranking.save_scores(folder, trial, self._run(trial)[1])
        return [self._run(trial)[0] for trial in trials]


@pytest.fixture(scope="module")
def contest(table):
    return Contest(path=str(table))


@pytest.fixture(scope="module")
def concluded(contest, tmp_path_factory):
    folder, dataset = tmp_path_factory.mktemp("run"), contest.dataset
    records = contest.run(folder, ["linear", "lightgbm"], ["logistic", "pairs"], [0])
    outcome.conclude(folder, dataset, records, skipped=["gbm (not installed)"])
    return folder, dataset, records


@pytest.mark.parametrize("family", PACKAGES)
@pytest.mark.parametrize("groups", [None, 10])
def test_every_family_ranks_rows_and_survives_its_file_format(family, groups):
    pytest.importorskip(PACKAGES[family])
    family, rows, new = FAMILIES[family], made_up_rows(groups=groups), made_up_rows(seed=1)
    for loss in (*family.losses, *family.more_losses):
        if groups and family is FAMILIES["catboost"] and loss == "pairs":
            continue  # CatBoost does not pass groups to an objective
        for parameters in family.space:
            fitted = family.fit(Fit(rows, loss, dict(parameters), family.path[:3]))
            assert len(fitted) == 3
            scores = fitted[-1](new.X)
            assert ep.auc(scores, new.y) > 0.7
            again = family.load(fitted[-1].files())
            np.testing.assert_allclose(again(new.X), scores, rtol=1e-6, atol=1e-6)


def test_all_losses_of_a_family_have_the_same_trials():
    grid = grid_of(["linear", "lightgbm"], [], [0, 1])
    tried = {(t.cell.optimiser, t.cell.loss, t.cell.seed): 0 for t in grid.trials()}
    for trial in grid.trials():
        tried[trial.cell.optimiser, trial.cell.loss, trial.cell.seed] += 1
    n_tried = {"linear": 2, "lightgbm": 3}
    assert all(n == n_tried[family] for (family, _, _), n in tried.items())
    assert ("linear", "balanced_logistic", 1) in tried


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(
        "everypair.experiments.families.family.find_spec", lambda name: name == "sklearn" or None
    )
    assert grid_of([], [], [0]).skipped == ("lightgbm (not installed: pip install lightgbm)",)
    with pytest.raises(UserError, match="no model is left to train"):
        grid_of(["lightgbm"], [], [0])


@pytest.mark.parametrize(
    ("models", "losses", "text"),
    [(["lightgmb"], [], "Did you mean lightgbm"), ([], ["hinge"], "--losses must be among")],
)
def test_unknown_names_are_errors(models, losses, text):
    with pytest.raises(UserError, match=text):
        grid_of(models, losses, [0])


def test_folds_divide_the_rows_and_keep_groups_together():
    rows = made_up_rows(400, groups=30)
    divided = parts.folds(rows, seed=0)
    assert len(divided) == 10
    for begin in (0, 5):
        held_out = np.concatenate([rows for _, rows in divided[begin : begin + 5]])
        assert sorted(held_out) == list(range(400))
    for fit_rows, held_out in divided:
        assert not set(rows.groups[fit_rows]) & set(rows.groups[held_out])
    assert len(parts.folds(made_up_rows(400, groups=3), seed=0)) == 6
    with pytest.raises(UserError, match="at least two groups"):
        parts.folds(made_up_rows(400, groups=1), seed=0)
    assert len(parts.folds(made_up_rows(20_000), seed=0)) == 3
    assert len(parts.folds(made_up_rows(40_000), seed=0)) == 1


def test_a_table_with_times_is_validated_on_its_newest_training_rows(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.standard_normal(200), "day": rng.permutation(200) // 2 + 0.5})
    frame["y"] = rng.random(200) < 0.4
    frame.to_csv(tmp_path / "t.csv", index=False)
    file = TableFile(str(tmp_path / "t.csv"), label="y", time="day")
    dataset = sources.load("table", table=file)
    part = parts.parts_of(dataset, 0)
    [(fit_rows, held_out)] = parts.folds(part.train, 0)
    day = np.sort(dataset.time)[: len(part.train)]
    train = np.flatnonzero(dataset.time <= day[-1])
    assert (len(part.train), len(held_out)) == (160, 32)
    assert dataset.time[train[fit_rows]].max() < dataset.time[train[held_out]].min()


def test_outliers_are_bent():
    X = np.random.default_rng(0).standard_cauchy((500, 2))
    bent = Tails.of(X)(X)
    assert np.abs(bent).max() < 10 < np.abs(X).max()
    order = np.argsort(X[:, 0])
    assert (np.diff(bent[order, 0]) >= 0).all()


def test_calibrated_probabilities_keep_the_order_and_the_share():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal(4000) * 5 - 3
    y = rng.random(4000) < 1 / (1 + np.exp(-(scores + 1)))
    curve = calibrate(scores, y)
    assert (curve.slope, curve.intercept) == pytest.approx((1, 1), abs=0.1)
    assert curve.probabilities(scores).mean() == pytest.approx(y.mean(), abs=0.002)
    reversed_scores = calibrate(scores, ~y)
    assert reversed_scores.slope > 0
    separated = calibrate(np.array([0.0, 1.0]), np.array([False, True]))
    assert np.isfinite(separated.slope)


def test_the_summary_names_the_winner_and_every_contender(concluded):
    folder, _, _ = concluded
    summary = json.loads((folder / "winner" / "summary.json").read_text())
    winner, contenders = summary["winner"], summary["contenders"]
    assert [one["family"] for one in contenders].count("blend") == 1
    assert len(contenders) == 5
    assert winner["name"] == contenders[0]["name"]
    assert contenders[0]["difference"] == 0
    assert contenders[0]["interval"] is None
    low, high = winner["interval"]
    assert low < winner["test_auc"] < high
    for one in contenders[1:]:
        assert one["difference"] == pytest.approx(one["test_auc"] - winner["test_auc"])
        assert one["interval"][0] <= one["difference"] <= one["interval"][1]
    assert summary["skipped"] == ["gbm (not installed)"]
    assert {row["column"] for row in summary["importance"]} == {"a", "b", "c", "d", "kind"}
    assert summary["importance"][0]["column"] == "a"
    with np.load(folder / "winner" / "test_scores.npz") as found:
        assert ep.auc(found["scores"], found["labels"]) == pytest.approx(winner["test_auc"])
        assert ep.auc(found["probabilities"], found["labels"]) == pytest.approx(winner["test_auc"])


def test_the_blend_wins_with_weights_that_validation_chose(concluded):
    folder, dataset, records = concluded
    divided = [parts.parts_of(dataset, 0)]
    blend, *others = ranking.ranked(folder, records, [0], divided)
    assert blend.family == "blend"
    assert sum(blend.weights) == pytest.approx(1)
    assert min(blend.weights) >= LEAST
    assert sum(blend.share(one) for one in others) == pytest.approx(1)
    assert others[0].share(others[1]) is None
    assert blend.validation[0] > max(one.validation[0] for one in others) - 0.01
    means = [one.validation[0] for one in others]
    assert means == sorted(means, reverse=True)


def test_weights_prefer_models_that_add_to_the_others():
    rng = np.random.default_rng(0)
    y = rng.random(2000) < 0.3
    signal = rng.standard_normal((2, 2000)) + y
    noise = rng.standard_normal((4, 2000))
    odds = np.concatenate([signal, noise])
    weights = blend_weights(odds, lambda scores: ep.auc(scores, y))
    assert weights.sum() == pytest.approx(1)
    assert weights[:2].min() > 0.2
    assert weights[:2].sum() > 0.7
    assert np.array_equal(weights, blend_weights(odds, lambda scores: ep.auc(scores, y)))
    assert blend_weights(odds[:1], lambda scores: ep.auc(scores, y)) == [1.0]


def test_folds_without_a_pair_do_not_count():
    rows = Rows(np.zeros((4, 1), np.float32), np.array([True, False, False, False]))
    folds = [(np.arange(0), np.arange(2)), (np.arange(0), np.arange(2, 4))]
    mean = cross_validation.mean_auc(rows, folds)
    assert mean(np.array([1.0, 0.0, 0.0, 1.0])) == 1
    assert np.isnan(cross_validation.mean_auc(rows, folds[1:])(np.zeros(2)))


def test_concluding_again_changes_nothing_and_needs_no_fit(concluded, monkeypatch):
    folder, dataset, records = concluded
    before = (folder / "model.zip").stat().st_mtime_ns
    monkeypatch.setattr(outcome, "ranked", None)
    assert outcome.conclude(folder, dataset, records, skipped=["gbm (not installed)"])
    assert (folder / "model.zip").stat().st_mtime_ns == before


def test_missing_scores_are_computed_again(concluded):
    folder, dataset, records = concluded
    path = ranking.scores_path(folder, records[0].trial)
    with np.load(path) as before:
        kept = before["test"]
    path.unlink()
    found = ranking.load_scores(folder, records[0], parts.parts_of(dataset, 0))
    np.testing.assert_allclose(found.test, kept)
    assert path.is_file()


def test_the_model_is_loaded_without_pickle_and_scores_new_rows(concluded, table):
    folder, dataset, _ = concluded
    model = ep.load(folder)
    frame = pd.read_csv(table)
    scores = model.predict_scores(frame.drop(columns="fraud"))
    assert scores.shape == (400,)
    assert ep.auc(scores, dataset.positive) > 0.8
    chances = model.predict_proba(frame[["kind", "d", "c", "b", "a"]])
    assert ((chances > 0) & (chances < 1)).all()
    assert ep.auc(chances, dataset.positive) == ep.auc(scores, dataset.positive)
    assert chances.mean() == pytest.approx(dataset.positive.mean(), abs=0.1)
    assert "400 rows" in model.describe()
    assert repr(model).startswith("<TableModel: ")
    assert len(repr(model)) < 200
    assert "columns: a, b, c, d, kind" in model.describe()
    with zipfile.ZipFile(folder / "model.zip") as archive:
        kinds = {name.rpartition(".")[2] for name in archive.namelist()}
        assert kinds <= {"json", "npz", "txt"}
    with pytest.raises(UserError, match="no columns"):
        model.predict_scores(frame[["a"]])


def test_the_model_recognises_its_rows_unless_it_is_of_an_older_version(concluded, table, tmp_path):
    X = ep.load(concluded[0]).encoder.transform(pd.read_csv(table))
    assert ep.load(concluded[0]).seen.share(X) == 1.0
    with (
        zipfile.ZipFile(concluded[0] / "model.zip") as archive,
        zipfile.ZipFile(tmp_path / "model.zip", "w") as older,
    ):
        for name in archive.namelist():
            data = archive.read(name)
            if name == "model.json":
                data = json.dumps({k: v for k, v in json.loads(data).items() if k != "seen"})
            older.writestr(name, data)
    assert ep.load(tmp_path).seen.share(X) == 0.0


def test_wrong_files_are_one_line(tmp_path, concluded):
    with pytest.raises(UserError, match="a folder without a model"):
        ep.load(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        ep.load(tmp_path / "model.zip")
    (tmp_path / "model.zip").write_text("not a zip")
    with pytest.raises(UserError, match="not a model"):
        ep.load(tmp_path)
    with zipfile.ZipFile(concluded[0] / "model.zip") as archive:
        plain = json.loads(archive.read("model.json"))
    for change, text in (({"version": 99}, "version 99"), ({"members": [{}]}, "damaged")):
        with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
            archive.writestr("model.json", json.dumps({**plain, **change}))
        with pytest.raises(UserError, match=text):
            ep.load(tmp_path)


def test_several_seeds_give_a_corrected_interval(contest, tmp_path):
    records = contest.run(tmp_path, ["linear"], ["logistic", "pairs"], [0, 1])
    outcome.conclude(tmp_path, contest.dataset, records)
    summary = json.loads((tmp_path / "winner" / "summary.json").read_text())
    assert summary["seeds"] == [0, 1]
    assert len(summary["contenders"]) == 2  # one family: no blend
    low, high = summary["winner"]["interval"]
    assert (low + high) / 2 == pytest.approx(summary["winner"]["test_auc"])
    assert "choice of the split by 2 seeds" in summary["intervals"]


def test_the_interval_of_one_scorer_is_delongs():
    rng = np.random.default_rng(0)
    y = rng.random(200) < 0.3
    a, b = (np.round(rng.standard_normal(200) + y, 1) for _ in "ab")  # with ties
    ours, theirs = placements(a, y), placements(b, y)
    found, gap = ep.delong(a, y), ep.delong_test(a, b, y)
    assert same_rows_interval([ours]) == pytest.approx((found.low, found.high))
    differences = (ours[0] - theirs[0], ours[1] - theirs[1])
    assert same_rows_interval([differences]) == pytest.approx((gap.low, gap.high))
    assert same_rows_interval([ours, ours]) == pytest.approx((found.low, found.high))
    low, high = same_rows_interval([ours, theirs])
    assert (low + high) / 2 == pytest.approx((gap.auc_a + gap.auc_b) / 2)
    assert same_rows_interval([placements(np.arange(3.0), np.arange(3) > 1)]) is None


def test_with_a_test_file_and_several_seeds_the_interval_covers_the_test_rows(table, tmp_path):
    frame = pd.read_csv(table)
    frame[:-150].to_csv(tmp_path / "train.csv", index=False)
    frame[-150:].to_csv(tmp_path / "test.csv", index=False)
    contest = Contest(path=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"))
    records = contest.run(tmp_path, ["linear"], ["logistic"], [0, 1])
    outcome.conclude(tmp_path, contest.dataset, records)
    summary = json.loads((tmp_path / "winner" / "summary.json").read_text())
    with np.load(tmp_path / "winner" / "test_scores.npz") as arrays:
        alone = ep.delong(arrays["scores"], arrays["labels"])
    low, high = summary["winner"]["interval"]
    assert high - low >= 0.95 * (alone.high - alone.low)
    assert summary["intervals"].startswith("the choice of the test rows (DeLong), and of the folds")
