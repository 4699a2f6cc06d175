"""Choose a batch size and a learning rate with Optuna's TPE.

Optuna stores nothing: the study is made in memory from the records of the earlier trials of the
same cell. The choice depends on these and on the name of the slot alone, so it does not depend on
the number of processes, and a trial that is run again gets the same values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from everypair.experiments.plan import Record, Trial
from everypair.experiments.search._layout import Slot


def choose(slot: Slot, earlier: Iterable[Record]) -> Trial:
    """Return the trial to run in a slot, given the records of the slots before it.

    >>> from everypair.experiments.plan import Cell
    >>> cell = Cell("digits", 0.1, "square", "sgd", seed=0)
    >>> slot = Slot("cell", "tpe 0", Trial(cell, -1, -1.0), (50, 500), (0.1, 1.0))
    >>> choose(slot, []) == choose(slot, [])
    True
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = int(hashlib.sha256(f"{slot.cell} {slot.name}".encode()).hexdigest()[:8], 16)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    low, high = slot.rates
    rates = FloatDistribution(low, high, log=True)
    ranges = {"batch": CategoricalDistribution(slot.batches), "rate": rates}
    for record in earlier:
        value = record.validation_auc if math.isfinite(record.validation_auc) else None
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        tried = {"batch": record.trial.batch, "rate": record.trial.rate}
        study.add_trial(create_trial(state=state, params=tried, distributions=ranges, value=value))
    chosen = study.ask(ranges).params
    return Trial(slot.trial.cell, int(chosen["batch"]), float(chosen["rate"]))
