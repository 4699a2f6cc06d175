"""Exact ranking metrics of arrays, in O(n log n) time.

The AUC and parts of it, the ROC curve, average precision, and DeLong's confidence interval and
paired test. `_tie_blocks` sorts a batch and sums weights above each score; the metrics use its
sums. Import the functions from `everypair`.
"""

from everypair.metrics._average_precision import average_precision
from everypair.metrics._delong import DeLong, DeLongTest, delong, delong_test
from everypair.metrics._roc import RocCurve, auc, partial_auc, roc_curve

__all__ = [
    "DeLong",
    "DeLongTest",
    "RocCurve",
    "auc",
    "average_precision",
    "delong",
    "delong_test",
    "partial_auc",
    "roc_curve",
]
