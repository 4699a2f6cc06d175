"""The report as one HTML file that needs nothing from the network.

This module prepares the plots and the few texts that depend on the study. The templates in
``templates/`` hold all HTML and escape every value that they insert.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

import everypair
from everypair.experiments.display_names import display_name
from everypair.experiments.report import figures, panels, tables, wording
from everypair.experiments.report.selection import Comparison, Contender, gathered
from everypair.experiments.report.study import Study


def page(study: Study) -> str:
    """Return the whole page."""
    names = (f"plot-{k}" for k in count())

    def plot(draw: Callable[..., None], of: object, what: str, *size: float) -> dict[str, Any]:
        """Return the SVG of a panel, a text that describes it, and the values of its lines."""
        drawn = figures.figure([("", lambda axes: draw(axes, study, of))], *size)
        [axes] = drawn.axes
        values = figures.readout(axes)
        parts = [text.get_text() for text in axes.texts]
        for line in values["lines"]:
            known = [value for value in line["values"] if value is not None]
            parts.append(f"{line['name']}: from {known[0]:.3g} to {known[-1]:.3g}.")
        svg = Markup(figures.inline(drawn, next(names)))
        return {"svg": svg, "text": f"{what}. {' '.join(parts)}", "readout": values}

    comparisons = [
        {"k": k, **_comparison(study, one, plot)} for k, one in enumerate(study.by_comparison)
    ]
    groups = gathered(comparisons, lambda one: str(one["data"]))
    return _template().render(
        study=study,
        settings=study.settings,
        version=everypair.__version__,
        title=f"Losses compared on {wording.listing(list(groups))}",
        lead=_lead(study),
        colours={who: f"c{k % len(panels.COLOURS)}" for k, who in enumerate(study.contenders)},
        data=partial(wording.data, settings=study.settings),
        comparisons=comparisons,
        groups=groups,
        lost=tables.lost_trials(study.summed),
        cost=tables.cost(study.summed),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("everypair.experiments.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(wording=wording, display_name=display_name, Contender=Contender)
    return environment.get_template("page.html.jinja")


def _comparison(study: Study, comparison: Comparison, plot: Callable[..., Any]) -> dict[str, Any]:
    """Return everything that the page shows of one comparison."""
    summed, place = study.by_comparison[comparison], study.standings.get(comparison)
    points = {one.contender: tables.grid_points(one) for one in summed}
    means = [point["mean"] for found in points.values() for point in found]
    known = [mean for mean in means if math.isfinite(mean)] or [0.0]
    n_gaps = len(summed) * (len(summed) - 1) // 2
    gaps = panels.differences, comparison, "Paired differences", 300, panels.strips_height(n_gaps)
    return {
        "summed": summed,
        "data": wording.data(comparison.data, study.settings),
        "title": wording.comparison(comparison, study.settings),
        "share": wording.share(comparison.imratio),
        "verdict": place and wording.standing(place, study.called),
        "results": plot(
            panels.results, comparison, "Test AUC", 300, panels.strips_height(len(summed)), 6
        ),
        "differences": n_gaps and plot(*gaps, 6),
        "learning": {
            one.contender: [
                plot(draw, one, f"{what} by epoch, {wording.contender(one.contender)}", 250, 150)
                for what, draw in (("AUC", panels.learning), ("Loss", panels.training_loss))
            ]
            for one in summed
            if one.chosen
        },
        "roc": plot(panels.roc, comparison, "ROC curves", 420, 330),
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
