"""Models for tables that compete in ``everypair experiment table``.

A family (`FAMILIES`) is a kind of model with several losses: every loss of a family is tried with
the same parameters. `cross_validation` runs one trial, `outcome` compares the contenders and fits
the winner on all rows, and `saved` reads and writes the model file.
"""

from everypair.experiments.contenders.families import FAMILIES, Family
from everypair.experiments.contenders.saved import load

__all__ = ["FAMILIES", "Family", "load"]
