"""The label noise benchmark: its barrier hinge, the flipped labels, and the committed rows."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from everypair import naive

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from studies.evidence_report import differs, half_width  # noqa: E402
from studies.label_noise.__main__ import FOLDER  # noqa: E402
from studies.label_noise.losses import BARRIER, LOSSES, barrier  # noqa: E402
from studies.label_noise.training import MODELS, NOISE, flip  # noqa: E402


def test_barrier_surrogate_equals_its_formula():
    z = torch.linspace(-120, 120, 1001, dtype=torch.float64)
    np.testing.assert_allclose(BARRIER.value(-z.numpy()), barrier(z), rtol=1e-12, atol=1e-11)


def test_pair_barrier_equals_double_sum():
    rng = np.random.default_rng(0)
    scores, labels = 60 * rng.standard_normal((50, 2)), rng.integers(0, 2, (50, 2))
    found = LOSSES["pair barrier"](torch.from_numpy(scores), torch.from_numpy(labels))
    for task in range(2):
        expected = naive.pair_loss(scores[:, task], labels[:, task], surrogate=BARRIER, margin=0)
        assert found[task].item() == pytest.approx(expected, rel=1e-12)


def test_weighted_losses_do_not_depend_on_the_share_of_positives():
    scores = torch.tensor([[2.0], [-1.0], [0.5]])
    labels = torch.tensor([[1.0], [0.0], [0.0]])
    more = [torch.cat([x, *[x[:1]] * 3]) for x in (scores, labels)]  # the positive four times
    for name in ("weighted logistic", "weighted barrier"):
        assert LOSSES[name](*more).item() == pytest.approx(LOSSES[name](scores, labels).item())


def test_flip_changes_exactly_a_share_of_the_labels():
    y = np.arange(200) % 5 == 0
    flipped = [flip(y.astype(int), share, seed=1) != y for share in NOISE]
    assert [changed.sum() for changed in flipped] == [0, 20, 40, 60, 80]
    assert all((fewer <= more).all() for fewer, more in pairwise(flipped))


def test_half_width_is_the_corrected_resampled_t_interval():
    gaps = pd.Series([0.01, 0.03, 0.02, 0.02, 0.04])
    # 2.7764 is the 97.5 % quantile of t with 4 degrees of freedom.
    expected = 2.7764 * np.sqrt((1 / 5 + 1 / 3) * gaps.var())
    assert half_width(gaps) == pytest.approx(expected, rel=1e-4)
    assert differs(gaps) == pytest.approx(0.024)
    assert differs(gaps - 0.01) == differs(pd.Series([0.1])) == 0.0


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.csv")), ids=lambda path: path.stem)
def test_committed_rows_are_complete(path):
    rows = pd.read_csv(path)
    assert not rows.duplicated(["model", "split", "loss", "noise"]).any()
    assert len(rows) == len(LOSSES) * len(NOISE) * sum(model.splits for model in MODELS.values())
    assert rows[["test", "test_clean_choice"]].stack().between(0, 1).all()
