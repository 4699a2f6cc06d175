"""The committed benchmark rows have a plausible shape, and the benchmarks judge rows correctly.

No test here measures a time. The times are those of `benchmarks/rows/kernel`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

from benchmarks import bars, kernel, rows
from benchmarks.__main__ import main
from benchmarks.instruction_sets import instruction_sets
from benchmarks.rows import KernelRow

COMMITTED = rows.read_kernel()
SERIES = bars.series(COMMITTED)


@pytest.mark.skipif(not COMMITTED, reason="benchmarks/rows/kernel is empty; run: make bench")
@pytest.mark.parametrize("isa", dict.fromkeys(row.isa for row in COMMITTED))
def test_no_size_is_slower_than_the_next_larger_one(isa):
    too_slow = [
        f"{question}, {share:.1%} positives: n = {small.n:,} takes {small.seconds:.3g} s, "
        f"n = {large.n:,} takes {large.seconds:.3g} s"
        for (name, question, share), line in SERIES.items()
        if name == isa
        for small, large in pairwise(line)
        if small.seconds > bars.NEXT_SIZE_FACTOR * large.seconds
    ]
    assert not too_slow, "\n".join(too_slow)


@pytest.mark.skipif(not COMMITTED, reason="benchmarks/rows/kernel is empty; run: make bench")
def test_every_instruction_set_has_all_rows():
    for isa in {*bars.INSTRUCTION_SETS, *(row.isa for row in COMMITTED)}:
        for share in kernel.SHARES:
            sizes = [n for n in kernel.SIZES if n * share >= 1]
            for question in kernel.asked(share):
                line = SERIES.get((isa, question, share), [])
                assert [row.n for row in line] == sizes, (isa, question, share)


def test_all_rows_that_the_report_reads_have_its_columns():
    assert {row.suite for row in rows.read()} >= {"loss_and_grad", "hard_inputs", "accuracy"}


def made_up_rows(seconds, isa="avx2"):
    """Return rows of all questions and shares; `seconds` is a function of n."""
    blank = {f.name: "" for f in fields(KernelRow)} | {"isa": isa, "torch_capability": "AVX2"}
    return [
        KernelRow(**blank | {
            "question": question, "n": n, "positives": share,
            "seconds": seconds(n), "bce_seconds": n + 500, "ratio": seconds(n) / (n + 500),
            "ratio_of_medians": 1.0, "samples": 7,
        })
        for sizes, share, questions in kernel.cells(kernel.SIZES)
        for n in sizes
        for question in questions
    ]  # fmt: skip


def of_both(seconds):
    return [*made_up_rows(seconds, "baseline"), *made_up_rows(seconds, "avx2")]


FAST = of_both(lambda n: n + 100)


def missed(found):
    return [verdict for verdict in bars.kernel_verdicts(found) if verdict.word == "MISSED"]


def test_rows_within_all_limits_pass_and_a_missing_size_is_reported():
    assert {v.word for v in bars.kernel_verdicts(FAST)} == {"pass"}
    gap = [row for row in FAST if row.n != 520]
    assert {v.word for v in bars.kernel_verdicts(gap)} == {"pass", "no row"}


def test_a_limit_that_is_exceeded_at_one_size_is_missed():
    cell = ("avx2", "squared_hinge", 3_700, 0.01)
    slow = [
        replace(row, seconds=1.01 * row.bce_seconds)
        if (row.isa, row.question, row.n, row.positives) == cell
        else row
        for row in FAST
    ]
    (verdict,) = missed(slow)
    assert verdict.measured == pytest.approx(1.01)
    assert "(3,700)" in verdict.bar


def test_the_baseline_has_higher_limits():
    equal = missed(of_both(lambda n: 1.4 * n))
    assert {verdict.bar.split(",")[0] for verdict in equal} == {"avx2"}


def test_a_size_slower_than_the_next_one_is_missed():
    step = missed(made_up_rows(lambda n: 0.2 * n + (3_000 if n == 7_400 else 0)))
    assert step
    assert all("over the next size (7,400)" in verdict.bar for verdict in step)


@pytest.mark.skipif(not instruction_sets(), reason="needs the compiled kernel")
def test_a_short_run_writes_rows_of_the_chosen_instruction_set(tmp_path):
    kernel_suite = ["run", "--suite", "kernel", "--quick", "--output", str(tmp_path)]
    isa = instruction_sets()[0]
    main([*kernel_suite, "--isa", isa, "--only", "auc", "PairLoss", "--sizes", "20", "50"])
    found = rows.read_kernel(tmp_path)
    assert [(r.question, r.n, r.positives) for r in found] == [
        (question, n, share)
        for share in (0.5, 0.1)
        for n in (20, 50)
        for question in ("auc", "PairLoss")
    ]
    assert {(r.isa, r.torch_capability) for r in found} == {(isa, "DEFAULT")}
    assert all(r.ratio == pytest.approx(r.seconds / r.bce_seconds, rel=1e-3) for r in found)
