"""One cell in Optuna: a study whose trials hold the cell's slots.

A slot is held by the first trial that was not given up. Given up means: state FAIL and no record,
which is what becomes of a trial whose process died; a new trial then takes the slot. A trial that
raised has a record that says so; it holds its slot until the first one that is to run it again
takes over, and that one names it, so that several who ask for it at once get one. The states of
Optuna change atomically and a trial that is given up stays so, hence all processes agree on who
holds a slot, and nobody needs a lock.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from everypair.experiments.plan import Cell, Record, Trial
from everypair.experiments.search._database import GRACE_SECONDS
from everypair.experiments.search._layout import Search, Slots
from everypair.experiments.search._owners import is_dead, this_process

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["CellStudy", "Claim"]


@dataclass(frozen=True)
class Claim:
    """The right to run one trial."""

    trial: Trial
    trial_id: int  # Optuna's
    deaths: int = 0  # of processes that ran this trial before


class CellStudy:
    """The trials of one cell."""

    def __init__(
        self,
        storage: BaseStorage,
        study_id: int,
        name: str,
        cell: Cell,
        attributes: dict[str, Any],
    ) -> None:
        self.cell, self.attributes = cell, attributes
        self._storage, self._id, self._name = storage, study_id, name

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, the given up ones too."""
        return self._storage.get_all_trials(self._id, deepcopy=False)

    def holders(self) -> dict[str, FrozenTrial]:
        """Return the trial that holds each slot."""
        holders: dict[str, FrozenTrial] = {}
        for trial in self.trials():
            said = trial.user_attrs
            given_up = trial.state.name == "FAIL" and "record" not in said
            if "slot" not in said or given_up:
                continue
            held = holders.get(said["slot"])
            if held is None or said.get("again") == held.number:
                holders[said["slot"]] = trial
        return holders

    def states(self, slots: Iterable[str] | None = None) -> list[str]:
        """Return Optuna's state of each slot; where none are named, of all that were planned."""
        holders = self.holders()
        if slots is None:
            unreached = max(0, self.attributes["planned"] - len(holders))
            return [held.state.name for held in holders.values()] + ["WAITING"] * unreached
        return [holders[slot].state.name if slot in holders else "WAITING" for slot in slots]

    def records(self) -> list[Record]:
        """Return what the trials left, in the order of the grid."""
        left = [trial for trial in self.holders().values() if "record" in trial.user_attrs]
        left.sort(key=lambda trial: (trial.user_attrs["place"], trial.number))
        return [Record.from_dict(trial.user_attrs["record"]) for trial in left]

    def plan(self, n_slots: int) -> None:
        """Remember how many slots there are to be, so that a report can say how many are left."""
        if n_slots > self.attributes["planned"]:
            self._storage.set_study_user_attr(self._id, "planned", n_slots)
            self.attributes["planned"] = n_slots

    def fill(self, slots: Slots, search: Search) -> int:
        """Let a trial wait in every slot that nobody holds; return how many are new.

        TPE learns from one trial to the next, so that only the first slot that is not finished
        can have one: the choices then do not depend on the number of processes.
        """
        holders = self.holders()
        new = 0
        for place, (slot, params) in enumerate(slots.items()):
            if slot not in holders:
                self._add(slot, params, place=place)
                new += 1
            if search.sampler == "tpe" and not _is_finished(holders.get(slot)):
                break
        return new

    def claim(self, slots: Slots, search: Search, where: Callable[[Trial], bool]) -> Claim | None:
        """Return the right to run a trial that waits, or None where there is none."""
        welcome = [
            slot
            for slot, params in slots.items()
            if where(Trial(self.cell, int(params.get("batch", -1)), params.get("rate", -1.0)))
        ]
        if not welcome:
            return None
        self.fill(slots, search)  # not before: thousands of trials take their time to write
        holders = self.holders()
        waiting = (
            holders[slot]
            for slot in welcome
            if slot in holders and holders[slot].state.name == "WAITING"
        )
        return next(filter(None, (self._take(held, search) for held in waiting)), None)

    def _take(self, held: FrozenTrial, search: Search) -> Claim | None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        trial_id = held._trial_id
        try:
            if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                return None  # another process was quicker
        except UpdateFinishedTrialError:
            return None  # and has even finished it
        self._storage.set_trial_user_attr(trial_id, "owner", dict(this_process()))
        self.beat(trial_id)
        params = held.params or self._ask(trial_id, held.user_attrs["slot"], search)
        trial = Trial(self.cell, int(params["batch"]), float(params["rate"]))
        return Claim(trial, trial_id, held.user_attrs["deaths"])

    def _ask(self, trial_id: int, slot: str, search: Search) -> dict[str, float]:
        import optuna

        # From the cell and the slot alone, so that a trial that is run again chooses the same.
        seed = int(hashlib.sha256(f"{self._name} {slot}".encode()).hexdigest()[:8], 16)
        study = optuna.load_study(
            study_name=self._name,
            storage=self._storage,
            sampler=optuna.samplers.TPESampler(seed=seed),
        )
        trial = optuna.trial.Trial(study, trial_id)
        low, high = search.rates
        return {
            "batch": trial.suggest_categorical("batch", search.batches),
            "rate": trial.suggest_float("rate", low, high, log=True),
        }

    def beat(self, trial_id: int) -> None:
        """Say that a trial is still being run."""
        self._storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]  # Optuna's RDB has it

    def finish(self, trial_id: int, record: Record) -> bool:
        """Keep what a trial left; False where it had been given up."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        value = record.validation_auc
        known = math.isfinite(value)
        try:
            self._storage.set_trial_user_attr(trial_id, "record", record.to_dict())
            self._storage.set_trial_state_values(
                trial_id,
                TrialState.COMPLETE if known else TrialState.FAIL,
                [value] if known else None,
            )
        except UpdateFinishedTrialError:
            return False
        return True

    def put_back(self, trial_id: int, *, died: bool) -> bool:
        """Give a trial up and let its slot wait; False where it is not running."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        trial = self._storage.get_trial(trial_id)
        if record := trial.user_attrs.get("record"):  # died between its last two words
            return self.finish(trial_id, Record.from_dict(record)) and False
        try:
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False  # whoever was quicker lets the slot wait
        said = trial.user_attrs
        self._add_like(trial, deaths=said["deaths"] + died, again=said.get("again"))
        return True

    def try_again(self, slots: Iterable[str]) -> int:
        """Let the slots wait whose trial failed; return how many."""
        holders = self.holders()
        failed = [
            holders[slot]
            for slot in slots
            if slot in holders and _state_of_record(holders[slot]) == "failed"
        ]
        for trial in failed:
            self._add_like(trial, again=trial.number)
        return len(failed)

    def put_back_the_dead(self, slots: Slots, search: Search) -> int:
        """Put back the trials whose process is gone; return how many."""
        import optuna

        running = [trial for trial in self.trials() if trial.state.name == "RUNNING"]
        if not running:
            return 0
        put_back = sum(self.put_back(t._trial_id, died=False) for t in running if _is_orphan(t))
        study = optuna.load_study(study_name=self._name, storage=self._storage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)  # of machines that fell silent
        return put_back + self.fill(slots, search)

    def _add_like(self, trial: FrozenTrial, **said: int | None) -> None:
        slot, place = trial.user_attrs["slot"], trial.user_attrs["place"]
        self._add(slot, {} if slot.startswith("tpe ") else trial.params, place=place, **said)

    def _add(
        self,
        slot: str,
        params: dict[str, Any],
        *,
        place: int,
        deaths: int | None = 0,
        again: int | None = None,
    ) -> None:
        from optuna.distributions import FloatDistribution, IntDistribution
        from optuna.trial import TrialState, create_trial

        # Ranges that hold every value, for Optuna wants to know one: a grid needs none.
        ranges = {"batch": IntDistribution(0, 10**9), "rate": FloatDistribution(0.0, 1e9)}
        template = create_trial(
            state=TrialState.WAITING,
            params=params,
            distributions={name: ranges[name] for name in params},
            user_attrs={"slot": slot, "place": place, "deaths": deaths, "again": again},
        )
        self._storage.create_new_trial(self._id, template_trial=template)


def _state_of_record(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get("record", {}).get("state", ""))


def _is_finished(trial: FrozenTrial | None) -> bool:
    return trial is not None and trial.state.is_finished()


def _is_orphan(trial: FrozenTrial) -> bool:
    owner = trial.user_attrs.get("owner")
    if owner is not None:
        return is_dead(owner)
    # Died between claiming and signing: nobody takes minutes for that.
    began = trial.datetime_start
    return began is not None and (datetime.now() - began).total_seconds() > GRACE_SECONDS
