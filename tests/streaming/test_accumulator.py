"""A stream has the result of all its rows, however they are cut, ordered and merged."""

from __future__ import annotations

import operator
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everypair as ep
from everypair.kernel import choose
from everypair.streaming import MajorityCounts, evaluate_across
from everypair.streaming.rank_sums import rank_metrics

CLOSE = {"rel": 1e-12, "abs": 1e-14}
ALL = ep.surrogates.names()
KINDS = {
    "binary": {},
    "ordered": {"pairs": "ordered"},
    "survival": {"pairs": "survival"},
    "uno": {"pairs": "survival", "censoring": "uno"},
}
seeds, sizes = st.integers(0, 2**32), st.integers(2, 60)
check = settings(deadline=None, max_examples=30)


def rows(seed, n, *, dtype=np.float32, ties=True, positives=0.3):
    """Return scores and labels with at least one row of each class."""
    random = np.random.default_rng(seed)
    labels = random.random(n) < positives
    labels[:2] = [True, False]
    scores = random.normal(size=n) + labels
    return (np.round(scores, 1) if ties else scores).astype(dtype), labels


def parts_of(n, seed):
    """Return the rows in a random order, cut at random places."""
    random = np.random.default_rng(seed)
    return np.split(random.permutation(n), np.sort(random.integers(0, n, random.integers(0, 6))))


def filled(parts, scores, labels, weights=None, groups=None, **options):
    accumulator = ep.PairAccumulator(**options)
    for part in parts:
        more = [None if x is None else np.asarray(x)[part] for x in (weights, groups)]
        accumulator.add(scores[part], labels[part], *more)
    return accumulator


def data_of(kind, seed, n, weighted, grouped):
    """Return scores, labels, weights and groups; the first two rows are a pair."""
    scores, labels = rows(seed, n)
    random = np.random.default_rng(seed)
    if kind == "ordered":
        labels = labels + random.integers(0, 3, n) / 2
        labels[1] = -1.0
    elif kind != "binary":
        times = random.integers(1, 9, n) * 1.0
        times[:2] = 0.0, 10.0
        labels = np.where(labels, times, -times)  # the first is an event, the second censored
    weights = random.integers(0, 3, n) + 0.1 if weighted else None
    groups = np.array(list("abc"))[random.integers(0, 3, n)] if grouped else None
    if grouped:
        groups[:2] = "a"
    return scores, labels, weights, groups


_PART = [1.0, 2.0], [1, 0]


def _two(scores=(1.0, 0.0), labels=(1, 0), weights=None, groups=None, **options):
    return filled([np.arange(2)], np.array(scores), np.array(labels), weights, groups, **options)


BOUNDED, ORDERED = {"mode": "bounded"}, {"pairs": "ordered"}


@check
@given(seeds, sizes, st.sampled_from([np.float32, np.float64]), st.booleans())
def test_equals_the_functions_of_arrays(seed, n, dtype, ties):
    data = rows(seed, n, dtype=dtype, ties=ties)
    rates = {"max_fpr": 0.4, "min_tpr": 0.2}
    result = filled(parts_of(n, seed), *data).result(ALL, **rates)
    assert (result.auc, result.auc_bound) == (ep.auc(*data), 0.0)
    assert result.partial_auc == pytest.approx(ep.partial_auc(*data, **rates), **CLOSE)
    losses = {name: ep.pair_loss(*data, surrogate=name) for name in ALL}
    assert result.losses == pytest.approx(losses, rel=1e-6)
    interval = (result.variance, result.low, result.high)
    if min(result.n_pos, result.n_neg) > 1:
        assert interval == pytest.approx(ep.delong(*data)[1:], **CLOSE)
    else:
        assert interval == (None, None, None)


@check
@given(st.sampled_from(sorted(KINDS)), seeds, sizes, st.booleans(), st.booleans())
def test_any_order_and_partition_gives_the_same_bits(kind, seed, n, weighted, grouped):
    data, options = data_of(kind, seed, n, weighted, grouped), KINDS[kind]
    rates = {"max_fpr": 0.5} if kind == "binary" else {}
    whole = filled([np.arange(n)], *data, **options).result(ALL[:3], **rates)
    assert filled(parts_of(n, seed), *data, **options).result(ALL[:3], **rates) == whole
    merged = ep.PairAccumulator(**options)
    for part in parts_of(n, seed + 1):
        merged.merge(filled([part], *data, **options))
    assert merged.result(ALL[:3], **rates) == whole
    assert pickle.loads(pickle.dumps(merged)).result(ALL[:3], **rates) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_double_sum_with_weights_and_groups(kind):
    scores, labels, weights, groups = data = data_of(kind, 1, 80, True, True)
    accumulator = filled(parts_of(80, 2), *data, **KINDS[kind])
    result = accumulator.result(margin=0.5)
    options = {"weights": weights, "groups": groups, **KINDS[kind]}
    expected = ep.naive.pair_loss(scores, labels, margin=0.5, **options)
    assert result.losses["squared_hinge"] == pytest.approx(expected, rel=1e-6)
    assert result.auc == pytest.approx(ep.naive.auc(scores, labels, **options), **CLOSE)
    assert result.low is None
    if kind == "binary":
        part = ep.partial_auc(scores, labels, weights=weights, groups=groups, max_fpr=0.3)
        assert accumulator.result(max_fpr=0.3).partial_auc == pytest.approx(part, **CLOSE)
    by_group = accumulator.result_by_group(())
    assert list(by_group) == ["a", "b", "c"]
    for group, of_group in by_group.items():
        x, y, w = (column[groups == group] for column in (scores, labels, weights))
        expected = ep.delong(x, y, weights=w, **KINDS[kind])
        assert (of_group.auc, of_group.variance) == pytest.approx(expected[:2], **CLOSE)
        assert of_group.n_rows == x.size


def test_rows_may_follow_a_result_and_may_be_wider():
    scores, labels = rows(3, 50)
    accumulator = filled([np.arange(20)], scores, labels)
    assert accumulator.result().auc == ep.auc(scores[:20], labels[:20])
    accumulator.add(scores[20:], labels[20:])
    accumulator.add([], [])
    accumulator.add(more := np.array([1.0 + 1e-12, 1.0]), [True, False])
    expected = ep.auc(np.append(scores, more), np.append(labels, [True, False]))
    assert accumulator.result().auc == expected
    assert (accumulator.n_rows, accumulator.n_pos) == (52, labels.sum() + 1)


def test_larger_classes_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr("everypair.streaming.rank_sums._BLOCKS_AT_ONCE", 8)
    monkeypatch.setattr("everypair.streaming.two_passes._LEAST_ROWS", 8)
    monkeypatch.setattr("everypair.streaming.stream_rows._LARGEST_BLOCK", 16)
    monkeypatch.setattr("everypair.streaming.stream_rows._SMALLEST_BLOCK", 2)
    monkeypatch.setattr("everypair.streaming.stream_rows._PARALLEL_FROM", 32)
    for positives in (0.1, 0.9):
        scores, labels = rows(4, 300, positives=positives)
        result = filled(parts_of(300, 4), scores, labels).result(max_fpr=0.3)
        assert result.auc == ep.auc(scores, labels)
        expected = ep.delong(scores, labels).variance, ep.partial_auc(scores, labels, max_fpr=0.3)
        assert (result.variance, result.partial_auc) == pytest.approx(expected, **CLOSE)
        chunks = [(scores[part], labels[part]) for part in np.array_split(np.arange(300), 4)]
        assert ep.evaluate_twice(chunks.copy).auc == result.auc


def test_a_bucket_holds_a_limited_number_of_rows():
    accumulator = _two(**BOUNDED, bits=16)
    accumulator.store.table[0, accumulator.state()[1]["used"][0], 0] = (1 << 31) + 1
    with pytest.raises(OverflowError, match=r"at most 2147483648 rows.*Use more bits"):
        accumulator.result()


@pytest.mark.parametrize("scale", [1, 10**5, 10**9, 10**11, 10**14])
def test_sums_of_large_counts_are_exact(scale):
    counts = np.array([[scale, 0, 3, 2 * scale], [0, scale, scale, 5]])
    (a, b), variance = counts.tolist(), 0
    for x, y in ((a, b), (b, a)):
        n, total = sum(x), sum(y)
        below = [Fraction(2 * sum(y[:i]) + y[i], 2 * total) for i in range(4)]
        mean = sum(map(operator.mul, x, below)) / n
        squares = (k * (share - mean) ** 2 for k, share in zip(x, below, strict=True))
        variance += sum(squares) / (n * (n - 1))
    metrics = rank_metrics([counts[:, :3], counts[:, 3:]], (sum(a), sum(b)))
    assert metrics.variance == float(variance)
    assert metrics.auc == float(1 - mean)
    assert metrics.auc_bound == float(Fraction(3 * scale + 10 * scale, 2 * sum(a) * sum(b)))


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_swapped_classes_have_the_complement(mode):
    scores, labels = rows(5, 60)
    accumulator = filled([np.arange(60)], scores, labels, mode=mode)
    before = accumulator.result().auc
    accumulator.swap_classes()
    assert accumulator.result().auc == pytest.approx(1.0 - before, abs=1e-15)
    assert accumulator.n_pos == (~labels).sum()


@check
@given(seeds, sizes, st.booleans())
def test_two_passes_and_workers_have_the_same_result(seed, n, ties):
    scores, labels = rows(seed, n, ties=ties)
    expected = filled([np.arange(n)], scores, labels).result(max_fpr=0.4)
    chunks = [(scores[part], labels[part]) for part in (*parts_of(n, seed), np.arange(0))]
    workers = [filled([part], scores, labels) for part in parts_of(n, seed + 1)]
    across = _together(workers, max_fpr=0.4)
    assert across == across[:1] * len(workers)
    rares = ("positive", "negative")
    twice = [ep.evaluate_twice(lambda: chunks, max_fpr=0.4, rare=rare) for rare in rares]
    exact = ep.pair_loss(scores.astype(np.float64), labels)
    for result in (*twice, across[0]):
        assert (result.auc, result.variance) == (expected.auc, expected.variance)
        assert (result.low, result.n_rows) == (expected.low, n)
        assert result.partial_auc == pytest.approx(expected.partial_auc, **CLOSE)
        assert result.losses["squared_hinge"] == pytest.approx(exact, **CLOSE)


def test_the_second_pass_can_be_merged():
    scores, labels = rows(8, 200)
    first, *others = (MajorityCounts(scores[labels], positive=True, max_fpr=0.3) for _ in "abc")
    for counts, part in zip((first, *others), np.array_split(scores[~labels], 3), strict=True):
        counts.add(part)
    for other in others:
        first.merge(other)
    result = first.result()
    assert (result.auc, result.n_neg) == (ep.auc(scores, labels), (~labels).sum())
    part = ep.partial_auc(scores, labels, max_fpr=0.3)
    assert result.partial_auc == pytest.approx(part, **CLOSE)
    with pytest.raises(ValueError, match="same smaller class"):
        first.merge(MajorityCounts(scores[:5], positive=True))


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, BOUNDED, "mode and bits must be equal"),
        ({"labels": (1, 1)}, {"labels": (1, 1)}, "both classes"),
        ({}, {"weights": [1.0, 1.0]}, "worker 1 has them"),
        ({}, ORDERED, "worker 1 has them"),
    ],
)
def test_workers_raise_together(first, second, text):
    assert all(text in str(error) for error in _together([_two(**first), _two(**second)]))


def _together(workers, **options):
    """Return what `evaluate_across` returns or raises for workers in threads of this process."""
    barrier, slots = threading.Barrier(len(workers)), [None] * len(workers)

    def run(rank):
        def allreduce(array):
            slots[rank] = array
            barrier.wait(20)
            total = sum(slots[1:], slots[0])
            barrier.wait(20)
            return total

        try:
            return evaluate_across(
                workers[rank], allreduce, rank=rank, world_size=len(workers), **options
            )
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(run, range(len(workers))))


@check
@given(seeds, sizes, st.sampled_from([16, 18]), st.sampled_from([1e-3, 1.0, 1e6]), st.booleans())
def test_bounds_hold(seed, n, bits, scale, wide):
    scores, labels = rows(seed, n, dtype=np.float64, ties=False)
    scores = (scores * scale).astype(np.float64 if wide else np.float32)
    accumulator = filled(parts_of(n, seed), scores, labels, mode="bounded", bits=bits)
    names = ("square", "squared_hinge", "linear_hinge", "huber_hinge")
    result = accumulator.result(names, max_fpr=0.4, min_tpr=0.1)
    assert abs(result.auc - ep.auc(scores, labels)) <= result.auc_bound + 1e-15
    part = ep.partial_auc(scores, labels, max_fpr=0.4, min_tpr=0.1)
    assert abs(result.partial_auc - part) <= result.partial_auc_bound + 1e-15
    for name in names:
        exact = ep.pair_loss(scores.astype(np.float64), labels, surrogate=name)
        assert abs(result.losses[name] - exact) <= result.loss_bounds[name]
    if result.low is not None:
        assert result.low <= max(result.auc - result.auc_bound, 0.0)
    workers = [
        filled([rest], scores, labels, mode="bounded", bits=bits) for rest in parts_of(n, seed + 1)
    ]
    options = {"surrogates": names, "max_fpr": 0.4, "min_tpr": 0.1}
    if bits == 16:  # larger tables take longer
        assert _together(workers, **options) == [result] * len(workers)
    for worker in workers[1:]:
        workers[0].merge(worker)
    assert workers[0].result(**options) == result


def test_the_bounds_are_small():
    scores, labels = rows(2, 20_000, ties=False)
    result = filled([np.arange(20_000)], scores, labels, mode="bounded").result()
    assert result.auc_bound < 5e-4
    assert abs(result.auc - ep.auc(scores, labels)) < 1e-5
    assert result.loss_bounds["squared_hinge"] < 1e-6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ep.PairAccumulator(mode="fast"), "mode must be"),
        (lambda: ep.evaluate_twice(list, rare="both"), "rare must be"),
        (lambda: ep.evaluate_twice(lambda: [([1.0], [1])]), "hold 1 positives and 0 negatives"),
        (lambda: ep.evaluate_twice(iter(([_PART], [_PART, _PART])).__next__), "the same rows each"),
        (lambda: ep.PairAccumulator(mode="bounded", bits=40), "bits must be"),
        (lambda: ep.PairAccumulator(**BOUNDED, **ORDERED), "pairs must be 'binary' for mode='bou"),
        (lambda: ep.PairAccumulator(pairs="graded"), "pairs must be 'binary'"),
        (lambda: ep.PairAccumulator().result(), "0 positives and 0 negatives"),
        (lambda: _two().result_by_group(), "groups must be added"),
        (lambda: _two(**BOUNDED).rows(), "'exact'"),
        (lambda: _two(weights=[1.0, 1.0], **BOUNDED), "left out"),
        (lambda: _two(groups=[1.5, 2.5]), "integers or strings"),
        (lambda: _two(**BOUNDED).result("logistic"), "polynom"),
        (lambda: _two().add([1.0], [1], weights=[1.0]), "for all parts or for none"),
        (lambda: _two().merge(_two(**BOUNDED)), "mode must be"),
        (lambda: _two().merge(_two(**ORDERED)), "pairs and censoring must be equal"),
        (lambda: ep.PairAccumulator(mode="bounded", bits=16).merge(_two(**BOUNDED)), "bits must"),
        (lambda: _two((1e300, 0.0), **BOUNDED), "range of float32"),
        (lambda: _two((np.nan, 0.0)), "finite"),
        (lambda: _two((np.nan, 0.0), **ORDERED), "finite"),
        (lambda: _two(labels=(1, np.inf), **ORDERED), "labels must be finite"),
        (lambda: _two(labels=(1, 1)).result(), "both classes"),
        (lambda: _two(labels=(1, 1), **BOUNDED).result(), "both classes"),
        (lambda: _two(labels=(1, 1), **ORDERED).result(), "at least one pair"),
        (lambda: _two(**ORDERED).result(max_fpr=0.5), "only two classes have a ROC curve"),
        (lambda: ep.PairAccumulator().add([1.0, 2.0], [1, 0], groups=[1]), "one entry per score"),
    ],
)
def test_wrong_arguments_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("mode", ["exact", "bounded"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i4", "i8", "f4", "f8"])
def test_the_compiled_kernel_and_numpy_keep_the_same_rows(mode, dtype):
    scores, labels = rows(7, 3000, ties=False)
    scores[:50] = np.repeat([0.0, -0.0, 1e-42, -1e-42, 3e38], 10)
    states = []
    for backend in ("auto", "numpy"):
        with choose.backend(backend):
            parts = parts_of(3000, 7)
            states.append(filled(parts, scores, labels.astype(dtype), mode=mode).state())
    assert states[0][0] == states[1][0]
    for name, array in states[0][1].items():
        np.testing.assert_array_equal(array, states[1][1][name])


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize(
    ("scores", "labels", "text"),
    [
        ([0.0, np.inf], [0, 1], "scores must be finite"),
        ([0.0, 1.0], [0, 2], "labels must hold two classes"),
        ([0.0, 1.0], [0, -1], "not a mix"),
        ([0.0, 1.0], [0.0, np.nan], "labels must hold two classes"),
    ],
)
def test_bad_values_of_a_part_are_refused_and_leave_no_rows(backend, scores, labels, text):
    accumulator = ep.PairAccumulator()
    for columns in ({}, {"weights": [1.0, 1.0], "groups": ["a", "b"]}):
        with choose.backend(backend), pytest.raises(ValueError, match=text):
            accumulator.add(scores, labels, **columns)
        assert accumulator.n_rows == 0
    accumulator.add([0.0, 1.0], [0, 1], weights=[1.0, 2.0])
    assert accumulator.result().auc == 1.0
