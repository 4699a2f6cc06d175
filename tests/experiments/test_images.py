"""Images from Parquet files: decoded once, cached as arrays, refused if broken."""

from __future__ import annotations

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from everypair.experiments.data import _decoding, image_datasets, sources
from everypair.experiments.errors import UserError


def encoded(value, side=32, kind="PNG"):
    image = Image.fromarray(np.full((side, side, 3), value, np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write(path, images, labels, **names):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {names.get("image", "image"): images, names.get("label", "label"): labels}
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with twenty training and ten test images of CIFAR10, and an empty cache."""
    for part, n in (("train", 20), ("test", 10)):
        labels = [i % 10 for i in range(n)]
        write(tmp_path / "data/cifar10" / f"{part}.parquet", [encoded(i) for i in range(n)], labels)
    monkeypatch.setenv("EVERYPAIR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EVERYPAIR_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_images_and_classes_are_read(folder):
    dataset = sources.load("cifar10")
    assert dataset.inputs.shape == (20, 3, 32, 32)
    assert dataset.inputs[:, 1, 5, 7].tolist() == list(range(20))
    assert dataset.positive.tolist() == [i % 10 >= 5 for i in range(20)]
    assert dataset.test_inputs.shape == (10, 3, 32, 32)
    assert dataset.test_positive.sum() == 5
    assert dataset.photographs
    assert dataset.positive_name == "dog, frog, horse, ship, truck"


def test_the_second_load_maps_the_cached_array(folder, monkeypatch):
    first = sources.load("cifar10")
    monkeypatch.setattr(image_datasets, "decode", None)
    second = sources.load("cifar10")
    assert isinstance(second.inputs, np.memmap)
    assert np.array_equal(first.inputs, second.inputs)
    assert first.fingerprint == second.fingerprint


def test_other_files_have_another_fingerprint(folder):
    before = sources.load("cifar10").fingerprint
    write(folder / "data/cifar10/test.parquet", [encoded(9)], [3])
    after = sources.load("cifar10")
    assert after.fingerprint != before
    assert len(after.test_inputs) == 1


def test_smaller_images_are_accepted_if_both_parts_have_one_size(folder):
    write(folder / "data/stl10/train.parquet", [encoded(1, 24)], [0])
    write(folder / "data/stl10/test.parquet", [encoded(1, 24)], [9])
    assert sources.load("stl10").inputs.shape == (1, 3, 24, 24)
    write(folder / "data/stl10/test.parquet", [encoded(1, 24), encoded(1, 20)], [9, 9])
    with pytest.raises(UserError, match="24 x 24 pixels; the one in row 1 is 20 x 20"):
        sources.load("stl10")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"not an image", lambda b: None]
)
def test_a_corrupt_image_is_named_and_nothing_is_cached(folder, kind, damage):
    images = [encoded(i, kind=kind) for i in range(3)]
    images[2] = damage(images[2])
    write(folder / "data/cifar10/train.parquet", images, [0, 1, 2])
    with pytest.raises(UserError, match=r"train\.parquet: the image in row 2 is corrupt"):
        sources.load("cifar10")
    assert not (folder / "cache").exists()


def test_grey_images_become_three_channels(folder):
    buffer = io.BytesIO()
    Image.new("L", (32, 32), 7).save(buffer, "PNG")
    write(folder / "data/cifar10/train.parquet", [buffer.getvalue()], [0])
    assert np.unique(sources.load("cifar10").inputs).tolist() == [7]


@pytest.mark.parametrize("labels", [[10], [-1], ["cat"], [1.5], [None]])
def test_class_numbers_out_of_range_are_refused(folder, labels):
    write(folder / "data/cifar10/train.parquet", [encoded(0)], labels)
    with pytest.raises(UserError, match="class numbers 0 to 9"):
        sources.load("cifar10")


def test_invalid_files_are_refused(folder):
    path = folder / "data/cifar10/train.parquet"
    write(path, [encoded(0)], [0], image="picture")
    with pytest.raises(UserError, match=r"no column image; .* \(it has picture, label\)"):
        sources.load("cifar10")
    write(path, pa.array([], pa.binary()), pa.array([], pa.int64()))
    with pytest.raises(UserError, match="is empty"):
        sources.load("cifar10")
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        sources.load("cifar10")
    path.unlink()
    with pytest.raises(UserError, match=r"train\.parquet is missing"):
        sources.load("cifar10")


def test_the_data_folder_must_exist(folder, monkeypatch):
    monkeypatch.setenv("EVERYPAIR_DATA", str(folder / "nowhere"))
    with pytest.raises(UserError, match="EVERYPAIR_DATA must name a folder"):
        sources.load("cifar10")


def test_a_cache_that_cannot_be_written_is_explained(folder, monkeypatch):
    def full(file, array):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_datasets.np, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*set EVERYPAIR_CACHE"):
        sources.load("cifar10")
    assert list((folder / "cache").iterdir()) == []


def test_a_damaged_cache_names_the_folder_to_remove(folder):
    sources.load("cifar10")
    (array,) = (folder / "cache").glob("cifar10-*/train.npy")
    array.write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"is damaged .* remove that folder"):
        sources.load("cifar10")


def test_the_second_writer_keeps_the_folder_of_the_first(tmp_path):
    target = tmp_path / "folder"
    with image_datasets.replacing(target) as mine:
        mine.mkdir()
        target.mkdir()
        (target / "theirs").touch()
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "theirs"]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"EVERYPAIR_CACHE": "/a/b"}, "/a/b"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/everypair"),
        ("linux", {"HOME": "/me"}, "/me/.cache/everypair"),
        ("darwin", {"HOME": "/me"}, "/me/Library/Caches/everypair"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/everypair"),
    ],
)
def test_the_cache_folder_of_each_platform(monkeypatch, platform, variables, expected):
    for name in ("EVERYPAIR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(image_datasets.sys, "platform", platform)
    assert image_datasets.cache_folder().as_posix() == expected


def test_photographs_are_cropped_to_their_centre():
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, 30:70] = 200
    buffer = io.BytesIO()
    Image.fromarray(wide).save(buffer, "PNG")
    files = [buffer.getvalue(), b"broken"]
    images, good = _decoding.decode_fitting(lambda row: files[row], 2, 10, "Decoding")
    assert good.tolist() == [True, False]
    assert images[0].min() > 180  # none of the black sides


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("EVERYPAIR_DATA", ""), "stl10")),
    reason="EVERYPAIR_DATA has no stl10 here",
)
def test_real_images_load(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERYPAIR_CACHE", str(tmp_path))
    dataset = sources.load("stl10")
    assert 0.4 < dataset.positive.mean() < 0.6
    assert 0.3 < dataset.inputs.mean() / 255 < 0.6
