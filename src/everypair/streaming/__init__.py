"""Losses and metrics of rows that arrive in parts, in any order and from any number of machines.

`PairAccumulator` collects rows (exact) or counts them in buckets of scores (bounded error, constant
memory); `evaluate_twice` reads a source two times and keeps the rarer class only, and
`evaluate_across` evaluates the rows of several workers. Import the names from `everypair` or from
here; adapters of other libraries import `Workers` from `everypair.streaming.exchange`.
"""

from everypair.streaming.accumulator import PairAccumulator
from everypair.streaming.results import StreamResult
from everypair.streaming.two_passes import MajorityCounts, Totals, evaluate_across, evaluate_twice

__all__ = [
    "MajorityCounts",
    "PairAccumulator",
    "StreamResult",
    "Totals",
    "evaluate_across",
    "evaluate_twice",
]
