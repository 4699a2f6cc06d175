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
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from everypair.experiments.data.splits import Split
from everypair.experiments.plan import Record, Settings, Trial
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.experiments.training.optimisers import OPTIMISERS
from everypair.experiments.training.prepared import PreparedBatches, send
from everypair.experiments.training.trial import State, TrialRun, repeatable

WARM_STEPS = 2
"""Steps before the capture: they create the optimiser's state and choose cuDNN's algorithms."""


def can_share_a_graph(trial: Trial) -> bool:
    """Return whether every step of a trial is the same sequence of kernels."""
    kind = OPTIMISERS.find(trial.cell.optimiser)
    # Resampled rows differ from those of the other trials in number, and are not shared.
    resampled = OBJECTIVES.find(trial.cell.loss).resample is not None
    return not (kind.full_batch or kind.fixed_batches or resampled)


def train_together(
    trials: Sequence[Trial],
    settings: Settings,
    splits: Sequence[Split],
    *,
    device: torch.device | str = "cuda",
    on_epoch: Callable[[Trial, dict[str, float]], None] | None = None,
    compiled: bool = False,
) -> list[tuple[Record, State]]:
    """Train several models at once; return the results of `trial.train` for each.

    The seconds of a record are the time of all trials divided by their number.

    Parameters
    ----------
    trials : sequence of Trial
        All of the same batch size, on splits of the same number of rows. Losses may differ.
    settings : Settings
    splits : sequence of Split
        One for each trial, on the device already; trials of a seed share one.
    device : str or torch.device
        On devices other than CUDA the same steps run one after the other, for tests.
    on_epoch : callable, optional
        Called with a trial and its row of the history after every epoch.
    compiled : bool
        Whether the steps use networks that ``torch.compile`` has compiled, which fuses their short
        kernels. The first trials of a process then take about a minute longer.
    """
    start = time.perf_counter()
    device = torch.device(device)
    with repeatable(trials[0].cell.seed, device):
        sources: Sources = {}
        branches = [
            _Branch(trial, settings, split, device, sources, compiled)
            for trial, split in zip(trials, splits, strict=True)
        ]
        together = _Together(branches, device)
        running = branches

        def finish_epoch() -> list[_Branch]:
            for branch in running:
                row = branch.finish_epoch()
                if row is not None and on_epoch is not None:
                    on_epoch(branch.trial, row)
            return [branch for branch in running if branch.diverged_at is None]

        together.measure(running, 0)
        for epoch in range(1, settings.epochs + 1):
            together.steps(running, epoch)
            # The CPU computes the AUCs of the epoch before while the device does these steps.
            running = finish_epoch()
            together.measure(running, epoch)
        finish_epoch()
        seconds = (time.perf_counter() - start) / len(branches)
        return [branch.result(seconds) for branch in branches]


Sources = dict[tuple[int, int], PreparedBatches]
"""The batches by identity of the split and seed: trials that have both in common share them."""


class _Branch(TrialRun):
    """One trial, with its batches and its scores in tensors that a graph can use."""

    def __init__(
        self,
        trial: Trial,
        settings: Settings,
        split: Split,
        device: torch.device,
        sources: Sources,
        compiled: bool,
    ) -> None:
        super().__init__(trial, settings, split, device)
        key = (id(split), trial.cell.seed)
        if key not in sources:
            size = min(trial.batch or len(self.subtrain), len(self.subtrain))
            sources[key] = PreparedBatches(self.batches, self.subtrain, size)
        self.source = sources[key]
        self.batches = self.source.batches
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._fast: nn.Module = self._model
        if compiled:
            self._fast = cast("nn.Module", torch.compile(self._model, dynamic=False))
        numbers = self._measuring.numbers(0, whole=False)
        self._crops = {k: None if x is None else x.to(device) for k, x in numbers.items()}
        self._scores: dict[str, Tensor] = {}

    def step_at(self, cursor: Tensor, size: int) -> None:
        """Do a step on the prepared batch whose number is in `cursor`, a tensor on the device."""
        inputs, labels, groups = self.source.batch(cursor, size)
        # Only one size is compiled: each one takes long.
        model = self._fast if size == self.source.size else self._model
        self.step_with(model, inputs, labels, groups)

    def load_crops(self, epoch: int) -> None:
        """Copy the random numbers of the crops that are measured to the device."""
        for name, numbers in self._measuring.numbers(epoch, whole=False).items():
            crops = self._crops[name]
            if numbers is not None and crops is not None:
                send(numbers, crops)

    def score(self) -> None:
        """Score the parts and copy the weights; a graph does the same with the same tensors."""
        # Not compiled: each data set has other sizes here, and each size would take long.
        self._scores = self._measuring.scores(self._model, self._crops, whole=False)
        self.copy_weights()

    def send_scores(self, epoch: int) -> None:
        """Send the scores of `score` to the CPU."""
        self.send(epoch, self._scores, whole=False)


class _Together:
    """The epochs of all branches, by replaying graphs: of a step, and of the scores of all parts.

    A diverged branch stays in the graphs, and is not measured: a new capture would cost more.
    """

    def __init__(self, branches: list[_Branch], device: torch.device) -> None:
        self._branches = branches
        self._cursor = torch.zeros(1, dtype=torch.long, device=device)
        self._steps: dict[int, _Captured] = {}  # by size of the batches
        self._scores = _Captured(branches, _Branch.score, warm=1)

    def steps(self, branches: list[_Branch], epoch: int) -> None:
        """Do the steps of an epoch."""
        if self._steps and epoch == self._branches[0].settings.warm_start + 1:
            if self._cursor.is_cuda:
                torch.cuda.synchronize()
            self._steps = {}  # their graphs have the loss of the warm start
        for branch in branches:
            branch.begin_epoch(epoch)
        # Once for each source, because `load` also counts the batches of one class.
        sources = {
            source: source.load(epoch) for source in dict.fromkeys(b.source for b in branches)
        }
        sizes = [sources[branch.source] for branch in branches]
        for place in range(max(map(len, sizes), default=0)):
            here = [(b, s[place]) for b, s in zip(branches, sizes, strict=True) if place < len(s)]
            for source in sources:
                if place % source.n_at_once == 0:
                    source.prepare(place)
            # All sources prepare equally many batches, because their rows have the same shape.
            self._cursor.fill_(place % branches[0].source.n_at_once)
            if len(here) == len(branches) and len({size for _, size in here}) == 1:
                self._same_size(here[0][1])
                continue
            for branch, size in here:
                with _on(branch.stream):
                    branch.step_at(self._cursor, size)

    def _same_size(self, size: int) -> None:
        if size not in self._steps:
            cursor = self._cursor
            step = partial(_Branch.step_at, cursor=cursor, size=size)
            self._steps[size] = _Captured(self._branches, step, warm=WARM_STEPS)
        self._steps[size]()

    def measure(self, branches: list[_Branch], epoch: int) -> None:
        """Measure all parts, without waiting for the device."""
        last = bool(branches) and epoch == branches[0].settings.epochs
        for branch in branches:
            if last:
                branch.start_epoch_end(epoch)
            else:
                branch.end_steps(epoch)
                branch.load_crops(epoch)
        if not last:
            self._scores()
            for branch in branches:
                branch.send_scores(epoch)


class _Captured:
    """A function of one branch, run for all branches at once, after `warm` calls as one graph."""

    def __init__(
        self, branches: list[_Branch], function: Callable[[_Branch], None], *, warm: int
    ) -> None:
        self._branches, self._function, self._warm = branches, function, warm
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the function for all branches, without waiting for the device."""
        on_cuda = self._branches[0].stream is not None
        if self._warm > 0 or not on_cuda:
            self._warm -= 1
            for branch in self._branches:
                with _on(branch.stream):
                    self._function(branch)
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        for branch in self._branches:
            # The captured backward pass then creates gradients instead of adding to old ones.
            branch.optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trunk = torch.cuda.current_stream()
            streams = [cast("torch.cuda.Stream", branch.stream) for branch in self._branches]
            # All branches fork before any joins. Otherwise each would wait for the one before it.
            for branch, stream in zip(self._branches, streams, strict=True):
                stream.wait_stream(trunk)
                with torch.cuda.stream(stream):
                    self._function(branch)
            for stream in streams:
                trunk.wait_stream(stream)
        return graph


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
