"""Decode JPEG and PNG images into one array, on all cores.

Written by hand because the loaders of torchvision and datasets decode images one by one in each
epoch, while here every image is decoded once. Pillow does the decoding.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments._progress import progress
from everypair.experiments.errors import UserError

_CHUNK = 256


def decode(encoded: Sequence[bytes], path: Path, side: int | None = None) -> NDArray[np.uint8]:
    """Decode images to (n, 3, side, side); raise UserError for a broken one or another size.

    Without `side`, all images must be squares of the size of the first.
    """

    def opened(row: int) -> Any:
        try:
            return _open(encoded[row])
        except _broken() as error:
            raise UserError(
                f"{path}: the image in row {row} is corrupt ({error}); remove the row"
            ) from None

    side = side or opened(0).width
    images = np.empty((len(encoded), 3, side, side), np.uint8)

    def one(row: int) -> None:
        image = opened(row)
        if image.size != (side, side):
            raise UserError(
                f"{path}: images must be {side} x {side} pixels; the one in row {row} is "
                f"{image.width} x {image.height}"
            )
        images[row] = np.asarray(image).transpose(2, 0, 1)

    _in_threads(one, len(encoded), f"Decoding {path.parent.name}/{path.name}")
    return images


def decode_fitting(
    read: Callable[[int], bytes], n: int, side: int, what: str
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Decode photographs of any size to (n, 3, side, side); also return which could be read.

    The central square of each is resized. `read` returns the bytes of one image.
    """
    from PIL import Image, ImageOps

    images, good = np.zeros((n, 3, side, side), np.uint8), np.zeros(n, bool)

    def one(row: int) -> None:
        try:
            image = ImageOps.fit(_open(read(row)), (side, side), Image.Resampling.LANCZOS)
        except _broken():
            return
        images[row], good[row] = np.asarray(image).transpose(2, 0, 1), True

    _in_threads(one, n, what)
    return images, good


def _open(encoded: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(encoded)).convert("RGB")


def _broken() -> tuple[type[Exception], ...]:
    from PIL import Image

    # Raised by Pillow for bytes that are not an image, truncated images, and huge images.
    return (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError)


def _in_threads(one: Callable[[int], None], n: int, what: str) -> None:
    """Call `one` for every row, in threads: Pillow releases the GIL while it decodes."""

    def chunk(start: int) -> int:
        rows = range(start, min(start + _CHUNK, n))
        for row in rows:
            one(row)
        return len(rows)

    with ThreadPoolExecutor(os.cpu_count()) as pool, progress(what, n) as advance:
        try:
            for done in pool.map(chunk, range(0, n, _CHUNK)):
                advance(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
