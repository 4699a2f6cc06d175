"""Official archives: fetched once, resumed where they broke off, used if the digest is right."""

from __future__ import annotations

import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from everypair.experiments._progress import progress
from everypair.experiments.errors import UserError

if sys.platform != "win32":
    import fcntl

__all__ = ["Archive", "digest", "fetch"]

_CHUNK = 1 << 20
_PATIENCE = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Archive:
    """A file that its publisher never changes.

    Parameters
    ----------
    url : str
    digest : str
        As published: "md5:..." or "sha256:...".
    """

    url: str
    digest: str

    @property
    def filename(self) -> str:
        """Return the last part of the address."""
        return self.url.rpartition("/")[2]

    @property
    def fingerprint(self) -> str:
        """Return the short name of the contents."""
        return self.digest.rpartition(":")[2][:16]


def digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file, in hexadecimal."""
    hashed = hashlib.new(algorithm)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def fetch(archive: Archive, folder: Path) -> Path:
    """Return the archive in `folder`, downloading what is not there yet.

    A broken download stays as ``NAME.part`` and the next call goes on from there. One whose digest
    is wrong is removed.
    """
    target = folder / archive.filename
    part = folder / f"{archive.filename}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(part) as file:
            if target.is_file():  # another process was faster
                part.unlink(missing_ok=True)
                return target
            _append(archive, file)
            _check(archive, part)
            part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if part.is_file() and part.stat().st_size == 0:
            part.unlink()
        raise UserError(
            f"{archive.url} could not be downloaded to {folder}: {reason}. The same command tries "
            "again and goes on where it stopped; or set EVERYPAIR_DATA to a folder with the data"
        ) from None
    return target


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Open for appending; other processes that want the same wait here."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _append(archive: Archive, file: BinaryIO) -> None:
    """Write the rest of the archive, all of it where the server cannot give a part."""
    have = file.seek(0, 2)
    request = urllib.request.Request(archive.url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to fetch; the digest decides
        raise
    with answer:
        if have and getattr(answer, "status", None) != http.client.PARTIAL_CONTENT:
            have = file.truncate(0)
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with progress(f"Downloading {archive.filename}", total, done=have, in_bytes=True) as step:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                step(len(chunk))
    file.flush()
    if total is not None and file.tell() != total:
        raise OSError(f"the connection broke off after {file.tell()} of {total} bytes")


def _check(archive: Archive, path: Path) -> None:
    algorithm, _, expected = archive.digest.partition(":")
    found = digest(path, algorithm)
    if found != expected:
        size = path.stat().st_size
        path.unlink()
        raise UserError(
            f"{archive.url} has the wrong checksum ({algorithm} {found}, expected {expected}, "
            f"{size} bytes) and was removed; try again, and mistrust the network if it recurs"
        )
