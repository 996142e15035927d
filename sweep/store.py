"""What is known of each trial, on the storage: one append-only file of JSON lines a trial, named by its hash."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweep.checkpoints import Checkpoints
from sweep.expand import Trial
from sweep.lock import Lock
from sweep.storage import Storage

__all__ = ["FINAL", "Record", "Store"]

_CHECKPOINTS = "checkpoints"
FINAL = {"completed", "early_stopped", "diverged", "infeasible"}
"""End reasons that need no second try; `error` and `interrupted` do."""


@dataclass
class Record:
    """All that is known of one trial.

    `plan` holds the fields of its `TrainingPlan`; `info` what the calibration gave (r or noise_multiplier, epsilon,
    order, attenuation, learning_rate, effective_learning_rate, claim), where it ran, and as `resumed` the steps after
    which a new process went on; `reports` the fields of `dirdp.training.Report` in order of step; `end_reason` is None
    while it runs, and `message` says why it is infeasible or failed.
    """

    trial_id: str
    point_id: str
    plan: dict[str, Any]
    info: dict[str, Any] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    end_reason: str | None = None
    message: str | None = None


class Store:
    """The trials of one sweep: their records in `storage`/trials, their checkpoints in `storage`/checkpoints.

    Lines are written whole and flushed at once, so that a driver that dies loses nothing it had shown; a line torn by
    a full disk or a crash is passed over on reading. With a `lock`, nothing is written once another driver has it.
    Every method raises `StoreError`.
    """

    def __init__(self, storage: Storage, *, lock: Lock | None = None):
        self.storage = storage
        self._trials = storage.below("trials")
        self._lock = lock

    def started(self, trial: Trial, info: Mapping[str, Any]) -> Record:
        """Note a trial and its calibration, and return its record; what was known of an unfinished one is replaced."""
        record = Record(trial.id, trial.point_id, trial.plan.model_dump(mode="json"), dict(info))
        self._append(trial.id, {key: getattr(record, key) for key in ("trial_id", "point_id", "plan", "info")})
        return record

    def moved(self, trial_id: str, info: Mapping[str, Any]) -> None:
        """Note that a new process goes on with a trial, and what is true of it there."""
        self._append(trial_id, {"info": dict(info)})

    def reported(self, trial_id: str, report: Mapping[str, Any]) -> None:
        """Note one report."""
        self._append(trial_id, {"report": dict(report)})

    def ended(self, trial_id: str, end_reason: str, message: str | None = None) -> None:
        """Note how a trial ended; one that needs no second try keeps no checkpoint."""
        self._append(trial_id, {"end_reason": end_reason, "message": message})
        if end_reason in FINAL:
            self.storage.delete(f"{_CHECKPOINTS}/{trial_id}")

    def read(self) -> dict[str, Record]:
        """All records, by trial id."""
        names = [name for name in self._trials.names() if name.endswith(".jsonl")]
        records = (self._record(self._trials.read(name) or b"") for name in names)
        return {record.trial_id: record for record in records if record is not None}

    def checkpoints(self, trial_id: str) -> Checkpoints:
        """The checkpoints of a trial."""
        return Checkpoints(self.storage.below(f"{_CHECKPOINTS}/{trial_id}"))

    def with_checkpoint(self) -> set[str]:
        """Ids of the trials that have one."""
        return set(self.storage.names(_CHECKPOINTS))

    def _append(self, trial_id: str, entry: Mapping[str, Any]) -> None:
        if self._lock is not None:
            self._lock.check()
        # A new attempt may follow a line that the last one left torn.
        text = ("\n" if "plan" in entry else "") + json.dumps(_encode(entry)) + "\n"
        self._trials.append(f"{trial_id}.jsonl", text.encode())

    def _record(self, content: bytes) -> Record | None:
        record = None
        for line in content.decode(errors="replace").splitlines():
            try:
                entry = _decode(json.loads(line))
            except json.JSONDecodeError:
                continue
            if "plan" in entry:
                record = Record(**entry)
            elif record is not None and "report" in entry:
                record.reports.append(entry["report"])
            elif record is not None and "info" in entry:
                record.info = entry["info"]
            elif record is not None:
                record.end_reason, record.message = entry["end_reason"], entry["message"]
        return record


def _encode(value: Any) -> Any:
    """JSON has no infinity: write it as the string "inf"."""
    if isinstance(value, Mapping):
        return {key: _encode(entry) for key, entry in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decode(entry) for key, entry in value.items()}
    return math.inf if value == "inf" else value
