"""``everypair geometry``: the paper's figure 1, for any surrogate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from everypair.experiments._terminal import echo, echo_json
from everypair.experiments.commands._parameters import JsonFlag, margin_option, numbers, option
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.surrogates import Surrogate


def command(
    surrogate: Annotated[
        str | None, option("Name of a surrogate of the library.", default="squared_hinge")
    ] = None,
    term: Annotated[
        list[str] | None,
        option("Term c0,c1,c2 or c0,c1,c2,knot of your own surrogate; repeatable.", default="none"),
    ] = None,
    margin: Annotated[float | None, margin_option("that of the surrogate")] = None,
    positives: Annotated[str, option("Scores of the positives.")] = "-1,0.5,2",
    negatives: Annotated[str, option("Scores of the negatives.")] = "-2.2,-0.8,0.2,1.4",
    out: Annotated[
        Path,
        option("Writes OUT.png and OUT.svg, or only the file that OUT names; none with --json."),
    ] = Path("geometry"),
    json_: JsonFlag = False,
) -> None:
    """Draw how pairs become polynomials (the paper's figure 1)."""
    from everypair.experiments.figures import geometry, output

    chosen = _surrogate(surrogate, term)
    if not chosen.is_polynomial:
        raise UserError(
            f"--surrogate must be made of polynomials, which this figure shows; {chosen.name!r} is "
            "not. Choose a hinge or the square."
        )
    files = {} if json_ else output.targets(out, "geometry", ("png", "svg"))
    found = geometry.geometry(
        chosen,
        positives=numbers("positives", positives),
        negatives=numbers("negatives", negatives),
        margin=margin,
    )
    if json_:
        echo_json({**asdict(found), "surrogate": chosen.name})
        return
    written = output.save_all(files, geometry.draw(found))
    n, loss = len(found.pieces) * len(found.sums), found.loss
    echo(f"{chosen.name}: {loss:.6g} over {n} pairs, {loss / n:.6g} each\n{written}")


def _surrogate(name: str | None, terms: list[str] | None) -> Surrogate:
    from everypair import surrogates

    if name and terms:
        raise UserError("--surrogate and --term exclude each other; give only one of them.")
    if not terms:
        try:
            return surrogates.get(name or "squared_hinge")
        except ValueError as error:
            raise UserError(f"--{error}") from error
    read = []
    for text in terms:
        read.append(numbers("term", text))
        if len(read[-1]) not in (3, 4):
            raise UserError(f"--term must hold c0,c1,c2 or c0,c1,c2,knot; got {text!r}.")
    return surrogates.Surrogate("your own", tuple(surrogates.Term(*values) for values in read))
