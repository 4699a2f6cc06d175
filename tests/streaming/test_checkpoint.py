"""A checkpoint that is damaged, or holds what no accumulator saves, is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everypair as ep
from everypair.streaming import checkpoint

N = 40
RANDOM = np.random.default_rng(6)
SCORES, WEIGHTS = RANDOM.normal(size=N).astype(np.float32), RANDOM.random(N)
GROUPS, LABELS = np.repeat(["a", "b"], N // 2), np.arange(N) % 3 == 0
TIMES, MORE = np.arange(N) - N / 2.0, SCORES.astype(np.float64) + 1e-9
# Options of an accumulator, and the parts that it gets.
KINDS = {
    "empty": ({},),
    "no times": ({"pairs": "survival"},),
    "plain": ({}, (SCORES, LABELS)),
    "two types": ({}, (SCORES, LABELS), (MORE, LABELS)),
    "weighted": ({}, (SCORES, LABELS, WEIGHTS)),
    "grouped": ({}, (SCORES, LABELS, WEIGHTS, GROUPS)),
    "survival": ({"pairs": "survival"}, (SCORES, TIMES)),
    "bounded": ({"mode": "bounded"}, (SCORES, LABELS)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def accumulator(kind):
    options, *parts = KINDS[kind]
    rows = ep.PairAccumulator(**options)
    for part in parts:
        rows.add(*part)
    return rows


def contents(accumulator):
    """Return all that `load` has to give back, as a text."""
    plain, arrays = accumulator.state()
    return repr((plain, {name: (a.dtype, a.tolist()) for name, a in arrays.items()}))


def saved(kind, folder):
    path = folder / "state.npz"
    accumulator(kind).save(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_has_everything(tmp_path, kind):
    loaded = ep.PairAccumulator.load(saved(kind, tmp_path))
    assert contents(loaded) == contents(accumulator(kind))
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    loaded.merge(accumulator(kind))  # more rows may follow
    assert loaded.n_rows == 2 * accumulator(kind).n_rows
    if len(KINDS[kind]) > 1:
        assert loaded.result().auc == accumulator(kind).result().auc


def refused_or_equal(path, kind):
    with suppress(ValueError):
        assert contents(ep.PairAccumulator.load(path)) == contents(accumulator(kind))


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_changed_bytes_are_refused_or_without_effect(folder, kind, data):
    path = saved(kind, folder)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    refused_or_equal(path, kind)


@given(st.sampled_from(sorted(KINDS)), st.floats(0.0, 1.0))
def test_a_part_of_a_checkpoint_is_refused(folder, kind, share):
    path = saved(kind, folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * (len(content) - 1))])
    with pytest.raises(ValueError, match="must be a checkpoint"):
        ep.PairAccumulator.load(path)


def test_a_wrong_header_of_an_archive_is_refused_or_without_effect(folder):
    path = saved("weighted", folder)
    content = path.read_bytes()
    for header in (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"):
        for start in range(content.index(header), content.index(header) + 66, 2):
            path.write_bytes(content[:start] + b"\xff\x7f" + content[start + 2 :])
            refused_or_equal(path, "weighted")


def changes(name, array, alone):
    """Yield arrays that no accumulator has; `alone` is an array whose length no other has."""
    if not alone:
        yield from (array[:-1], np.concatenate([array, array]))
    yield from (array[..., None], np.array(1.0), *map(array.astype, (str, np.complex128, bool)))
    if name == "used":
        yield from (array[::-1], np.repeat(array[:1], array.size))
    values = [np.nan, np.inf] if array.dtype.kind == "f" else [-1, np.iinfo(array.dtype).max]
    for value in [*values, -0.5] if name.startswith("weights") else values:
        for i in (*range(6), -1):
            changed = array.copy()
            changed.flat[i] = value
            yield changed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if len(KINDS[kind]) > 1])
def test_arrays_of_no_accumulator_are_refused(folder, kind):
    path, (plain, arrays) = folder / "state.npz", accumulator(kind).state()
    states = [{**arrays, f"{name}0": array} for name, array in arrays.items()]
    for name, array in arrays.items():
        states.append({other: arrays[other] for other in arrays if other != name})
        alone = set(arrays) == {"scores_0", "scores_1"}
        states += [{**arrays, name: changed} for changed in changes(name, array, alone)]
    for state in states:
        checkpoint.write(path, plain, state)
        with pytest.raises(ValueError, match="must be a checkpoint"):
            ep.PairAccumulator.load(path)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_other_options_are_refused_or_without_effect(folder, kind, data):
    path, (plain, arrays) = folder / "state.npz", accumulator(kind).state()
    name = data.draw(st.sampled_from([*plain, "more"]))
    texts = ["exact", "bounded", "binary", "ordered", "uno"]
    values = st.sampled_from([None, True, 1, 15, -3, 1e300, *texts, [], {}])
    values |= st.lists(st.sampled_from([1, 1.5, "a", None, True, [2]]), max_size=3)
    value = data.draw(values)
    if name in plain and data.draw(st.booleans()):
        del plain[name]
    else:
        plain[name] = value
    if name in ("is_rounded", "censoring") or value in (["a", 1], [1, "a"]):
        return  # other values that an accumulator may have
    if name == "pairs" and kind in ("empty", "no times", "survival"):
        return  # other pairs of the same rows
    checkpoint.write(path, plain, arrays)
    refused_or_equal(path, kind)


def test_a_state_that_is_no_dictionary_is_refused(folder):
    for state in (b"[]", b"3", b"", b"[" * 100_000, json.dumps({"format": 1}).encode()):
        np.savez(folder / "state.npz", state=np.frombuffer(state, np.uint8))
        with pytest.raises(ValueError, match="must be a checkpoint"):
            ep.PairAccumulator.load(folder / "state.npz")


def test_a_missing_file_is_named(folder):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ep.PairAccumulator.load(folder / "nowhere.npz")
