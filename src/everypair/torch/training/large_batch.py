"""The exact gradient over a batch that does not fit into memory.

A loss over pairs needs all scores at once, but a model can compute them a chunk at a time. Two
passes do it (as GradCache does for contrastive losses): score every chunk without a graph;
differentiate the loss by the scores; score every chunk again, with a graph, and hand it its part of
that gradient. Only one chunk's activations exist at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everypair.torch.training.replay import LoaderState, RandomState, accelerators, restored_buffers

__all__ = ["large_batch_backward"]


def large_batch_backward(
    model: nn.Module,
    loss: Callable[..., Tensor],
    inputs: Any,
    labels: Tensor | None = None,
    *,
    chunk: int = 1024,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    device: torch.device | str | None = None,
    scaler: Any = None,
) -> Tensor:
    """Add the gradient of the loss over a whole batch to ``.grad``, in the memory of one chunk.

    It takes the place of ``loss(model(inputs), labels).backward()`` and gives the same gradient.
    The price is a second forward pass: about a third more time.

    Parameters
    ----------
    model : Module
        Called as ``model(x)``, as ``model(*x)`` for a tuple or list, as ``model(**x)`` for a dict.
        Returns scores with one row per row of input.
    loss : callable
        Called as ``loss(scores, labels)`` once, on the whole batch, with `weights` and `groups` by
        keyword where given. If it has parameters, they get their gradients too.
    inputs : Tensor, tuple, dict, or iterable of batches
        All rows of the batch. Or, without `labels`, a DataLoader or list of batches that make up
        the large batch: ``(inputs, labels)``, then weights, then groups where there are any. It is
        gone through twice and must give the same batches in the same order both times; orders and
        augmentations drawn from torch's generators are replayed.
    labels : (n, ...) Tensor, optional
    chunk : int
        The most rows that the model sees at once. Batches of a loader are cut to it.
    weights, groups : (n,) Tensor, optional
        For the loss.
    device : device, optional
        Move each chunk there first. Without it the model gets the chunks where they are.
    scaler : GradScaler, optional
        Scales the loss, for training in float16.

    Returns
    -------
    Tensor
        The loss over the whole batch, detached and not scaled.

    Raises
    ------
    ValueError
        If an argument is not as described.
    RuntimeError
        If the model gave other scores the second time, as with random numbers that are not
        torch's. The gradients are then worthless.

    Notes
    -----
    Dropout is the same in both passes: the generators of the CPU and of the model's devices are
    put back. Buffers are put back as well, so that running statistics move once. Batch
    normalisation in training mode still normalises each *chunk* by itself, so that the result is
    the exact gradient of that model, not of one that normalises the whole batch at once; use
    ``eval()`` for those layers, or group normalisation, if that matters.

    Call it inside ``torch.autocast`` for mixed precision: the forward passes run under it, the
    backward passes do not. Under DistributedDataParallel gradients are exchanged once, with the
    last chunk.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import PairLoss
    >>> model = torch.nn.Linear(4, 1)
    >>> X, y = torch.randn(5000, 4), torch.arange(5000) % 50 == 0
    >>> value = large_batch_backward(model, PairLoss(), X, y, chunk=512)
    >>> at_once = torch.nn.Linear(4, 1)
    >>> at_once.load_state_dict(model.state_dict())
    <All keys matched successfully>
    >>> PairLoss()(at_once(X), y).backward()
    >>> torch.allclose(model.weight.grad, at_once.weight.grad, atol=1e-5)
    True
    """
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a whole number of at least 1; got {chunk!r}.")
    where = None if device is None else torch.device(device)
    batches = _Batches(inputs, labels, weights, groups, chunk=chunk, device=where)

    batches.rewind()
    start = RandomState(accelerators(model, where))
    chunks: list[Tensor] = []
    told: list[tuple[Tensor | None, ...]] = []
    with restored_buffers(model), torch.no_grad():
        for piece in batches:
            chunks.append(_scores(model, piece.inputs, len(piece.labels)))
            told.append((piece.labels, piece.weights, piece.groups))
    if not chunks:
        raise ValueError("inputs must hold at least one batch; got none. Check the loader.")
    # Up to torch 2.9, weights cast under no_grad would serve the second pass too, cut off from the
    # graph (pytorch/pytorch#112583).
    torch.clear_autocast_cache()

    scores = torch.cat(chunks).requires_grad_()
    value = _whole_loss(loss, scores, told)
    with _no_autocast(scores.device):
        (value if scaler is None else scaler.scale(value)).backward()
    if scores.grad is None:
        raise ValueError("loss must depend on the scores; it has no gradient in them.")
    grads = torch.split(scores.grad, [len(chunk) for chunk in chunks])

    batches.rewind()
    start.restore()
    drift = scores.new_zeros((), dtype=torch.float32)
    i = 0
    for i, piece in enumerate(batches, 1):
        if i > len(chunks) or len(piece.labels) != len(chunks[i - 1]):
            _raise_other_batches()
        with _exchange(model, last=i == len(chunks)):
            again = _scores(model, piece.inputs, len(piece.labels))
            with _no_autocast(again.device):
                torch.autograd.backward(again, grads[i - 1])
        drift = torch.maximum(drift, (again.detach() - chunks[i - 1]).abs().max().float())
    if i < len(chunks):
        _raise_other_batches()
    _raise_if_apart(drift.item(), scores.detach())
    return value.detach()


class _Piece(NamedTuple):
    """Rows that the model sees at once, and what the loss is told about them."""

    inputs: Any
    labels: Tensor
    weights: Tensor | None
    groups: Tensor | None


class _Batches:
    """The large batch as a sequence of pieces, which can be gone through twice."""

    def __init__(
        self,
        inputs: Any,
        labels: Tensor | None,
        weights: Tensor | None,
        groups: Tensor | None,
        *,
        chunk: int,
        device: torch.device | None,
    ) -> None:
        if labels is None:
            if isinstance(inputs, Tensor | Mapping) or not hasattr(inputs, "__iter__"):
                raise ValueError(
                    "labels must be given with the inputs of one batch; without them, inputs must "
                    f"be a DataLoader or a list of (inputs, labels); got {type(inputs).__name__}."
                )
            if weights is not None or groups is not None:
                raise ValueError(
                    "weights and groups must come with the batches of a loader, as "
                    "(inputs, labels, weights, groups); got them by keyword."
                )
            if isinstance(inputs, Iterator):
                raise ValueError(
                    "inputs must be something that can be gone through twice; got "
                    f"{type(inputs).__name__}. Pass the loader itself, or list(inputs)."
                )
        whole = [(inputs, labels, weights, groups)]
        self._source: Iterable[Any] = inputs if labels is None else whole
        self._state = LoaderState(self._source)
        self._chunk = chunk
        self._device = device

    def rewind(self) -> None:
        """Make the next pass the same as the first."""
        self._state.restore()

    def __iter__(self) -> Iterator[_Piece]:
        for batch in self._source:
            if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 4:
                raise ValueError(
                    "each batch must be (inputs, labels), (inputs, labels, weights) or "
                    f"(inputs, labels, weights, groups); got {_described(batch)}."
                )
            inputs, labels, weights, groups = (*batch, None, None)[:4]
            n = len(labels)
            for name, given in (("inputs", inputs), ("weights", weights), ("groups", groups)):
                _raise_unless_rows(name, given, n)
            for begin in range(0, n, self._chunk):
                rows = slice(begin, begin + self._chunk)
                yield _Piece(*(self._cut(part, rows) for part in (inputs, labels, weights, groups)))

    def _cut(self, part: Any, rows: slice) -> Any:
        if part is None:
            return None
        if isinstance(part, Mapping):
            return {name: self._cut(value, rows) for name, value in part.items()}
        if isinstance(part, tuple | list):
            return tuple(self._cut(value, rows) for value in part)
        return part[rows] if self._device is None else part[rows].to(self._device)


def _scores(model: nn.Module, inputs: Any, n: int) -> Tensor:
    if isinstance(inputs, Mapping):
        scores = model(**inputs)
    else:
        scores = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if not isinstance(scores, Tensor) or scores.ndim == 0 or len(scores) != n:
        raise ValueError(
            f"model must return one row of scores per row of input; got {_described(scores)} for "
            f"{n} rows. Wrap it in a module that returns the scores alone."
        )
    return scores


def _whole_loss(
    loss: Callable[..., Tensor], scores: Tensor, told: list[tuple[Tensor | None, ...]]
) -> Tensor:
    labels, weights, groups = (
        None if any(part is None for part in parts) else torch.cat(parts)
        for parts in zip(*told, strict=True)
    )
    named = {"weights": weights, "groups": groups}
    return loss(scores, labels, **{name: part for name, part in named.items() if part is not None})


def _exchange(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Exchange gradients between ranks once, where the model is a distributed one."""
    quiet: Callable[[], AbstractContextManager[None]] | None = getattr(model, "no_sync", None)
    return nullcontext() if last or quiet is None else quiet()


def _no_autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, enabled=False)


def _described(given: object) -> str:
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return type(given).__name__


def _raise_unless_rows(name: str, given: Any, n: int) -> None:
    parts = given.values() if isinstance(given, Mapping) else given
    for part in parts if isinstance(given, Mapping | tuple | list) else [given]:
        if part is not None and (not isinstance(part, Tensor) or part.ndim == 0 or len(part) != n):
            raise ValueError(
                f"{name} must be tensors with one row per label; got {_described(part)} for {n} "
                "labels."
            )


def _raise_other_batches() -> None:
    raise RuntimeError(
        "inputs gave other batches the second time, so that the gradients are worthless: call "
        "zero_grad() before going on. Draw the order from torch's generators, or fix it."
    )


def _raise_if_apart(drift: float, scores: Tensor) -> None:
    # Far above what other kernels with and without a graph can make of rounding.
    tolerance = torch.finfo(scores.dtype).eps ** 0.5 * max(1.0, scores.abs().max().item())
    if drift > tolerance:
        raise RuntimeError(
            f"model gave other scores the second time, up to {drift:.2g} apart, so that the "
            "gradients are worthless: call zero_grad() before going on. Inputs or layers that draw "
            "from generators other than torch's cannot be replayed."
        )
