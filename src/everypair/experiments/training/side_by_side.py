"""Train many small models on one GPU at once: one step of all of them is one CUDA graph.

A step of a small network is a few hundred short kernels, which take longer to launch than to run
and leave most of a GPU idle. Here the steps of K trials are captured as K parallel branches of one
graph, so that a step of all K trials is a single launch and the branches run at the same time.

Each trial keeps its own data, weights, batches and learning rate. It computes the same as `train`,
except for rounding, because a GPU may add numbers in another order. The first batches of the first
epoch, and batches that do not have the common size, are run one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import cast

import torch
from torch import Tensor

from everypair.experiments.data.splits import Split
from everypair.experiments.plan import Record, Settings, Trial
from everypair.experiments.training.batches import MiniBatch
from everypair.experiments.training.optimisers import OPTIMISERS
from everypair.experiments.training.trial import State, TrialRun, repeatable

WARM_STEPS = 2
"""Steps before the capture: they create the optimiser's state and choose cuDNN's algorithms."""


def can_share_a_graph(trial: Trial) -> bool:
    """Return whether every step of a trial is the same sequence of kernels."""
    kind = OPTIMISERS.find(trial.cell.optimiser)
    return not kind.full_batch and not kind.fixed_batches


def train_together(
    trials: Sequence[Trial],
    settings: Settings,
    splits: Sequence[Split],
    *,
    device: torch.device | str = "cuda",
    on_epoch: Callable[[Trial, dict[str, float]], None] | None = None,
) -> list[tuple[Record, State]]:
    """Train several models at once; return the results of `trial.train` for each.

    The seconds of a record are the time of all trials divided by their number.

    Parameters
    ----------
    trials : sequence of Trial
        All of the same batch size. Trials of one loss and model fill the GPU most evenly.
    settings : Settings
    splits : sequence of Split
        One for each trial, on the device already; trials of a seed share one.
    device : str or torch.device
        On devices other than CUDA the same steps run one after the other, for tests.
    on_epoch : callable, optional
        Called with a trial and its row of the history after every epoch.
    """
    start = time.perf_counter()
    device = torch.device(device)
    with repeatable(trials[0].cell.seed, device):
        both = zip(trials, splits, strict=True)
        branches = [_Branch(trial, settings, split, device) for trial, split in both]
        together = _Together(device)
        for epoch in range(settings.epochs + 1):
            running = [branch for branch in branches if branch.diverged_at is None]
            if epoch:
                together.epoch(running, epoch)
            for branch in running:
                row = branch.end_epoch(epoch)
                if row is not None and on_epoch is not None:
                    on_epoch(branch.trial, row)
        seconds = (time.perf_counter() - start) / len(branches)
        return [branch.result(seconds) for branch in branches]


class _Branch(TrialRun):
    """One trial, and the rows of its epoch in tensors that a graph can read."""

    def __init__(
        self, trial: Trial, settings: Settings, split: Split, device: torch.device
    ) -> None:
        super().__init__(trial, settings, split, device)
        self.size = min(trial.batch, len(self.subtrain.labels))
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # One entry for each step: row numbers of the data, and their random numbers.
        n = len(self.batches)
        self._rows = torch.zeros(n, self.size, dtype=torch.long, device=device)
        self._numbers: Tensor | None = None
        if split.augmentation.subtrain:
            self._numbers = torch.zeros(n, 3, self.size, device=device)

    def plan(self, epoch: int) -> tuple[list[MiniBatch], list[MiniBatch]]:
        """Return the epoch's batches: those that a graph can run, and those after them."""
        batches = list(self.batches.epoch(epoch))
        equal = list(takewhile(lambda batch: len(batch.rows) == self.size, batches))
        if equal:
            self._rows[: len(equal)] = torch.stack([batch.rows for batch in equal])
            if self._numbers is not None:
                numbers = [batch.numbers for batch in equal if batch.numbers is not None]
                self._numbers[: len(equal)] = torch.stack(numbers)
        return equal, batches[len(equal) :]

    def step_at(self, cursor: Tensor) -> None:
        """Do the step of the epoch's plan whose number is in `cursor`, a tensor on the device."""
        part, numbers, groups = self.subtrain, self._numbers, self.subtrain.groups
        rows = self._rows.index_select(0, cursor).squeeze(0)
        numbers = None if numbers is None else numbers.index_select(0, cursor).squeeze(0)
        groups = None if groups is None else groups.index_select(0, rows)
        self.step(MiniBatch(0, rows, part.labels.index_select(0, rows), groups, numbers))


class _Together:
    """The epochs of all branches, by replaying the graph of one step."""

    def __init__(self, device: torch.device) -> None:
        self._cursor = torch.zeros(1, dtype=torch.long, device=device)
        self._replay: Callable[[], None] | None = None

    def epoch(self, branches: list[_Branch], epoch: int) -> None:
        """Do the steps of an epoch."""
        plans = [branch.plan(epoch) for branch in branches]
        n_shared = min((len(equal) for equal, _ in plans), default=0)
        begin = 0 if self._replay is not None else min(WARM_STEPS, n_shared)
        self._one_by_one(branches, [equal[:begin] for equal, _ in plans])
        if n_shared > begin:
            # A diverged branch stays in the graph, unmeasured: a new capture would cost more.
            replay = self._replay = self._replay or self._captured(branches)
            self._cursor.fill_(begin)
            for _ in range(begin, n_shared):
                replay()
        self._one_by_one(branches, [equal[n_shared:] + rest for equal, rest in plans])

    def _one_by_one(self, branches: list[_Branch], batches: list[list[MiniBatch]]) -> None:
        for branch, todo in zip(branches, batches, strict=True):
            with _on(branch.stream):
                for batch in todo:
                    branch.step(batch)

    def _captured(self, branches: list[_Branch]) -> Callable[[], None]:
        """Return a function that does one step of every branch and advances the cursor."""

        def one_after_the_other() -> None:
            for branch in branches:
                branch.step_at(self._cursor)
            self._cursor.add_(1)

        if not self._cursor.is_cuda:
            return one_after_the_other
        for branch in branches:
            # The captured backward pass then creates gradients instead of adding to old ones.
            branch.optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize(self._cursor.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trunk = torch.cuda.current_stream(self._cursor.device)
            streams = [cast("torch.cuda.Stream", branch.stream) for branch in branches]
            # All branches fork before any joins. Otherwise each would wait for the one before it.
            for branch, stream in zip(branches, streams, strict=True):
                stream.wait_stream(trunk)
                with torch.cuda.stream(stream):
                    branch.step_at(self._cursor)
            for stream in streams:
                trunk.wait_stream(stream)
            self._cursor.add_(1)
        return graph.replay


@contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run the block on a stream, after the current stream's work and before its later work."""
    if stream is None:
        yield
        return
    trunk = torch.cuda.current_stream(stream.device)
    stream.wait_stream(trunk)
    with torch.cuda.stream(stream):
        yield
    trunk.wait_stream(stream)
