"""A running sweep: what is next, what goes on, and what is written down. Ray or a plain loop drives it by events."""

from __future__ import annotations

import platform
import socket
from collections.abc import Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

import dirdp
from dirdp import datasets
from dirdp.methods.base import Method
from dirdp.plan import TrainingPlan
from sweep.account import Account
from sweep.expand import Trial
from sweep.planning import Plan
from sweep.scheduling import EarlyStopping, Queue
from sweep.store import FINAL, Record, Store

__all__ = ["Campaign", "Listener", "run_trial"]


def run_trial(
    plan: TrainingPlan, *, data_root: str | Path | None, gpu: float, threads: int
) -> Generator[dict[str, Any], None, None]:
    """Train one plan; yield the messages that `Campaign.report` takes, as plain JSON values.

    The device follows from the share of a GPU that the trial was given, not from what the host has.

    Faults that would come again however often it is tried (a budget without r*, a broken data set, an error in a
    model) are messages with an `end_reason`, not exceptions: only the death of a process is worth a retry.
    """
    device = "cuda" if gpu > 0 else "cpu"
    try:
        training = dirdp.train(plan, data_root=data_root, device=device, threads=threads)
        info = _info(training.method) | {"device": device, "threads": threads}
        if training.unofficial:
            info["data"] = "unofficial"
        data = datasets.load(plan.dataset, root=data_root, allow_unofficial=plan.allow_unofficial)
        info["data_sha256"] = data.fingerprint
        for report in training:
            yield {"info": info, "report": asdict(report), "end_reason": report.end_reason}
    except dirdp.BudgetError as error:
        yield {"end_reason": "infeasible", "message": str(error)}
    except Exception as error:
        yield {"end_reason": "error", "message": f"{type(error).__name__}: {error}"}


def _info(method: Method) -> dict[str, Any]:
    return {
        "claim": method.guarantee.name,
        "r": method.r,
        "epsilon": method.epsilon,
        "order": method.order,
        "attenuation": method.attenuation,
        "learning_rate": method.learning_rate,
        "effective_learning_rate": method.learning_rate * method.attenuation,
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


class Listener(Protocol):
    """Hears what happens in a sweep: the MLflow writer's side and the live view."""

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        """A trial has its calibration."""

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """A trial has a report."""

    def ended(self, trial: Trial, record: Record) -> None:
        """A trial has ended, with `record.end_reason`."""


class Campaign:
    """The trials of a plan, from the first that is handed out to the last that ends.

    Whatever ended for good in an earlier run on the same store is not run again; with early stopping, its scores are
    shown to the scheduler first. A trial that starts over after the death of its process sends its reports again;
    those already known are passed over.

    With an `account`, each segment of a trial, from one report to the next, is charged before it may start. A trial
    that the budget does not reach to the end for is not started.
    """

    def __init__(self, plan: Plan, store: Store, *, listeners: list[Listener], account: Account | None = None):
        self._store = store
        self._listeners = listeners
        self._account = account
        self._running: set[str] = set()
        self._trials = {trial.id: trial for trial in plan.trials}
        self._budgeted = plan.sweep.budget is not None
        self._stopping = EarlyStopping(plan.sweep.asha) if plan.sweep.asha else None
        self._cancelled = False
        stored = store.read()
        # Without a scheduler a trial that one stopped earlier is unfinished.
        final = FINAL if self._stopping else FINAL - {"early_stopped"}
        self.records = {name: record for name, record in stored.items() if record.end_reason in final}
        self.finished_before = [trial for trial in plan.trials if trial.id in self.records]
        self.removed = [record for name, record in stored.items() if name not in self._trials]
        ended = {trial.id: str(self.records[trial.id].end_reason) for trial in self.finished_before}
        self._queue = Queue(plan.trials, staged=self._stopping is not None, ended=ended)
        due = stored.keys() - self.records.keys() - {trial.id for trial in self.skipped}
        self.retried = [trial for trial in plan.trials if trial.id in due]
        for trial in self.finished_before:
            for report in self.records[trial.id].reports:
                if self._stopping and not report["end_reason"]:
                    self._stopping.goes_on(trial, report)

    def next(self) -> Trial | None:
        """The next trial to run, or None if none can start before a running one has ended."""
        trial = None if self._cancelled else self._queue.next(self._fits)
        if trial is not None:
            self._running.add(trial.id)
            if self._account:
                self._account.charge(trial, 0)
        return trial

    @property
    def exhausted(self) -> bool:
        """Whether no trial will come any more."""
        return self._cancelled or self._queue.exhausted or bool(self.unaffordable)

    @property
    def unaffordable(self) -> list[Trial]:
        """Trials that are left once nothing runs and the budget has room for none of them."""
        return self._queue.stuck(self._fits) if self._account and not self._running else []

    @property
    def skipped(self) -> list[Trial]:
        """Further seeds of points whose first seed did not complete."""
        return self._queue.skipped

    @property
    def complete(self) -> bool:
        """Whether every trial has ended or was skipped, none of them for a reason worth a second try."""
        ends = {*FINAL, "budget_exhausted"}
        ended = {name for name, record in self.records.items() if record.end_reason in ends}
        return self._trials.keys() <= ended | {trial.id for trial in (*self.skipped, *self.unaffordable)}

    @property
    def may_retry(self) -> bool:
        """Whether a trial may start over when its process dies: not if that would spend more than the budget holds."""
        repeats = self._account is None or all(map(self._account.repeats, self._trials.values()))
        return repeats or not self._budgeted

    def cancel(self) -> None:
        """Hand out no further trial."""
        self._cancelled = True

    def report(self, trial_id: str, message: Mapping[str, Any]) -> bool:
        """Take one message of `run_trial`; return whether the trial goes on.

        Raises `StoreError` if it cannot be written down.
        """
        trial = self._trials[trial_id]
        if trial_id not in self.records:
            self._start(trial, message.get("info") or {})
        record, report = self.records[trial_id], message.get("report")
        if record.end_reason is not None:
            return False
        end_reason = message["end_reason"]
        if report and not (record.reports and report["step"] <= record.reports[-1]["step"]):
            self._store.reported(trial_id, report)
            record.reports.append(dict(report))
            for listener in self._listeners:
                listener.reported(trial, report)
            if end_reason is None and self._stopping and not self._stopping.goes_on(trial, report):
                end_reason = "early_stopped"
        if end_reason is None and report and self._account and not self._account.charge(trial, report["step"]):
            end_reason = "budget_exhausted"
        if end_reason is not None:
            self._end(trial, end_reason, message.get("message"))
        return end_reason is None

    def lost(self, trial_id: str, message: str) -> None:
        """A trial's process died more often than it is retried."""
        if trial_id not in self.records:
            self._start(self._trials[trial_id], {})
        self._end(self._trials[trial_id], "error", message)

    def restarts(self, trial_id: str, *, step: int = 0) -> None:
        """A trial's process died; it starts over after `step`, which costs again unless it repeats the same bits."""
        if self._account:
            self._account.charge(self._trials[trial_id], step)

    def close(self) -> None:
        """Mark what is still running as interrupted."""
        for trial_id, record in list(self.records.items()):
            if record.end_reason is None:
                self._end(self._trials[trial_id], "interrupted", None)

    def _fits(self, trial: Trial) -> bool:
        return self._account is None or self._account.may_start(trial)

    def _start(self, trial: Trial, info: Mapping[str, Any]) -> None:
        if self._account and "data_sha256" in info:
            self._account.know(trial.plan.dataset, info["data_sha256"])
        self.records[trial.id] = self._store.started(trial, info)
        for listener in self._listeners:
            listener.started(trial, info)

    def _end(self, trial: Trial, end_reason: str, message: str | None) -> None:
        record = self.records[trial.id]
        self._store.ended(trial.id, end_reason, message)
        record.end_reason, record.message = end_reason, message
        self._running.discard(trial.id)
        if self._account:
            self._account.ended(trial)
        self._queue.settle(trial, end_reason)
        for listener in self._listeners:
            listener.ended(trial, record)
