"""Rows that arrive in parts, and the losses and metrics of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.streaming import checkpoint, results
from everypair.streaming.results import Options, StreamResult, Surrogates
from everypair.streaming.score_buckets import Buckets
from everypair.streaming.stream_rows import GroupKey, Rows, SortedRows


class PairAccumulator:
    """Losses, AUC, partial AUC and DeLong interval of rows that arrive in parts.

    Parts may come in any order, from any number of accumulators that are merged: the result is the
    same, to the last bit. Two modes:

    - "exact" keeps all rows: 4 bytes a row for float32 scores, 8 for float64, 8 more with weights
      and 4 more with groups. The result is that of `pair_loss`, `auc`, `partial_auc` and `delong`.
    - "bounded" counts rows in ``2**bits`` buckets of scores and keeps no row: 48 bytes a bucket.
      The result comes with bounds of its errors. No weights, groups or smooth surrogates, and
      binary pairs only.

    Parameters
    ----------
    mode : {"exact", "bounded"}
    bits : int
        Of a float32 score that choose its bucket in the mode "bounded", 16 to 22. The widths of the
        buckets are 2**(9 - bits) of their scores: each further bit halves the bound of the AUC, and
        divides that of the squared hinge by four.
    pairs, censoring
        What labels are, as in `pair_loss`. For ordered and survival pairs the AUC is the
        concordance index. Such rows take 8 bytes more.

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

    def __init__(
        self,
        *,
        mode: Literal["exact", "bounded"] = "exact",
        bits: int = 18,
        pairs: Literal["binary", "ordered", "survival"] = "binary",
        censoring: Literal["harrell", "uno"] = "harrell",
    ) -> None:
        if mode not in ("exact", "bounded"):
            raise ValueError(f"mode must be 'exact' or 'bounded'; got {mode!r}.")
        if mode == "bounded" and pairs != "binary":
            raise ValueError(
                "pairs must be 'binary' for mode='bounded', which counts the rows of two classes; "
                f"got {pairs!r}. Use mode='exact'."
            )
        self.mode = mode
        self.store: Rows | Buckets
        self.store = Buckets(bits) if mode == "bounded" else Rows(pairs, censoring)

    @property
    def n_pos(self) -> int:
        """Positive rows so far; 0 for ordered and survival pairs."""
        return self.store.sizes[0]

    @property
    def n_neg(self) -> int:
        """Negative rows so far; for ordered and survival pairs, all rows."""
        return self.store.sizes[1]

    @property
    def n_rows(self) -> int:
        """Rows so far. After `load`, a stream continues behind this many rows."""
        return sum(self.store.sizes)

    def add(
        self,
        scores: ArrayLike,
        labels: Any,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        scores, labels, weights
            Those of `pair_loss`: (n,) or (n, 1) scores, and labels according to `pairs`.
        groups : (n,) of integers or strings, optional
            Only pairs inside a group count. A group may have rows in many parts.

        Raises
        ------
        ValueError
            If an argument is not as described, or if only some of the parts have weights or groups.
        """
        if np.size(scores) or np.size(labels):
            self.store.add(scores, labels, weights, groups)

    def merge(self, other: PairAccumulator) -> None:
        """Add all rows of another accumulator, which stays as it is."""
        if self.mode != other.mode:
            raise ValueError(
                f"mode must be equal to be merged; got {self.mode!r} and {other.mode!r}. Make both "
                "accumulators with the same mode."
            )
        self.store.merge(other.store)  # type: ignore[arg-type]

    def result(
        self,
        surrogates: Surrogates = "squared_hinge",
        *,
        margin: float | None = None,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float | None = 0.95,
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
        confidence : float or None
            The coverage of DeLong's interval; None for no interval.

        Returns
        -------
        StreamResult

        Raises
        ------
        ValueError
            If there is no pair of positive weight, or an argument is not as described.
        """
        options = Options(surrogates, margin, max_fpr, min_tpr, confidence)
        if isinstance(self.store, Buckets):
            return self.store.result(options)
        return results.of_rows(self.store.sorted(), options)

    def result_by_group(
        self, surrogates: Surrogates = "squared_hinge", **options: Any
    ) -> dict[GroupKey, StreamResult]:
        """Return the result of each group that has pairs; the parameters of `result`."""
        store, rows = self._rows(), self.rows()
        if rows.groups is None:
            raise ValueError(
                "groups must be added before results by group; none were. Call add with groups=..."
            )
        checked, keys = Options(surrogates, **options), store.group_keys
        parts = zip(keys, rows.by_group(rows.groups, len(keys)), strict=True)
        return {key: results.of_rows(part, checked) for key, part in parts if part.has_pairs}

    def rows(self) -> SortedRows:
        """Return all rows: `scores`, `labels`, `weights` and the numbers of `groups`.

        The positives come first, each class sorted. Do not change the arrays, which are not copied.
        Only in the mode "exact".
        """
        return self._rows().sorted()

    def swap_classes(self) -> None:
        """Make the positive rows negative, and the negative rows positive."""
        self.store.swap_classes()

    def save(self, path: str | Path) -> None:
        """Write all rows, or the buckets, to a file. The file is replaced at once or not at all."""
        checkpoint.write(path, *self.state())

    @classmethod
    def load(cls, path: str | Path) -> PairAccumulator:
        """Read an accumulator that `save` wrote. Raises ValueError if the file is damaged."""
        return checkpoint.read(path, cls.from_state)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as values that JSON can hold, and arrays."""
        plain, arrays = self.store.state()
        return {"mode": self.mode, **plain}, arrays

    @classmethod
    def from_state(cls, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PairAccumulator:
        """Make an accumulator of what `state` returned."""
        arguments = ("mode", "bits", "pairs", "censoring")
        accumulator = cls(**{name: plain[name] for name in arguments if name in plain})
        accumulator.store.restore(plain, arrays)
        return accumulator

    def __reduce__(self) -> tuple[Any, ...]:
        return PairAccumulator.from_state, self.state()

    def __repr__(self) -> str:
        return f"PairAccumulator({self.n_pos} positives, {self.n_neg} negatives, {self.mode})"

    def _rows(self) -> Rows:
        if isinstance(self.store, Rows):
            return self.store
        raise ValueError(
            "mode must be 'exact' to have rows; got 'bounded', which keeps none. Make the "
            "accumulator with mode='exact'."
        )
