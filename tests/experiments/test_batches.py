"""Batches follow from the seed alone, and their counts equal counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Settings
from everypair.experiments.training.batches import Batches

LABELS = (torch.arange(103) % 10 == 0).float()


def made(labels=LABELS, groups=None, *, size=10, seed=0, fixed=False, augmented=False, **settings):
    settings = Settings(**settings)
    return Batches(
        labels, groups, size=size, settings=settings, seed=seed, fixed=fixed, augmented=augmented
    )


def rows_of(batches, epoch):
    return [batch.rows.tolist() for batch in batches.epoch(epoch)]


@pytest.mark.parametrize("size", [1, 10, 103, 500, 0])
def test_an_epoch_has_every_row_once_in_an_order_independent_of_the_size(size):
    drawn = rows_of(made(size=size), 1)
    whole = np.concatenate(drawn)
    assert sorted(whole) == list(range(103))
    assert np.array_equal(whole, np.concatenate(rows_of(made(size=7), 1)))
    assert len(made(size=size)) == len(drawn)
    assert {len(rows) for rows in drawn[:-1]} <= {size}


def test_labels_groups_and_random_numbers_match_their_rows():
    groups = torch.arange(103) // 5
    batches = made(groups=groups, augmented=True)
    for batch in batches.epoch(1):
        assert torch.equal(batch.labels, LABELS[batch.rows])
        assert torch.equal(batch.groups, groups[batch.rows])
        assert batch.numbers.shape == (3, len(batch.rows))
    plain = next(made().epoch(1))
    assert plain.groups is None
    assert plain.numbers is None


def test_epochs_and_seeds_give_different_but_repeatable_batches():
    assert rows_of(made(), 1) == rows_of(made(), 1)
    assert rows_of(made(), 1) != rows_of(made(), 2)
    assert rows_of(made(), 1) != rows_of(made(seed=1), 1)


def test_random_numbers_do_not_depend_on_the_batch_size():
    def numbers(size, epoch=1):
        return torch.cat([b.numbers for b in made(size=size, augmented=True).epoch(epoch)], dim=1)

    assert torch.equal(numbers(10), numbers(33))
    assert not torch.equal(numbers(10), numbers(10, epoch=2))


@pytest.mark.parametrize("sampler", ["shuffle", "stratified"])
def test_fixed_batches_change_only_their_order(sampler):
    batches = made(fixed=True, sampler=sampler)
    first, second = ({b.place: b.rows.tolist() for b in batches.epoch(e)} for e in (1, 2))
    assert first == second
    assert list(first) != list(second)
    assert sorted(first) == list(range(len(batches)))


def test_stratified_batches_hold_both_classes():
    labels = (torch.arange(103) < 3).float()
    batches = made(labels, sampler="stratified")
    drawn = list(batches.epoch(1))
    assert all(0 < batch.labels.sum() < len(batch.rows) for batch in drawn)
    assert len(drawn) == len(batches)
    assert batches.n_one_class == 0
    assert rows_of(batches, 1) != rows_of(batches, 2)
    assert len(rows_of(made(labels, size=0, sampler="stratified"), 1)) == 1


def test_stratified_batches_of_one_row_are_refused():
    with pytest.raises(UserError, match=r"batch must be at least 2 .* got 1"):
        made(size=1, sampler="stratified")


@pytest.mark.parametrize("n_groups", [0, 1, 4])
def test_counts_batches_without_a_pair(n_groups):
    groups = torch.arange(103) % n_groups * 1000 if n_groups else None
    batches = made(groups=groups, size=5)
    expected = 0
    for batch in [*batches.epoch(1), *batches.epoch(2)]:
        group_of = batch.groups if n_groups else torch.zeros(len(batch.rows))
        expected += not any(
            len(batch.labels[group_of == g].unique()) == 2 for g in group_of.unique()
        )
    assert batches.n_one_class == expected
    assert 0 < expected < 2 * len(batches)


def test_protocol_paper_skips_batches_without_a_positive():
    everything, kept = made(size=5), made(size=5, protocol="paper")
    drawn = [rows for rows in rows_of(everything, 1) if LABELS[rows].any()]
    assert rows_of(kept, 1) == drawn
    assert kept.n_one_class == everything.n_one_class
