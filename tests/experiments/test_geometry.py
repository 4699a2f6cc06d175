"""Figure 1: coefficients, sums, and the figure for any surrogate."""

from __future__ import annotations

import json

import numpy as np
import pytest

import everypair as ep
from everypair import cli
from everypair.experiments.errors import UserError
from everypair.experiments.figures import output
from everypair.experiments.figures.geometry import _formula, draw, geometry
from everypair.surrogates import SQUARE, SQUARED_HINGE, Surrogate, Term

from ..strategies import POLYNOMIALS

POSITIVES, NEGATIVES = [-1.0, 0.5, 2.0], [-2.2, -0.8, 0.2, 1.4]
STEEP = Surrogate("steep", (Term(0, 1, 0, knot=0), Term(-1, 1, 0, knot=1)))


@pytest.mark.parametrize("surrogate", [*POLYNOMIALS, STEEP], ids=lambda s: s.name)
@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_sums_at_the_negatives_equal_the_double_sum(surrogate, margin):
    found = geometry(surrogate, positives=POSITIVES, negatives=NEGATIVES, margin=margin)
    scores, labels = POSITIVES + NEGATIVES, [1] * 3 + [0] * 4
    expected = ep.naive.pair_loss(
        scores, labels, surrogate=surrogate, margin=margin, reduction="sum"
    )
    assert found.loss == pytest.approx(expected, rel=1e-12)
    for s in found.sums:
        values = surrogate.value(margin - (np.array(POSITIVES) - s.negative))
        assert s.value == pytest.approx(values.sum(), abs=1e-12)


def test_coefficients_equal_those_of_the_paper():
    found = geometry(SQUARE, positives=POSITIVES, negatives=NEGATIVES, margin=1.0)
    for (piece,), score in zip(found.pieces, POSITIVES, strict=True):
        assert (piece.a, piece.b, piece.c) == (1.0, 2 * (1 - score), (1 - score) ** 2)
    assert found.sums[0].a == len(POSITIVES)


def test_a_hinge_is_active_beyond_its_knot():
    found = geometry(SQUARED_HINGE, positives=[2.0], negatives=[0.5, 1.0, 1.5], margin=1.0)
    assert found.pieces[0][0].knot == 1.0
    assert [s.value for s in found.sums] == [0.0, 0.0, 0.25]


def test_formulas_are_written_as_text():
    (square, zero) = (
        geometry(s, positives=[2.0], negatives=[0.0], margin=1.0).pieces[0]
        for s in (SQUARED_HINGE, Surrogate("none", (Term(0, 0, 0),)))
    )
    assert _formula(square) == "x² − 2 x + 1 where x > 1"
    assert _formula(zero) == "0"
    (steep,) = geometry(STEEP, positives=[1.0], negatives=[0.0], margin=0.0).pieces
    assert _formula(steep) == "x − 1 where x > 1\nx − 2 where x > 2"


def test_the_figure_has_a_curve_per_positive_and_an_arrow_per_negative():
    found = geometry(SQUARED_HINGE, positives=POSITIVES, negatives=NEGATIVES)
    left, right = draw(found).axes
    assert len(left.get_legend().get_texts()) == len(POSITIVES)
    assert [t.get_text() for t in right.texts if t.get_text()] == ["0", "1.44", "5.33", "15.3"]


def test_one_pair_is_enough_for_a_figure():
    assert draw(geometry(SQUARE, positives=[0.0], negatives=[0.0])).axes


def test_the_command_draws_the_square_loss_and_its_hinge(capsys, tmp_path):
    assert cli.main(["geometry", "--out", str(tmp_path / "f.svg")]) == 0
    text = capsys.readouterr().out
    assert "square: 39.24 over 12 pairs" in text
    assert "squared_hinge: 22.1 over 12 pairs" in text


def test_command_writes_both_figures(tmp_path, capsys):
    assert cli.main(["geometry", "--surrogate", "huber_hinge", "--out", str(tmp_path / "f")]) == 0
    assert "huber_hinge: 7.025 over 12 pairs" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.png", "f.svg"]
    again = (tmp_path / "f.svg").read_bytes()
    assert cli.main(["geometry", "--surrogate", "huber_hinge", "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f.svg").read_bytes() == again


def test_command_takes_terms_and_prints_json(capsys):
    line = ["geometry", "--term", "0,1,0,0", "--term", "-1,1,0,1", "--margin", "0.5"]
    assert cli.main([*line, "--positives", "-1,2", "--negatives", "0,1,2", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)
    expected = ep.pair_loss(
        [-1, 2, 0, 1, 2], [1, 1, 0, 0, 0], surrogate=STEEP, margin=0.5, reduction="sum"
    )
    assert output["loss"] == pytest.approx(expected)
    assert len(output["pieces"]) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--surrogate", "squared_hing"], "Did you mean 'squared_hinge'"),
        (["--surrogate", "square", "--term", "0,1,0"], "exclude each other"),
        (["--term", "0,1"], "c0,c1,c2,knot"),
        (["--term", "a,b,c"], "numbers separated by commas, each finite"),
        (["--positives", ""], "--positives must be numbers"),
        (["--negatives", "1,inf"], "--negatives must be numbers"),
        (["--margin", "inf"], "--margin must be a finite number; got inf"),
        (["--surrogate", "logistic"], "--surrogate must be made of polynomials"),
        (["--out", "figure.jpg"], ".png, .svg"),
    ],
)
def test_wrong_arguments_give_one_line(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["geometry", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_leaves_no_file(tmp_path):
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(UserError, match="could not be written"):
        output.save(tmp_path / "figure.png", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
