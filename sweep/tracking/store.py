"""The store: MLflow as one sweep sees it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweep.tracking.errors import is_refusal, unless_refused
from sweep.tracking.events import END_REASON, END_STATUS, KIND, NAME, PARENT_RUN_ID, TRIAL_ID, Event, Trial, end_event
from sweep.tracking.view import experiment_tags

if TYPE_CHECKING:  # imported late: MLflow reads its telemetry switch while it is imported
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

METRICS_PER_CALL, PARAMS_PER_CALL, TAGS_PER_CALL = 800, 100, 100  # a server takes 1000 of all three together

_T = TypeVar("_T")


@dataclass
class _Run:
    """What MLflow already holds of a run that is being written."""

    id: str
    known: bool  # it existed before: its history has to be asked for
    params: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    steps: dict[str, set[int]] = field(default_factory=dict)
    last_step: int = 0


class Store:
    """One experiment, its parent run and its trials' runs, through the client API alone.

    The fluent API guesses the run from the process and its environment, wrongly in a driver with many trials.
    """

    def __init__(self, uri: str, *, experiment: str, artifacts: str | None, sweep: Event) -> None:
        from mlflow import MlflowClient

        self.client: MlflowClient = MlflowClient(tracking_uri=uri)
        self.run_ids: dict[Trial, str] = {}
        self.running: set[Trial] = set()
        self.ends: dict[Trial, str | None] = {}  # how those that do not run had ended, when they were found
        self.open: dict[Trial, _Run] = {}
        self.experiment_id = self._experiment(experiment, artifacts)
        self._find_parent(sweep)
        self._find_children()

    def write(self, trial: Trial, events: Sequence[Event]) -> None:
        """Bring one run up to date. After a failure at any point, a new store may do it again."""
        lives = [event for event in events if event.kind in ("started", "ended")]
        end = lives[-1] if lives and lives[-1].kind == "ended" else None
        run = self.open.get(trial) or self._open(trial, events)
        if lives and not end and trial not in self.running:
            self._reopen(trial, run)
        self._log(run, events, ended=end is not None)
        if end:
            self.client.set_terminated(run.id, status=end.status, end_time=end.time_ms)
            self.running.discard(trial)
            del self.open[trial]

    def close_orphans(self, *, live: set[str]) -> None:
        """End as killed the runs that a dead driver left running."""
        for trial in sorted(trial for trial in self.running if trial is not None and trial not in live):
            orphan = end_event(trial, status=END_STATUS["interrupted"], tags={END_REASON: "interrupted"})
            unless_refused(self.write, trial, [orphan])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        """Find the experiment, bring it back if it was deleted, or create it; give it its view."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            experiment = self.client.get_experiment(self.client.create_experiment(name, artifacts))
        elif experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        for key, value in experiment_tags().items():
            if experiment.tags.get(key) != value:
                unless_refused(self.client.set_experiment_tag, experiment.experiment_id, key, value)
        return experiment.experiment_id

    def _find_parent(self, sweep: Event) -> None:
        # Names are compared here, for one may hold quotes.
        runs = [run for run in self._runs(f"tags.`{KIND}` = 'sweep'") if run.data.tags.get(NAME) == sweep.name]
        if runs:
            self._adopt_one(None, runs)
        else:
            self._create(None, sweep)

    def _find_children(self) -> None:
        found: dict[str, list[Run]] = {}
        for run in self._runs(f"tags.`{PARENT_RUN_ID}` = '{self.run_ids[None]}'"):
            if trial := run.data.tags.get(TRIAL_ID):
                found.setdefault(trial, []).append(run)
        for trial, runs in found.items():
            self._adopt_one(trial, runs)

    def _adopt_one(self, trial: Trial, runs: list[Run]) -> None:
        """Go on with the run that holds most; the others were made by calls that timed out, but arrived."""
        kept = max(runs, key=lambda run: len(run.data.metrics))
        self._adopt(trial, kept)
        for run in runs:
            if run is not kept and not run.data.metrics:
                self.client.delete_run(run.info.run_id)

    def _adopt(self, trial: Trial, run: Run) -> None:
        self.run_ids[trial] = run.info.run_id
        if run.info.status == "RUNNING":
            self.running.add(trial)
        else:
            self.ends[trial] = run.data.tags.get(END_REASON)

    def _runs(self, condition: str) -> Iterator[Run]:
        """All matching runs, the oldest first."""
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=condition,
                max_results=1000,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def _open(self, trial: Trial, events: Sequence[Event]) -> _Run:
        """Load a run that exists, or create it from its first event."""
        if trial not in self.run_ids:
            return self._create(trial, events[0])
        run_id = self.run_ids[trial]
        data = self.client.get_run(run_id).data
        self.open[trial] = _Run(
            id=run_id, known=True, params=set(data.params), tags=dict(data.tags), latest=dict(data.metrics)
        )
        return self.open[trial]

    def _create(self, trial: Trial, event: Event) -> _Run:
        tags = dict(event.tags)
        if trial is not None:
            tags |= {PARENT_RUN_ID: self.run_ids[None], KIND: "trial", TRIAL_ID: trial}
        created = self.client.create_run(
            self.experiment_id, start_time=event.time_ms, tags=tags, run_name=event.name or trial
        )
        self._adopt(trial, created)
        self.open[trial] = _Run(id=created.info.run_id, known=False, tags=tags)
        return self.open[trial]

    def _reopen(self, trial: Trial, run: _Run) -> None:
        self.client.update_run(run.id, status="RUNNING")
        if run.tags.pop(END_REASON, None):  # it has not ended after all
            self.client.delete_tag(run.id, END_REASON)
        self.running.add(trial)

    def _log(self, run: _Run, events: Sequence[Event], *, ended: bool) -> None:
        """Send what the run does not have yet, in as few calls as the server's limits allow."""
        from mlflow.entities import Param, RunTag

        points = self._new_points(run, events)
        params = {key: text for event in events for key, text in event.params.items() if key not in run.params}
        tags = {key: text for event in events for key, text in event.tags.items()}
        if not ended:
            tags.pop(END_REASON, None)  # of an earlier life
        tags = {key: text for key, text in tags.items() if run.tags.get(key) != text}
        batches = zip_longest(
            _chunks(points, METRICS_PER_CALL),
            _chunks([Param(*item) for item in params.items()], PARAMS_PER_CALL),
            _chunks([RunTag(*item) for item in tags.items()], TAGS_PER_CALL),
            fillvalue=(),
        )
        for batch in batches:
            self._log_batch(run, dict(zip(("metrics", "params", "tags"), batch, strict=True)))
        run.params |= params.keys()
        run.tags |= tags
        for event in events:
            if event.kind == "artifact":
                unless_refused(self._upload, run, event)

    def _log_batch(self, run: _Run, parts: Mapping[str, Any]) -> None:
        """Send one batch. A value that MLflow refuses costs its own part, not the whole batch."""
        try:
            self.client.log_batch(run.id, **parts)
        except Exception as error:
            if not is_refusal(error):
                raise
            for name, part in parts.items():
                if part:
                    unless_refused(functools.partial(self.client.log_batch, run.id, **{name: part}))

    def _new_points(self, run: _Run, events: Sequence[Event]) -> list[Metric]:
        """The metric values of the events that the run does not have."""
        from mlflow.entities import Metric

        points = []
        for event in events:
            if event.step is not None:
                run.last_step = max(run.last_step, event.step)
            for key, value in event.metrics.items():
                if self._has(run, key, event.step, value):
                    continue
                step = run.last_step if event.step is None else event.step
                points.append(Metric(key, value, event.time_ms, step))
                run.latest[key] = value
        return points

    def _has(self, run: _Run, key: str, step: int | None, value: float) -> bool:
        """Whether the run has this step of a metric or, without a step, this value as the latest one."""
        if step is None:
            return run.latest.get(key) == value
        if key not in run.steps:
            history = self.client.get_metric_history(run.id, key) if run.known and key in run.latest else []
            run.steps[key] = {point.step for point in history}
        seen = step in run.steps[key]
        run.steps[key].add(step)
        return seen

    def _upload(self, run: _Run, event: Event) -> None:
        send = self.client.log_artifacts if Path(event.path).is_dir() else self.client.log_artifact
        send(run.id, event.path, event.folder)


def _chunks(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
