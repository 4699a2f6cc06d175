"""The report as one HTML file that needs nothing from the network.

This module prepares the plots and the few texts that depend on the study. The templates in
``templates/`` hold all HTML and escape every value that they insert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes

import everypair
from everypair.experiments.display_names import display_name
from everypair.experiments.report import figures, panels, table_panels, tables, wording
from everypair.experiments.report.selection import Comparison, Contender, gathered
from everypair.experiments.report.study import Study
from everypair.experiments.report.table_facts import HeldOutScores

Plot = Callable[..., dict[str, Any]]


def page(study: Study) -> str:
    """Return the whole page: of the winner if models of a table were compared, else of losses."""
    if summary := study.facts.summary:
        template, values = "table", _models(study, summary, _plotter())
    else:
        template, values = "page", _losses(study, _plotter())
    return (
        _environment()
        .get_template(f"{template}.html.jinja")
        .render(
            study=study,
            settings=study.settings,
            facts=study.facts,
            version=everypair.__version__,
            cost=tables.cost(study.summed),
            **values,
        )
    )


def _plotter() -> Plot:
    """Return a function that draws plots, whose names differ on one page."""
    names = (f"plot-{k}" for k in count())

    def plot(draw: Callable[[Axes], None], what: str, *size: float) -> dict[str, Any]:
        """Return the SVG of a panel, a text that describes it, and the values of its lines."""
        drawn = figures.figure([("", draw)], *size)
        [axes] = drawn.axes
        values = figures.readout(axes)
        parts = [text.get_text() for text in axes.texts]
        for line in values["lines"]:
            known = [value for value in line["values"] if value is not None]
            parts.append(f"{line['name']}: from {known[0]:.3g} to {known[-1]:.3g}.")
        svg = Markup(figures.inline(drawn, next(names)))
        return {"svg": svg, "text": f"{what}. {' '.join(parts)}", "readout": values}

    return plot


def _losses(study: Study, plot: Plot) -> dict[str, Any]:
    """Return what the page of a study of losses shows."""
    comparisons = [
        {"k": k, **_comparison(study, one, plot)} for k, one in enumerate(study.by_comparison)
    ]
    groups = gathered(comparisons, lambda one: str(one["data"]))
    return {
        "title": f"Losses compared on {wording.listing(list(groups))}",
        "lead": _lead(study),
        "colours": {who: f"c{k % len(panels.COLOURS)}" for k, who in enumerate(study.contenders)},
        "data": partial(wording.data, settings=study.settings),
        "comparisons": comparisons,
        "groups": groups,
        "lost": tables.lost_trials(study.summed),
    }


def _models(study: Study, summary: Mapping[str, Any], plot: Plot) -> dict[str, Any]:
    """Return what the page of a comparison of models on a table shows."""
    scores = study.facts.scores
    winner, rows = summary["winner"], summary.get("importance", ())
    height = table_panels.importance_height(len(rows))
    bars = partial(table_panels.importance, rows=rows)
    return {
        "title": f"Models compared on {wording.data('table', study.settings)}",
        "lead": wording.winner(summary),
        "summary": summary,
        "blended": any(one.get("weight") is not None for one in summary["contenders"]),
        "winner": winner,
        "parameters": wording.parameters(winner.get("parameters")),
        "thresholds": scores.thresholds() if scores else [],
        "curves": _curves(scores, plot) if scores else [],
        "importance": plot(bars, "Importance of columns", 340, height, 6) if rows else None,
    }


def _curves(scores: HeldOutScores, plot: Plot) -> list[tuple[str, dict[str, Any]]]:
    """Return the curves of the winner with their captions."""
    auc, low, high = scores.auc()
    interval = f" (95 % interval {low:.3f} to {high:.3f})" if low == low else ""
    precision = f"average precision {scores.average_precision():.3f}, chance {scores.share:.3f}"
    captions = {
        f"ROC curve: AUC {auc:.3f}{interval}": table_panels.roc,
        f"Precision and recall: {precision}": table_panels.precision_recall,
    }
    if scores.calibration():
        captions["Calibration, with 95 % intervals"] = table_panels.calibration
    return [
        (caption, plot(partial(draw, scores=scores), caption, 280, 230))
        for caption, draw in captions.items()
    ]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("everypair.experiments.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(wording=wording, display_name=display_name, Contender=Contender)
    environment.globals.update(nan=math.nan)
    return environment


def _comparison(study: Study, comparison: Comparison, plot: Plot) -> dict[str, Any]:
    """Return everything that the page shows of one comparison."""
    summed, place = study.by_comparison[comparison], study.standings.get(comparison)
    points = {one.contender: tables.grid_points(one) for one in summed}
    means = [point["mean"] for found in points.values() for point in found]
    known = [mean for mean in means if math.isfinite(mean)] or [0.0]

    def of(draw: Callable[..., None], what: str, *size: float) -> dict[str, Any]:
        return plot(partial(draw, study=study, comparison=comparison), what, *size)

    n_gaps = len(summed) * (len(summed) - 1) // 2
    return {
        "summed": summed,
        "data": wording.data(comparison.data, study.settings),
        "title": wording.comparison(comparison, study.settings),
        "share": wording.share(comparison.imratio),
        "verdict": place and wording.standing(place, study.called),
        "results": of(panels.results, "Test AUC", 300, panels.strips_height(len(summed)), 6),
        "differences": n_gaps
        and of(panels.differences, "Paired differences", 300, panels.strips_height(n_gaps), 6),
        "learning": {
            one.contender: [
                plot(
                    partial(draw, study=study, summary=one),
                    f"{what} by epoch, {wording.contender(one.contender)}",
                    *(250, 150),
                )
                for what, draw in (("AUC", panels.learning), ("Loss", panels.training_loss))
            ]
            for one in summed
            if one.chosen
        },
        "roc": of(panels.roc, "ROC curves", 420, 330),
        "grids": points,
        "low": min(known),
        "high": max(known),
    }


def _lead(study: Study) -> str:
    """Return the result in one sentence or two."""
    places = list(study.standings.values())
    if len(study.by_comparison) == 1 and places:
        return wording.standing(places[0], study.called)
    verdicts = [
        next((v for v in ("tie", "unknown") if place.where(v)), "clear" if place.others else "")
        for place in places
    ]
    texts = {
        "clear": "one loss is clearly ahead",
        "tie": "the best losses cannot be told apart",
        "unknown": "there are too few seeds to tell",
    }
    parts = [f"in {verdicts.count(v)} {text}" for v, text in texts.items() if v in verdicts]
    if not parts:
        return "There is nothing to compare."
    return f"Of {wording.amount(len(places), 'comparison')}, {wording.listing(parts)}."
