"""Losses and metrics of Dask collections, and boosters trained on them, on any Dask cluster.

>>> import dask.array as da
>>> from everypair.dask import evaluate
>>> scores = da.from_array([0.5, 2.0, 0.0, 1.0], chunks=2)
>>> labels = da.from_array([1, 1, 0, 0], chunks=2)
>>> evaluate(scores, labels).auc
0.75
"""

try:
    import dask as _dask  # noqa: F401
except ImportError as error:
    raise ImportError(
        "everypair.dask needs Dask. Install it with: pip install '.[dask]'"
    ) from error

from everypair.dask._compare import Contender, compare
from everypair.dask._reduction import accumulate, evaluate

__all__ = ["Contender", "accumulate", "compare", "evaluate"]
