"""Downloads from a local server: complete, broken off, falsified; and the official layouts."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from everypair.experiments.data import _download, image_datasets, sources
from everypair.experiments.data._download import Archive, fetch
from everypair.experiments.errors import UserError

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves one content, and breaks off if told to."""

    daemon_threads = True
    content = CONTENT
    breaks_off = False  # after half of the content
    n_asked = 0

    def archive(self, content=CONTENT, algorithm="sha256", name="data.bin"):
        self.content, self.n_asked = content, 0
        address = f"http://127.0.0.1:{self.server_port}/{name}"
        return Archive(address, f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        if self.path == "/missing.bin":
            self.send_error(404)
            return
        server.n_asked += 1
        content = server.content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if server.breaks_off else content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_an_archive_is_fetched_once(server, tmp_path, algorithm):
    archive = server.archive(algorithm=algorithm)
    for _ in range(2):
        assert fetch(archive, tmp_path / "new").read_bytes() == CONTENT
    assert left(tmp_path / "new") == ["data.bin"]
    assert server.n_asked == 1


def test_a_wrong_checksum_is_refused_and_nothing_left(server, tmp_path):
    archive = server.archive()
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(UserError, match=r"wrong checksum .* expected sha256:\w+ but got"):
        fetch(archive, tmp_path)
    assert left(tmp_path) == []


def test_a_broken_download_leaves_nothing_and_the_next_one_succeeds(server, tmp_path):
    archive = server.archive()
    server.breaks_off = True
    with pytest.raises(UserError, match=r"could not be downloaded .* try again"):
        fetch(archive, tmp_path)
    assert left(tmp_path) == []
    server.breaks_off = False
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["data.bin"]


def test_a_damaged_file_is_downloaded_again(server, tmp_path):
    archive = server.archive()
    (tmp_path / "data.bin").write_bytes(CONTENT[:100])
    assert fetch(archive, tmp_path).read_bytes() == CONTENT


def test_a_terminal_sees_how_far_the_download_is(server, tmp_path, monkeypatch):
    amounts, totals = [], []

    @contextmanager
    def progress(text, total, *, in_bytes):
        totals.append((text, total, in_bytes))
        yield amounts.append

    monkeypatch.setattr(_download, "progress", progress)
    fetch(server.archive(), tmp_path)
    assert totals == [("Downloading data.bin", len(CONTENT), True)]
    assert sum(amounts) >= len(CONTENT)


def test_downloads_at_the_same_time_give_one_whole_file(server, tmp_path):
    archive = server.archive()
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: fetch(archive, tmp_path), range(4)))
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert left(tmp_path) == ["data.bin"]


def test_without_a_network_the_message_says_what_to_do(server, tmp_path):
    nobody = Archive("http://127.0.0.1:9/data.bin", "md5:0")
    for archive, reason in ((nobody, "refused"), (server.archive(name="missing.bin"), "Not Found")):
        with pytest.raises(UserError, match=rf"could not be .*{reason}.* set EVERYPAIR_DATA"):
            fetch(archive, tmp_path)
        assert left(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_a_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="could not be downloaded"):
        fetch(Archive("http://127.0.0.1:9/x", "md5:0"), tmp_path / "file")


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def cifar10(images, labels):
    rows = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(len(images), -1)], 1)
    files = {f"data_batch_{i}.bin": rows[i::6].tobytes() for i in range(1, 6)}
    return packed({"readme.html": b"", **files, "test_batch.bin": rows[0::6].tobytes()})


def stl10(images, labels):
    columns_first = images.transpose(0, 1, 3, 2)
    return packed(
        {
            "test_X.bin": columns_first[:3].tobytes(),
            "test_y.bin": (labels[:3] + 1).astype(np.uint8).tobytes(),
            "train_X.bin": columns_first[3:].tobytes(),
            "train_y.bin": (labels[3:] + 1).astype(np.uint8).tobytes(),
        }
    )


def catdog(images, labels):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("Cat/1", "Cat/10000", "Dog/2", "Dog/12499"):
            photograph = io.BytesIO()
            Image.new("RGB", (80, 60), (200, 10, 10)).save(photograph, "JPEG")
            archive.writestr(f"PetImages/{name}.jpg", photograph.getvalue())
        archive.writestr("PetImages/Cat/666.jpg", b"")  # as in the published one
        archive.writestr("PetImages/Cat/Thumbs.db", b"?")
    return buffer.getvalue()


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    """Let the official address of a data set be our server."""
    monkeypatch.delenv("EVERYPAIR_DATA", raising=False)
    monkeypatch.setenv("EVERYPAIR_CACHE", str(tmp_path / "cache"))

    def publish(name, content):
        archive = server.archive(content)
        source = replace(image_datasets.SOURCES[name], archive=archive)
        monkeypatch.setitem(image_datasets.SOURCES, name, source)

    return publish


@pytest.mark.parametrize(("name", "pack"), [("cifar10", cifar10), ("stl10", stl10)])
def test_the_official_binary_layouts_are_understood(published, tmp_path, server, name, pack):
    side = image_datasets.SOURCES[name].side
    pictures = np.random.default_rng(0).integers(0, 256, (12, 3, side, side), np.uint8)
    labels = np.arange(12) % 10
    published(name, pack(pictures, labels))
    found = image_datasets.load(image_datasets.SOURCES[name])
    everything = np.concatenate([found.train, found.test])
    classes = np.concatenate([found.train_labels, found.test_labels])
    place = {image.tobytes(): i for i, image in enumerate(pictures)}
    order = [place[image.tobytes()] for image in everything]
    assert sorted(order) == list(range(12))
    assert classes.tolist() == labels[order].tolist()
    assert [path.is_dir() for path in (tmp_path / "cache").iterdir()] == [True]  # no archive left
    image_datasets.load(image_datasets.SOURCES[name])
    assert server.n_asked == 1


def test_the_official_photographs_are_understood(published):
    published("catdog", catdog(None, None))
    dataset = sources.load("catdog")
    assert dataset.inputs.shape == (2, 3, 50, 50)
    assert dataset.positive.tolist() == [False, True]
    assert dataset.test_positive.tolist() == [False, True]
    assert dataset.inputs[0, 0].mean() > 190


def test_an_archive_that_lacks_a_file_is_refused(published):
    published("cifar10", packed({"data_batch_1.bin": b""}))
    with pytest.raises(UserError, match=r"lacks data_batch_2\.bin.*test_batch\.bin"):
        sources.load("cifar10")


def test_a_folder_without_this_data_set_falls_back_to_the_archive(published, tmp_path, monkeypatch):
    monkeypatch.setenv("EVERYPAIR_DATA", str(tmp_path))
    published("catdog", catdog(None, None))
    assert len(sources.load("catdog").inputs) == 2


def test_the_published_digests_are_well_formed():
    for source in image_datasets.SOURCES.values():
        algorithm, _, digest = source.archive.digest.partition(":")
        assert len(digest) == 2 * hashlib.new(algorithm).digest_size
        assert len(source.archive.fingerprint) == 16
        assert source.archive.filename.endswith((".tar.gz", ".zip"))


def test_digest_is_that_of_the_whole_file(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    assert _download.digest(tmp_path / "x", "md5") == hashlib.md5(CONTENT).hexdigest()
