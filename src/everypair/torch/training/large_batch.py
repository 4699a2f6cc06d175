"""The gradient of a whole batch whose activations do not fit into memory.

A loss over pairs needs all scores at once, but the model can compute them chunk by chunk, in two
passes (as GradCache does for contrastive losses):

1. Compute the scores of every chunk, without a graph.
2. Compute the loss of all scores, and its gradient in the scores.
3. Compute the scores of every chunk again, with a graph, and backpropagate its part of that
   gradient.

Only the activations of one chunk exist at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from everypair.torch._inputs import check_integer


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

    It replaces ``loss(model(inputs), labels).backward()`` and gives the same gradient. It needs a
    second forward pass, about a third more time.

    Parameters
    ----------
    model : Module
        Called as ``model(x)``, as ``model(*x)`` for a tuple or list, as ``model(**x)`` for a dict.
        Returns scores (n,) or (n, ...), one row per row of input.
    loss : callable
        Called once as ``loss(scores, labels)``, on the whole batch, with `weights` and `groups` by
        keyword if given. If it has parameters, they get gradients too.
    inputs : Tensor, tuple, dict, or iterable of batches
        All rows of the batch. Or, without `labels`, a DataLoader or list of batches that make up
        the large batch: ``(inputs, labels)``, then weights, then groups if there are any. It is
        iterated twice and must give the same batches in the same order both times; orders and
        augmentations drawn from torch's generators are replayed.
    labels : (n, ...) Tensor, optional
    chunk : int
        The largest number of rows per call of the model. Larger batches of a loader are split.
    weights, groups : (n,) Tensor, optional
        Passed to the loss.
    device : device, optional
        Where to move each chunk before the model is called. By default it is not moved.
    scaler : GradScaler, optional
        Scales the loss, for training in float16.

    Returns
    -------
    Tensor
        The loss over the whole batch, detached and not scaled.

    Raises
    ------
    RuntimeError
        If the model returned other scores in the second pass, for example because of random
        numbers that are not torch's. The gradients are then wrong.

    Notes
    -----
    Dropout is the same in both passes: the states of the CPU's and of the model's devices'
    generators are restored. Buffers are restored too, so that running statistics are updated once.
    Batch normalisation in training mode normalises each *chunk* by itself. The result is the exact
    gradient of that model, not of one that normalises the whole batch at once; if that matters, use
    ``eval()`` for those layers, or group normalisation.

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
    check_integer("chunk", chunk, at_least=1)
    device = None if device is None else torch.device(device)
    batches = _batches_from(inputs, labels, weights, groups)
    setters = _generator_setters(model, device, batches)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    with torch.no_grad():
        parts = [
            (_scores(model, rows, len(of_rows[0])), *of_rows)
            for rows, *of_rows in _chunks(batches, chunk, device)
        ]
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    if not parts:
        raise ValueError("inputs must hold at least one batch; got none. Check the loader.")
    # Up to torch 2.9, autocast would reuse the weights that it cast under no_grad in the second
    # pass, where they are not part of the graph (pytorch/pytorch#112583).
    torch.clear_autocast_cache()

    first_scores, *columns = zip(*parts, strict=True)
    scores = torch.cat(first_scores).requires_grad_()
    options = {
        name: torch.cat(column)
        for name, column in zip(("labels", "weights", "groups"), columns, strict=True)
        if column[0] is not None
    }
    value = loss(scores, options.pop("labels"), **options)
    with torch.autocast(scores.device.type, enabled=False):
        (value if scaler is None else scaler.scale(value)).backward()
    if scores.grad is None:
        raise ValueError(
            "loss must depend on the scores; it has no gradient in them. Compute it from the "
            "scores that it is called with, without detach()."
        )
    grads = torch.split(scores.grad, [len(part) for part in first_scores])

    for setter in setters:
        setter()
    # DistributedDataParallel has this method; it exchanges gradients with the last chunk only.
    no_sync = getattr(model, "no_sync", nullcontext)
    difference = scores.new_zeros((), dtype=torch.float32)
    passes = zip_longest(_chunks(batches, chunk, device), first_scores, grads)
    for number, (part, first, grad) in enumerate(passes, 1):
        if part is None or grad is None or len(part[1]) != len(grad):
            raise RuntimeError(
                "inputs gave other batches the second time, so the gradients are wrong: call "
                "zero_grad() before you continue. Pass a loader or a list, not an iterator, whose "
                "order is fixed or drawn from torch's generators."
            )
        with nullcontext() if number == len(grads) else no_sync():
            replay = _scores(model, part[0], len(grad))
            with torch.autocast(replay.device.type, enabled=False):
                torch.autograd.backward(replay, grad)
        difference = torch.maximum(difference, (replay.detach() - first).abs().max().float())
    # Far above the rounding errors of different kernels with and without a graph.
    tolerance = torch.finfo(scores.dtype).eps ** 0.5 * max(1.0, scores.detach().abs().max().item())
    if difference.item() > tolerance:
        raise RuntimeError(
            f"model returned other scores the second time, up to {difference.item():.2g} apart, so "
            "the gradients are wrong: call zero_grad() before you continue. Inputs or layers that "
            "draw from generators other than torch's cannot be replayed."
        )
    return value.detach()


def _generator_setters(
    model: nn.Module, device: torch.device | None, loader: object
) -> list[Callable[[], object]]:
    """Save what a pass draws random numbers from; return the functions that restore it.

    These are torch's generators of the CPU and of the model's accelerators, and the generators or
    epochs of a DataLoader and its samplers.
    """
    setters: list[Callable[[], object]] = [partial(torch.set_rng_state, torch.get_rng_state())]
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    for accelerator in devices if device is None else devices | {device}:
        if accelerator.type not in ("cpu", "meta"):
            module: Any = getattr(torch, accelerator.type)  # for example torch.cuda
            where = () if accelerator.type == "mps" else (accelerator,)
            setters.append(partial(module.set_rng_state, module.get_rng_state(*where), *where))
    parts: list[Any] = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    for part in (loader, *parts):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            setters.append(partial(generator.set_state, generator.get_state()))
        if hasattr(part, "set_epoch") and hasattr(part, "epoch"):
            setters.append(partial(part.set_epoch, part.epoch))
    return setters


def _batches_from(
    inputs: Any, labels: Tensor | None, weights: Tensor | None, groups: Tensor | None
) -> Iterable[Any]:
    """Return the batches of a loader, or a list of the one batch that was given by its parts."""
    if labels is not None:
        return [(inputs, labels, weights, groups)]
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
    batches: Iterable[Any] = inputs
    return batches


def _chunks(batches: Iterable[Any], size: int, device: torch.device | None) -> Iterator[list[Any]]:
    """Yield inputs, labels, weights and groups of at most `size` rows each, on the device."""
    for batch in batches:
        if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 4:
            raise ValueError(
                "each batch must be (inputs, labels), (inputs, labels, weights) or "
                f"(inputs, labels, weights, groups); got {_described(batch)}."
            )
        names, parts = ("inputs", "labels", "weights", "groups"), (*batch, None, None)[:4]
        n, parts_by_name = len(batch[1]), dict(zip(names, parts, strict=True))
        for rows in (slice(begin, begin + size) for begin in range(0, n, size)):
            yield [_cut(part, name, n, rows, device) for name, part in parts_by_name.items()]


def _cut(part: Any, name: str, n: int, rows: slice, device: torch.device | None) -> Any:
    """Return these of `n` rows of a tensor, or of each tensor in a collection, on the device."""
    if part is None:
        return None
    if isinstance(part, Mapping):
        return {key: _cut(value, name, n, rows, device) for key, value in part.items()}
    if isinstance(part, tuple | list):
        return tuple(_cut(value, name, n, rows, device) for value in part)
    if not isinstance(part, Tensor) or part.ndim == 0 or len(part) != n:
        raise ValueError(
            f"{name} must be tensors with one row per label; got {_described(part)} for {n} labels."
        )
    return part[rows] if device is None else part[rows].to(device)


def _scores(model: nn.Module, inputs: Any, n: int) -> Tensor:
    """Return the model's scores of a chunk of `n` rows."""
    if isinstance(inputs, Tensor):
        scores = model(inputs)
    else:
        scores = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    if not isinstance(scores, Tensor) or scores.ndim == 0 or len(scores) != n:
        raise ValueError(
            f"model must return one row of scores per row of input; got {_described(scores)} for "
            f"{n} rows. Wrap it in a module that returns the scores alone."
        )
    return scores


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
