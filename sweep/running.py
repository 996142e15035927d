"""The run loop: from a plan to results on the storage, in MLflow and on the screen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dirdp import datasets
from sweep.account import Account
from sweep.campaign import Campaign, Listener, run_trial
from sweep.expand import Trial
from sweep.ledger import Ledger
from sweep.live import LiveView
from sweep.lock import Lock
from sweep.notify import Notifier, check_url
from sweep.plan_table import sweep_epsilon_line
from sweep.planning import Plan
from sweep.privacy import sweep_statement
from sweep.reporting.colors import alpha_colors
from sweep.results import Results
from sweep.spec import Resources
from sweep.storage import Storage
from sweep.store import Record, Store
from sweep.tracking import Tracker, default_uri
from sweep.words import count, flat, varying

__all__ = ["Outcome", "RunOptions", "run"]

_NAMED = 10  # removed trials that are named one by one
_TELLING = "mlflow-open"  # is there while a driver tells MLflow, and after one that died and may not have told all
_CURVES = ("test_accuracy", "validation_accuracy", "train_loss", "epsilon_spent", "effective_learning_rate")


@dataclass(frozen=True)
class RunOptions:
    """How to run, as against what: nothing here changes a result.

    `storage` holds a folder for each sweep; beside it, in its `local` folder, lie the reports and, without a
    `tracking_uri`, the MLflow database. `local` runs the trials in this process, one after another. `address`,
    `max_concurrent` and `wait_for_resources` are `run_on_ray`'s. `force_unlock` runs a sweep although another process
    seems to be running it. `notify` is a webhook that hears when the sweep ends, and when nothing has come from it for
    `stall_minutes`.
    """

    storage: Storage
    data_root: Path | None = None
    tracking_uri: str | None = None
    local: bool = False
    address: str | None = None
    max_concurrent: int | None = None
    wait_for_resources: float = 0.0
    force_unlock: bool = False
    notify: str | None = None
    stall_minutes: float = 30.0


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
    storage = options.storage.below(plan.sweep.name)
    with Lock(storage, force=options.force_unlock) as lock:
        labels = _labels({trial.id: trial.plan.model_dump() for trial in plan.trials})
        view = LiveView(plan, console=console, labels=labels)
        listeners: list[Listener] = [view]
        account = _account(plan, options, lock)
        campaign = Campaign(plan, Store(storage, lock=lock), listeners=listeners, account=account)
        view.attach(campaign)
        if campaign.exhausted and storage.read(_TELLING) is None:
            console.print(_first_lines(campaign, plan), soft_wrap=True, markup=False)
            Results.save_sweep(storage, plan.sweep)
            results = _results(campaign, plan, options.storage)
            return Outcome(results, results.write_report(), campaign.complete)

        if not options.address and not campaign.exhausted:  # on a cluster the data lie on its nodes
            for name, sha256 in _check_data(plan.trials, options.data_root).items():
                account.know(name, sha256)
        tracker = _tracker(plan, options, account, removed=len(campaign.removed))
        mlflow = _MlflowListener(tracker, plan, labels)
        listeners += [_SpecWriter(storage, plan), mlflow, _Spending(tracker, account)]
        console.print(_first_lines(campaign, plan), soft_wrap=True, markup=False)
        status, files = "FAILED", []
        notifier = Notifier(
            check_url(options.notify),
            campaign,
            sweep=plan.sweep.name,
            trials=len(plan.trials),
            stall_seconds=options.stall_minutes * 60,
        )
        listeners.append(notifier)
        try:
            storage.write(_TELLING, b"")
            for trial in campaign.finished_before:
                mlflow.catch_up(trial, campaign.records[trial.id])
            with notifier, view:
                status = _execute(campaign, plan.sweep.resources, options)
        finally:
            campaign.close()
            try:
                results = _results(campaign, plan, options.storage)
                if results.records:  # a run that could not start leaves an earlier report alone
                    files = results.write_report()
                    tracker.sweep_reported(tags={"sweep.privacy": results.privacy.text()})
                    for path in [results.write_spec(), *files]:
                        tracker.artifact(path)
            finally:
                tracker.close(status=status)
        storage.delete(_TELLING)
        if campaign.unaffordable:
            console.print(_no_room(len(campaign.unaffordable)), soft_wrap=True)
        return Outcome(results, files, campaign.complete)


def _results(campaign: Campaign, plan: Plan, storage: Storage) -> Results:
    records = [campaign.records[trial.id] for trial in plan.trials if trial.id in campaign.records]
    return Results(storage, plan.sweep, records, removed=len(campaign.removed))


def _execute(campaign: Campaign, resources: Resources, options: RunOptions) -> str:
    """Run what there is to run; return the MLflow status of the sweep."""
    try:
        if options.local:
            _run_locally(campaign, resources, data_root=options.data_root)
        elif not campaign.exhausted:
            from sweep.on_ray import run_on_ray  # Ray takes a second to import

            run_on_ray(
                campaign,
                resources,
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
        messages = run_trial(
            trial.plan,
            data_root=data_root,
            gpu=resources.gpu,
            threads=resources.cpu,
            checkpoints=Store(campaign.storage).checkpoints(trial.id),
        )
        for message in messages:
            if not campaign.report(trial.id, message):
                break


def _account(plan: Plan, options: RunOptions, lock: Lock) -> Account:
    resources = plan.sweep.resources
    device = "cuda" if resources.gpu > 0 else "cpu"
    return Account(plan, options.storage, device=device, threads=resources.cpu, lock=lock)


def _check_data(trials: list[Trial], root: Path | None) -> dict[str, str]:
    """Read every data set once, before anything starts; return the fingerprint of each."""
    found = {}
    for name, allow_unofficial in dict.fromkeys((trial.plan.dataset, trial.plan.allow_unofficial) for trial in trials):
        found[name] = datasets.load(name, root=root, allow_unofficial=allow_unofficial).fingerprint
    datasets.load.cache_clear()
    return found


def _first_lines(campaign: Campaign, plan: Plan) -> str:
    """How many trials of each kind there are, and which ones an earlier space had that this one has not."""
    left = {trial.id for trial in (*campaign.unfinished, *campaign.failed)}
    unaffordable = [trial for trial in campaign.unaffordable if trial.id not in left]
    known = [campaign.finished_before, campaign.unfinished, campaign.failed, campaign.skipped]
    finished, unfinished, failed, skipped = map(len, known)
    parts = [f"{len(plan.trials) - sum(map(len, known)) - len(unaffordable)} new"]
    if unaffordable:
        parts.append(_no_room(len(unaffordable)))
    if finished:
        parts.append(f"{finished} finished before")
    if skipped:
        parts.append(f"{skipped} further seeds of points that were stopped")
    if unfinished:
        parts.append(f"{unfinished} unfinished")
    if failed:
        parts.append(f"{failed} failed before, tried again")
    if campaign.checkpointed:
        parts.append(f"{len(campaign.checkpointed)} of them from their last checkpoint")
    lines = [f"{plan.sweep.name}: {len(plan.trials)} trials: {', '.join(parts)}"]
    if removed := campaign.removed:
        names = _labels(
            {trial.id: trial.plan.model_dump(mode="json") for trial in plan.trials}
            | {record.trial_id: record.plan for record in removed}
        )
        shown = "; ".join(names[record.trial_id] for record in removed[:_NAMED])
        more = f"; and {len(removed) - _NAMED} more" if len(removed) > _NAMED else ""
        lines.append(f"kept, though no longer in the space (--name keeps a variation apart): {shown}{more}")
    return "\n".join(lines)


def _no_room(trials: int) -> str:
    return f"{count(trials, 'trial')} that the budget has no room for (a higher budget.sweep_epsilon would)"


def _labels(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A short name for each trial: what varies among them and is given, and the seed."""
    plans = {name: flat(plan) for name, plan in plans.items()}
    varied = [key for key in varying(list(plans.values())) if key not in ("seed", "repeat")]
    return {
        name: " ".join(
            [
                *(f"{key}={_short(plan[key])}" for key in varied if plan.get(key) is not None),
                f"seed={plan['repeat'] if plan['seed'] is None else plan['seed']}",
            ]
        )
        for name, plan in plans.items()
    }


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tracker(plan: Plan, options: RunOptions, account: Account, *, removed: int) -> Tracker:
    sweep, planned = plan.sweep, account.planned
    tracker = Tracker(
        uri=options.tracking_uri or default_uri(options.storage.local),
        experiment=sweep.name,
        storage=options.storage.local,
        name=sweep.name,
        tags={
            "sweep.title": sweep.title,
            "sweep.sweep_epsilon_planned": sweep_epsilon_line(plan, planned, removed=removed),
            "sweep.privacy": sweep_statement(plan, Ledger.read(options.storage)).text(),
        },
        params={"trials": len(plan.trials), "points": len(plan.points), "seeds": sweep.seeds},
    )
    budget = sweep.budget.sweep_epsilon if sweep.budget else None
    tracker.sweep_reported(metrics={"sweep_epsilon_planned": planned.epsilon, "sweep_epsilon_budget": budget})
    return tracker


class _SpecWriter(Listener):
    """Writes the search space down with the first trial, so that a run that cannot start hides no earlier results."""

    def __init__(self, storage: Storage, plan: Plan):
        self._storage, self._plan, self._written = storage, plan, False

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        if not self._written:
            Results.save_sweep(self._storage, self._plan.sweep)
            self._written = True


class _MlflowListener(Listener):
    """Tells MLflow what happens to the trials, in its own terms."""

    def __init__(self, tracker: Tracker, plan: Plan, labels: Mapping[str, str]):
        self._tracker = tracker
        self._labels = labels
        self._colors = alpha_colors({trial.plan.alpha for trial in plan.trials})

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        calibrated = {"r_star": info.get("r")} | {key: info.get(key) for key in ("noise_multiplier", "attenuation")}
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

    def catch_up(self, trial: Trial, record: Record) -> None:
        """Tell of a trial of an earlier run what that did not come to tell."""
        if self._tracker.lacks(trial.id, end_reason=str(record.end_reason)):
            self.started(trial, record.info)
            for report in record.reports:
                self.reported(trial, report)
            self.ended(trial, record)

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        self._tracker.trial_reported(trial.id, step=report["step"], metrics={key: report[key] for key in _CURVES})

    def ended(self, trial: Trial, record: Record) -> None:
        tags = {"sweep.message": record.message} if record.message else {}
        self._tracker.trial_ended(
            trial.id, end_reason=str(record.end_reason), metrics=_final_metrics(record), tags=tags
        )


class _Spending(Listener):
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
        "noise_multiplier": record.info.get("noise_multiplier"),
        "attenuation": record.info.get("attenuation"),
        "effective_learning_rate": rates["effective_learning_rate"],
        "final_accuracy": last.get("test_accuracy"),
        "audit_epsilon_lower": last.get("audit_epsilon_lower"),
        **{f"log10_{key}": math.log10(rate) for key, rate in rates.items() if rate},
    }
