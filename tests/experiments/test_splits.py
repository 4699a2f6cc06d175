"""Splits: numbers of rows, order of the steps, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from everypair.experiments.data import splits
from everypair.experiments.data.sources import Dataset, load
from everypair.experiments.errors import UserError

PROTOCOLS = ("corrected", "paper")


def numbered(n_pos, n_neg, *, groups=None, official=None, **more):
    """Rows whose only feature is the row number; official test rows have negative numbers."""
    positive = np.random.default_rng(0).permutation(np.arange(n_pos + n_neg) < n_pos)
    inputs = np.arange(n_pos + n_neg, dtype=np.float32)[:, None]
    if official:
        more["test_positive"] = np.arange(sum(official)) < official[0]
        more["test_inputs"] = -1 - np.arange(sum(official), dtype=np.float32)[:, None]
    return Dataset("numbered", inputs, positive, groups=groups, **more)


def made(dataset, imratio=0.1, seed=0, protocol="corrected"):
    return splits.split(dataset, imratio=imratio, seed=seed, protocol=protocol)


def rows(part):
    return part.inputs[:, 0].long().tolist()


def counts(split):
    return {
        name: (int(part.labels.sum()), int((part.labels == 0).sum()))
        for name, part in split.parts().items()
    }


def test_positives_are_removed_and_then_both_classes_are_split():
    split = made(numbered(1000, 900, official=(60, 50)))
    assert counts(split) == {"subtrain": (80, 720), "validation": (20, 180), "test": (50, 50)}


def test_protocol_paper_splits_first_and_then_removes_positives():
    dataset = numbered(1000, 900, official=(60, 50))
    split = made(dataset, protocol="paper")
    for name in ("subtrain", "validation"):
        n_pos, n_neg = counts(split)[name]
        assert n_pos == round(n_neg / 9)
    assert counts(split)["test"] == (50, 50)
    others = {counts(made(dataset, seed=seed, protocol="paper"))["validation"] for seed in range(4)}
    assert len(others) > 1  # not stratified


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("imratio", [0, 0.1])
def test_without_an_official_test_part_a_fifth_is_held_out(protocol, imratio):
    split = made(numbered(500, 500), imratio, protocol=protocol)
    parts = [set(rows(part)) for part in split.parts().values()]
    assert len(set.union(*parts)) == sum(map(len, parts))
    n_pos, n_neg = counts(split)["test"]
    assert n_pos + n_neg == pytest.approx(200, abs=30)
    if imratio:
        assert n_pos == n_neg
    else:
        assert sum(map(len, parts)) == 1000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_labels_and_groups_match_their_rows(protocol):
    groups = np.arange(1000) // 20
    dataset = numbered(500, 500, groups=groups)
    for part in made(dataset, 0.2, protocol=protocol).parts().values():
        assert part.labels.bool().tolist() == dataset.positive[rows(part)].tolist()
        assert part.groups.tolist() == groups[rows(part)].tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_are_not_divided(protocol):
    groups = np.random.default_rng(1).integers(0, 60, 1200)
    for seed in range(3):
        split = made(numbered(400, 800, groups=groups), 0, seed, protocol)
        ids = [set(part.groups.tolist()) for part in split.parts().values()]
        assert sum(map(len, ids)) == len(set(groups.tolist()))
        assert len(split.test) == pytest.approx(240, abs=60)


def test_rare_positives_in_few_groups_reach_every_part():
    groups = np.arange(400) // 4
    positive = np.isin(groups, [3, 50, 77]) & (np.arange(400) % 4 == 0)
    dataset = Dataset("rare", np.zeros((400, 1), np.float32), positive, groups=groups)
    assert all(n_pos == 1 for n_pos, _ in counts(made(dataset, 0)).values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_seed_gives_the_same_rows_and_another_gives_others(protocol):
    dataset = numbered(300, 300)
    before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    first, second, other = (made(dataset, seed=s, protocol=protocol) for s in (1, 1, 2))
    for name in first.parts():
        assert rows(first.parts()[name]) == rows(second.parts()[name])
        assert rows(first.parts()[name]) != rows(other.parts()[name])
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(before[1], torch.random.get_rng_state())


def test_an_official_test_part_is_the_same_for_every_seed():
    dataset = numbered(300, 300, official=(40, 30))
    parts = [rows(made(dataset, seed=seed).test) for seed in range(3)]
    assert parts[0] == parts[1] == parts[2]
    assert max(parts[0]) < 0
    assert len(made(dataset, 0).test) == 70  # left as it is


def test_positives_of_a_smaller_imratio_are_a_subset():
    dataset = numbered(500, 500)

    def kept(imratio):
        split = made(dataset, imratio)
        both = rows(split.subtrain) + rows(split.validation)
        return {row for row in both if dataset.positive[row]}

    assert kept(0.01) < kept(0.1) < kept(0)


def test_every_part_gets_a_row_of_a_class_of_three():
    split = made(numbered(3, 100), 0)
    assert all(n_pos == 1 for n_pos, _ in counts(split).values())


@pytest.mark.parametrize(
    ("protocol", "advice"),
    [("corrected", "a larger imratio"), ("paper", "another seed or protocol=corrected")],
)
def test_a_part_without_a_class_is_refused_with_the_counts(protocol, advice):
    with pytest.raises(UserError) as refusal:
        made(numbered(500, 500, official=(20, 20)), 0.002, protocol=protocol)
    message = str(refusal.value)
    assert "validation would have no (positive, negative) pair" in message
    assert "validation 0 positives of" in message
    assert "training 1 positives of" in message
    assert "test 20 positives of 40" in message
    assert advice in message


def test_groups_without_a_pair_are_refused():
    dataset = numbered(100, 100)
    each_class_apart = Dataset(
        "apart", dataset.inputs, dataset.positive, groups=np.arange(200) * 2 + dataset.positive
    )
    with pytest.raises(UserError, match="no group has both classes; take another group"):
        made(each_class_apart, 0)
    groups = np.arange(200)
    groups[[0, -1]] = 500  # the only group with both classes is in one part of the split
    one_mixed = Dataset("one", dataset.inputs, dataset.positive, groups=groups)
    with pytest.raises(UserError, match=r"inside a group .* a coarser group column"):
        made(one_mixed, 0)


def test_an_imratio_above_the_share_of_positives_is_refused():
    with pytest.raises(UserError, match=r"imratio 0\.5 would need \d+ positives .*\(5\.00%\)"):
        made(numbered(50, 950), 0.5)


@pytest.mark.parametrize(
    "wrong", [{"imratio": -0.1}, {"imratio": 1.0}, {"imratio": float("nan")}, {"protocol": "mine"}]
)
def test_invalid_arguments_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        made(numbered(50, 50), **wrong)


def test_the_encoder_is_fitted_on_subtrain_rows_only():
    numbers = np.random.default_rng(0).standard_normal(300)
    positive = numbers > 0
    frame = pd.DataFrame({"row": np.arange(300.0), "x": numbers, "y": numbers})
    split = made(Dataset("frame", frame, positive), 0)
    seen = np.flatnonzero(
        np.isin(np.float32(split.encoder.transform(frame)[:, 0]), split.subtrain.inputs[:, 0])
    )
    changed = frame.copy()
    changed.loc[~np.isin(np.arange(300), seen), "x"] = 1e6
    again = made(Dataset("frame", changed, positive), 0)
    assert again.encoder == split.encoder
    assert torch.equal(again.subtrain.inputs, split.subtrain.inputs)
    assert not torch.equal(again.test.inputs, split.test.inputs)
    assert split.subtrain.inputs[:, 1].mean().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("photographs", "protocol", "expected"),
    [
        (True, "corrected", (True, False)),
        (True, "paper", (True, True)),
        (False, "paper", (False, False)),
    ],
)
def test_photographs_are_augmented_by_protocol(photographs, protocol, expected):
    images = np.zeros((100, 3, 8, 8), np.uint8)
    split = made(
        Dataset("images", images, np.arange(100) % 2 == 0, photographs=photographs), 0, 0, protocol
    )
    assert (split.augmentation.subtrain, split.augmentation.evaluation) == expected
    assert split.subtrain.inputs.dtype == torch.uint8


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("official", [None, (40, 30)])
def test_row_numbers_are_those_of_the_split(protocol, official):
    dataset = numbered(
        300, 300, official=official, groups=None if official else np.arange(600) // 9
    )
    chosen = splits.split_rows(dataset, imratio=0.1, seed=3, protocol=protocol)
    parts = made(dataset, 0.1, 3, protocol)
    assert chosen.subtrain.tolist() == rows(parts.subtrain)
    assert chosen.validation.tolist() == rows(parts.validation)
    numbers = -1 - chosen.test if official else chosen.test
    assert numbers.tolist() == rows(parts.test)
    assert parts.encoder is None


def test_a_split_moves_to_a_device():
    split = made(numbered(100, 100, groups=np.arange(200) // 20), 0).to("meta")
    assert {part.inputs.device.type for part in split.parts().values()} == {"meta"}
    assert split.test.groups.device.type == "meta"
    assert made(numbered(100, 100)).to("cpu").test.groups is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("imratio", [0.1, 0.01])
def test_digits_can_be_split_at_the_imratios_of_the_preset(protocol, imratio):
    for seed in range(3):
        split = made(load("digits"), imratio, seed, protocol)
        assert split.subtrain.inputs.shape[1:] == (1, 8, 8)
