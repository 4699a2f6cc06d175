"""Rows that arrive in parts, and the losses and metrics of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches
from everypair.kernel import choose
from everypair.streaming import _checkpoint, _exact
from everypair.streaming._buckets import Buckets
from everypair.streaming._result import StreamResult, Surrogates, options
from everypair.streaming._rows import GroupKey, Rows, SortedRows

_NO_RESULT = "there must be rows of both classes; none was added. Call add first."


class PairAccumulator:
    """Losses, AUC, partial AUC and DeLong interval of rows that arrive in parts.

    Parts may come in any order, from any number of accumulators that are merged: the result is the
    same, to the last bit. Two modes:

    - "exact" keeps all rows: 4 bytes a row for float32 scores, 8 for float64, 8 more with weights
      and 4 more with groups. The result is that of `pair_loss`, `auc`, `partial_auc` and `delong`.
    - "bounded" counts rows in ``2**bits`` buckets of scores and keeps no row: 48 bytes a bucket.
      The result comes with bounds of its errors. No weights, groups or smooth surrogates.

    Parameters
    ----------
    mode : {"exact", "bounded"}
    bits : int
        Of a float32 score that choose its bucket in the mode "bounded", 16 to 22. The widths of the
        buckets are 2**(9 - bits) of their scores: each further bit halves the bound of the AUC, and
        divides that of the squared hinge by four.

    Examples
    --------
    >>> import everypair as ep
    >>> first, second = ep.PairAccumulator(), ep.PairAccumulator()
    >>> first.add([0.5, 0.0], [1, 0])
    >>> second.add([2.0, 1.0], [1, 0])
    >>> first.merge(second)
    >>> first.result().auc, first.result().losses
    (0.75, {'squared_hinge': 0.625})
    """

    def __init__(self, *, mode: Literal["exact", "bounded"] = "exact", bits: int = 18) -> None:
        if mode not in ("exact", "bounded"):
            raise ValueError(f"mode must be 'exact' or 'bounded'; got {mode!r}.")
        self.mode = mode
        self._rows: Rows | None = None  # made by the first rows, which have weights, groups or not
        self._buckets = Buckets(bits) if mode == "bounded" else None

    @property
    def n_pos(self) -> int:
        """Positive rows so far."""
        return self._sizes()[0]

    @property
    def n_neg(self) -> int:
        """Negative rows so far."""
        return self._sizes()[1]

    @property
    def n_rows(self) -> int:
        """Rows so far. After `load`, a stream continues behind this many rows."""
        return sum(self._sizes())

    def add(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        scores, labels, weights
            Those of `pair_loss`, for binary labels: (n,) or (n, 1).
        groups : (n,) of integers or strings, optional
            Only pairs inside a group count. A group may have rows in many parts.

        Raises
        ------
        ValueError
            If an argument is not as described, or if only some of the parts have weights or groups.
        """
        if np.size(scores) == 0 and np.size(labels) == 0:
            return
        batch = batches.batch_from(scores, labels, weights)
        is_plain = weights is None and groups is None
        if self._buckets is not None and not is_plain:
            raise ValueError(
                "weights and groups must be left out for mode='bounded', which counts rows. Use "
                "mode='exact'."
            )
        if not is_plain:
            self._add_columns(batch, groups)
            return
        if self._buckets is None:
            self._rows_with(False, False).add_batch(batch)
            return
        for is_positive, chosen in zip((True, False), choose.split_classes(batch), strict=True):
            self._buckets.add(is_positive, scores=chosen)

    def _add_columns(self, batch: batches.Batch, groups: ArrayLike | None) -> None:
        """Add rows with weights, groups or both."""
        positive = batches.positives(batch)
        rows = self._rows_with(batch.weights is not None, groups is not None)
        columns: dict[str, NDArray[Any]] = {"scores": batch.scores}
        if batch.weights is not None:
            columns["weights"] = batch.weights
        if groups is not None:
            columns["groups"] = rows.numbers_of(groups, batch.scores.shape[0])
        for is_positive, chosen in ((True, positive), (False, ~positive)):
            rows.add(is_positive, **{name: column[chosen] for name, column in columns.items()})

    def merge(self, other: PairAccumulator) -> None:
        """Add all rows of another accumulator, which stays as it is."""
        if self.mode != other.mode:
            raise ValueError(
                f"mode must be equal to be merged; got {self.mode!r} and {other.mode!r}. Make both "
                "accumulators with the same mode."
            )
        if self._buckets is not None and other._buckets is not None:
            self._buckets.merge(other._buckets)
        elif other._rows is not None:
            self._rows_with(other._rows.weighted, other._rows.grouped).merge(other._rows)

    def result(
        self,
        surrogates: Surrogates = "squared_hinge",
        *,
        margin: float | None = None,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float = 0.95,
    ) -> StreamResult:
        """Return the losses and metrics of all rows so far. More rows may follow.

        Parameters
        ----------
        surrogates : str, Surrogate or iterable of them
            The losses to compute; an empty tuple for none.
        margin : float, optional
            That of `pair_loss`, for all surrogates.
        max_fpr, min_tpr : float, optional
            Those of `partial_auc`, which is computed if one of them is given.
        confidence : float
            The coverage of DeLong's interval.

        Returns
        -------
        StreamResult

        Raises
        ------
        ValueError
            If there is no pair of positive weight, or an argument is not as described.
        """
        wanted = options(surrogates, margin, max_fpr, min_tpr, confidence)
        if self._buckets is not None:
            return self._buckets.result(wanted)
        return _exact.result(self._sorted(), wanted)

    def result_by_group(
        self,
        surrogates: Surrogates = "squared_hinge",
        *,
        margin: float | None = None,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float = 0.95,
    ) -> dict[GroupKey, StreamResult]:
        """Return the result of each group that has pairs; the parameters of `result`."""
        rows = self._sorted()
        if self._rows is None or rows.groups is None:
            raise ValueError(
                "groups must be added before results by group; none were. Call add with groups=..."
            )
        wanted = options(surrogates, margin, max_fpr, min_tpr, confidence)
        return _exact.result_by_group(rows, rows.groups, list(self._rows.group_keys), wanted)

    def rows(self) -> SortedRows:
        """Return all rows: `scores`, `labels`, `weights` and the numbers of `groups`.

        The positives come first, each class sorted. Do not change the arrays, which are not copied.
        Only in the mode "exact".
        """
        return self._sorted()

    def swap_classes(self) -> None:
        """Make the positive rows negative, and the negative rows positive."""
        if self._buckets is not None:
            self._buckets.table = self._buckets.table[::-1].copy()
        elif self._rows is not None:
            self._rows.swap_classes()

    def save(self, path: str | Path) -> None:
        """Write all rows, or the buckets, to a file. The file is replaced at once or not at all."""
        _checkpoint.write(path, *self.state())

    @classmethod
    def load(cls, path: str | Path) -> PairAccumulator:
        """Read an accumulator that `save` wrote. Raises ValueError if the file is damaged."""
        plain, arrays = _checkpoint.read(path)
        return cls.from_state(plain, arrays)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as values that JSON can hold, and arrays."""
        plain: dict[str, Any] = {"mode": self.mode}
        if self._buckets is not None:
            table = self._buckets.table
            used = np.flatnonzero(table[..., 0].any(axis=0))
            plain |= {"bits": self._buckets.bits, "is_rounded": bool(self._buckets.is_rounded)}
            return plain, {"used": used, "table": table[:, used]}
        rows = self._rows
        if rows is None:
            return plain, {}
        plain |= {"weighted": rows.weighted, "grouped": rows.grouped, "keys": list(rows.group_keys)}
        arrays = {
            f"{name}_{i}": np.concatenate([np.empty(0, column.dtype), *column.blocks()])
            for i, columns in enumerate(rows.classes)
            for name, column in columns.items()
        }
        return plain, arrays

    @classmethod
    def from_state(cls, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PairAccumulator:
        """Make an accumulator of what `state` returned."""
        found = cls(mode=plain["mode"], bits=plain.get("bits", 18))
        if found._buckets is not None:
            found._buckets.table[:, arrays["used"]] = arrays["table"]
            found._buckets.is_rounded = plain["is_rounded"]
        if "keys" in plain:
            rows = found._rows_with(plain["weighted"], plain["grouped"])
            rows.number_groups(plain["keys"])
            for i, columns in enumerate(rows.classes):
                for name, column in columns.items():
                    column.extend(arrays[f"{name}_{i}"])
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_state, self.state()

    def __repr__(self) -> str:
        return f"PairAccumulator({self.n_pos} positives, {self.n_neg} negatives, {self.mode})"

    def _sizes(self) -> tuple[int, int]:
        held = self._rows if self._buckets is None else self._buckets
        return (0, 0) if held is None else held.sizes

    def _sorted(self) -> SortedRows:
        if self._buckets is not None:
            raise ValueError(
                "mode must be 'exact' to have rows; got 'bounded', which keeps none. Make the "
                "accumulator with mode='exact'."
            )
        if self._rows is None:
            raise ValueError(_NO_RESULT)
        return self._rows.sorted()

    def _rows_with(self, weighted: bool, grouped: bool) -> Rows:
        if self._rows is None:
            self._rows = Rows(weighted=weighted, grouped=grouped)
        for name, mine, given in (
            ("weights", self._rows.weighted, weighted),
            ("groups", self._rows.grouped, grouped),
        ):
            if mine != given:
                raise ValueError(
                    f"{name} must be given for all parts or for none; this part has "
                    f"{name if given else f'no {name}'}, unlike those before it. Give all rows a "
                    f"{'weight of 1' if name == 'weights' else 'group'}, or leave {name} out."
                )
        return self._rows


def _from_state(plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PairAccumulator:
    return PairAccumulator.from_state(plain, arrays)
