"""Where pairs win: the first table of docs/evidence.md, which `make results` computes from rows.

A lead whose interval includes 0, or whose p is 0.05 or more, is an error: it belongs to one of the
other tables of that page, which are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from everypair.experiments.intervals import resampled_interval
from everypair.experiments.plan import FULL_BATCH
from studies import ROWS, evidence_report, images, open_questions
from studies.open_questions_report import gap, gap_text
from studies.order_evidence import report as order

HEAD = "situation | compared with | lead of pairs | rows | command"


class Lead(NamedTuple):
    """The lead of pairs over a rival, and how sure it is."""

    text: str
    low: float  # lower end of the 95 % interval, or wins minus losses over several tables
    p: float = 0.0  # of a test over several tables


class Win(NamedTuple):
    """One line of the table; `leads` are computed from `rows`."""

    situation: str
    rival: str
    leads: dict[str, Callable[[], Lead]]  # by what distinguishes them
    rows: str
    command: str


def ordered(noise: str, rival: str, column: str) -> Lead:
    """Return the lead in points of Spearman's correlation, over independent data sets."""
    rows = pd.read_csv(ROWS / "order" / "ranking.csv")
    found = rows[rows["noise"] == noise].pivot_table(column, "seed", "method")
    gaps = found[order.OURS] - found[rival]
    low, _ = resampled_interval(gaps.tolist(), test_share=0.0) or (np.nan, np.nan)
    return Lead(order.points(gaps), low)


def tables(family: str, rival: str, column: str) -> Lead:
    """Return on how many tables pairs win and lose."""
    rows = pd.read_csv(ROWS / "boosting" / "evidence.csv")
    found = evidence_report.compare(rows[rows["family"] == family], rival, column)
    n = found.wins + found.ties + found.losses
    text = f"{found.wins} of {n} tables won, {found.losses} lost, p = {found.p:.3f}"
    return Lead(text, found.wins - found.losses, found.p)


def image_lead(ours: tuple[str, str], theirs: tuple[str, str], imratio: float) -> Lead:
    """Return the lead in test AUC; `ours` and `theirs` are parts of the study with their losses."""
    results = [
        images.chosen(images.RESULTS / f"{part}.jsonl", images.PARTS[part])[imratio, 100, loss]
        for part, loss in (ours, theirs)
    ]
    found = gap(*results)
    return Lead(gap_text(found), found[1])


def few_positives(batch: int, rival: str) -> Lead:
    """Return the lead in test AUC with 0.1 % positives, for a size of the batches."""
    name = "batches-shuffle"
    path = images.RESULTS / open_questions.FOLDER / f"{name}.jsonl"
    results = images.chosen(path, open_questions.PARTS[name])
    found = gap(*(results[0.001, batch, loss] for loss in ("squared_hinge", rival)))
    return Lead(gap_text(found), found[1])


HINGE, PAIRWISE = ("cifar10", "squared_hinge"), ("cifar10-raw", "pairwise_logistic")
AUCM, WEIGHTED = ("cifar10", "aucm"), ("cifar10-raw", "weighted_logistic")
ONE, MANY = (f"`rank:pairwise`, {n} sampled per row" for n in (1, 32))
WINS = (
    Win(
        "ordered target, *simulated* heavy-tailed noise (Student t), 3 data sets, boosted trees",
        "least squares on the target (least squares on its ranks ties)",
        {
            "points of Spearman's correlation": partial(
                ordered, "Student t", "least squares", "test"
            )
        },
        "`rows/order/ranking.csv`",
        "`order_evidence ranking`",
    ),
    Win(
        "ordered target, *simulated* noise, 3 data sets, boosted trees, the same settings for all "
        "(with settings of its own for each, they tie)",
        "`rank:pairwise` of XGBoost with its defaults, 1 or 32 sampled pairs per row",
        {
            "1 pair, normal noise": partial(ordered, "normal", ONE, "plain"),
            "1 pair, Student t": partial(ordered, "Student t", ONE, "plain"),
            "32 pairs, Student t": partial(ordered, "Student t", MANY, "plain"),
        },
        "`rows/order/ranking.csv`",
        "`order_evidence ranking`",
    ),
    Win(
        "binary tables, boosted trees, tuned",
        "`lambdarank` (queries of at most 10,000 rows); `rank:pairwise`",
        {family: partial(tables, family, "ranking", "test") for family in ("LightGBM", "XGBoost")},
        "`rows/boosting/evidence.csv`",
        "`evidence run`",
    ),
    Win(
        "CIFAR10, 10 % positives, ResNet20",
        "AUCM with PESG",
        {
            "squared hinge": partial(image_lead, HINGE, AUCM, 0.1),
            "pairwise logistic": partial(image_lead, PAIRWISE, AUCM, 0.1),
        },
        "`cifar10.jsonl`, `cifar10-raw.jsonl`",
        "`images run cifar10 cifar10-raw`",
    ),
    Win(
        "Cat & Dog, 10 % positives, ResNet20",
        "AUCM with PESG (the logistic loss gains as much, +0.023)",
        {
            "squared hinge": partial(
                image_lead, ("catdog", "squared_hinge"), ("catdog", "aucm"), imratio=0.1
            )
        },
        "`catdog.jsonl`",
        "`images run catdog`",
    ),
    Win(
        "CIFAR10, 1 % positives, ResNet20",
        "class-weighted logistic",
        {
            "squared hinge": partial(image_lead, HINGE, WEIGHTED, 0.01),
            "pairwise logistic": partial(image_lead, PAIRWISE, WEIGHTED, 0.01),
        },
        "`cifar10.jsonl`, `cifar10-raw.jsonl`",
        "`images run cifar10 cifar10-raw`",
    ),
    Win(
        "0.1 % positives, 10 epochs of a small network, one table (ijcnn1)",
        "logistic, batches of 10,000 rows; class-weighted logistic, all rows in one batch",
        {
            "10,000 rows": partial(few_positives, 10_000, "logistic"),
            "all rows": partial(few_positives, FULL_BATCH, "weighted_logistic"),
        },
        "`open-questions/batches-shuffle.jsonl`",
        "`open_questions run`",
    ),
)


def table(wins: tuple[Win, ...] = WINS) -> str:
    """Return the table in Markdown."""
    lines = [f"| {HEAD} |", "|---" * (HEAD.count("|") + 1) + "|"]
    for win in wins:
        cells = []
        for label, lead_of in win.leads.items():
            lead = lead_of()
            if not (lead.low > 0 and lead.p < 0.05):
                raise ValueError(f"{win.situation}, {label}: {lead.text} is no win")
            cells.append(f"{label}: {lead.text}")
        lines.append(f"| {' | '.join([*win[:2], '; '.join(cells), win.rows, win.command])} |")
    return "\n".join(lines)
