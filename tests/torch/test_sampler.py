"""Every batch holds both classes, and every row is used."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from everypair.torch.training.sampler import StratifiedBatchSampler


def labels_of(n_pos, n_neg, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat([1, 0], [n_pos, n_neg]))


@st.composite
def settings_of_samplers(draw):
    options = {
        "min_per_class": draw(st.integers(1, 4)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
        "world_size": draw(st.integers(1, 4)),
    }
    batch_size = draw(st.integers(2 * options["min_per_class"], 40))
    if draw(st.booleans()):
        options["positives"] = draw(st.floats(0.01, 0.99))
    return labels_of(draw(st.integers(1, 60)), draw(st.integers(1, 200))), batch_size, options


def all_ranks(labels, batch_size, world_size=1, **options):
    return [
        list(
            StratifiedBatchSampler(labels, batch_size, rank=rank, world_size=world_size, **options)
        )
        for rank in range(world_size)
    ]


@given(settings_of_samplers())
@example((labels_of(500, 500), 10, {"positives": 0.1, "min_per_class": 1}))  # repeats negatives
def test_every_batch_has_both_classes_and_every_row_is_used(drawn):
    labels, batch_size, options = drawn
    by_rank = all_ranks(labels, batch_size, **options)
    assert len({len(batches) for batches in by_rank}) == 1
    batches = [batch for batches in by_rank for batch in batches]
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= min(batch_size, min(sizes) + (2 if "positives" in options else 1))
    fewest = options["min_per_class"]
    for cls in (0, 1):
        rows = np.flatnonzero(labels == cls)
        of_class = [[row for row in batch if labels[row] == cls] for batch in batches]
        assert min(map(len, of_class)) >= fewest
        # A row is twice in a batch only if the batch needs more rows than there are.
        for part in of_class:
            assert max(Counter(part).values()) <= -(-len(part) // len(rows))
        seen = Counter(chain(*of_class))
        times = [seen[row] for row in rows]
        assert 1 <= min(times) <= max(times) <= min(times) + 1
        if "positives" not in options and 2 * len(rows) > len(labels):
            assert max(times) == 1 or len(rows) < fewest * len(batches)


@pytest.mark.parametrize(("positives", "expected"), [(0.5, 50), (0.1, 10), (7, 7)])
def test_a_fixed_share_is_kept(positives, expected):
    labels = labels_of(20, 4000)
    sampler = StratifiedBatchSampler(labels, 100, positives=positives, drop_last=True)
    assert {(int(labels[b].sum()), len(b)) for b in sampler} == {(expected, 100)}
    for batch in StratifiedBatchSampler(labels, 100, positives=positives):
        assert labels[batch].sum() == pytest.approx(expected * len(batch) / 100, abs=1.0)


@pytest.mark.parametrize("n_pos", [1, 30, 480])
def test_drop_last_gives_full_batches_of_distinct_rows(n_pos):
    labels = labels_of(n_pos, 1003 - n_pos)
    sampler = StratifiedBatchSampler(labels, 100, drop_last=True)
    batches = list(sampler)
    assert {len(batch) for batch in batches} == {100}
    assert len(batches) == 10
    seen = Counter(row for batch in batches for row in batch)
    assert all(seen[row] for row in np.flatnonzero(labels == 1))
    assert all(seen[row] <= 1 for row in np.flatnonzero(labels == 0))


def test_each_pass_is_a_new_epoch_and_set_epoch_selects_one():
    sampler = StratifiedBatchSampler(labels_of(10, 90), 10)
    first, second = list(sampler), list(sampler)
    assert first != second
    resumed = StratifiedBatchSampler(labels_of(10, 90), 10)
    resumed.set_epoch(1)
    assert list(resumed) == second
    resumed.set_epoch(0)
    next(iter(resumed))
    assert resumed.epoch == 1, "a pass that was left early counts as an epoch"
    assert list(resumed) == second


def test_seeds_differ_and_global_generators_are_not_used():
    labels = labels_of(10, 90)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    passes = [list(StratifiedBatchSampler(labels, 10, seed=seed)) for seed in (0, 1, 0)]
    assert passes[0] != passes[1]
    assert passes[0] == passes[2]
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002
    rows = [r for b in StratifiedBatchSampler(labels, 20, shuffle=False) for r in b]
    assert [r for r in rows if labels[r] == 0] == np.flatnonzero(labels == 0).tolist()


def test_works_with_a_data_loader_and_workers():
    labels = torch.from_numpy(labels_of(3, 97)).float()
    data = TensorDataset(torch.arange(100.0), labels)
    sampler = StratifiedBatchSampler(labels, 10)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1)
    assert len(loader) == len(sampler) == 11
    seen = torch.cat([x for x, _ in loader])
    assert set(seen.int().tolist()) == set(range(100))


def test_an_epoch_starts_without_a_list_of_all_rows():
    n = 1_000_000
    labels = torch.arange(n) >= n - 3
    tracemalloc.start()
    first = next(iter(StratifiedBatchSampler(labels, 1000, min_per_class=2)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert int(labels[first].sum()) == 2
    assert peak < 30 * n  # a list of whole numbers takes 40 bytes a row


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1, 0], [-1, 1, 1, -1], [False, True, True, False], torch.tensor([0.0, 1, 1, 0])],
)
def test_all_codings_of_labels(labels):
    assert list(StratifiedBatchSampler(labels, 2, shuffle=False)) == [[0, 1], [3, 2]]


@pytest.mark.parametrize(
    ("labels", "batch_size", "options", "says"),
    [
        ([0, 0, 0], 2, {}, "both classes; got 0 positives and 3 negatives"),
        ([0, 1, 2], 2, {}, "got 2 .first at index 2."),
        ([], 2, {}, "got 0 positives and 0 negatives"),
        ([0, 1], 1, {}, "batch_size must be a whole number of at least 2; got 1"),
        ([0, 1], 2.0, {}, "batch_size must be a whole number"),
        ([0, 1], 4, {"min_per_class": 3}, "a batch_size of at least 6"),
        ([0, 1], 4, {"min_per_class": 0}, "min_per_class"),
        ([0, 1], 4, {"positives": 1.5}, "positives must be a share between 0 and 1.*got 1.5"),
        ([0, 1], 4, {"positives": 4}, "a whole number from 1 to 3.*got 4"),
        ([0, 1], 4, {"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ([0, 1], 4, {"stratify": "batch"}, "stratify must be 'rank' or 'global'; got 'batch'"),
        ([0, 1], 4, {"stratify": "global", "world_size": 3}, "a batch of 2 rows for 3 ranks"),
        ([0, 1], 4, {"seed": -1}, "seed"),
        ([0, 1], 4, {"drop_last": True}, "Use a smaller batch_size"),
        ([1.0, 1.0, 1.0], 2, {"pairs": "ordered"}, "at least two different targets"),
        ([-1.0, -2.0, -3.0], 2, {"pairs": "survival"}, "at least one event"),
        ([0, 1, 1], 2, {"pairs": "all"}, "pairs must be"),
    ],
)
def test_bad_arguments_raise(labels, batch_size, options, says):
    with pytest.raises(ValueError, match=says):
        StratifiedBatchSampler(labels, batch_size, **options)


@given(settings_of_samplers(), st.booleans())
def test_global_batches_are_those_of_one_process_divided_among_ranks(drawn, drop_last):
    labels, batch_size, options = drawn
    world_size = options.pop("world_size")
    whole_size, options["drop_last"] = batch_size * world_size, drop_last
    try:
        whole = list(StratifiedBatchSampler(labels, whole_size, **options))
    except ValueError:
        return  # too few rows for a full batch
    if min(map(len, whole)) < world_size:
        with pytest.raises(ValueError, match=f"for {world_size} ranks"):
            all_ranks(labels, batch_size, world_size, stratify="global", **options)
        return
    by_rank = all_ranks(labels, batch_size, world_size, stratify="global", **options)
    assert [[*chain(*shares)] for shares in zip(*by_rank, strict=True)] == whole
    for shares in zip(*by_rank, strict=True):
        sizes = [len(share) for share in shares]
        assert 1 <= min(sizes) <= max(sizes) <= min(batch_size, min(sizes) + 1)


@pytest.mark.parametrize(("stratify", "times"), [("rank", 4), ("global", 1)])
def test_global_batches_repeat_no_rare_row_that_is_enough_for_all_ranks(stratify, times):
    labels = labels_of(10, 590)
    by_rank = all_ranks(labels, 20, world_size=4, stratify=stratify)
    seen = Counter(row for batches in by_rank for batch in batches for row in batch if labels[row])
    assert max(seen.values()) == times


def test_every_batch_of_other_targets_has_a_pair():
    rng = np.random.default_rng(0)
    grades = np.where(rng.random(1000) < 0.97, 0, rng.integers(1, 5, 1000))
    for batch in StratifiedBatchSampler(grades, 50, pairs="ordered", min_per_class=2):
        assert (grades[batch] == 0).any()
        assert (grades[batch] > 0).sum() >= 2
    times, events = np.arange(1.0, 201.0), np.arange(200) % 40 == 0
    for labels in ((torch.tensor(times), torch.tensor(events)), np.where(events, times, -times)):
        sampler = StratifiedBatchSampler(labels, 10, pairs="survival")
        assert all(events[batch].any() for batch in sampler)
    for pairs in ("ordered", "survival"):  # real targets, and times without censoring
        middle = StratifiedBatchSampler(torch.tensor(times), 10, pairs=pairs)
        assert (middle.n_pos, middle.n_neg) == (100, 100)
        assert sorted(chain(*middle)) == list(range(200))
