"""Download official archives with pooch and check their digests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from everypair.experiments._progress import progress
from everypair.experiments.errors import UserError

_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Archive:
    """A file that its publisher never changes."""

    url: str
    digest: str  # as published: "md5:..." or "sha256:..."

    @property
    def filename(self) -> str:
        """Return the last part of the address."""
        return self.url.rpartition("/")[2]

    @property
    def fingerprint(self) -> str:
        """Return the first 16 digits of the digest."""
        return self.digest.rpartition(":")[2][:16]


def digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file, in hexadecimal."""
    import pooch  # type: ignore[import-untyped]

    return str(pooch.file_hash(path, alg=algorithm))


def fetch(archive: Archive, folder: Path) -> Path:
    """Return the archive in `folder`, and download it if it is not there.

    The file gets its name only when it is complete and its digest is right, so several processes
    may call this at once. A download that breaks off leaves nothing behind, and the next call
    starts again from the beginning; pooch cannot resume it.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    name, opened = archive.filename, ExitStack()
    downloader = pooch.HTTPDownloader(
        progressbar=_Bar(f"Downloading {name}", opened),
        chunk_size=_CHUNK,
        timeout=60,
        hooks={"response": lambda answer, **_: opened.enter_context(closing(answer))},
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with opened:
            pooch.retrieve(archive.url, archive.digest, name, folder, downloader=downloader)
            return folder / name
    except ValueError as error:  # the digest differs
        raise UserError(
            f"{archive.url} has the wrong checksum and was removed "
            f"({str(error).partition('. ')[0]}). Try again; if it recurs, do not trust the network"
        ) from None
    except OSError as error:  # of the folder or the network; those of requests are among them
        cause = getattr(error.args[0], "reason", error) if error.args else error
        raise UserError(
            f"{archive.url} could not be downloaded to {folder}: {cause}. Run the same command to "
            "try again, or set EVERYPAIR_DATA to a folder with the data"
        ) from None


class _Bar:
    """A progress bar with the methods that pooch calls; pooch sets `total` beforehand."""

    def __init__(self, text: str, opened: ExitStack) -> None:
        self.text, self.total, self._opened = text, 0, opened
        self._advance: Callable[[float], None] | None = None

    def update(self, n: int) -> None:
        if self._advance is None:
            bar = progress(self.text, self.total or None, in_bytes=True)
            self._advance = self._opened.enter_context(bar)
        self._advance(n)

    def close(self) -> None:
        self._opened.close()

    reset = close  # pooch calls both at the end
