"""Describe a user's table: rows, parts, the use of every column, and what looks suspicious.

The record is a dictionary of plain values. An experiment keeps it as ``data.json`` in its folder,
where the report reads it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments._atomic import replacing
from everypair.experiments.data._values import READ, as_text, kind_of

if TYPE_CHECKING:  # so that reports do not load torch
    import pandas as pd  # type: ignore[import-untyped]

    from everypair.experiments.data._encoder import TableEncoder
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.data.splits import SplitRows
    from everypair.experiments.plan import TableFile

FILE_NAME = "data.json"

FEW_POSITIVES = 10
"""With fewer positives in a part, the standard error of its AUC is about 0.1 or more."""

TOO_GOOD = 0.98
"""A column that ranks the rows alone with at least this AUC may know the label."""

_KINDS = {"number": "number", "date": "date", "nominal": "text"}
_MOST_ROWS = 20_000  # for the AUC of single columns


def describe(
    dataset: Dataset,
    table: TableFile,
    rows: SplitRows,
    encoder: TableEncoder,
    *,
    cross_validated: bool = False,
) -> dict[str, Any]:
    """Return what a report tells about a table.

    Parameters
    ----------
    dataset, table : Dataset, TableFile
    rows : SplitRows
        The split of the first seed.
    encoder : TableEncoder
        Fitted on the training rows of that split.
    cross_validated : bool
        Whether validation rows are taken from the training part by cross-validation, so that they
        are not a part of their own.
    """
    parts = _parts(dataset, rows, cross_validated)
    columns = [_column(str(name), values, encoder) for name, values in dataset.inputs.items()]
    columns += [
        {"name": name, "use": why if why in ("the label", "the group") else "not used", "note": why}
        for name, why in dataset.unused.items()
    ]
    if table.test is not None:
        split = f"the test rows are those of {Path(table.test).name}"
    elif table.time is not None:
        split = f"by time: the newest rows of {table.time!r} are the test part"
    elif table.group is not None:
        split = f"at random; rows with the same {table.group!r} stay in one part"
    else:
        split = "at random, with the same share of positives in every part"
    return {
        "fingerprint": dataset.fingerprint,
        "file": Path(table.path).name,
        "rows": len(dataset.positive),
        "positives": int(dataset.positive.sum()),
        "positive": dataset.positive_name,
        "parts": parts,
        "split": split,
        "columns": columns,
        "few_positives": _few(parts),
        "warnings": _suspicions(dataset),
    }


def summary(record: dict[str, Any]) -> list[str]:
    """Return lines for the terminal: rows, columns that are not used and why, warnings."""
    n, n_pos = record["rows"], record["positives"]
    lines = [f"{record['file']}: {n:,} rows, {n_pos:,} of them positive ({record['positive']})."]
    unused: dict[str, list[str]] = {}
    for column in record["columns"]:
        if column["use"] == "not used":
            unused.setdefault(column["note"], []).append(column["name"])
    if unused:
        shown = [f"{_names(names)} ({why})" for why, names in unused.items()]
        lines.append(f"Not used: {'; '.join(shown)}.")
    return lines + [f"Warning: {text}" for text in record["warnings"]]


def write(folder: str | Path, record: dict[str, Any]) -> None:
    """Write the record into the folder of an experiment."""
    with replacing(Path(folder) / FILE_NAME) as temporary:
        temporary.write_text(json.dumps(record, indent=1))


def read(folder: str | Path) -> dict[str, Any] | None:
    """Return the record in the folder of an experiment; None if there is none."""
    try:
        found = json.loads((Path(folder) / FILE_NAME).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + ", ..." * (len(names) > 8)


def _parts(dataset: Dataset, rows: SplitRows, cross_validated: bool) -> dict[str, dict[str, int]]:
    tested = dataset.positive if dataset.test_positive is None else dataset.test_positive
    found = {
        "training": (dataset.positive, rows.subtrain),
        "validation": (dataset.positive, rows.validation),
        "test": (tested, rows.test),
    }
    if cross_validated:
        found["training"] = dataset.positive, np.concatenate([rows.subtrain, rows.validation])
        del found["validation"]
    return {
        name: {"rows": len(chosen), "positives": int(positive[chosen].sum())}
        for name, (positive, chosen) in found.items()
    }


def _few(parts: dict[str, dict[str, int]]) -> str:
    few = {name: part["positives"] for name, part in parts.items()}
    few = {name: n for name, n in few.items() if n < FEW_POSITIVES}
    counts = " and ".join(f"{n} in the {name} part" for name, n in few.items())
    advice = "What is chosen or measured there is mostly chance; rely on the intervals"
    return f"Few positives: {counts}. {advice}." if few else ""


def _column(name: str, values: pd.Series[Any], encoder: TableEncoder) -> dict[str, Any]:
    fitted = next((column for column in encoder.columns if column.name == name), None)
    kind = fitted.kind if fitted else kind_of(values)[0]
    note = encoder.dropped.get(name, "") if fitted is None else fitted.unusable(values)
    return {
        "name": name,
        "use": "not used" if fitted is None else "feature",
        "kind": _KINDS[kind],
        "missing": float(values.isna().mean()),
        "distinct": int(values.nunique()),
        "note": note,
    }


def _suspicions(dataset: Dataset) -> list[str]:
    """Return warnings about columns that may know the label, and about repeated rows."""
    found = []
    frame, positive = dataset.inputs, dataset.positive
    for name, values in frame.items():
        if _looks_like_index(values):
            found.append(
                f"{str(name)!r} looks like a row number or identifier. If the file is sorted by "
                f"class or time, it knows the label: consider --drop {str(name)!r}."
            )
    chosen = np.random.default_rng(0).permutation(len(positive))[:_MOST_ROWS]
    some, labels = frame.iloc[chosen], positive[chosen]
    if FEW_POSITIVES <= labels.sum() <= len(labels) - FEW_POSITIVES:
        for name, values in some.items():
            auc = _alone(values, labels)
            if auc >= TOO_GOOD:
                found.append(
                    f"{str(name)!r} alone ranks the rows with an AUC of {auc:.3f}. Check that it "
                    f"is known before the label is; if not: --drop {str(name)!r}."
                )
    try:
        repeated = float(frame.assign(**{"\0label": positive}).duplicated().mean())
    except TypeError:  # a Parquet column of lists
        repeated = 0.0
    if repeated > 0.01 and not _must_repeat(frame):
        found.append(
            f"{repeated:.1%} of the rows repeat another row. Equal rows in training and test make "
            "the test AUC too good: remove them, or keep them together with --group."
        )
    return found


def _must_repeat(frame: pd.DataFrame) -> bool:
    """Return whether there are more rows than combinations of a label and the columns' values."""
    distinct = (int(values.nunique(dropna=False)) for _, values in frame.items())
    return 2 * math.prod(distinct) < len(frame)


def _looks_like_index(values: pd.Series[Any]) -> bool:
    """Return whether a column holds different whole numbers that fill half of their range."""
    if values.dtype.kind not in "iu" or len(values) < 50 or not values.is_unique:
        return False
    return bool(int(values.max()) - int(values.min()) < 2 * len(values))


def _alone(values: pd.Series[Any], labels: NDArray[np.bool_]) -> float:
    """Return the AUC of one column, in the better direction; text is ranked by its rates.

    The rates of text come from every second row, and the AUC from the others.
    """
    import pandas as pd

    kind, style = kind_of(values)
    if kind == "nominal":
        text, prior = as_text(values), float(labels[::2].mean())
        groups = pd.Series(labels[::2].astype(float)).groupby(text.to_numpy(object)[::2])
        rates = (groups.sum() + prior) / (groups.count() + 1.0)  # shrunk towards that of all rows
        scores, labels = text[1::2].map(rates).fillna(prior).to_numpy(float), labels[1::2]
    else:
        numbers = READ[kind](values, style)
        known = numbers[np.isfinite(numbers)]
        scores = np.where(np.isfinite(numbers), numbers, np.median(known) if len(known) else 0.0)
    if labels.all() or not labels.any():
        return 0.5
    auc = float(ep.auc(scores, labels))
    return max(auc, 1.0 - auc)
