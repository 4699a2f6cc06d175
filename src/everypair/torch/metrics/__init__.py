"""Metrics for TorchMetrics; it is loaded only if this folder is imported.

`PairMetric` holds rows or buckets as the state of a metric, and `everypair.streaming` computes.
"""

try:
    import torchmetrics as _torchmetrics  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.torch.metrics needs TorchMetrics. Install it with: pip install torchmetrics"
    ) from error

from everypair.torch.metrics.pair_metric import PairMetric

__all__ = ["PairMetric"]
