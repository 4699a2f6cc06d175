"""The study of images: which trials run, what counts, and that its report is repeatable."""

from __future__ import annotations

import shutil
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from benchmarks import study, study_report
from everypair.experiments.commands._options import planned
from everypair.experiments.plan import Settings
from everypair.experiments.search import store as stores
from everypair.experiments.search.work import SideBySide, Training

TINY = study.Part(
    "digits",
    Settings(model="linear", scores="sigmoid", epochs=1, subtrain_sample=100),
    ("squared_hinge", "logistic"),
    imratios=(0.1,),
    batches=(600,),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(study, "PARTS", {"tiny": TINY})
    monkeypatch.setattr(study_report, "PARTS", {"tiny": TINY})


def records_of(path):
    with stores.open(f"sqlite:///{path}#tiny") as store:
        return store.records()


def run(path, deadline=float("inf"), work=None):
    work = work or SideBySide(TINY.settings, "cpu", None, study.WIDTH, mixed=True)
    with stores.open(f"sqlite:///{path}#tiny", create=True) as store:
        study.run_part(TINY, store, work, deadline, lambda text: None)


def test_two_rates_of_each_loss_are_trained_on_all_seeds(tmp_path, small):
    path = tmp_path / "study.db"
    run(path)
    records = records_of(path)
    by_seed = {seed: [r for r in records if r.trial.cell.seed == seed] for seed in study.SEEDS}
    assert [len(own) for own in by_seed.values()] == [10, 4, 4, 4, 4]
    kept = study.counted(TINY, records)
    assert len(kept) == 20
    for loss in TINY.losses:
        screened = [r for r in by_seed[0] if r.trial.cell.loss == loss]
        best = sorted(screened, key=lambda r: -r.validation_auc)[:2]
        rates = {r.trial.rate for r in kept if r.trial.cell.loss == loss}
        assert min(r.validation_auc for r in screened if r.trial.rate in rates) >= min(
            r.validation_auc for r in best
        )
    run(path)  # nothing is left to do
    assert len(records_of(path)) == len(records)

    study.write_rows(path, tmp_path)
    files = study_report.write(tmp_path)
    first = {file: file.read_bytes() for file in files}
    assert {file.name for file in files} >= {"README.md", "table2.csv", "figure3.svg"}
    assert study_report.write(tmp_path) == files
    assert {file: file.read_bytes() for file in files} == first
    assert "Not complete" not in (tmp_path / "README.md").read_text()

    lines = (tmp_path / "tiny.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tiny.jsonl").write_text("".join(lines[:-1]))  # a finalist of logistic is missing
    assert {r.trial.cell.loss for r in study.counted(TINY, records[:-1])} == {"squared_hinge"}
    study_report.write(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "| logistic |" not in page
    assert "tiny: 25 trials, 1 of 2 losses complete" in page


def test_a_run_stops_at_its_deadline_and_continues(tmp_path, small):
    path = tmp_path / "study.db"
    with pytest.raises(study.TimeIsUpError):
        run(path, deadline=time.monotonic() - 1)
    with stores.open(f"sqlite:///{path}#tiny") as store:
        assert store.counts() == (10, 0, 0)
    study.write_rows(path, tmp_path)
    assert not (tmp_path / "tiny.jsonl").exists()  # no trial is finished
    run(path)
    assert len(records_of(path)) == 26


def test_trials_that_fail_are_tried_again(tmp_path, small):
    class Broken(Training):
        def __call__(self, trials, on_epoch):
            raise RuntimeError("no graph")

    path = tmp_path / "study.db"
    with pytest.raises(RuntimeError, match="no graph"):
        run(path, work=Broken(TINY.settings, "cpu", None, 4))
    assert [record.state for record in records_of(path)] == ["failed"] * 2
    run(path)
    assert all(r.state == "finished" for r in study.counted(TINY, records_of(path)))


def test_after_a_failure_each_loss_is_trained_alone(tmp_path, small):
    groups = []

    class NoHinge(SideBySide):
        def __call__(self, trials, on_epoch):
            losses = {trial.cell.loss for trial in trials}
            groups.append(losses)
            if "squared_hinge" in losses:
                raise RuntimeError("no graph")
            return super().__call__(trials, on_epoch)

    path = tmp_path / "study.db"
    run(path, work=NoHinge(TINY.settings, "cpu", None, 16, mixed=True))
    hinge, logistic = {"squared_hinge"}, {"logistic"}
    assert groups == [hinge | logistic, hinge, logistic, logistic]
    assert {r.trial.cell.loss for r in study.counted(TINY, records_of(path))} == logistic


def test_parts_equal_commands_of_everypair_experiment():
    shared = {"preset": "cifar10", "batch": "100", "precision": "bf16", "subtrain_sample": 2000}
    recipe = study.PARTS["cifar10-recipe"]
    commands = {
        "cifar10": {},
        "cifar10-recipe": {
            "imratio": "0.01",
            "scores": "raw",
            "batches": "stratified",
            "schedule": "cosine",
            "optimiser": "momentum",
            "losses": ",".join(recipe.losses),
            "rate": [f"{loss}={','.join(map(str, rates))}" for loss, rates in recipe.rates],
        },
    }
    for name, options in commands.items():
        grid, settings = planned(**shared, **options)
        part = study.PARTS[name]
        assert settings == part.settings
        assert set(grid.trials()) == {trial for block in part.blocks() for trial in block.trials()}


def test_the_committed_tables_follow_from_the_committed_rows(tmp_path):
    shutil.copytree(study.RESULTS, tmp_path / "results")
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    pages = ("docs/evidence.md", "results/README.md")
    shutil.copyfile(study.ROOT / pages[0], tmp_path / pages[0])
    study_report.write(tmp_path / "results", tmp_path / "docs")
    for page in pages:
        assert (tmp_path / page).read_text() == (study.ROOT / page).read_text()
