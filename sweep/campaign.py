"""A running sweep: what is next, what goes on, and what is written down. Ray or a plain loop drives it by events."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import dirdp
from dirdp import datasets
from dirdp.methods.base import Method
from dirdp.plan import TrainingPlan
from sweep.account import Account
from sweep.checkpoints import Checkpoints
from sweep.expand import Trial
from sweep.planning import Plan
from sweep.scheduling import EarlyStopping, Queue
from sweep.storage import StoreError
from sweep.store import FINAL, Record, Store

__all__ = ["Campaign", "Listener", "run_trial"]


def run_trial(
    plan: TrainingPlan,
    *,
    data_root: str | Path | None,
    gpu: float,
    threads: int,
    checkpoints: Checkpoints | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Train one plan; yield the messages that `Campaign.report` takes, as plain JSON values.

    The first one has no report: it says what was calibrated, and comes before anything is trained.

    The device follows from the share of a GPU that the trial was given, not from what the host has. A checkpoint is
    saved before each report is sent, with all reports so far: a trial that goes on from one sends them again.

    Faults that would come again however often it is tried (a budget without r*, a broken data set, an error in a
    model) are messages with an `end_reason`, not exceptions: only the death of a process is worth a retry. A storage
    that cannot be written is a message with a `fault`, and no fault of the trial.
    """
    device = "cuda" if gpu > 0 else "cpu"

    def start() -> dirdp.Training:
        return dirdp.train(plan, data_root=data_root, device=device, threads=threads)

    try:
        training, reports, history = _resumed(start, checkpoints)
        info = _info(training.method) | {"device": device, "threads": threads} | history
        if training.unofficial:
            info["data"] = "unofficial"
        data = datasets.load(plan.dataset, root=data_root, allow_unofficial=plan.allow_unofficial)
        info["data_sha256"] = data.fingerprint
        yield {"info": info, "end_reason": None}
        for known in reports:
            yield {"info": info, "report": known, "end_reason": known["end_reason"]}
        for report in training:
            reports.append(asdict(report))
            if checkpoints:
                state = {"training": training.state_dict(), "reports": reports, "history": history}
                checkpoints.save(report.step, state)
            yield {"info": info, "report": reports[-1], "end_reason": report.end_reason}
    except dirdp.BudgetError as error:
        yield {"end_reason": "infeasible", "message": str(error)}
    except StoreError as error:
        yield {"end_reason": "interrupted", "fault": str(error)}
    except Exception as error:
        yield {"end_reason": "error", "message": f"{type(error).__name__}: {error}"}


def _resumed(
    start: Callable[[], dirdp.Training], checkpoints: Checkpoints | None
) -> tuple[dirdp.Training, list[dict[str, Any]], dict[str, Any]]:
    """A training where its newest checkpoint left it, the reports until there, and what to tell of its past."""
    refused = None
    for saved in checkpoints.newest_first() if checkpoints else ():
        training = start()
        try:
            training.load_state_dict(saved["training"])
        except (ValueError, RuntimeError, KeyError) as error:  # of another calibration, or of another release's model
            refused = f"{type(error).__name__}: {error}"
            continue
        resumed = [*saved["history"].get("resumed", []), training.step]
        return training, saved["reports"], saved["history"] | {"resumed": resumed}
    return start(), [], {"started_over": refused} if refused else {}


def _info(method: Method) -> dict[str, Any]:
    return {
        "claim": method.guarantee.name,
        **method.calibrated,
        "epsilon": method.epsilon,
        "order": method.order,
        "attenuation": method.attenuation,
        "learning_rate": method.learning_rate,
        "effective_learning_rate": method.effective(method.learning_rate),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


class Listener:
    """Hears what happens in a sweep, as the MLflow writer's side and the live view do; the base class ignores it."""

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        """A trial has its calibration."""

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """A trial has a report."""

    def ended(self, trial: Trial, record: Record) -> None:
        """A trial has ended, with `record.end_reason`."""


class Campaign:
    """The trials of a plan, from the first that is handed out to the last that ends.

    Of the plan's trials, an earlier run has `finished_before`, left `unfinished` or `failed`, the last two in part
    `checkpointed`; the records of trials that are not in the plan any more are `removed`.

    Whatever ended for good in an earlier run on the same store is not run again; with early stopping, its scores are
    shown to the scheduler first. A trial that goes on after the death of its process sends its reports again; those
    already known are passed over.

    With an `account`, each segment of a trial, from one report to the next, is charged before it may start. A trial
    that the budget does not reach to the end for is not started.
    """

    def __init__(self, plan: Plan, store: Store, *, listeners: list[Listener], account: Account | None = None):
        self.storage = store.storage
        self._store = store
        self._listeners = listeners
        self._account = account
        self._running: set[str] = set()
        self._begun: dict[str, int] = {}  # the step after which a trial's present process began
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
        self.failed = [trial for trial in plan.trials if trial.id in due and stored[trial.id].end_reason == "error"]
        self.unfinished = [trial for trial in plan.trials if trial.id in due and trial not in self.failed]
        there = store.with_checkpoint()
        self.checkpointed = [trial for trial in plan.trials if trial.id in due and trial.id in there]
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
                self._account.reserve(trial)
        return trial

    def step(self, trial_id: str) -> int:
        """The step of a trial's last report; 0 before its first."""
        record = self.records.get(trial_id)
        return record.reports[-1]["step"] if record and record.reports else 0

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
        """Whether a trial may go on when its process dies: not if that would spend more than the budget holds."""
        repeats = self._account is None or all(map(self._account.repeats, self._trials.values()))
        return repeats or not self._budgeted

    def cancel(self) -> None:
        """Hand out no further trial."""
        self._cancelled = True

    def report(self, trial_id: str, message: Mapping[str, Any]) -> bool:
        """Take one message of `run_trial`; return whether the trial goes on.

        Raises `StoreError` if it cannot be written down.
        """
        if fault := message.get("fault"):
            raise StoreError(fault)
        trial, info, report = self._trials[trial_id], message.get("info") or {}, message.get("report")
        end_reason, begins = message["end_reason"], report is None
        if trial_id not in self.records:
            self._start(trial, info)
            begins = True
        record = self.records[trial_id]
        if record.end_reason is not None:
            return False
        if info and info != record.info:
            self._store.moved(trial_id, info)
            record.info = dict(info)
        if begins and end_reason is None and not self._begins(trial, info):
            end_reason = "budget_exhausted"
        if report and report["step"] > self.step(trial_id):
            self._store.reported(trial_id, report)
            record.reports.append(dict(report))
            for listener in self._listeners:
                listener.reported(trial, report)
            if end_reason is None and self._stopping and not self._stopping.goes_on(trial, report):
                end_reason = "early_stopped"
        if end_reason is None and report and not self._goes_on(trial, report["step"]):
            end_reason = "budget_exhausted"
        if end_reason is not None:
            self._end(trial, end_reason, message.get("message"))
        return end_reason is None

    def lost(self, trial_id: str, message: str) -> None:
        """A trial's process died more often than it is retried."""
        if trial_id not in self.records:
            self._start(self._trials[trial_id], {})
        self._end(self._trials[trial_id], "error", message)

    def close(self) -> None:
        """Mark what is still running as interrupted."""
        for trial_id, record in list(self.records.items()):
            if record.end_reason is None:
                self._end(self._trials[trial_id], "interrupted", None)

    def _begins(self, trial: Trial, info: Mapping[str, Any]) -> bool:
        """Charge what a process trains first, and note where it begins; return whether it may.

        It comes anew, where it does not repeat the same bits, if another process died while training it.
        """
        self._begun[trial.id] = info.get("resumed", [0])[-1]
        return self._account is None or self._account.charge(trial, self._begun[trial.id])

    def _goes_on(self, trial: Trial, step: int) -> bool:
        """Charge what follows a report; return whether it may start. A report that is sent again starts nothing."""
        return self._account is None or step <= self._begun[trial.id] or self._account.charge(trial, step)

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
