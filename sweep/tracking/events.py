"""What happens in a sweep, as plain data, and the tags by which MLflow's runs are found again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

END_STATUS = {
    "completed": "FINISHED",
    "early_stopped": "FINISHED",
    "budget_exhausted": "FINISHED",
    "diverged": "FINISHED",
    "infeasible": "FINISHED",
    "interrupted": "KILLED",
    "error": "FAILED",
}
"""How a trial may end, and the status that its MLflow run then has."""

KIND, NAME, TRIAL_ID, END_REASON = "sweep.kind", "sweep.name", "sweep.trial_id", "sweep.end_reason"
PARENT_RUN_ID = "mlflow.parentRunId"

Trial = str | None  # a trial's id; None is the sweep itself, the parent run


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a sweep, clean enough to be written or spooled as it is."""

    kind: str  # started | reported | ended | artifact
    trial: Trial
    time_ms: int
    step: int | None = None  # None: a final value, kept beside the last step
    name: str = ""
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: str | None = None  # of an end
    path: str = ""  # of an artifact
    folder: str | None = None


def now_ms() -> int:
    """Unix time in milliseconds, as MLflow counts it."""
    return time.time_ns() // 1_000_000


def end_event(trial: Trial, *, status: str, tags: dict[str, str]) -> Event:
    """The end of a trial, or of the sweep, at this moment."""
    return Event(kind="ended", trial=trial, time_ms=now_ms(), status=status, tags=tags)


def by_trial(events: Iterable[Event]) -> dict[Trial, list[Event]]:
    """The events of each trial, in their order."""
    trials: dict[Trial, list[Event]] = {}
    for event in events:
        trials.setdefault(event.trial, []).append(event)
    return trials
