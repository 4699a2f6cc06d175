"""A stream has the result of all its rows, however they are cut, ordered and merged."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everypair as ep
from everypair.kernel import choose
from everypair.streaming import MajorityCounts, evaluate_across

CLOSE = {"rel": 1e-12, "abs": 1e-14}
ALL = ep.surrogates.names()


def rows(seed, n, *, dtype=np.float32, ties=True, positives=0.3, classes=2):
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
    found = ep.PairAccumulator(**options)
    for part in parts:
        more = [None if x is None else np.asarray(x)[part] for x in (weights, groups)]
        found.add(scores[part], labels[part], *more)
    return found


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(2, 60),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_equals_the_functions_of_arrays(seed, n, dtype, ties):
    scores, labels = rows(seed, n, dtype=dtype, ties=ties)
    found = filled(parts_of(n, seed), scores, labels).result(ALL, max_fpr=0.4, min_tpr=0.2)
    assert found.auc == ep.auc(scores, labels)
    assert found.auc_bound == 0.0
    expected = ep.partial_auc(scores, labels, max_fpr=0.4, min_tpr=0.2)
    assert found.partial_auc == pytest.approx(expected, **CLOSE)
    for name, loss in found.losses.items():
        assert loss == pytest.approx(ep.pair_loss(scores, labels, surrogate=name), rel=1e-6)
    if min(labels.sum(), (~labels).sum()) > 1:
        expected = ep.delong(scores, labels)
        assert (found.variance, found.low, found.high) == pytest.approx(expected[1:], **CLOSE)
    else:
        assert found.variance is found.low is found.high is None


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 60), st.booleans(), st.booleans())
def test_any_order_and_partition_gives_the_same_bits(seed, n, weighted, grouped):
    scores, labels = rows(seed, n)
    random = np.random.default_rng(seed)
    weights = random.integers(0, 3, n) + 0.1 if weighted else None
    groups = np.array(list("abc"))[random.integers(0, 3, n)] if grouped else None
    if grouped:
        groups[:2] = "a"
    more = (weights, groups)
    whole = filled([np.arange(n)], scores, labels, *more).result(ALL, max_fpr=0.5)
    cut = filled(parts_of(n, seed), scores, labels, *more)
    assert cut.result(ALL, max_fpr=0.5) == whole
    merged = ep.PairAccumulator()
    for part in parts_of(n, seed + 1):
        merged.merge(filled([part], scores, labels, *more))
    assert merged.result(ALL, max_fpr=0.5) == whole
    assert pickle.loads(pickle.dumps(merged)).result(ALL, max_fpr=0.5) == whole


def test_equals_the_double_sum_with_weights_and_groups():
    scores, labels = rows(1, 80)
    random = np.random.default_rng(1)
    weights, groups = random.random(80), random.integers(0, 4, 80)
    found = filled(parts_of(80, 2), scores, labels, weights, groups)
    result = found.result(margin=0.5, max_fpr=0.3)
    options = {"weights": weights, "groups": groups}
    expected = ep.naive.pair_loss(scores, labels, margin=0.5, **options)
    assert result.losses["squared_hinge"] == pytest.approx(expected, rel=1e-6)
    assert result.auc == pytest.approx(ep.auc(scores, labels, **options), **CLOSE)
    assert result.low is None
    by_group = found.result_by_group()
    assert list(by_group) == [0, 1, 2, 3]
    for group, of_group in by_group.items():
        rows_here = groups == group
        mine = {"scores": scores[rows_here], "labels": labels[rows_here]}
        assert of_group.auc == pytest.approx(ep.auc(**mine, weights=weights[rows_here]), **CLOSE)
        assert of_group.n_rows == rows_here.sum()


def test_rows_may_follow_a_result():
    scores, labels = rows(3, 50)
    found = filled([np.arange(20)], scores, labels)
    assert found.result().auc == ep.auc(scores[:20], labels[:20])
    found.add(scores[20:], labels[20:])
    found.add([], [])
    assert found.result().auc == ep.auc(scores, labels)
    assert (found.n_rows, found.n_pos) == (50, labels.sum())


def test_float64_scores_after_float32_scores_are_kept():
    found = ep.PairAccumulator()
    found.add(np.array([1.0, 2.0], np.float32), [1, 0])
    found.add(np.array([1.0 + 1e-12, 0.0]), [0, 1])
    assert found.result().auc == 0.0


def test_larger_classes_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr("everypair.streaming.rank_sums._BLOCKS_AT_ONCE", 8)
    monkeypatch.setattr("everypair.streaming.stream_rows._LARGEST_BLOCK", 16)
    monkeypatch.setattr("everypair.streaming.stream_rows._SMALLEST_BLOCK", 2)
    monkeypatch.setattr("everypair.streaming.stream_rows._PARALLEL_FROM", 32)
    for positives in (0.1, 0.9):
        scores, labels = rows(4, 300, positives=positives)
        found = filled(parts_of(300, 4), scores, labels).result(max_fpr=0.3)
        assert found.auc == ep.auc(scores, labels)
        expected = ep.delong(scores, labels)
        assert found.variance == pytest.approx(expected.variance, **CLOSE)
        expected = ep.partial_auc(scores, labels, max_fpr=0.3)
        assert found.partial_auc == pytest.approx(expected, **CLOSE)


def test_sums_of_large_counts_are_exact():
    from everypair.streaming.rank_sums import RankSums

    pos, neg = np.array([10**11, 0, 3, 2 * 10**11]), np.array([0, 10**11, 10**11, 5])
    sums = RankSums(int(pos.sum()), int(neg.sum()))
    sums.add(pos, neg)
    a, b = [int(x) for x in pos], [int(x) for x in neg]
    twice = [2 * sum(b[:i]) + b[i] for i in range(4)]
    assert sums._sums[0] == sum(p * t for p, t in zip(a, twice, strict=True))
    assert sums._squares[0] == sum(p * t * t for p, t in zip(a, twice, strict=True))


def test_swapped_classes_have_the_complement():
    scores, labels = rows(5, 60)
    for mode in ("exact", "bounded"):
        found = filled([np.arange(60)], scores, labels, mode=mode)
        before = found.result().auc
        found.swap_classes()
        assert found.result().auc == pytest.approx(1.0 - before, abs=1e-15)
        assert found.n_pos == (~labels).sum()


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_a_checkpoint_has_everything(tmp_path, mode):
    scores, labels = rows(6, 90)
    path = tmp_path / "state.npz"
    ep.PairAccumulator(mode=mode).save(path)
    assert ep.PairAccumulator.load(path).n_rows == 0
    first = filled([np.arange(40)], scores, labels, mode=mode)
    first.save(path)
    found = ep.PairAccumulator.load(path)
    assert found.n_rows == 40
    found.add(scores[40:], labels[40:])
    assert found.result() == filled([np.arange(90)], scores, labels, mode=mode).result()
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]


def test_a_checkpoint_has_weights_and_groups(tmp_path):
    scores, labels = rows(6, 90)
    groups = np.array(["a", "ß"])[np.arange(90) // 2 % 2]
    found = filled([np.arange(90)], scores, labels, np.arange(90.0), groups)
    found.save(tmp_path / "state")
    assert ep.PairAccumulator.load(tmp_path / "state").result() == found.result()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 60), st.booleans())
def test_two_passes_give_the_same_result(seed, n, ties):
    scores, labels = rows(seed, n, ties=ties)
    expected = filled([np.arange(n)], scores, labels).result(max_fpr=0.4)
    chunks = [(scores[part], labels[part]) for part in parts_of(n, seed) if part.size]
    for rare in ("positive", "negative"):
        found = ep.evaluate_twice(lambda: chunks, max_fpr=0.4, rare=rare)
        assert (found.auc, found.variance, found.low) == (
            expected.auc, expected.variance, expected.low
        )  # fmt: skip
        assert found.partial_auc == pytest.approx(expected.partial_auc, **CLOSE)
        exact = ep.pair_loss(scores.astype(np.float64), labels)
        assert found.losses["squared_hinge"] == pytest.approx(exact, **CLOSE)


def test_two_passes_must_agree():
    passes = iter([[([1.0, 2.0], [1, 0])], [([1.0, 2.0, 3.0], [1, 0, 0])]])
    with pytest.raises(ValueError, match="the same rows each time"):
        ep.evaluate_twice(lambda: next(passes))
    with pytest.raises(ValueError, match="both classes"):
        ep.evaluate_twice(lambda: [([1.0], [1])])
    with pytest.raises(ValueError, match="rare must be"):
        ep.evaluate_twice(list, rare="both")


def test_the_second_pass_can_be_merged():
    scores, labels = rows(8, 200)
    minority = scores[labels]
    parts = []
    for part in np.array_split(scores[~labels], 3):
        parts.append(MajorityCounts(minority, positive=True))
        parts[-1].add(part)
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    assert parts[0].result().auc == ep.auc(scores, labels)
    with pytest.raises(ValueError, match="same smaller class"):
        parts[0].merge(MajorityCounts(minority[1:], positive=True))


@pytest.mark.parametrize("mode", ["exact", "bounded"])
@pytest.mark.parametrize("positives", [0.02, 0.98])
def test_workers_share_one_result(mode, positives):
    scores, labels = rows(9, 400, positives=positives)
    parts = [*np.array_split(np.arange(400), 3), np.arange(0)]
    workers = [filled([part], scores, labels, mode=mode) for part in parts]
    found = _together(workers, max_fpr=0.2)
    whole = filled([np.arange(400)], scores, labels, mode=mode).result(max_fpr=0.2)
    assert all(result == found[0] for result in found)
    assert found[0].auc == whole.auc
    assert found[0].variance == whole.variance
    assert found[0].losses["squared_hinge"] == pytest.approx(
        whole.losses["squared_hinge"], rel=1e-6
    )


def test_workers_raise_together():
    workers = [filled([np.arange(9)], *rows(1, 9)), ep.PairAccumulator(mode="bounded")]
    errors = _together(workers)
    assert all("mode and bits must be equal" in str(error) for error in errors)
    one_class = [ep.PairAccumulator() for _ in range(2)]
    one_class[0].add([1.0, 2.0], [1, 1])
    assert all("both classes" in str(error) for error in _together(one_class))
    workers[1] = filled([np.arange(9)], *rows(1, 9), weights=np.ones(9))
    assert all("worker 1 has them" in str(error) for error in _together(workers))


def _together(workers, **options):
    """Return what `evaluate_across` returns or raises for workers in threads of this process."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

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


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32), st.integers(2, 60), st.sampled_from([16, 18, 20]),
    st.sampled_from([1e-3, 1.0, 1e6]), st.booleans(),
)  # fmt: skip
def test_bounds_hold(seed, n, bits, scale, wide):
    scores, labels = rows(seed, n, dtype=np.float64, ties=False)
    scores = (scores * scale).astype(np.float64 if wide else np.float32)
    found = filled(parts_of(n, seed), scores, labels, mode="bounded", bits=bits)
    names = ("square", "squared_hinge", "linear_hinge", "huber_hinge")
    result = found.result(names, max_fpr=0.4, min_tpr=0.1)
    assert abs(result.auc - ep.auc(scores, labels)) <= result.auc_bound + 1e-15
    part = ep.partial_auc(scores, labels, max_fpr=0.4, min_tpr=0.1)
    assert abs(result.partial_auc - part) <= result.partial_auc_bound + 1e-15
    for name in names:
        exact = ep.pair_loss(scores.astype(np.float64), labels, surrogate=name)
        assert abs(result.losses[name] - exact) <= result.loss_bounds[name]
    if result.low is not None:
        assert result.low <= max(result.auc - result.auc_bound, 0.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 60))
def test_bounded_results_do_not_depend_on_the_partition(seed, n):
    scores, labels = rows(seed, n, ties=False)
    whole = filled([np.arange(n)], scores, labels, mode="bounded").result(max_fpr=0.5)
    merged = ep.PairAccumulator(mode="bounded")
    for part in parts_of(n, seed):
        merged.merge(filled([part], scores, labels, mode="bounded"))
    assert merged.result(max_fpr=0.5) == whole


def test_the_bounds_are_small():
    scores, labels = rows(2, 20_000, ties=False)
    found = filled([np.arange(20_000)], scores, labels, mode="bounded").result()
    assert found.auc_bound < 5e-4
    assert abs(found.auc - ep.auc(scores, labels)) < 1e-5
    assert found.loss_bounds["squared_hinge"] < 1e-6


def test_the_moments_of_buckets_are_exact():
    random = np.random.default_rng(0)
    scores = random.normal(size=200_000).astype(np.float32)
    found = filled(
        [np.arange(200_000)], scores, np.arange(200_000) % 2 == 0, mode="bounded", bits=16
    )
    points, counts, _ = found.store._points()
    total = sum(float((c * x).sum()) for c, x in zip(counts, points, strict=True))
    assert total == pytest.approx(scores.astype(np.float64).sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ep.PairAccumulator(mode="fast"), "mode must be"),
        (lambda: ep.PairAccumulator(mode="bounded", bits=40), "bits must be"),
        (lambda: ep.PairAccumulator().result(), "Call add first"),
        (lambda: filled([np.arange(2)], *rows(0, 2)).result_by_group(), "groups must be added"),
        (lambda: filled([np.arange(2)], *rows(0, 2), mode="bounded").rows(), "'exact'"),
        (lambda: filled([np.arange(2)], *rows(0, 2), [1.0, 1.0], mode="bounded"), "left out"),
        (lambda: filled([np.arange(2)], *rows(0, 2), groups=[1.5, 2.5]), "integers or strings"),
        (lambda: filled([np.arange(2)], *rows(0, 2), mode="bounded").result("logistic"), "polynom"),
        (lambda: _mixed(), "for all parts or for none"),
        (lambda: ep.PairAccumulator().merge(ep.PairAccumulator(mode="bounded")), "mode must be"),
        (lambda: ep.PairAccumulator(mode="bounded", bits=16).merge(
            ep.PairAccumulator(mode="bounded")), "bits must be equal"),
        (lambda: ep.PairAccumulator(mode="bounded").add([1e300, 0.0], [1, 0]), "range of float32"),
        (lambda: filled([np.arange(2)], np.array([np.nan, 0]), np.arange(2)), "finite"),
        (lambda: filled([np.arange(2)], np.ones(2), np.ones(2)).result(), "both classes"),
        (lambda: filled([np.arange(2)], np.ones(2), np.ones(2), mode="bounded").result(), "both"),
        (lambda: ep.PairAccumulator().add([1.0, 2.0], [1, 0], groups=[1]), "one entry per score"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def _mixed():
    found = filled([np.arange(2)], *rows(0, 2))
    found.add([1.0], [1], weights=[1.0])


@pytest.mark.parametrize("mode", ["exact", "bounded"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i4", "i8", "f4", "f8"])
def test_the_compiled_kernel_and_numpy_keep_the_same_rows(mode, dtype):
    scores, labels = rows(7, 3000, ties=False)
    scores[:50] = np.repeat([0.0, -0.0, 1e-42, -1e-42, 3e38], 10)
    states = []
    for backend in ("auto", "numpy"):
        with choose.backend(backend):
            states.append(
                filled(parts_of(3000, 7), scores, labels.astype(dtype), mode=mode).state()
            )
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
    found = ep.PairAccumulator()
    with choose.backend(backend), pytest.raises(ValueError, match=text):
        found.add(scores, labels)
    assert found.n_rows == 0
