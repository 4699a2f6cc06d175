"""Validation of input: accepted containers and types, and the messages of errors."""

from __future__ import annotations

import array
import ctypes
import decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch

import everypair as ep
from everypair.inputs import batches
from everypair.kernel import choose

SCORES = [0.5, 2.0, 0.0, 1.0]
LABELS = [1, 1, 0, 0]
GRAD = [-1.0, 0.0, 0.25, 0.75]

CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "array.array": lambda x: array.array("d", x),
    "float16": lambda x: np.array(x, np.float16),
    "float32": lambda x: np.array(x, np.float32),
    "float64": lambda x: np.array(x, np.float64),
    "longdouble": lambda x: np.array(x, np.longdouble),
    "objects": lambda x: np.array(x, object),
    "decimals": lambda x: [decimal.Decimal(v) for v in x],
    "column": lambda x: np.array(x)[:, None],
    "strided": lambda x: np.repeat(x, 3)[::3],
    "reversed": lambda x: np.array(x[::-1])[::-1],
    "fortran column": lambda x: np.asfortranarray(np.array([x, x]).T)[:, :1],
    "byte-swapped": lambda x: np.array(x, ">f4"),
    "byte-swapped double": lambda x: np.array(x, ">f8"),
    "unaligned": lambda x: np.frombuffer(b"\0" + np.array(x).tobytes(), np.uint8)[1:].view("f8"),
    "field": lambda x: np.rec.fromarrays([x, x], names="a,b")["b"],
    "read-only": lambda x: np.frombuffer(np.array(x).tobytes()),
    "masked, nothing hidden": lambda x: np.ma.MaskedArray(x, mask=False),
    "Series": lambda x: pd.Series(x, index=[9, 8, 7, 6]),
    "nullable Series": lambda x: pd.Series(x, dtype="Float32"),
    "DataFrame": lambda x: pd.DataFrame({"score": x}),
    "tensor": lambda x: torch.tensor(x),
    "tensor of a graph": lambda x: torch.tensor(x, requires_grad=True) * 1,
    "parameter": lambda x: torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)),
    "half tensor": lambda x: torch.tensor(x, dtype=torch.float16),
    "bfloat16 tensor": lambda x: torch.tensor(x, dtype=torch.bfloat16),
    "strided tensor": lambda x: torch.tensor([x, x]).T[:, 0],
    "pyarrow": pa.array,
    "pyarrow chunks": lambda x: pa.chunked_array([x[:1], x[1:]]),
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_scores_in_any_container(backend, make):
    scores = make(SCORES)
    loss, grad = backend.loss_and_grad(scores, LABELS)
    assert loss == 0.625
    dtype = getattr(scores, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        assert grad.dtype == dtype.newbyteorder("=")
    assert grad.ravel().tolist() == GRAD
    assert grad.shape == (getattr(scores, "shape", None) or (4,))
    assert grad.flags.writeable


INTEGERS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")


@pytest.mark.parametrize("dtype", [*INTEGERS, ">i4"])
def test_integer_scores_are_computed_in_float64(backend, dtype):
    scores = np.array([1, 1, 0, 1], dtype)
    loss, grad = backend.loss_and_grad(scores, LABELS)
    assert (loss, grad.dtype) == (0.5, np.float64)
    assert grad.tolist() == [-0.5, -0.5, 0.0, 1.0]


LABEL_CONTAINERS = {
    **{t: partial(np.array, dtype=t) for t in (*INTEGERS, "f2", "f4", "f8", "g")},
    **{
        f"signed {t}": lambda x, t=t: np.array(x, t) * 2 - 1
        for t in ("i1", "i2", "i4", "i8", "f2", "f4", "f8", "g", ">i2", ">f8")
    },
    **{k: CONTAINERS[k] for k in ("objects", "strided", "column", "Series", "tensor", "pyarrow")},
    "bools": lambda x: [bool(v) for v in x],
    "bool Series": lambda x: pd.Series(x) == 1,
    "categorical": lambda x: pd.Series(x, dtype="category"),
    "bool tensor": lambda x: torch.tensor(x) == 1,
    "pyarrow bools": lambda x: pa.array([v == 1 for v in x]),
    # The dtype of such arrays has an explicit byte order.
    "C floats": lambda x: np.ctypeslib.as_array((ctypes.c_float * len(x))(*x)),
}


@pytest.mark.parametrize("make", LABEL_CONTAINERS.values(), ids=LABEL_CONTAINERS)
def test_labels_in_any_container(backend, make):
    loss, grad = backend.loss_and_grad(SCORES, make(LABELS))
    assert (loss, grad.tolist()) == (0.625, GRAD)


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_weights_and_vectors_in_any_container(backend, make):
    loss = backend.loss(SCORES, LABELS, weights=make([2.0, 1.0, 1.0, 3.0]), reduction="sum")
    assert loss == pytest.approx(0.5 + 6 * 2.25, rel=1e-15)
    hvp = backend.hvp(SCORES, LABELS, make([1.0, 0.0, 0.0, 0.0]))
    assert hvp.tolist() == pytest.approx([1.0, 0.0, -0.5, -0.5], rel=1e-15)


GROUPS = {
    "ints": [7, 3, 7, 3],
    "strings": ["a", "b", "a", "b"],
    "mixed": [1, "1", 1, "1"],
    "trailing NULs": ["a", "a\0", "a", "a\0"],
    "integers above int64": [2**63, 2**63 + 1, 2**63, 2**63 + 1],
    "integers that NumPy rounds": [2**63 - 1, 2**63, 2**63 - 1, 2**63],
    "floats": [0.5, -1.0, 0.5, -1.0],
    "tuples": [("a", 1), ("a", 2), ("a", 1), ("a", 2)],
    "bytes": np.array([b"x", b"y", b"x", b"y"]),
    "bools": np.array([True, False, True, False]),
    "objects": np.array(["a", 2, "a", 2], object),
    "dates": np.array(["2020-01-02", "2020-01-01"] * 2, "M8[D]"),
    "records": np.array([("a", 2), ("a", 1)] * 2, "U1,i4"),
    "byte-swapped": np.array([5, 6, 5, 6], ">i8"),
    "column": np.array([[5], [6], [5], [6]]),
    "Series": pd.Series(["a", "b", "a", "b"]),
    "categorical": pd.Series(["a", "b", "a", "b"], dtype="category"),
    "tensor": torch.tensor([1, 0, 1, 0]),
    "pyarrow": pa.array(["a", "b", "a", "b"]),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_groups_of_any_hashable_values(backend, groups):
    loss, grad = backend.loss_and_grad(SCORES, LABELS, groups=groups)
    assert (loss, grad.tolist()) == (0.125, [-0.5, 0.0, 0.5, 0.0])
    assert backend.auc(SCORES, LABELS, groups=groups) == 1.0


def test_arguments_are_not_modified(backend):
    arguments = [np.array(x) for x in (SCORES, LABELS, [1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0])]
    before = [x.copy() for x in arguments]
    scores, labels, weights, groups = arguments
    backend.loss_and_grad(scores, labels, weights=weights, groups=groups)
    np.testing.assert_array_equal(arguments, before)


def test_suitable_arrays_are_neither_copied_nor_reordered():
    scores, labels = np.array(SCORES, np.float32), np.array(LABELS, np.int8)
    batch = batches.batch_from(scores, labels, groups=["a", "a", "b", "b"])
    assert batch.scores is scores
    assert batch.labels is labels
    assert batch.order is None
    assert batch.offsets.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "margin", [1, np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0)]
)
def test_margins_are_any_real_number(backend, margin):
    assert backend.loss(SCORES, LABELS, margin=margin) == 0.625


# name: (changed arguments, parts of the message...)
MISTAKES = {
    "nan score": ({"scores": [0.5, np.nan, 0, 1]}, "scores must be finite; got nan", "index 1"),
    "inf score": ({"scores": [0.5, 2, -np.inf, 1]}, "scores must be finite; got -inf", "index 2"),
    "huge score": ({"scores": [0.5, 10**400, 0, 1]}, "scores must be real numbers", "too large"),
    "text scores": ({"scores": ["a", "b", "c", "d"]}, "scores must be real numbers", "first 'a'"),
    "missing score": ({"scores": [0.5, None, 0, 1]}, "got None at index 1. Drop such rows"),
    "missing in Arrow": ({"scores": pa.array([0.5, None, 0, 1])}, "scores", "nan", "index 1"),
    "complex scores": ({"scores": np.array(SCORES, complex)}, "real numbers", "complex128"),
    "dates for scores": ({"scores": np.array([1, 2, 3, 4], "M8[s]")}, "real numbers", "datetime64"),
    "masked scores": (
        {"scores": np.ma.MaskedArray(SCORES, mask=[0, 0, 1, 0])},
        "scores must have a value in every row; got a masked one at index 2",
    ),
    "ragged scores": ({"scores": [[1.0], [1.0, 2.0]]}, "scores must be an array of n numbers"),
    "ragged objects": (
        {"scores": np.array([np.zeros(2), np.zeros(3)], object)},
        "scores must be real numbers that a float holds",
    ),
    "signalling nan": (
        {"scores": [decimal.Decimal(s) for s in ("1", "sNaN", "2", "3")]},
        "scores must be real numbers that a float holds",
    ),
    "wide scores": ({"scores": np.zeros((4, 2))}, "scores must have the shape", "pass [:, 1]"),
    "one number": ({"scores": 3.0}, "scores must have the shape", "got ()"),
    "empty": ({"scores": [], "labels": []}, "scores must hold at least one row; got none"),
    "empty text": ({"scores": np.array([], "U1")}, "scores must be real numbers", "<U1"),
    "generator": ({"scores": iter(SCORES)}, "scores must be an array", "got list_iterator"),
    "sparse scores": (
        {"scores": scipy.sparse.csr_matrix(SCORES)},
        "scores must be an array of n values; got csr_matrix",
        "toarray",
    ),
    "three classes": ({"labels": [0, 1, 2, 1]}, "labels", "got 2 (first at index 2)", "per class"),
    "labels before scores": (
        {"scores": LABELS, "labels": SCORES},
        "got 0.5 (first at index 0). Scores are the first argument and labels the second.",
    ),
    "nan label": ({"labels": [0, 1, 1, np.nan]}, "got nan (first at index 3). Drop the rows whose"),
    "no labels": ({"labels": None}, "labels must be an array of n values; got NoneType"),
    "mixed codings": (
        {"labels": [1.0, 0.0, -1.0, 0.0]},
        "0 (first at index 1) and -1 (first at index 2)",
        "labels == 1",
    ),
    "unsigned label": ({"labels": np.array([0, 1, 255, 0], "u1")}, "got 255 (first at index 2)"),
    "wrapped label": ({"labels": np.array([0, 1, 2**64 - 1, 0], "u8")}, "got 1.8", "index 2"),
    "wide label": ({"labels": np.array([0, 1, 256, 0], "i2")}, "got 256 (first at index 2)"),
    "text labels": (
        {"labels": ["no", "yes", "no", "yes"]},
        "got 'no' (first at index 0)",
        "numpy.asarray(labels) == 'no'",
    ),
    "missing label": ({"labels": [0, 1, None, 1]}, "labels", "got None (first at index 2)"),
    "NA label": (
        {"labels": pd.Series([False, True, None, True], dtype="boolean")},
        "got <NA> (first at index 2). Drop the rows whose label is missing.",
    ),
    "short labels": ({"labels": [0, 1, 1]}, "labels must have one entry per score; got 3 for 4"),
    "negative weight": ({"weights": [1, -0.5, 1, 1]}, "weights", "got -0.5 (first at index 1)"),
    "nan weight": ({"weights": [1, 1, 1, np.nan]}, "weights", "got nan (first at index 3)"),
    "inf weight": ({"weights": [np.inf, 1, 1, 1]}, "weights", "got inf (first at index 0)"),
    "short weights": ({"weights": [1.0]}, "weights must have one entry per score; got 1 for 4"),
    "text weights": ({"weights": list("abcd")}, "weights must be real numbers"),
    "signalling nan group": (
        {"groups": [decimal.Decimal("sNaN")] * 4},
        "groups must be hashable values; got Decimal('sNaN') at index 0",
    ),
    "short groups": ({"groups": [1, 2]}, "groups must have one entry per score; got 2 for 4"),
    "wide groups": ({"groups": np.zeros((4, 2))}, "groups must have the shape", "got (4, 2)"),
    "missing group": ({"groups": ["a", None, "a", "b"]}, "groups", "got None (first at index 1)"),
    "nan group": ({"groups": [1.0, 2.0, np.nan, 1.0]}, "groups", "nan", "index 2"),
    "nan among objects": ({"groups": np.array(["a", np.nan] * 2, object)}, "nan (first at"),
    "NA group": ({"groups": pd.Series(["a", pd.NA, "a", "b"], dtype=object)}, "<NA> (first at"),
    "NaT group": ({"groups": np.array(["NaT", 1, 1, 1], "M8[s]")}, "groups", "index 0"),
    "unhashable group": ({"groups": [[1], [2], [1], [2]]}, "hashable values; got [1] at index 0"),
    "negative margin": ({"margin": -1.0}, "margin must be a finite number of at least 0; got -1.0"),
    "nan margin": ({"margin": np.nan}, "margin", "got nan"),
    "text margin": ({"margin": "1"}, "margin", "got '1'"),
    "huge margin": ({"margin": 10**400}, "margin must be a finite number"),
    "margins": ({"margin": np.ones(4)}, "margin must be a finite number"),
    "text array margin": ({"margin": np.array("x")}, "margin must be a finite number"),
    "reduction": ({"reduction": "none"}, "reduction must be 'mean'", "or 'sum'; got 'none'"),
    "surrogate": ({"surrogate": "hinge"}, "surrogate must be one of 'square'", "got 'hinge'"),
}


@pytest.mark.parametrize(
    ("changes", "pieces"), [(m[0], m[1:]) for m in MISTAKES.values()], ids=MISTAKES
)
def test_invalid_arguments_raise(backend, changes, pieces):
    arguments = {"scores": SCORES, "labels": LABELS, **changes}
    with pytest.raises(ValueError, match=r"must") as error:
        backend.loss_and_grad(**arguments)
    for piece in pieces:
        assert piece in str(error.value)
    with pytest.raises(ValueError, match=r"must") as oracle_error:
        ep.naive.pair_loss(**arguments)
    assert str(oracle_error.value) == str(error.value)


@pytest.mark.parametrize("function", ["loss_and_grad", "auc"])
@pytest.mark.parametrize("name", ["scores", "labels", "weights"])
def test_the_index_of_an_invalid_value_does_not_depend_on_groups(backend, name, function):
    arguments = {"scores": SCORES, "labels": LABELS, "weights": [1.0] * 4}
    arguments[name] = [*arguments[name][:3], np.nan]
    with pytest.raises(ValueError, match=rf"^{name} .* index 3"):
        getattr(backend, function)(**arguments, groups=["b", "a", "b", "a"])


def test_invalid_scores_are_reported_first(backend):
    with pytest.raises(ValueError, match=r"^scores must be finite"):
        backend.loss([np.nan, 1.0], [0, 2], weights=[-1.0, 1.0])


@pytest.mark.parametrize("vector", [[1, np.nan, 0, 0], [1, 2], np.zeros((4, 2)), list("abcd")])
def test_invalid_vectors_raise(backend, vector):
    with pytest.raises(ValueError, match=r"^vector must"):
        backend.hvp(SCORES, LABELS, vector)


def test_tensors_on_other_devices_raise():
    with pytest.raises(ValueError, match=r"tensor on meta\. Use everypair.torch"):
        ep.pair_loss(torch.zeros(4, device="meta"), LABELS)


def test_scores_whose_sum_overflows_are_accepted(backend):
    assert backend.auc([1.7e308, 1.6e308], [1, 0]) == 1.0


LONG = 2**53 + 1  # the first whole number that float64 does not hold
LONG_SCORES = {
    "list": [LONG, LONG - 1],
    "list with a float": [LONG, 0.5],
    "objects": [LONG, 2**70],
    "int64": np.array([LONG, LONG - 1]),
    "column": np.array([[LONG], [LONG - 1]]),
    "uint64": np.array([2**64 - 1, 2**64 - 2], np.uint64),
    "negative": np.array([-(2**63) + 1, -(2**63)]),
    "Series": pd.Series([LONG, LONG - 1]),
    "nullable Series": pd.Series([LONG, LONG - 1], dtype="Int64"),
    "Arrow": pa.array([LONG, LONG - 1]),
    "tensor": torch.tensor([LONG, LONG - 1]),
}


@pytest.mark.parametrize("kind", LONG_SCORES)
def test_whole_numbers_that_float64_does_not_hold_are_refused(kind):
    scores, times = LONG_SCORES[kind], np.abs(LONG_SCORES["int64"])
    for function in (
        lambda: ep.auc(scores, [1, 0]),
        lambda: ep.pair_loss(scores, [1, 0]),
        lambda: ep.PairAccumulator().add(scores, [1, 0]),
        lambda: ep.pair_row_sums(scores),
        lambda: ep.pair_loss([0.0, 1.0], (times, [1, 1]), pairs="survival"),
        lambda: ep.pair_loss([0.0, 1.0], times, pairs="survival"),
    ):
        with pytest.raises(ValueError, match=r"that float64 holds; got -?\d+ \(first at index 0\)"):
            function()


def test_whole_numbers_that_float64_holds_are_scores_of_any_size():
    for scores in ([2**53 + 2, 2**53], [2**62 + 2**10, 2**62], [-(2**53), -(2**63)], [2**90, 0.5]):
        assert ep.auc(scores, [1, 0]) == 1.0


def test_targets_of_any_size_are_ordered_exactly(backend):
    assert backend.auc([1.0, 0.0], LONG_SCORES["int64"], pairs="ordered") == 1.0


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        ep.pair_loss(SCORES, LABELS, "square")


def test_a_kernel_that_rejects_valid_data_is_reported_as_a_bug(monkeypatch):
    class Refusing:
        evaluate = concordance = staticmethod(lambda *_: (1, 0.0, 0.0))

    monkeypatch.setattr(choose.native, "kernel", Refusing)
    with choose.backend("native"):
        for function in (ep.pair_loss, ep.auc):
            with pytest.raises(RuntimeError, match="please report"):
                function(SCORES, LABELS)
