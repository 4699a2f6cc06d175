"""Sums over all other rows for each row, and smooth ranks made of them.

`_plan` chooses between the compiled kernel and `everypair.arrays.row_sums`. Import the functions
from `everypair`.
"""

from everypair.row_sums._average_precision import smooth_precision_loss
from everypair.row_sums._row_sums import pair_row_sums, soft_ranks

__all__ = ["pair_row_sums", "smooth_precision_loss", "soft_ranks"]
