"""Train LightGBM and XGBoost on a Dask cluster and compare them on rows that were held out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from dask.base import compute
from dask.delayed import delayed

from everypair.boosting import lightgbm_objective, xgboost_distributed_objective
from everypair.dask._reduction import evaluate
from everypair.inputs import batches
from everypair.streaming import StreamResult

LOSSES = ("logistic", "pairs")
SETTINGS: dict[str, dict[str, Any]] = {
    "lightgbm": {
        "learning_rate": 0.1,
        "reg_lambda": 1.0,
        "min_child_weight": 1.0,
        "verbose": -1,
    },
    "xgboost": {"learning_rate": 0.1, "reg_lambda": 1.0},
}
"""The same for every loss, as `everypair.boosting` recommends."""


class Contender(NamedTuple):
    """A trained model and its result on the rows that were held out.

    Attributes
    ----------
    model, loss : str
        Those of `compare`; the loss is "pairs of each worker" for LightGBM with "pairs".
    result : StreamResult
        With the exact AUC of all held-out rows (`auc`) and DeLong's interval (`low`, `high`).
    seconds : float
        The time of training.
    booster : lightgbm.Booster or xgboost.Booster
    """

    model: str
    loss: str
    result: StreamResult
    seconds: float
    booster: Any

    def __str__(self) -> str:
        found = self.result
        interval = "" if found.low is None else f", {found.low:.4f} to {found.high:.4f}"
        return f"{self.model} {self.loss}: AUC {found.auc:.4f}{interval} ({self.seconds:.0f} s)"


class _Split(NamedTuple):
    """Columns and labels of the rows to train with and of those held out."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


def compare(
    frame: Any,
    target: str,
    *,
    models: Sequence[str] = ("lightgbm", "xgboost"),
    losses: Sequence[str] = LOSSES,
    rounds: int = 100,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    confidence: float = 0.95,
    client: Any = None,
) -> list[Contender]:
    """Train boosters on all workers of a Dask cluster and evaluate them on held-out rows.

    No worker needs memory for the whole table. The AUC is the exact one of all held-out rows, with
    DeLong's interval.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
        The target and the columns to predict it from, which must be numbers. It is read several
        times for every model; ``frame.persist()`` keeps it in the memory of the workers.
    target : str
        Column with the labels: {0, 1}, {-1, +1} or bool.
    models : sequence of {"lightgbm", "xgboost"}
    losses : sequence of {"logistic", "pairs"}
        "logistic" is the library's own. "pairs" is `xgboost_distributed_objective` for XGBoost, the
        loss over the pairs of all rows. For LightGBM it is `lightgbm_objective`, which sees the
        rows of one worker: the sum over workers of the losses of their own pairs.
    rounds : int
        Trees of a model.
    parameters : mapping of str to mapping, optional
        Parameters of each library, by its name in `models`, which are added to the defaults.
    test_share : float
        The share of the rows of each partition that is held out, chosen at random.
    seed : int
        Of this choice.
    confidence : float
        The coverage of DeLong's interval.
    client : distributed.Client, optional
        By default the current one.

    Returns
    -------
    list of Contender
        One for every model and loss, in their order.

    Raises
    ------
    ValueError
        If an argument is not as described.
    """
    given = {name: dict(values) for name, values in (parameters or {}).items()}
    for name, chosen, known in (
        ("models", models, _TRAIN),
        ("losses", losses, LOSSES),
        ("parameters", given, models),
    ):
        if unknown := [value for value in chosen if value not in known]:
            raise ValueError(f"{name} must be among {', '.join(known)}; got {unknown[0]!r}.")
    if not 0.0 < test_share < 1.0:
        raise ValueError(f"test_share must be between 0 and 1; got {test_share!r}. 0.2 is usual.")
    if not hasattr(frame, "to_delayed"):
        raise ValueError(
            f"frame must be a Dask DataFrame; got {type(frame).__name__}. Make one with "
            "dask.dataframe.from_pandas(frame, npartitions=8), or compare models of a table that "
            "fits into memory with `everypair experiment table`."
        )
    client = _current_client() if client is None else client
    with client.as_current():
        split = _split(frame, target, test_share, seed)
        contenders = []
        for model in models:
            for loss in losses:
                settings = {**SETTINGS[model], **given.get(model, {})}
                start = time.perf_counter()
                booster, scores = _TRAIN[model](client, split, loss == "pairs", rounds, settings)
                seconds = time.perf_counter() - start
                found = evaluate(
                    _array(scores), _array(split.y_test), surrogates=(), confidence=confidence
                )
                is_local = (model, loss) == ("lightgbm", "pairs")
                name = "pairs of each worker" if is_local else loss
                contenders.append(Contender(model, name, found, seconds, booster))
    return contenders


def _current_client() -> Any:
    try:
        return import_module("distributed").get_client()
    except ValueError:
        raise ValueError(
            "client must be given if there is no current one; got none. Create one first, such as "
            "distributed.Client() for the processes of this machine."
        ) from None


def _split(frame: Any, target: str, test_share: float, seed: int) -> _Split:
    """Check the columns and hold out rows of every partition."""
    if target not in frame.columns:
        raise ValueError(
            f"target must be a column of frame; got {target!r}. It has {', '.join(frame.columns)}."
        )
    for name, dtype in frame.dtypes.items():
        if name != target and dtype.kind not in "biuf":
            raise ValueError(
                f"columns must be numbers; {name!r} has the type {dtype}. Drop it, or encode it."
            )
    sizes = delayed(_class_sizes, pure=False)
    counts = np.array(compute(*map(sizes, frame[target].to_delayed())))  # type: ignore[no-untyped-call]
    # LightGBM fails on a worker without rows.
    frame = frame.partitions[np.flatnonzero(counts.sum(axis=1)).tolist()]
    parts = frame.random_split([1.0 - test_share, test_share], random_state=seed)
    columns = [part for whole in parts for part in (whole.drop(columns=target), whole[target] > 0)]
    X, y, X_test, y_test = columns
    return _Split(X, y.astype("int8"), X_test, y_test.astype("int8"))


def _class_sizes(labels: Any) -> tuple[int, int]:
    """Check the labels of a partition and return the numbers of positives and negatives."""
    if len(labels) == 0:
        return 0, 0
    column = labels.to_numpy()
    positive = batches.positives(batches.batch_from(np.zeros(len(column), np.float32), column))
    n_pos = int(np.count_nonzero(positive))
    return n_pos, len(column) - n_pos


def _train_lightgbm(
    client: Any, split: _Split, pairs: bool, rounds: int, settings: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the booster and the scores of the held-out rows."""
    lightgbm = _library("lightgbm")
    # The classifier numbers the classes of each worker from 0: positive rows alone would become
    # negative. The regressor leaves labels as they are.
    model = lightgbm.DaskLGBMRegressor(
        client=client, n_estimators=rounds, **settings,
        objective=lightgbm_objective(hessian="pairs") if pairs else "binary",
    )  # fmt: skip
    model.fit(split.X, split.y)
    return model.booster_, model.predict(split.X_test, raw_score=True)


def _train_xgboost(
    client: Any, split: _Split, pairs: bool, rounds: int, settings: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the booster and the scores of the held-out rows."""
    dask = _library("xgboost.dask")
    own = {"base_score": 0.0} if pairs else {"objective": "binary:logistic"}
    matrix = dask.DaskQuantileDMatrix(client, split.X, split.y)
    objective = xgboost_distributed_objective() if pairs else None
    found = dask.train(client, {**own, **settings}, matrix, num_boost_round=rounds, obj=objective)
    booster = found["booster"]
    return booster, dask.predict(client, booster, split.X_test, output_margin=True)


_TRAIN: dict[str, Callable[..., tuple[Any, Any]]] = {
    "lightgbm": _train_lightgbm,
    "xgboost": _train_xgboost,
}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install '.[dask,boosting]'") from error


def _array(column: Any) -> Any:
    """Return a Dask Array; a Series has one part of unknown length for each partition."""
    return column if hasattr(column, "chunks") else column.to_dask_array()
