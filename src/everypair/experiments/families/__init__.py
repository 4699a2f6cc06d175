"""Families of models for tables: linear models, boosted trees and a network.

A family (`Family`) is a kind of model with several losses; every loss of a family is tried with the
same parameters. `FAMILIES` lists them, and `grid_of` makes the trials of an experiment. A package
such as LightGBM is imported when its family is fitted.
"""

from everypair.experiments.families.family import Family, Fit, Floats, MeanScorer, Rows, fit_mean
from everypair.experiments.families.registry import FAMILIES, grid_of

__all__ = ["FAMILIES", "Family", "Fit", "Floats", "MeanScorer", "Rows", "fit_mean", "grid_of"]
