"""The study of images: which trials run, what counts, and that its report is repeatable."""

from __future__ import annotations

import math
import re
import shutil
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

import typer

from everypair.experiments.commands import app
from everypair.experiments.commands._options import planned
from everypair.experiments.data.sources import SOURCES
from everypair.experiments.plan import Settings
from everypair.experiments.presets import PRESETS
from everypair.experiments.registry import EXTENSIONS
from everypair.experiments.search import store as stores
from everypair.experiments.search.finalists import blocks
from studies import images, images_report, open_questions

TINY = images.Part(
    "digits",
    Settings(model="linear", scores="sigmoid", epochs=1, subtrain_sample=100),
    ("squared_hinge", "logistic"),
    imratios=(0.1,),
    batches=(600,),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(images, "PARTS", {"tiny": TINY})
    monkeypatch.setattr(images_report, "PARTS", {"tiny": TINY})


def records_of(path):
    with stores.open(f"sqlite:///{path}#tiny") as store:
        return store.records()


def run(path, minutes=math.inf):
    images.run({"tiny": TINY}, path, minutes, "cpu", compiled=False)


def test_two_rates_of_each_loss_are_trained_on_all_seeds(tmp_path, small, capsys):
    path = tmp_path / "study.db"
    run(path, minutes=0)
    assert "time is up; the same command continues" in capsys.readouterr().out
    with stores.open(f"sqlite:///{path}#tiny") as store:
        assert store.counts() == (10, 0, 0)
    images.write_rows(path, tmp_path)
    assert not (tmp_path / "tiny.jsonl").exists()  # no trial is finished

    run(path)
    assert "stage 2 of 2" in capsys.readouterr().out
    records = records_of(path)
    by_seed = {seed: [r for r in records if r.trial.cell.seed == seed] for seed in images.SEEDS}
    assert [len(own) for own in by_seed.values()] == [10, 4, 4, 4, 4]
    kept = images.counted(TINY, records)
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

    images.write_rows(path, tmp_path)
    files = images_report.write(tmp_path)
    first = {file: file.read_bytes() for file in files}
    assert {file.name for file in files} >= {"README.md", "table2.csv", "figure3.svg"}
    assert images_report.write(tmp_path) == files
    assert {file: file.read_bytes() for file in files} == first
    assert "Not complete" not in (tmp_path / "README.md").read_text()

    lines = (tmp_path / "tiny.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tiny.jsonl").write_text("".join(lines[:-1]))  # a finalist of logistic is missing
    assert {r.trial.cell.loss for r in images.counted(TINY, records[:-1])} == {"squared_hinge"}
    images_report.write(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "| logistic |" not in page
    assert "tiny: 25 trials, 1 of 2 losses complete" in page


def test_batches_of_one_class_are_counted_again_from_seed_and_epoch(tmp_path):
    part = replace(TINY, losses=("squared_hinge",), batches=(20,), seeds=(0, 1), finalists=1)
    parts = {"tiny": part}
    images.run(parts, tmp_path / "study.db", math.inf, "cpu", compiled=False)
    images.write_rows(tmp_path / "study.db", tmp_path, parts)
    path = tmp_path / "tiny.jsonl"
    correct = path.read_text()
    assert not re.search('"n_one_class": 0', correct)
    path.write_text(re.sub(r'"n_one_class": \d+', '"n_one_class": 12345', correct))
    images.count_one_class(tmp_path, parts)
    assert path.read_text() == correct


def options_of(part):
    """Return the parameters of `everypair experiment` that the command of a part gives."""
    words = part.command("sqlite:///study.db#part")
    assert words[:2] == ["everypair", "experiment"]
    command = typer.main.get_command(app).commands["experiment"]
    return command.make_context("experiment", words[2:]).params


def check_command(part):
    options = options_of(part)
    grid, settings = planned(**options)
    assert settings == part.settings
    assert set(grid.trials()) == set(part.grid().trials())
    assert (options["finalists"], options["together"]) == (part.finalists, images.TOGETHER)
    assert options["per_batch"] == (len(part.batches) > 1 and not part.joint)
    found = [block.trials() for block in blocks(grid, per_batch=options["per_batch"])]
    assert [set(trials) for trials in found] == [set(block.trials()) for block in part.blocks()]


@pytest.mark.parametrize("name", images.PARTS)
def test_a_part_is_a_command_of_everypair_experiment(name):
    check_command(images.PARTS[name])


def test_the_open_questions_are_commands_with_an_extension(monkeypatch):
    monkeypatch.setenv(EXTENSIONS, str(open_questions.DATA))
    try:
        for part in open_questions.PARTS.values():
            check_command(part)
    finally:  # other tests list these tables
        for name in sys.modules.pop(open_questions.DATA.stem).TABLES:
            del PRESETS[name], SOURCES[name]


def test_commands_are_printed_with_a_store_and_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images.print_commands({"cifar10": images.PARTS["cifar10"]}, tmp_path / "runs" / "study.db")
    assert capsys.readouterr().out == (
        "everypair experiment cifar10 --batch 100 --finalists 2 --precision bf16 "
        "--subtrain-sample 2000 --mixed --together 8 --storage 'sqlite:///runs/study.db#cifar10' "
        "--out runs/cifar10\n"
    )


def test_a_part_whose_data_cannot_be_loaded_is_left_out(tmp_path, capsys):
    parts = {"none": replace(TINY, data="no_such_data")}
    images.run(parts, tmp_path / "study.db", math.inf, "cpu", compiled=False)
    assert "none: left out, data must be one of digits" in capsys.readouterr().out


def test_the_committed_tables_follow_from_the_committed_rows(tmp_path):
    shutil.copytree(images.RESULTS, tmp_path / "studies" / "results")
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    pages = ("docs/evidence.md", "docs/paper.md", "studies/results/README.md")
    pages += ("studies/pages/images.md", "studies/pages/open-questions.md")
    (tmp_path / "studies" / "pages").mkdir()
    for page in pages:
        shutil.copyfile(images.ROOT / page, tmp_path / page)
    images_report.write(tmp_path / "studies" / "results", tmp_path / "docs")
    for page in pages:
        assert (tmp_path / page).read_text() == (images.ROOT / page).read_text()


def test_the_pages_have_the_minutes_of_the_rows():
    minutes = {}
    for path in images.RESULTS.glob("*.jsonl"):
        minutes[path.stem] = sum(record.seconds for record in images.read_rows(path)[1]) / 60
    texts = [
        (images.ROOT / page).read_text()
        for page in ("docs/experiments/rerun-the-paper.md", "studies/pages/images.md")
    ]
    table = re.findall(r"^\| `([\w-]+)` \|.*complete: \d+ trials, (\d+) minute", texts[0], re.M)
    assert {name: int(n) for name, n in table} == {name: round(n) for name, n in minutes.items()}
    commands = re.findall(r"images (?:commands|run) ([\w -]+?) +[|#].* (\d+) minutes on", texts[1])
    assert len(commands) == 4
    for parts, n in commands:
        assert int(n) == round(sum(minutes[name] for name in parts.split())), parts
