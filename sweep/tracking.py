"""The MLflow writer: the only place that writes to MLflow, one per sweep, in the driver process.

What happens in a sweep reaches the writer as events. An event is plain data, and writing it twice does no
harm: a trial keeps one run for ever, a point keeps its timestamp, a step the run already has is skipped. So
there is one answer to every failure: keep the events and write them again later. They wait in memory, beyond
a bound in the spool, a file of JSON lines that the next sweep on the same storage sends first.

Callers only put events on a queue, which takes microseconds; one daemon thread talks to MLflow. After
construction no method raises, whatever MLflow does.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import numbers
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from sweep.mlflow_view import experiment_tags

if TYPE_CHECKING:  # imported late: MLflow reads its telemetry switch while it is imported
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

__all__ = ["END_STATUS", "Tracker", "TrackingError", "default_uri"]

log = logging.getLogger("sweep")

END_STATUS = {
    "completed": "FINISHED",
    "early_stopped": "FINISHED",
    "diverged": "FINISHED",
    "infeasible": "FINISHED",
    "interrupted": "KILLED",
    "error": "FAILED",
}
"""How a trial may end, and the status that its MLflow run then has."""

KIND, NAME, TRIAL_ID, END_REASON = "sweep.kind", "sweep.name", "sweep.trial_id", "sweep.end_reason"
PARENT_RUN_ID = "mlflow.parentRunId"

FLUSH_SECONDS = 2.0
START_SECONDS = 5.0  # what a server that does not answer may cost the constructor
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while the store is away
EVENTS_IN_MEMORY = 20_000  # some 20 MB; the spool takes over beyond
METRICS_PER_CALL, PARAMS_PER_CALL, TAGS_PER_CALL = 800, 100, 100  # a server takes 1000 of all three together
LONGEST_PARAM, LONGEST_TAG, LONGEST_KEY = 6000, 5000, 250  # characters

_SCHEMES = ("sqlite", "postgresql", "http", "https")
_THREAD = "mlflow-writer"

_Trial = str | None  # a trial's id; None is the sweep itself, the parent run
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TrackingError(ValueError):
    """The tracking store cannot work as configured: one clear line, before Ray starts."""


def default_uri(storage: Path) -> str:
    """Return the tracking URI of a sweep that names none: a SQLite file inside its storage folder (local disk).

    >>> default_uri(Path("/data/sweeps"))
    'sqlite:////data/sweeps/mlflow.db'
    """
    return f"sqlite:///{storage.absolute() / 'mlflow.db'}"


# --- The face of the writer ---------------------------------------------------------------------------------


def _never_raises(
    method: Callable[Concatenate[Tracker, _P], None],
) -> Callable[Concatenate[Tracker, _P], None]:
    """Tracking may lose a value; it may never end the sweep that calls it."""

    @functools.wraps(method)
    def guarded(self: Tracker, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            log.warning("not tracked: %s: %s", method.__name__, _one_line(error))

    return guarded


class Tracker:
    """Writes one sweep to MLflow: a parent run, and below it one run per trial that lasts for ever.

    `uri` is the tracking URI (sqlite, postgresql, http or https); `experiment` and `name` say where the sweep
    is kept, and both are found again if they exist; `storage` is the local folder for artifacts and the
    spool; `tags` and `params` describe the sweep and go to the parent run.

    A SQLite store is initialised here, once, before any worker starts: about 6 s for a new file. A server
    that does not answer costs at most `START_SECONDS` and one warning; the results wait until it is back.

    Raises `TrackingError` where the URI cannot work: a folder, an unknown scheme, a database that cannot be
    opened, a missing driver, a server that answers and refuses.
    """

    def __init__(
        self,
        *,
        uri: str,
        experiment: str,
        storage: Path,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, object] | None = None,
    ) -> None:
        _check_uri(uri, storage)
        _prepare_environment()
        if _is_local(uri):
            _prepare_sqlite(uri)
        sweep = _Event(
            kind="started",
            trial=None,
            time_ms=_now_ms(),
            name=name,
            params=_params(params or {}),
            tags=_tags({**tags, KIND: "sweep", NAME: name}),
        )
        self._writer = _Writer(uri=uri, experiment=experiment, storage=storage, sweep=sweep)
        self._writer.start()
        self._writer.tried.wait(None if _is_local(uri) else START_SECONDS)
        if self._writer.refusal:
            raise self._writer.refusal

    @property
    def parent_run_id(self) -> str | None:
        """MLflow's id of the sweep's own run; None until the store has answered once."""
        return self._writer.parent_run_id

    @property
    def experiment_id(self) -> str | None:
        """MLflow's id of the experiment; None until the store has answered once."""
        return self._writer.experiment_id

    @_never_raises
    def trial_started(self, trial_id: str, *, name: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        """Open the trial's run, or open it again with what it already holds."""
        own = {KIND: "trial", TRIAL_ID: trial_id}
        self._put("started", trial_id, name=name, params=_params(params), tags=_tags({**tags, **own}))

    @_never_raises
    def trial_reported(
        self, trial_id: str, *, step: int, metrics: Mapping[str, float | None], time_ms: int | None = None
    ) -> None:
        """Log one report of a trial; `time_ms` is Unix time in milliseconds, now if not given.

        A value that is None or not finite is left out, and so is a step that the run already has.
        """
        time_ms = _now_ms() if time_ms is None else int(time_ms)
        self._put("reported", trial_id, time_ms=time_ms, step=int(step), metrics=_finite(metrics))

    @_never_raises
    def trial_ended(
        self,
        trial_id: str,
        *,
        end_reason: str,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """End the trial's run for one of the reasons in `END_STATUS`, with its final metrics.

        An unknown reason is kept as it is and gives the status FAILED.
        """
        self._put(
            "ended",
            trial_id,
            status=END_STATUS.get(end_reason, "FAILED"),
            metrics=_finite(metrics or {}),
            tags=_tags({**(tags or {}), END_REASON: end_reason}),
        )

    @_never_raises
    def sweep_reported(
        self,
        *,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log values of the whole sweep to the parent run."""
        self._put("reported", None, metrics=_finite(metrics or {}), tags=_tags(tags or {}))

    @_never_raises
    def artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Copy a file or a folder to the parent run, there below `folder` if given."""
        self._put("artifact", None, path=str(Path(path).absolute()), folder=folder)

    @_never_raises
    def close(self, *, status: str = "FINISHED", timeout: float = 30) -> None:
        """End the parent run with `status` and write what waits, for at most `timeout` seconds.

        Trials that still run are ended as interrupted. What cannot be written goes to the spool, and a
        warning says where that is.
        """
        self._writer.close(status=status, timeout=timeout)

    def _put(self, kind: str, trial: _Trial, *, time_ms: int | None = None, **fields: Any) -> None:
        event = _Event(kind=kind, trial=trial, time_ms=_now_ms() if time_ms is None else time_ms, **fields)
        self._writer.inbox.put(event)


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Something that happened in a sweep, clean enough to be written or spooled as it is."""

    kind: str  # started | reported | ended | artifact
    trial: _Trial
    time_ms: int
    step: int | None = None  # None: a final value, kept beside the last step
    name: str = ""
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: str | None = None  # of an end
    path: str = ""  # of an artifact
    folder: str | None = None


# --- The thread: what waits, when it is written, where it goes if it cannot be ------------------------------


class _Writer(threading.Thread):
    """Owns all that waits to be written. Only this thread calls MLflow."""

    def __init__(self, *, uri: str, experiment: str, storage: Path, sweep: _Event) -> None:
        super().__init__(name=_THREAD, daemon=True)
        self.inbox: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()  # None: the sweep is over
        self.tried = threading.Event()  # the first attempt is over
        self.refusal: TrackingError | None = None
        self.parent_run_id: str | None = None
        self.experiment_id: str | None = None
        self._uri = uri
        self._experiment = experiment
        self._artifacts = None if _is_server(uri) else (storage / "mlartifacts").absolute().as_uri()
        self._sweep = sweep
        self._spool = _Spool(storage / ("mlflow-spool-" + re.sub(r"[^\w.-]", "_", experiment) + ".jsonl"))
        self._store: _Store | None = None
        self._waiting: dict[_Trial, list[_Event]] = {None: [sweep]}
        self._live: set[str] = set()
        self._final_status = "FINISHED"
        self._closed, self._abandoned = False, False
        self._away, self._pause, self._retry_at = False, FIRST_PAUSE, 0.0

    def close(self, *, status: str, timeout: float) -> None:
        """Called from outside: let the thread finish, and save for it what it could not write in time."""
        if self._closed:
            return
        self._closed, self._final_status = True, status
        self.inbox.put(None)
        self.join(timeout)
        if self.is_alive():
            self._abandoned = True
            self._take()
            self._save(f"did not answer within {timeout:g} s")

    def run(self) -> None:
        """Write, wait, write; the first attempt decides whether the store is usable at all."""
        self._attempt()
        self.tried.set()
        while not (self.refusal or self._abandoned) and self._collect():
            self._attempt()
        if not (self.refusal or self._abandoned):
            self._finish()

    def _collect(self) -> bool:
        """Take events until a trial ends or the interval is over; False once the sweep is over."""
        until = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                event = self.inbox.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return True
            if event is None:
                return False
            self._accept(event)
            if event.kind == "ended":
                until = 0.0

    def _take(self) -> None:
        """Take what is in the queue without waiting."""
        while not self.inbox.empty():
            if event := self.inbox.get_nowait():
                self._accept(event)

    def _accept(self, event: _Event) -> None:
        """Queue an event behind the earlier ones of its run."""
        self._waiting.setdefault(event.trial, []).append(event)
        if event.trial is not None and event.kind == "started":
            self._live.add(event.trial)
        if event.trial is not None and event.kind == "ended":
            self._live.discard(event.trial)

    def _attempt(self, *, patient: bool = True) -> None:
        """Write all that waits; while the store is away, not before the pause is over."""
        if patient and time.monotonic() < self._retry_at:
            return
        try:
            self._write_all(self._store or self._connect())
            self._note_back()
        except Exception as error:
            self._store = None  # what arrived is unknown: the next attempt asks the store again
            self._note_away(error)
        if sum(map(len, self._waiting.values())) > EVENTS_IN_MEMORY:
            self._save("is away")

    def _connect(self) -> _Store:
        """Open the store, send what an earlier sweep left, and close the runs of a driver that died."""
        store = _Store(self._uri, experiment=self._experiment, artifacts=self._artifacts, sweep=self._sweep)
        self.parent_run_id, self.experiment_id = store.run_ids[None], store.experiment_id
        for trial, events in _by_trial(self._spool.read()).items():
            _unless_refused(store.write, trial, events)
        store.close_orphans(live=self._live)
        self._spool.forget()
        self._store = store
        return store

    def _write_all(self, store: _Store) -> None:
        for trial, events in sorted(self._waiting.items(), key=lambda item: item[0] is None):  # parent last
            if self._abandoned:
                return
            _unless_refused(store.write, trial, events)
            self._waiting.pop(trial, None)

    def _finish(self) -> None:
        for trial in sorted(self._live):
            self._accept(_ended(trial, status=END_STATUS["interrupted"], tags={END_REASON: "interrupted"}))
        self._accept(_ended(None, status=self._final_status, tags={}))
        self._attempt(patient=False)
        if self._waiting and not self._abandoned:
            self._save("is away")

    def _save(self, why: str) -> None:
        """Move what waits to the spool."""
        events = [event for waiting in list(self._waiting.values()) for event in waiting]
        try:
            self._spool.append(events)
            log.warning(
                "MLflow at %s %s: %d events wait in %s and are sent by the next run of this sweep",
                *(_shown(self._uri), why, len(events), self._spool.path),
            )
        except OSError as error:
            log.error("%d events for MLflow are lost: %s", len(events), _one_line(error))
        self._waiting.clear()

    def _note_away(self, error: Exception) -> None:
        if self._abandoned:
            return
        if not self.tried.is_set() and (_is_local(self._uri) or _is_final(error)):
            self.refusal = TrackingError(f"cannot track to {_shown(self._uri)}: {_explained(error)}")
            return
        if not self._away:
            log.warning(
                "MLflow at %s is away (%s); training goes on, results wait for it",
                *(_shown(self._uri), _one_line(error)),
            )
        self._away = True
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _note_back(self) -> None:
        if self._away:
            log.warning("MLflow at %s is back", _shown(self._uri))
        self._away, self._pause, self._retry_at = False, FIRST_PAUSE, 0.0


class _Spool:
    """Events on disk, one JSON object a line; they go once all are sent, for sending twice does no harm."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read_bytes = 0

    def append(self, events: Sequence[_Event]) -> None:
        lines = "".join(f"\n{json.dumps(asdict(event))}" for event in events)  # starts anew after a torn line
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> list[_Event]:
        with self._lock:
            data = self.path.read_bytes() if self.path.exists() else b""
        self._read_bytes = len(data)
        return [event for line in data.splitlines() if (event := _parsed(line))]

    def forget(self) -> None:
        """Remove what was read, unless more has come."""
        with self._lock:
            if self.path.exists() and self.path.stat().st_size == self._read_bytes:
                self.path.unlink()


# --- The store: MLflow as this sweep sees it ----------------------------------------------------------------


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


class _Store:
    """One experiment, its parent run and its trials' runs, through the client API alone.

    The fluent API guesses the run from the process and its environment, wrongly in a driver with many trials.
    """

    def __init__(self, uri: str, *, experiment: str, artifacts: str | None, sweep: _Event) -> None:
        from mlflow import MlflowClient

        self.client: MlflowClient = MlflowClient(tracking_uri=uri)
        self.run_ids: dict[_Trial, str] = {}
        self.running: set[_Trial] = set()
        self.open: dict[_Trial, _Run] = {}
        self.experiment_id = self._experiment(experiment, artifacts)
        self._find_parent(sweep)
        self._find_children()

    def write(self, trial: _Trial, events: Sequence[_Event]) -> None:
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
            orphan = _ended(trial, status=END_STATUS["interrupted"], tags={END_REASON: "interrupted"})
            _unless_refused(self.write, trial, [orphan])

    def _experiment(self, name: str, artifacts: str | None) -> str:
        """Find the experiment, bring it back if it was deleted, or create it; give it its view."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            experiment = self.client.get_experiment(self.client.create_experiment(name, artifacts))
        elif experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        for key, value in experiment_tags().items():
            if experiment.tags.get(key) != value:
                _unless_refused(self.client.set_experiment_tag, experiment.experiment_id, key, value)
        return experiment.experiment_id

    def _find_parent(self, sweep: _Event) -> None:
        for run in self._runs(f"tags.`{KIND}` = 'sweep'"):
            if run.data.tags.get(NAME) == sweep.name:  # compared here: a name may hold quotes
                self._adopt(None, run)
                return
        self._create(None, sweep)

    def _find_children(self) -> None:
        for run in self._runs(f"tags.`{PARENT_RUN_ID}` = '{self.run_ids[None]}'"):
            trial = run.data.tags.get(TRIAL_ID)
            if trial and trial not in self.run_ids:
                self._adopt(trial, run)
            elif trial and not run.data.metrics:  # created twice: the first call timed out, but arrived
                self.client.delete_run(run.info.run_id)

    def _adopt(self, trial: _Trial, run: Run) -> None:
        self.run_ids[trial] = run.info.run_id
        if run.info.status == "RUNNING":
            self.running.add(trial)

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

    def _open(self, trial: _Trial, events: Sequence[_Event]) -> _Run:
        """Load a run that exists, or create it from its first event."""
        if trial not in self.run_ids:
            return self._create(trial, events[0])
        run_id = self.run_ids[trial]
        data = self.client.get_run(run_id).data
        self.open[trial] = _Run(
            id=run_id, known=True, params=set(data.params), tags=dict(data.tags), latest=dict(data.metrics)
        )
        return self.open[trial]

    def _create(self, trial: _Trial, event: _Event) -> _Run:
        tags = dict(event.tags)
        if trial is not None:
            tags |= {PARENT_RUN_ID: self.run_ids[None], KIND: "trial", TRIAL_ID: trial}
        created = self.client.create_run(
            self.experiment_id, start_time=event.time_ms, tags=tags, run_name=event.name or trial
        )
        self._adopt(trial, created)
        self.open[trial] = _Run(id=created.info.run_id, known=False, tags=tags)
        return self.open[trial]

    def _reopen(self, trial: _Trial, run: _Run) -> None:
        self.client.update_run(run.id, status="RUNNING")
        if run.tags.pop(END_REASON, None):  # it has not ended after all
            self.client.delete_tag(run.id, END_REASON)
        self.running.add(trial)

    def _log(self, run: _Run, events: Sequence[_Event], *, ended: bool) -> None:
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
                _unless_refused(self._upload, run, event)

    def _log_batch(self, run: _Run, parts: Mapping[str, Any]) -> None:
        """Send one batch. A value that MLflow refuses costs its own part, not the whole batch."""
        try:
            self.client.log_batch(run.id, **parts)
        except Exception as error:
            if not _is_refusal(error):
                raise
            for name, part in parts.items():
                if part:
                    _unless_refused(functools.partial(self.client.log_batch, run.id, **{name: part}))

    def _new_points(self, run: _Run, events: Sequence[_Event]) -> list[Metric]:
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

    def _upload(self, run: _Run, event: _Event) -> None:
        send = self.client.log_artifacts if Path(event.path).is_dir() else self.client.log_artifact
        send(run.id, event.path, event.folder)


# --- Errors -------------------------------------------------------------------------------------------------


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help: the server understood and said no, or something is not installed."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return 400 <= error.get_http_status_code() < 500 and error.get_http_status_code() not in (408, 429)
    return isinstance(error, (ImportError, FileNotFoundError, PermissionError))


def _is_refusal(error: Exception) -> bool:
    """Whether these data can never be written. Unlike a refused value, a refused login may come right."""
    denied = getattr(error, "error_code", None) in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return _is_final(error) and not denied


def _unless_refused(call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call, and go on without what MLflow refuses for good: it must not hold up what comes behind it."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        if not _is_refusal(error):
            raise
        _warn_once(f"MLflow refused a value, which is left out: {_one_line(error)}")


@functools.lru_cache(maxsize=100)
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def _explained(error: Exception) -> str:
    if isinstance(error, ImportError) and "psycopg" in str(error):
        return "the PostgreSQL driver is missing; pip install 'dirdp[postgres]'"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


# --- URI and environment ------------------------------------------------------------------------------------


def _scheme(uri: str) -> str:
    return urlsplit(uri).scheme.split("+")[0]  # postgresql+psycopg names dialect and driver


def _is_local(uri: str) -> bool:
    return _scheme(uri) == "sqlite"


def _is_server(uri: str) -> bool:
    return _scheme(uri) in ("http", "https")


def _shown(uri: str) -> str:
    """The URI without a password."""
    return re.sub(r"//[^/@]*@", "//", uri)


def _check_uri(uri: str, storage: Path) -> None:
    scheme = _scheme(uri)
    if scheme in ("", "file"):
        folder = urlsplit(uri).path or uri
        raise TrackingError(
            f"tracking URI {uri!r} is a folder, which MLflow no longer writes to; use {default_uri(storage)} "
            f"(old runs: mlflow migrate-filestore --source {folder} --target {default_uri(storage)})"
        )
    if scheme not in _SCHEMES:
        raise TrackingError(
            f"tracking URI {_shown(uri)!r} has the unknown scheme {scheme!r}; valid: {', '.join(_SCHEMES)}"
        )


def _prepare_environment() -> None:
    """Set what MLflow reads from the environment, for this process and the workers that inherit it.

    By default a dead server blocks a call for minutes; the writer has its own pauses.
    """
    for variable in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        os.environ.pop(variable, None)  # with them, a new run silently becomes an old one
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    for name in ("mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_not_ours)


def _not_ours(record: logging.LogRecord) -> bool:
    """Drop the chatter that our own calls cause; the writer says what matters in one line."""
    return record.threadName != _THREAD


def _prepare_sqlite(uri: str) -> None:
    """Create the file and switch it to a write-ahead log, which lasts: a call takes 5 ms instead of 24."""
    from sqlalchemy.engine import make_url

    path = make_url(uri).database
    if not path or path == ":memory:":
        raise TrackingError(f"tracking URI {uri!r} names no file; use sqlite:////folder/mlflow.db")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"cannot open the tracking database {path}: {_one_line(error)}") from error


# --- Plain values -------------------------------------------------------------------------------------------


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ended(trial: _Trial, *, status: str, tags: dict[str, str]) -> _Event:
    return _Event(kind="ended", trial=trial, time_ms=_now_ms(), status=status, tags=tags)


def _parsed(line: bytes) -> _Event | None:
    """The event of a spool line; None for a line that a crash left torn."""
    try:
        return _Event(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _by_trial(events: Iterable[_Event]) -> dict[_Trial, list[_Event]]:
    trials: dict[_Trial, list[_Event]] = {}
    for event in events:
        trials.setdefault(event.trial, []).append(event)
    return trials


def _chunks(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _key(name: str) -> str:
    """A name as MLflow allows it: an asterisk, for one, is not."""
    return re.sub(r"[^\w\-. :/]", "_", str(name))[:LONGEST_KEY]


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The values that are finite numbers: MLflow would turn infinity into 1.8e308 and keep NaN."""
    found = {}
    for name, value in metrics.items():
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number):
            found[_key(name)] = number
    return found


def _tags(tags: Mapping[str, object]) -> dict[str, str]:
    return {_key(name): str(value)[:LONGEST_TAG] for name, value in tags.items() if value is not None}


def _params(params: Mapping[str, object]) -> dict[str, str]:
    return {_key(name): _text(value)[:LONGEST_PARAM] for name, value in params.items() if value is not None}


def _text(value: object) -> str:
    """One text for one value: MLflow refuses a parameter that comes again as 0.10 instead of 0.1.

    >>> _text(0.10), _text(1e-5), _text(True), _text({"b": [1, 0.5], "a": None})
    ('0.1', '1e-05', 'true', '{"a": null, "b": [1, 0.5]}')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return repr(float(value))
    return json.dumps(value, sort_keys=True, default=str)
