"""``everypair geometry``: the paper's figure 1 and the same for other surrogates."""

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
        str | None, option("Names of surrogates of the library.", default="square,squared_hinge")
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
    """Draw how pairs become polynomials: the square loss (the paper's figure 1) and its hinge."""
    from everypair.experiments.figures import geometry, output

    chosen = _surrogates(surrogate, term)
    if smooth := [each.name for each in chosen if not each.is_polynomial]:
        raise UserError(
            f"--surrogate must be made of polynomials, which this figure shows; {smooth[0]!r} is "
            "not. Choose a hinge or the square."
        )
    files = {} if json_ else output.targets(out, "geometry", ("png", "svg"))
    pos, neg = numbers("positives", positives), numbers("negatives", negatives)
    found = [geometry.geometry(s, positives=pos, negatives=neg, margin=margin) for s in chosen]
    if json_:
        echo_json([{**asdict(one), "surrogate": one.surrogate.name} for one in found])
        return
    written, n = output.save_all(files, geometry.draw(*found)), len(pos) * len(neg)
    for one in found:
        echo(f"{one.surrogate.name}: {one.loss:.6g} over {n} pairs, {one.loss / n:.6g} each")
    echo(written)


def _surrogates(names: str | None, terms: list[str] | None) -> list[Surrogate]:
    from everypair import surrogates

    if names and terms:
        raise UserError("--surrogate and --term exclude each other; give only one of them.")
    if not terms:
        try:
            return [surrogates.get(name) for name in (names or "square,squared_hinge").split(",")]
        except ValueError as error:
            raise UserError(f"--{error}") from error
    read = []
    for text in terms:
        read.append(numbers("term", text))
        if len(read[-1]) not in (3, 4):
            raise UserError(f"--term must hold c0,c1,c2 or c0,c1,c2,knot; got {text!r}.")
    return [surrogates.Surrogate("your own", tuple(surrogates.Term(*values) for values in read))]
