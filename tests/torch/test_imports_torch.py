"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import everypair.torch

from ..layers import Subpackage

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_inputs": set(),
    "_compensated": set(),
    "_runs": {"_compensated"},
    "_tensor_moments": {"_compensated", "_runs"},
    "_kernel": {"_inputs"},
    "_triton_launch": set(),
    "_triton_scale": {"_triton_launch"},
    "_triton_cells": set(),
    "_triton_meet": {"_triton_cells"},
    "_triton_scan": {"_triton_cells", "_triton_meet"},
    "_triton_buckets": {"_triton_cells", "_triton_launch", "_triton_meet", "_triton_scan"},
    "_triton_pairs": {"_triton_launch"},
    "_triton_moments": {"_triton_launch", "_triton_numbers"},
    "_triton_numbers": set(),
    "_triton_chunks": {"_triton_numbers"},
    "_triton_sorted": {"_triton_chunks", "_triton_launch", "_triton_numbers"},
    "_triton": {
        "_triton_buckets",
        "_triton_launch",
        "_triton_moments",
        "_triton_pairs",
        "_triton_sorted",
    },
    "_triton_quick": {"_triton", "_triton_launch"},
    "_columns": {
        "_inputs",
        "_kernel",
        "_tensor_moments",
        "_triton",
        "_triton_quick",
        "_triton_scale",
    },
    "_transforms": {"_columns"},
    "_library": {"_columns", "_inputs", "_transforms"},
    "_ops": {"_columns", "_inputs", "_library", "_transforms"},
    "_functional": {"_columns", "_inputs", "_ops"},
    "_module": {"_functional", "_inputs", "_ops"},
    "_replay": set(),
    "_large_batch": {"_replay"},
    "_sampler_plan": set(),
    "_sampler": {"_sampler_plan"},
    "_aucm": {"_inputs"},
    "_pesg": {"_aucm"},
    "_sag": set(),
    "_epoch_scores": {"_inputs"},
    "_divergence": {"_epoch_scores"},
    "_monitor_plot": {"_divergence"},
    "_monitor": {"_divergence", "_epoch_scores", "_monitor_plot"},
    "_lightning": {"_monitor"},
    "_team": set(),
    "__init__": {
        "_aucm",
        "_functional",
        "_large_batch",
        "_lightning",
        "_module",
        "_monitor",
        "_pesg",
        "_sag",
        "_sampler",
        "_team",
    },
}
# And from the layers below: the mathematics, the door for input, and the moments.
FROM_THE_CORE = {"_groups", "_inputs", "_moments", "_threads", "surrogates"}


class TestTorch(Subpackage):
    module, needs, loads = everypair.torch, "PyTorch", ("torch",)
    may_import, from_the_core = MAY_IMPORT, FROM_THE_CORE
