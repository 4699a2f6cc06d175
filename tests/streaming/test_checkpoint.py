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
SCORES = RANDOM.normal(size=N).astype(np.float32)
LABELS = np.arange(N) % 3 == 0
COLUMNS = {"weights": RANDOM.random(N), "groups": np.repeat(["a", "b"], N // 2)}
KINDS = {
    "empty": {},
    "no times": {"pairs": "survival"},
    "plain": {"scores": SCORES},
    "two types": {"scores": SCORES, "and": SCORES.astype(np.float64) + 1e-9},
    "weighted": {"scores": SCORES, "weights": COLUMNS["weights"]},
    "grouped": {"scores": SCORES, **COLUMNS},
    "survival": {"scores": SCORES, "pairs": "survival"},
    "bounded": {"scores": SCORES, "mode": "bounded"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def accumulator(kind):
    data = dict(KINDS[kind])
    options = {name: data.pop(name) for name in ("mode", "pairs") if name in data}
    labels = np.arange(N) - N / 2.0 if "pairs" in options else LABELS
    rows = ep.PairAccumulator(**options)
    if "scores" in data:
        rows.add(data["scores"], labels, data.get("weights"), data.get("groups"))
    if "and" in data:
        rows.add(data["and"], labels)
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
    if "scores" in KINDS[kind]:
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


@pytest.mark.parametrize("offset", range(0, 66, 2))
def test_a_wrong_header_of_an_archive_is_a_value_error(folder, offset):
    path = saved("weighted", folder)
    content = bytearray(path.read_bytes())
    for start in (0, content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")):
        changed = content.copy()
        changed[start + offset : start + offset + 2] = b"\xff\x7f"
        path.write_bytes(changed)
        refused_or_equal(path, "weighted")


def with_item(index, value):
    def change(array):
        array.flat[index] = value
        return array

    return change


# Changes of one array, each of which makes the state one that no accumulator has.
SHAPES = [
    lambda a: a[:-1],
    lambda a: a[..., None],
    lambda a: np.concatenate([a, a]),
    lambda a: a.astype(str),
    lambda a: a.astype(np.complex128),
    lambda a: a.astype(bool),
    lambda a: np.array(1.0),
]
NOT_FINITE = [with_item(0, np.nan), with_item(-1, np.inf)]
NUMBERS = [with_item(0, -1), with_item(-1, 2**31 - 1)]
ORDER = [lambda a: a[::-1], with_item(1, 0), lambda a: np.repeat(a[:1], a.size)]
MOMENTS = [with_item(i, value) for i in range(6) for value in (-1, 2**62)]
BAD = [
    *[("weighted", "weights_1", change) for change in (*SHAPES, *NOT_FINITE, with_item(0, -0.5))],
    *[("weighted", "scores_0", change) for change in (*SHAPES, *NOT_FINITE)],
    *[("plain", "scores_0", change) for change in (*SHAPES[1:2], *SHAPES[3:], *NOT_FINITE)],
    *[("grouped", "groups_0", change) for change in (*SHAPES, *NUMBERS)],
    *[("survival", "targets_0", change) for change in (*SHAPES, *NOT_FINITE)],
    *[("bounded", "used", change) for change in (*SHAPES, *NUMBERS, *ORDER)],
    *[("bounded", "table", change) for change in (*SHAPES, *MOMENTS)],
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_arrays_of_no_accumulator_are_refused(folder, case):
    kind, name, change = BAD[case]
    path = saved(kind, folder)
    plain, arrays = accumulator(kind).state()
    checkpoint.write(path, plain, {**arrays, name: change(arrays[name].copy())})
    with pytest.raises(ValueError, match="must be a checkpoint"):
        ep.PairAccumulator.load(path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "scores" in KINDS[kind]])
def test_missing_and_unknown_arrays_are_refused(folder, kind):
    path = saved(kind, folder)
    plain, arrays = accumulator(kind).state()
    for name in arrays:
        fewer = {other: array for other, array in arrays.items() if other != name}
        for names in (fewer, {**arrays, f"{name}0": arrays[name]}):
            checkpoint.write(path, plain, names)
            with pytest.raises(ValueError, match="must be a checkpoint"):
                ep.PairAccumulator.load(path)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_other_options_are_refused_or_without_effect(folder, kind, data):
    path = saved(kind, folder)
    plain, arrays = accumulator(kind).state()
    name = data.draw(st.sampled_from([*plain, "more"]))
    texts = ["exact", "bounded", "binary", "ordered", "uno"]
    values = st.sampled_from([None, True, 1, 15, -3, 1e300, *texts, [], {}])
    values |= st.lists(st.sampled_from([1, 1.5, "a", None, True, [2]]), max_size=3)
    value = data.draw(values)
    if kind == "grouped" and name == "keys" and value == ["a", 1]:
        return  # other names of the two groups
    if name == "censoring" or (kind in ("empty", "no times", "survival") and name == "pairs"):
        return  # other pairs of the same rows
    if name in plain and data.draw(st.booleans()):
        del plain[name]
    else:
        plain[name] = value
    if kind == "bounded" and name == "is_rounded":
        return  # both values are possible
    checkpoint.write(path, plain, arrays)
    refused_or_equal(path, kind)


def test_a_state_that_is_no_dictionary_is_refused(folder):
    for state in (b"[]", b"3", b"", b"[" * 100_000, json.dumps({"format": 1}).encode()):
        np.savez(folder / "state.npz", state=np.frombuffer(state, np.uint8))
        with pytest.raises(ValueError, match="must be a checkpoint"):
            ep.PairAccumulator.load(folder / "state.npz")


def test_a_missing_file_is_named(folder):
    with pytest.raises(FileNotFoundError):
        ep.PairAccumulator.load(folder / "nowhere.npz")
