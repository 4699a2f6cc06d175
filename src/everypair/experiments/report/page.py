"""The report as one HTML file: tables, inline SVG, a little script, nothing from the network."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

import everypair
from everypair.experiments.plan import Settings
from everypair.experiments.report import _inside, _sections, wording
from everypair.experiments.report.study import Study

__all__ = ["page"]

PROTOCOLS = {
    "corrected": "Protocol <b>corrected</b>, as the paper describes it: positives are removed down "
    "to the imratio, then 80 % of the rows become the subtrain set and 20 % the validation set, "
    "stratified. Where positives were removed, the test set has as many positives as negatives.",
    "paper": "Protocol <b>paper</b>, as the authors' code did it: split first, then each part made "
    "unbalanced, not stratified; images of all parts augmented; a double sigmoid under the "
    "logistic loss; batches without a positive skipped for every loss.",
}


def page(study: Study) -> str:
    """Return the whole page."""
    names = dict.fromkeys(wording.data(task.data, study.settings) for task in study.by_task)
    title = f"Losses compared on {wording.listing(list(names))}"
    return Template(_asset("page.html.jinja")).substitute(
        version=escape(everypair.__version__),
        title=escape(title),
        css=_asset("page.css"),
        js=_asset("page.js"),
        lead=escape(_lead(study)),
        facts=_facts(study),
        banner=_banner(study),
        results=_sections.results(study),
        differences_text=escape(_sections.differences_text(study)),
        differences=_sections.differences(study),
        selected=_sections.selected(study),
        picker=_inside.picker(study),
        inside=_inside.inside(study),
        lost=_sections.lost(study),
        cost=_sections.cost(study),
        how=_how(study.settings),
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _lead(study: Study) -> str:
    """Say in one line how many comparisons have a winner and how many tie."""
    places = list(study.standings.values())
    clear = sum(not place.where("tie", "unknown") and bool(place.others) for place in places)
    tied = sum(bool(place.where("tie")) for place in places)
    open_ = sum(bool(place.where("unknown")) and not place.where("tie") for place in places)
    parts = [
        (clear, "has a clear leader", "have a clear leader"),
        (tied, "has a tie at the top", "have a tie at the top"),
        (open_, "cannot be decided with these seeds", "cannot be decided with these seeds"),
    ]
    said = [f"{n} {one if n == 1 else many}" for n, one, many in parts if n]
    if not said:
        return "There is nothing to compare."
    return f"Of {wording.amount(len(places), 'comparison')}, {wording.listing(said)}."


def _facts(study: Study) -> str:
    settings = study.settings
    n_seeds = len({record.trial.cell.seed for record in study.records})
    n_lost = sum(record.state != "finished" for record in study.records)
    table = settings.table
    facts = {
        **({"Positive": f"{table.label} = {table.positive}"} if table and table.positive else {}),
        "Trials": f"{len(study.records):,}"
        + (f" of {study.planned:,}" if study.unfinished else ""),
        "Diverged or failed": f"{n_lost:,}",
        "Seeds": f"{n_seeds}",
        "Model": settings.model,
        "Scores": settings.scores,
        "Epochs": f"{settings.epochs}",
        "Protocol": settings.protocol,
        "Time": wording.duration(sum(record.seconds for record in study.records)),
    }
    return "".join(
        f"<div><dt>{name}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items()
    )


def _banner(study: Study) -> str:
    if not study.unfinished:
        return ""
    done = len(study.records)
    return (
        f'<p class="banner"><b>Unfinished:</b> {done:,} of {study.planned:,} trials are done. What '
        "is selected, and who leads, may still change; contenders may have had different numbers "
        f'of trials. <progress max="{study.planned}" value="{done}" aria-label="Trials done">'
        "</progress></p>"
    )


def _how(settings: Settings) -> str:
    """Explain selection, protocol and statistics in plain sentences."""
    batches = {
        "shuffle": "Batches are shuffled rows.",
        "stratified": "Every batch holds its share of positives (stratified batches).",
    }[settings.sampler]
    said = [
        "For each data set, imratio, loss, optimiser and seed, all batch sizes and learning rates "
        "compete. The trial <b>and epoch</b> with the greatest <b>validation</b> AUC wins; of "
        "equal ones the first in the grid, and the first epoch. The test AUC was logged but never "
        "used to choose.",
        "A seed fixes the split, the first weights and the order of the rows for all losses alike. "
        "Hence differences are taken seed by seed.",
        PROTOCOLS[settings.protocol],
        f"Model {escape(settings.model)}, {settings.scores} scores, {settings.epochs} epochs, "
        f"margin {settings.margin:g}. {batches}",
        "AUC is exact: the share of (positive, negative) pairs in the right order, ties counting "
        "half. Standard deviations divide by n − 1; intervals are Student's t with n − 1 degrees "
        "of freedom.",
    ]
    return "<ul>" + "".join(f"<li>{text}</li>" for text in said) + "</ul>"
