"""Losses and metrics of rows that arrive in parts, in any order and from any number of machines.

`PairAccumulator` collects rows (exact) or counts them in buckets of scores (bounded error, constant
memory); `evaluate_twice` reads a source two times and keeps the rarer class only. Import the names
from `everypair` or from here.
"""

from everypair.streaming._accumulator import PairAccumulator
from everypair.streaming._collective import evaluate_across
from everypair.streaming._result import StreamResult
from everypair.streaming._two_passes import MajorityCounts, Totals, evaluate_twice

__all__ = [
    "MajorityCounts",
    "PairAccumulator",
    "StreamResult",
    "Totals",
    "evaluate_across",
    "evaluate_twice",
]
