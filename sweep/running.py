"""The run loop: from a plan to results on the storage, in MLflow and on the screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from dirdp import datasets
from dirdp.plan import TrainingPlan
from sweep.account import Account
from sweep.campaign import Campaign, run_trial
from sweep.expand import Trial
from sweep.ledger import Ledger, LocalFiles
from sweep.live import LiveView
from sweep.plan_table import sweep_epsilon_line
from sweep.planning import Plan
from sweep.privacy import sweep_statement
from sweep.reporting.colors import alpha_colors
from sweep.results import Results
from sweep.spec import Resources
from sweep.store import Record, Store, StoreError
from sweep.tracking import Tracker, default_uri

__all__ = ["Outcome", "RunOptions", "run"]

_CURVES = ("test_accuracy", "validation_accuracy", "train_loss", "epsilon_spent", "effective_learning_rate")


@dataclass(frozen=True)
class RunOptions:
    """How to run, as against what: nothing here changes a result.

    `storage` holds a folder for each sweep and, without a `tracking_uri`, the MLflow database. `local` runs the trials
    in this process, one after another. `address`, `max_concurrent` and `wait_for_resources` are `run_on_ray`'s.
    """

    storage: Path
    data_root: Path | None = None
    tracking_uri: str | None = None
    local: bool = False
    address: str | None = None
    max_concurrent: int | None = None
    wait_for_resources: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the results, the files that show them, and whether no trial is left to run (again)."""

    results: Results
    files: list[Path]
    complete: bool


def run(plan: Plan, options: RunOptions, *, console: Console) -> Outcome:
    """Run the trials of a plan that have not ended yet, and report.

    Ctrl-C ends cleanly: what runs is marked as interrupted, what is known is kept and reported. Raises `DataError`,
    `TrackingError`, `ResourceError` or `StoreError`, the first three before any trial.
    """
    folder = options.storage / plan.sweep.name
    store = Store(folder)
    with _alone(folder):
        labels = _labels(plan.trials)
        view = LiveView(plan, console=console, labels=labels)
        listeners: list[Any] = [view]
        account = _account(plan, options)
        campaign = Campaign(plan, store, listeners=listeners, account=account)
        view.attach(campaign)
        if campaign.exhausted:
            console.print(_first_line(campaign, plan), soft_wrap=True, markup=False)
            Results.save_sweep(folder, plan.sweep)
            results = _results(campaign, plan, folder)
            return Outcome(results, results.write_report(), campaign.complete)

        if not options.address:  # on a cluster the data lie on its nodes
            for name, sha256 in _check_data(plan.trials, options.data_root).items():
                account.know(name, sha256)
        tracker = _tracker(plan, options, account, removed=len(campaign.removed))
        listeners += [_SpecWriter(folder, plan), _MlflowListener(tracker, plan, labels), _Spending(tracker, account)]
        console.print(_first_line(campaign, plan), soft_wrap=True, markup=False)
        status, files = "FAILED", []
        try:
            with view:
                status = _execute(campaign, plan.sweep.resources, options, folder)
        finally:
            campaign.close()
            try:
                results = _results(campaign, plan, folder)
                if results.records:  # a run that could not start leaves an earlier report alone
                    files = results.write_report()
                    tracker.sweep_reported(tags={"sweep.privacy": results.privacy.text()})
                    for path in [results.spec, *files]:
                        tracker.artifact(path)
            finally:
                tracker.close(status=status)
        return Outcome(results, files, campaign.complete)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within, this process alone runs the sweep; the lock goes with the process, however that ends."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(f"the sweep in {folder} is being run by another process; wait for it, or end it") from None
    try:
        yield
    finally:
        lock.release()


def _results(campaign: Campaign, plan: Plan, folder: Path) -> Results:
    records = [campaign.records[trial.id] for trial in plan.trials if trial.id in campaign.records]
    return Results(folder, plan.sweep, records, removed=len(campaign.removed))


def _execute(campaign: Campaign, resources: Resources, options: RunOptions, folder: Path) -> str:
    """Run what there is to run; return the MLflow status of the sweep."""
    try:
        if options.local:
            _run_locally(campaign, resources, data_root=options.data_root)
        else:
            from sweep.on_ray import run_on_ray  # Ray takes a second to import

            run_on_ray(
                campaign,
                resources,
                folder=folder / ".tune",
                data_root=options.data_root,
                address=options.address,
                max_concurrent=options.max_concurrent,
                wait_for_resources=options.wait_for_resources,
            )
    except KeyboardInterrupt:
        campaign.cancel()
    return "FINISHED" if campaign.complete else "KILLED"


def _run_locally(campaign: Campaign, resources: Resources, *, data_root: Path | None) -> None:
    while (trial := campaign.next()) is not None:
        for message in run_trial(trial.plan, data_root=data_root, gpu=resources.gpu, threads=resources.cpu):
            if not campaign.report(trial.id, message):
                break


def _account(plan: Plan, options: RunOptions) -> Account:
    resources = plan.sweep.resources
    device = "cuda" if resources.gpu > 0 else "cpu"
    return Account(plan, LocalFiles(options.storage), device=device, threads=resources.cpu)


def _check_data(trials: list[Trial], root: Path | None) -> dict[str, str]:
    """Read every data set once, before anything starts; return the fingerprint of each."""
    found = {}
    for name, allow_unofficial in dict.fromkeys((trial.plan.dataset, trial.plan.allow_unofficial) for trial in trials):
        found[name] = datasets.load(name, root=root, allow_unofficial=allow_unofficial).fingerprint
    datasets.load.cache_clear()
    return found


def _first_line(campaign: Campaign, plan: Plan) -> str:
    finished, retried, removed = len(campaign.finished_before), len(campaign.retried), len(campaign.removed)
    total, unaffordable = len(plan.trials), len(set(campaign.unaffordable) - set(campaign.retried))
    new = total - finished - retried - len(campaign.skipped) - unaffordable
    parts = [f"{new} new"]
    if unaffordable:
        parts.append(f"{unaffordable} that the budget has no room for; a higher budget.sweep_epsilon would")
    if finished:
        parts.append(f"{finished} finished before")
    if campaign.skipped:
        parts.append(f"{len(campaign.skipped)} further seeds of points that were stopped")
    if retried:
        parts.append(f"{retried} unfinished, run again")
    if removed:
        parts.append(f"{removed} kept that are no longer in the space")
    return f"{plan.sweep.name}: {total} trials: {', '.join(parts)}"


def _labels(trials: list[Trial]) -> dict[str, str]:
    """A short name for each trial: what varies in the sweep, and the seed."""
    fields = {trial.id: trial.plan.model_dump() for trial in trials}
    varied = [
        key
        for key in TrainingPlan.model_fields
        if key not in ("seed", "repeat") and len({repr(plan[key]) for plan in fields.values()}) > 1
    ]
    return {
        trial.id: " ".join([*(f"{key}={_short(fields[trial.id][key])}" for key in varied), f"seed={trial.replicate}"])
        for trial in trials
    }


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tracker(plan: Plan, options: RunOptions, account: Account, *, removed: int) -> Tracker:
    sweep, planned = plan.sweep, account.planned
    tracker = Tracker(
        uri=options.tracking_uri or default_uri(options.storage),
        experiment=sweep.name,
        storage=options.storage,
        name=sweep.name,
        tags={
            "sweep.title": sweep.title,
            "sweep.sweep_epsilon_planned": sweep_epsilon_line(plan, planned, removed=removed),
            "sweep.privacy": sweep_statement(plan, Ledger.read(LocalFiles(options.storage))).text(),
        },
        params={"trials": len(plan.trials), "points": len(plan.points), "seeds": sweep.seeds},
    )
    budget = sweep.budget.sweep_epsilon if sweep.budget else None
    tracker.sweep_reported(metrics={"sweep_epsilon_planned": planned.epsilon, "sweep_epsilon_budget": budget})
    return tracker


class _SpecWriter:
    """Writes the search space down with the first trial, so that a run that cannot start hides no earlier results."""

    def __init__(self, folder: Path, plan: Plan):
        self._folder, self._plan, self._written = folder, plan, False

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        if not self._written:
            Results.save_sweep(self._folder, self._plan.sweep)
            self._written = True

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        pass

    def ended(self, trial: Trial, record: Record) -> None:
        pass


class _MlflowListener:
    """Tells MLflow what happens to the trials, in its own terms."""

    def __init__(self, tracker: Tracker, plan: Plan, labels: Mapping[str, str]):
        self._tracker = tracker
        self._labels = labels
        self._colors = alpha_colors({trial.plan.alpha for trial in plan.trials})

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        calibrated = {"r_star": info.get("r"), "attenuation": info.get("attenuation")}
        tags = {"mlflow.runColor": self._colors[trial.plan.alpha], "sweep.point_id": trial.point_id}
        tags |= {
            f"sweep.{key}": str(info[key]) for key in ("claim", "device", "threads", "torch", "data") if key in info
        }
        if math.isinf(trial.plan.epsilon):
            tags["sweep.epsilon"] = "inf"
        if trial.plan.randomness == "research":
            tags["sweep.release"] = "not for release: whoever knows the seed can recompute the noise"
        self._tracker.trial_started(
            trial.id, name=self._labels[trial.id], params=trial.plan.model_dump() | calibrated, tags=tags
        )

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        self._tracker.trial_reported(trial.id, step=report["step"], metrics={key: report[key] for key in _CURVES})

    def ended(self, trial: Trial, record: Record) -> None:
        tags = {"sweep.message": record.message} if record.message else {}
        self._tracker.trial_ended(
            trial.id, end_reason=str(record.end_reason), metrics=_final_metrics(record), tags=tags
        )


class _Spending:
    """Keeps the sweep's own numbers in MLflow up to date while it runs."""

    def __init__(self, tracker: Tracker, account: Account):
        self._tracker, self._account = tracker, account

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        self._tell()

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        self._tell()

    def ended(self, trial: Trial, record: Record) -> None:
        self._tell()

    def _tell(self) -> None:
        self._tracker.sweep_reported(
            metrics={"sweep_epsilon_spent": self._account.spent_epsilon}, step=self._account.steps
        )


def _final_metrics(record: Record) -> dict[str, float | None]:
    """What MLflow shows of a trial as a whole, beside its curves; the logarithms stand in for a log axis."""
    last = record.reports[-1] if record.reports else {}
    rates = {key: record.info.get(key) for key in ("learning_rate", "effective_learning_rate")}
    return {
        "r_star": record.info.get("r"),
        "attenuation": record.info.get("attenuation"),
        "effective_learning_rate": rates["effective_learning_rate"],
        "final_accuracy": last.get("test_accuracy"),
        **{f"log10_{key}": math.log10(rate) for key, rate in rates.items() if rate},
    }
