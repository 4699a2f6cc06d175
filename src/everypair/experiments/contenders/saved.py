"""Save the model of a table in one zip file, and load it without running foreign code.

``model.json`` describes the model: the encoder of the columns, the calibration and the members. The
other files hold the members: arrays in .npz files for linear models, and the text formats of the
boosting libraries. Nothing is pickled.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments._atomic import replacing
from everypair.experiments.contenders.calibration import Calibration, blended
from everypair.experiments.data import _tables
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.errors import UserError, missing
from everypair.experiments.families import FAMILIES, Floats, MeanScorer
from everypair.experiments.seen_rows import SeenRows

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

FILE_NAME = "model.zip"
VERSION = 1
"""The version of the file format; files of another version are refused."""

_FORMAT = "everypair table model"
_DESCRIPTION = "model.json"


@dataclass(frozen=True)
class Member:
    """A fitted contender, its calibration (to log-odds) and its weight in the model."""

    family: str
    loss: str
    parameters: Mapping[str, Any]
    calibration: Calibration
    scorer: MeanScorer
    weight: float = 1.0


@dataclass(frozen=True)
class TableModel:
    """A model that scores the rows of a table.

    Parameters
    ----------
    encoder : TableEncoder
        Encodes the columns of a table as numbers.
    members : sequence of Member
        One contender, or several whose weighted mean log-odds are the score.
    calibration : Calibration
        Turns scores into probabilities.
    facts : dict
        What `describe` tells: names, AUCs, and the table that the model was trained on.
    seen : SeenRows
        Recognises rows that the model was fitted on; models of older versions recognise none.
    """

    encoder: TableEncoder
    members: Sequence[Member]
    calibration: Calibration
    facts: Mapping[str, Any] = field(default_factory=dict)
    seen: SeenRows = field(default_factory=SeenRows)

    def predict_scores(self, frame: pd.DataFrame) -> Floats:
        """Return one score per row, (n,); larger means more positive.

        `frame` has the columns of the training, in any order; other columns are ignored.
        """
        X = self.encoder.transform(frame)
        curves = [member.calibration for member in self.members]
        weights = [member.weight for member in self.members]
        return blended(curves, weights, [member.scorer(X) for member in self.members])

    def predict_proba(self, frame: pd.DataFrame) -> Floats:
        """Return the probability of a positive for each row, (n,).

        The probabilities are calibrated on rows that the model was not fitted on. They hold for
        data with the same share of positives as the training table.
        """
        return self.calibration.probabilities(self.predict_scores(frame))

    def __repr__(self) -> str:
        return f"<TableModel: {self.describe().splitlines()[0]}>"

    def describe(self) -> str:
        """Return a text about the model: what it is, how good it is, and what it needs."""
        facts = self.facts
        lines = [
            f"{facts.get('name', 'model')}, fitted on {facts.get('rows', 0):,} rows "
            f"({facts.get('positives', 0):,} positive: {facts.get('positive', '')})"
        ]
        for member in self.members:
            given = ", ".join(
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in member.parameters.items()
            )
            weight = f", weight {member.weight:.0%}" if len(self.members) > 1 else ""
            lines.append(f"  {member.family}, loss {member.loss}{weight}: {given}")
        if interval := facts.get("interval"):
            low, high = interval
            lines.append(
                f"test AUC {facts['test_auc']:.4f} (95 % interval {low:.4f} to {high:.4f})"
            )
        lines.append(f"columns: {', '.join(column.name for column in self.encoder.columns)}")
        return "\n".join(lines)

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read a table with the columns that the model needs."""
        frame = _tables.read(path)
        _tables.require_columns(frame, [c.name for c in self.encoder.columns], path)
        return frame

    def score(self, rows: str | Path | pd.DataFrame) -> Floats:
        """Return the scores of a table or of the table in a file, (n,)."""
        return self.predict_scores(self.read(rows) if isinstance(rows, str | Path) else rows)

    def save(self, path: str | Path) -> None:
        """Write the model to a file, atomically."""
        contents: dict[str, bytes] = {}
        members = []
        for i, member in enumerate(self.members):
            names = []
            for j, scorer in enumerate(member.scorer.scorers):
                files = {f"member{i}/{j}/{name}": data for name, data in scorer.files().items()}
                contents |= files
                names.append(list(files))
            members.append(
                {
                    "family": member.family,
                    "loss": member.loss,
                    "parameters": dict(member.parameters),
                    "calibration": asdict(member.calibration),
                    "weight": member.weight,
                    "files": names,
                }
            )
        plain = {
            "format": _FORMAT,
            "version": VERSION,
            "facts": dict(self.facts),
            "calibration": asdict(self.calibration),
            "members": members,
            "encoder": self.encoder.to_dict(),
            "seen": self.seen.hashes,
        }
        with (
            replacing(path) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr(_DESCRIPTION, json.dumps(plain, indent=1))
            for name, data in contents.items():
                archive.writestr(name, data)


def load(path: str | Path) -> Any:
    """Load a model that ``everypair experiment`` saved: of a table, or a network.

    `path` is the file, or the folder of the experiment. Loading runs no code from the file. Raises
    UserError if there is no such file, or it is not a model.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in (FILE_NAME, "model.pt") if (path / name).is_file()]
        if not found:
            raise UserError(f"{path} is a folder without a model; an experiment saves {FILE_NAME}")
        path = found[0]
    if not path.is_file():
        raise UserError(f"{missing(path)}; an experiment saves its best model in its folder")
    if contents := _archived_files(path):
        return _from_files(contents, path)
    from everypair.experiments.training import saved  # a network; needs torch

    return saved.load(path)


def _archived_files(path: Path) -> dict[str, bytes]:
    """Return the files of a table's model by name; an empty dict if the file is not such a model.

    Raises UserError for a damaged zip archive.
    """
    if not zipfile.is_zipfile(path):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            return {name: archive.read(name) for name in names} if _DESCRIPTION in names else {}
    # NotImplementedError: unknown kind of compression. RuntimeError: the file is encrypted.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"{path} is a damaged zip archive ({error}); copy the model again, or train again"
        ) from None


def _from_files(contents: Mapping[str, bytes], path: Path) -> TableModel:
    try:
        plain = json.loads(contents[_DESCRIPTION])
        if plain["format"] != _FORMAT or plain["version"] != VERSION:
            raise UserError(
                f"{path} is a {plain['format']} of version {plain['version']}, and this everypair "
                f"reads version {VERSION}; use the everypair that wrote it, or train again"
            )
        members = [_member(member, contents) for member in plain["members"]]
        return TableModel(
            TableEncoder.from_dict(plain["encoder"]),
            members,
            Calibration(**plain["calibration"]),
            plain["facts"],
            SeenRows(tuple(plain.get("seen", ()))),
        )
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs {error.name}: pip install {error.name}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _member(plain: Mapping[str, Any], contents: Mapping[str, bytes]) -> Member:
    family = FAMILIES.find(plain["family"])
    scorers = [
        family.load({Path(name).name: contents[name] for name in names}) for names in plain["files"]
    ]
    return Member(
        plain["family"],
        plain["loss"],
        plain["parameters"],
        Calibration(**plain["calibration"]),
        MeanScorer(tuple(scorers)),
        float(plain["weight"]),
    )
