"""A Lightning callback around an `EpochMonitor`. Importing this module does not need Lightning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from everypair.torch.training.monitor import EpochMonitor

Extract = Callable[[Any, Any], tuple[Tensor, Tensor]]


def lightning_callback(
    monitor: EpochMonitor,
    *,
    scores_and_labels: Extract | None = None,
    log: bool = True,
) -> Any:
    """Return a callback that updates a monitor, for ``Trainer(callbacks=[...])``.

    Parameters
    ----------
    monitor : EpochMonitor
        Training batches go to its split "subtrain", validation batches to "validation".
    scores_and_labels : callable, optional
        Called with the output of a step and the batch; returns scores and labels. By default the
        steps must return a dict with the keys "scores" and "labels".
    log : bool
        Pass the numbers to the module's ``log_dict``, so that EarlyStopping and ModelCheckpoint can
        use them, for example ``"validation/auc"``, and ``trainer.validate`` returns them.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            base = import_module(name).Callback
        except ImportError:
            continue
        kind = type("EpochMonitorCallback", (MonitorHooks, base), {})
        return kind(monitor, scores_and_labels, log)
    raise ImportError(
        "lightning is needed for this callback: pip install lightning. "
        "Without it, call monitor.update() and monitor.end_epoch() yourself."
    )


class MonitorHooks:
    """The methods of the callback, one for each hook of the trainer."""

    def __init__(
        self, monitor: EpochMonitor, scores_and_labels: Extract | None = None, log: bool = True
    ) -> None:
        super().__init__()
        self.monitor = monitor
        if monitor.train_split is None:  # the first batches may be those of `trainer.validate`
            monitor.train_split = "subtrain"
        self._scores_and_labels = scores_and_labels or _from_outputs
        self._log = log

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a training batch."""
        self.monitor.update("subtrain", *self._scores_and_labels(outputs, batch))

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *indices: int
    ) -> None:
        """Add a validation batch, except in the trainer's sanity check."""
        if not trainer.sanity_checking:
            self.monitor.update("validation", *self._scores_and_labels(outputs, batch))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of ``trainer.validate``; in ``fit`` they belong to the epoch."""
        if trainer.state.fn == "validate":
            metrics = self.monitor.evaluate()
            if self._log:
                pl_module.log_dict(metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the epoch; Lightning calls this after validation."""
        record = self.monitor.end_epoch()
        if self._log:
            pl_module.log_dict({tag: value for tag, value in record.items() if tag != "epoch"})

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's state, for the trainer's checkpoint."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the epochs of a checkpoint."""
        self.monitor.load_state_dict(state_dict)


def _from_outputs(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(outputs, Mapping) and "scores" in outputs and "labels" in outputs:
        return outputs["scores"], outputs["labels"]
    got = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    raise ValueError(
        f"training_step and validation_step must return a dict with the keys 'scores' and 'labels' "
        f"(and 'loss'); got {got}. Or pass scores_and_labels to lightning_callback."
    )
