"""Figure 2: timings, slopes, contenders that are left out, and output files."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

import everypair as ep
from everypair import cli
from everypair.experiments.figures import timing, timing_plot
from everypair.experiments.figures.timing import CONTENDERS, Contender, Result, Timing

QUICK = ["--backends", "native,numpy", "--max-n", "1e3", "--seconds", "0.001"]


@pytest.fixture
def result():
    sizes = (10, 1000, 10_000)
    timings = [Timing("logistic", n, 1e-9 * n, 9e-10 * n, 2e-9 * n, 5) for n in sizes]
    return Result([*timings, Timing("naive", 10, 1e-5, 1e-5, 1e-5, 3)], {}, "square", 2)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_computes_loss_and_gradient(name):
    if "cuda" in name and not torch.cuda.is_available():
        with pytest.raises(timing.NotAvailableError):
            timing.measure(name, 20)
        return
    taken = timing.measure(name, 20, seconds=0.0)
    assert taken.n == 20
    assert 0.0 < taken.low <= taken.median <= taken.high
    assert taken.repeats == 3


def test_repeats_for_the_given_time():
    assert timing.measure("numpy", 10, seconds=1.0).repeats == timing.MAX_REPEATS


def test_half_of_the_rows_are_positive_and_scores_standard_normal():
    scores, labels = timing._batch(10_000)
    assert labels.mean() == 0.5
    assert abs(scores.mean()) < 0.05
    assert abs(scores.std() - 1.0) < 0.05


def test_a_call_returns_the_loss_and_gradient():
    scores, labels = timing._batch(50)
    loss, grad = CONTENDERS["naive"].build(50, "square")()
    expected_loss, expected_grad = ep.pair_loss_and_grad(scores, labels, surrogate="square")
    assert loss == pytest.approx(expected_loss)
    np.testing.assert_allclose(grad, expected_grad, atol=1e-6)


@pytest.mark.parametrize("surrogate", timing.PAPER)
def test_the_double_sum_of_tensors_equals_that_of_arrays(surrogate):
    scores, labels = timing._batch(50)
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    found = timing._double_sum(*tensors, hinge=surrogate == "squared_hinge")
    assert found.item() == pytest.approx(ep.naive.pair_loss(scores, labels, surrogate=surrogate))


@pytest.mark.parametrize("name", ["paper", "naive_cuda"])
def test_the_algorithms_of_the_paper_have_two_losses(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(timing.NotAvailableError, match="it is made for square and squared_hinge"):
        timing.measure(name, 20, surrogate="linear_hinge")


def test_each_backend_runs_in_its_own_process():
    steps = []
    result = timing.run(
        ["numpy", "native"], [10, 100], seconds=0.0, on_step=lambda *step: steps.append(step)
    )
    assert steps[:2] == [("numpy", 10), ("numpy", 100)]
    assert [t.n for t in result.of("numpy")] == [10, 100]
    assert result.of("native") or "compiled kernel" in result.left_out["native"]


def test_sizes_that_would_take_too_long_are_left_out(monkeypatch):
    measured = {10: 0.001, 100: 0.1}
    monkeypatch.setattr(timing, "_process", lambda _: SameProcess())
    monkeypatch.setattr(
        timing, "measure", lambda name, n, **_: Timing(name, n, measured[n], 0.0, 0.0, 3)
    )
    result = timing.run(["naive"], [10, 100, 1000], limit=1.0)
    assert [t.n for t in result.timings] == [10, 100]
    assert result.left_out == {"naive": "from n = 1,000 on: about 10 s per call"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("no kernel"), "not available: no kernel"),
        (timing.NotAvailableError("no device"), "not available: no device"),
        (MemoryError(), "from n = 10 on: out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "from n = 10 on: out of memory"),
        (timing.BrokenProcessPool(), "from n = 10 on: its process died, probably out of memory"),
    ],
)
def test_contenders_that_cannot_run_are_left_out_with_the_reason(monkeypatch, error, reason):
    def build(n, surrogate):
        raise error

    monkeypatch.setattr(timing, "_process", lambda _: SameProcess())
    monkeypatch.setitem(CONTENDERS, "logistic", Contender("broken", build))
    result = timing.run(["logistic", "naive"], [10], seconds=0.0)
    assert result.left_out == {"logistic": reason}
    assert [t.contender for t in result.timings] == ["naive"]


class SameProcess:
    """Replaces the pool of one process: computes at once, in this process."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        self.result = lambda: function(*arguments)
        return self


def test_the_slope_is_fitted_where_the_time_is_not_overhead(result):
    assert timing.slope(result.of("logistic")) == 1.0
    assert timing.slope(result.of("naive")) is None
    bent = [Timing("x", n, max(n, 1000) ** 2.0, 0, 0, 1) for n in (10, 1000, 10**4, 10**5)]
    assert timing.slope(bent) == 2.0
    assert timing.slope(bent[:3]) is None  # two sizes of overhead and one of work


@pytest.mark.parametrize("surrogate", timing.PAPER)
@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_the_algorithms_of_the_paper_equal_the_double_sum(surrogate, margin):
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(-9, 9, 80) / 4, (rng.random(80) < 0.3).astype(float)
    tensor = torch.from_numpy(scores).requires_grad_()
    value = timing.PAPER[surrogate](tensor, torch.from_numpy(labels), margin)
    value.backward()
    expected, grad = ep.naive.pair_loss_and_grad(scores, labels, surrogate=surrogate, margin=margin)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(tensor.grad, grad, atol=1e-14)


def test_the_csv_has_one_row_per_contender_and_size(result):
    rows = list(csv.DictReader(timing_plot.rows([result]).decode().splitlines()))
    assert [int(row["n"]) for row in rows] == [10, 1000, 10_000, 10]
    assert rows[0]["slope"] == "1.0"
    assert rows[3]["slope"] == ""
    assert {row["surrogate"] for row in rows} == {"square"}


def test_the_figure_is_log_log_with_slopes(result):
    axes, _ = timing_plot.draw([result, result]).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["double sum, NumPy", "logistic loss, torch (slope 1.00)"]


def test_command_writes_table_rows_and_figures(tmp_path, capsys):
    assert cli.main(["timing", *QUICK, "--out", str(tmp_path)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["timing.csv", "timing.png", "timing.svg"]
    text = capsys.readouterr().out
    assert "slope" in text
    assert "numpy" in text
    assert (tmp_path / "timing.png").read_bytes().startswith(b"\x89PNG")


def test_command_prints_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["timing", *QUICK, "--json", "--surrogate", "square"]) == 0
    (output,) = json.loads(capsys.readouterr().out)
    assert {t["contender"] for t in output["timings"]} >= {"numpy"}
    assert output["surrogate"] == "square"
    assert "numpy" in output["slopes"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--max-n", "5"], "--max-n must be"),
        (["--max-n", "nan"], "--max-n must be"),
        (["--backends", "native,cheese"], "got cheese"),
        (["--backends", ","], "got none"),
        (["--surrogate", "square,cubic"], "got cubic"),
        (["--out", "x.pdf"], ".csv, .png, .svg"),
    ],
)
def test_wrong_arguments_give_one_line(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["timing", *arguments]) == 2
    message = capsys.readouterr().err
    assert text in message
    assert message.count("\n") == 1


def test_no_contender_that_runs_is_a_user_error(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    empty = Result([], {"cuda": "not available: no device."}, "square", 1)
    monkeypatch.setattr(timing, "run", lambda *_, **__: empty)
    assert cli.main(["timing", "--backends", "cuda"]) == 2
    assert "cuda not available: no device." in capsys.readouterr().err


def test_contenders_that_were_left_out_are_printed(capsys, monkeypatch, tmp_path, result):
    monkeypatch.chdir(tmp_path)
    result.left_out["cuda"] = "not available: no device."
    monkeypatch.setattr(timing, "run", lambda *_, **__: result)
    assert cli.main(["timing", "--out", "mine.csv"]) == 0
    assert "cuda: not available: no device." in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
