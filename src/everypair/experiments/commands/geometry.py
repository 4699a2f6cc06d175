"""``everypair geometry``: the paper's figure 1, for any surrogate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.surrogates import Surrogate

__all__ = ["command"]


def command(
    surrogate: Annotated[
        str | None, typer.Option(help="One of the library's; squared_hinge by default.")
    ] = None,
    term: Annotated[
        list[str] | None,
        typer.Option(
            help="A term c0,c1,c2 or c0,c1,c2,knot of a surrogate of your own; may be repeated."
        ),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.0, help="The lead that is enough.")] = 1.0,
    positives: Annotated[str, typer.Option(help="Scores of the positives.")] = "-1,0.5,2",
    negatives: Annotated[str, typer.Option(help="Scores of the negatives.")] = "-2.2,-0.8,0.2,1.4",
    out: Annotated[
        Path, typer.Option(help="Writes OUT.png and OUT.svg, or the one it names.")
    ] = Path("geometry"),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, and write no file.")] = False,
) -> None:
    """Draw how pairs become polynomials (the paper's figure 1)."""
    from everypair.experiments.figures import geometry, output

    chosen = _surrogate(surrogate, term)
    files = {} if json_ else output.targets(out, "geometry", ("png", "svg"))
    seen = geometry.geometry(
        chosen,
        positives=_numbers(positives, "--positives"),
        negatives=_numbers(negatives, "--negatives"),
        margin=_numbers(str(margin), "--margin")[0],
    )
    if json_:
        plain = {**asdict(seen), "surrogate": chosen.name}
        typer.echo(json.dumps(plain, indent=2))
        return
    figure = geometry.draw(seen)
    for path in files.values():
        output.save(path, figure)
    n_pairs = len(seen.pieces) * len(seen.sums)
    typer.echo(
        f"{chosen.name}: {seen.loss:.6g} over {n_pairs} pairs, {seen.loss / n_pairs:.6g} each"
    )
    typer.echo("Written: " + ", ".join(map(str, files.values())))


def _surrogate(name: str | None, terms: list[str] | None) -> Surrogate:
    from everypair import surrogates

    if name and terms:
        raise UserError("--surrogate and --term exclude each other; give one of them.")
    if not terms:
        try:
            return surrogates.get(name or "squared_hinge")
        except ValueError as error:
            raise UserError(f"--{error}") from error
    read = [_numbers(text, "--term") for text in terms]
    for text, numbers in zip(terms, read, strict=True):
        if len(numbers) not in (3, 4):
            raise UserError(f"--term must hold c0,c1,c2 or c0,c1,c2,knot; got {text!r}.")
    return surrogates.Surrogate("your own", tuple(surrogates.Term(*numbers) for numbers in read))


def _numbers(text: str, option: str) -> list[float]:
    from math import isfinite

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(map(isfinite, numbers)):
        raise UserError(f"{option} must be finite numbers with commas between; got {text!r}.")
    return numbers
