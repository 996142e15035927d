"""What is known of each trial, on the storage: one append-only file of JSON lines a trial, named by its hash."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweep.expand import Trial

__all__ = ["FINAL", "Record", "Store", "StoreError"]

FINAL = {"completed", "early_stopped", "diverged", "infeasible"}
"""End reasons that need no second try; `error` and `interrupted` do."""


class StoreError(OSError):
    """The storage cannot be read or written; the message names the file."""


@dataclass
class Record:
    """All that is known of one trial.

    `plan` holds the fields of its `TrainingPlan`; `info` what the calibration gave (r or noise_multiplier, epsilon,
    order, attenuation, learning_rate, effective_learning_rate, claim) and where it ran; `reports` the fields of
    `dirdp.training.Report` in order of step; `end_reason` is None while it runs, and `message` says why it is
    infeasible or failed.
    """

    trial_id: str
    point_id: str
    plan: dict[str, Any]
    info: dict[str, Any] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    end_reason: str | None = None
    message: str | None = None


class Store:
    """The trials of one sweep under `folder`/trials.

    Lines are written whole and flushed at once, so that a driver that dies loses nothing it had shown; a line torn by
    a full disk or a crash is passed over on reading.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._trials = folder / "trials"
        try:
            self._trials.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the storage {folder} cannot be written: {error.strerror}") from error

    def started(self, trial: Trial, info: Mapping[str, Any]) -> Record:
        """Note a trial and its calibration, and return its record; starts an unfinished trial over."""
        record = Record(trial.id, trial.point_id, trial.plan.model_dump(mode="json"), dict(info))
        self._append(trial.id, {key: getattr(record, key) for key in ("trial_id", "point_id", "plan", "info")})
        return record

    def reported(self, trial_id: str, report: Mapping[str, Any]) -> None:
        """Note one report."""
        self._append(trial_id, {"report": dict(report)})

    def ended(self, trial_id: str, end_reason: str, message: str | None = None) -> None:
        """Note how a trial ended."""
        self._append(trial_id, {"end_reason": end_reason, "message": message})

    def read(self) -> dict[str, Record]:
        """All records, by trial id."""
        records = (self._record(path) for path in sorted(self._trials.glob("*.jsonl")))
        return {record.trial_id: record for record in records if record is not None}

    def _append(self, trial_id: str, entry: Mapping[str, Any]) -> None:
        path = self._trials / f"{trial_id}.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                # A new attempt may follow a line that the last one left torn.
                file.write(("\n" if "plan" in entry else "") + json.dumps(_encode(entry)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error

    def _record(self, path: Path) -> Record | None:
        record = None
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = _decode(json.loads(line))
            except json.JSONDecodeError:
                continue
            if "plan" in entry:
                record = Record(**entry)
            elif record is not None and "report" in entry:
                record.reports.append(entry["report"])
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
