"""Exact ranking metrics: the area under the ROC curve and the curve itself."""

from everypair.metrics._roc import RocCurve, auc, roc_curve

__all__ = ["RocCurve", "auc", "roc_curve"]
