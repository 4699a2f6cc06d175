"""The tables of docs/paper.md beside the paper's: which rows they come from, and medians."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

pytest.importorskip("sqlalchemy")

from everypair.experiments.plan import Record
from everypair.experiments.search.finalists import finals, screening
from studies import images, images_report, paper_tables

BEST = 0.9


def write_joint_rows(path, part, losses):
    """Write made-up rows of a joint part, in which 500 rows and the smallest rate are the best."""
    records = []
    for block in part.blocks():
        own = replace(block, losses=losses)
        tried = [record_of(trial, own) for trial in screening(own).trials()]
        final = finals(own, tried, part.finalists).trials()
        records += tried + [record_of(t, own) for t in final if t.cell.seed != own.seeds[0]]
    lines = [asdict(part.settings), *(record.to_dict() for record in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def record_of(trial, grid):
    is_best = trial.batch == 500 and trial.rate == min(grid.rates_of(trial.cell))
    auc = BEST if is_best else 0.6
    return Record(trial, "finished", {}, 3, validation_auc=auc, test_auc=auc - 0.1)


def lines_of(table):
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    return {tuple(line[:3]): line[3:] for line in cells[2:]}


def test_joint_rows_are_taken_where_they_are_complete(tmp_path):
    before = lines_of(paper_tables.table2(images.RESULTS, images_report.PAPER_TABLE2))
    for name in ("cifar10.jsonl", "cifar10-batches.jsonl"):
        (tmp_path / name).write_text((images.RESULTS / name).read_text())
    name, losses = "cifar10-joint", ("squared_hinge", "aucm")
    part = images.PARTS[name]
    write_joint_rows(tmp_path / f"{name}.jsonl", part, losses)
    table2 = lines_of(paper_tables.table2(tmp_path, images_report.PAPER_TABLE2))
    figure3 = lines_of(paper_tables.figure3(tmp_path, images_report.PAPER))
    assert table2.keys() == figure3.keys() == before.keys()
    assert len(table2) == 27
    rates = part.grid().rates
    sizes = ", ".join(map(str, sorted(part.batches)))
    for imratio in map("{:g}".format, part.imratios):
        for loss in losses:
            cell = ("CIFAR10", imratio, paper_tables.display_name(loss))
            assert table2[cell][1:] == [f"500, {min(rates[loss]):g}", sizes, f"`{name}`"]
            assert figure3[cell][1] == "0.800 ± 0.000 (5 seeds)"
    # The joint part has no rows of the logistic loss: other rows remain, or none.
    other = ("CIFAR10", "0.01", "logistic")
    assert table2[other] == before[other]
    assert table2["CIFAR10", "0.001", "logistic"][1] == "not run"
    assert figure3["CIFAR10", "0.001", "logistic"][2] == "batch 100: `cifar10`"
    assert all(all(cell.strip() for cell in line) for line in [*table2.values(), *figure3.values()])
