"""The subpackage stays optional, and what imports what."""

from __future__ import annotations

import everypair.sklearn

from ..layers import Subpackage

# Each module may import from the subpackage only what stands here: downward.
MAY_IMPORT = {
    "_objective": set(),
    "_scaling": set(),
    "_smoothing": set(),
    "_thresholds": set(),
    "_solvers": {"_objective", "_scaling"},
    "_training": {"_objective", "_scaling", "_smoothing", "_solvers"},
    "_estimator": {"_objective", "_solvers", "_thresholds", "_training"},
    "_classifier": {"_estimator", "_thresholds", "_training"},
    "_path": {"_estimator", "_objective", "_thresholds", "_training"},
    "__init__": {"_classifier", "_path"},
}
# And from the core: public modules alone.
FROM_THE_CORE = {"losses", "metrics", "surrogates"}


class TestSklearn(Subpackage):
    module, needs, loads = everypair.sklearn, "scikit-learn", ("sklearn", "scipy")
    may_import, from_the_core = MAY_IMPORT, FROM_THE_CORE
