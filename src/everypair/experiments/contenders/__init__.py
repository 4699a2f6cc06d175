"""The contest of models on a table, as ``everypair experiment table`` runs it.

`cross_validation` runs one trial of a family, `ranking` chooses the winner, `outcome` judges all
contenders on the test part and fits the winner on all rows, and `saved` reads and writes the model.
"""

from everypair.experiments.contenders.saved import TableModel, load

__all__ = ["TableModel", "load"]
