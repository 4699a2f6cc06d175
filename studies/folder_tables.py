"""Tables of the folder EVERYPAIR_DATA as data sets of `everypair experiment`: an extension file.

EVERYPAIR_EXTENSIONS=studies/folder_tables.py everypair experiment mammography --model linear

Unlike ``everypair experiment table --data FILE``, records name the table, so that several tables
can be compared in one report.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from everypair.experiments import PRESETS, SOURCES, Dataset, Preset, TableFile, load_dataset

TABLES = ("mammography", "abalone_19", "oil_spill", "ijcnn1")


def load(name: str, table: TableFile | None = None) -> Dataset:
    """Load a table of the folder."""
    path = Path(os.environ["EVERYPAIR_DATA"]) / "tabular" / f"{name}.parquet"
    return replace(load_dataset("table", table=TableFile(str(path), "label")), name=name)


for _name in TABLES:
    SOURCES[_name] = partial(load, _name)
    PRESETS[_name] = Preset(replace(PRESETS["table"].grid, data=_name), PRESETS["table"].settings)
