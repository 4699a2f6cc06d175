"""The AUC margin loss, a baseline for the pair losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from everypair.inputs import batches, pair_options
from everypair.torch._inputs import check_data


class AUCMLoss(nn.Module):
    """The AUC margin loss of LibAUC, version 1.

    It optimises AUC through a min-max problem instead of through pairs (Yuan et al., Large-scale
    Robust Deep AUC Maximization, ICCV 2021)::

        (1-p) mean[(h-a)^2 1+] + p mean[(h-b)^2 1-]
            + 2 alpha (p (1-p) m + mean[p h 1- - (1-p) h 1+]) - p (1-p) alpha^2

    It is minimised in the scores h and in a, b, and maximised in alpha >= 0. Train it with `PESG`,
    which updates the variables `a`, `b` and `alpha` along with the model.

    Parameters
    ----------
    margin : float
        The lead in score that a positive should have over a negative; at least 0.
    positive_share : float, optional
        The share p of positives in the data. The default is that of each batch.

    Attributes
    ----------
    a, b : Parameter
        The centres of the positives' and of the negatives' scores; trained with the model.
    alpha : Parameter
        The dual variable: it rises while `a` leads `b` by less than the margin.

    Notes
    -----
    The value belongs to a saddle-point problem: it can be negative, is not comparable between batch
    sizes, and should not be monitored. Use `EpochMonitor` instead.

    LibAUC passes it probabilities, ``torch.sigmoid(logits)``; do the same to compare with LibAUC.

    A batch with one class has loss 0 and zero gradient unless `positive_share` is given; then its
    scores still move towards `a` or `b`.

    Examples
    --------
    >>> import torch
    >>> loss = AUCMLoss()
    >>> scores = torch.tensor([0.9, 0.2, 0.6], requires_grad=True)
    >>> round(loss(scores, torch.tensor([1, 0, 0])).item(), 4)
    0.2244
    """

    def __init__(self, margin: float = 1.0, *, positive_share: float | None = None) -> None:
        super().__init__()
        self.margin = pair_options.check_margin(margin)
        if positive_share is not None and not 0.0 < positive_share < 1.0:
            raise ValueError(
                f"positive_share must be between 0 and 1; got {positive_share!r}. "
                "Leave it out to use the share of each batch."
            )
        self.positive_share = positive_share
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of the min-max objective at these scores, a scalar.

        Parameters
        ----------
        scores : (n,) or (n, 1) floating
        labels : (n,) or (n, 1)
            Coded {0, 1}, {-1, +1} or bool.
        """
        check_data(scores, labels)
        if scores.ndim == 2 and scores.shape[1] > 1:
            raise ValueError(
                f"scores must have the shape (n,) or (n, 1); got {tuple(scores.shape)}. "
                "For several tasks, use one AUCMLoss for each column."
            )
        rows = labels.reshape(-1)
        # Checking values is not possible while compiling, and waits for an accelerator.
        if labels.is_cpu and not torch.compiler.is_compiling():
            batches.positives(batches.batch_from(np.zeros(len(rows)), rows.detach()))
        h = scores.reshape(-1).to(torch.promote_types(scores.dtype, torch.float32))
        is_pos = (rows > 0).to(h.dtype)
        is_neg = 1.0 - is_pos
        p = is_pos.mean() if self.positive_share is None else self.positive_share
        a, b, alpha = (v.to(h.dtype) for v in (self.a, self.b, self.alpha))
        spread = (1 - p) * ((h - a) ** 2 * is_pos).mean() + p * ((h - b) ** 2 * is_neg).mean()
        lead = p * (1 - p) * self.margin + (p * h * is_neg - (1 - p) * h * is_pos).mean()
        return spread + 2 * alpha * lead - p * (1 - p) * alpha**2

    def extra_repr(self) -> str:
        """Return the options, for the module's representation."""
        return f"margin={self.margin}, positive_share={self.positive_share}"
