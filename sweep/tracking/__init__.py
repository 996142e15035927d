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
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from sweep.tracking.environment import prepare_environment
from sweep.tracking.errors import TrackingError, one_line
from sweep.tracking.events import END_REASON, END_STATUS, KIND, NAME, TRIAL_ID, Event, Trial, now_ms
from sweep.tracking.uri import check_uri, default_uri, exists, is_local, prepare_sqlite, shown
from sweep.tracking.values import clean_metrics, clean_params, clean_tags
from sweep.tracking.writer import Writer

__all__ = ["END_STATUS", "Tracker", "TrackingError", "attach", "default_uri"]

log = logging.getLogger("sweep")

START_SECONDS = 5.0  # what a server that does not answer may cost the constructor

_P = ParamSpec("_P")


def _never_raises(
    method: Callable[Concatenate[Tracker, _P], None],
) -> Callable[Concatenate[Tracker, _P], None]:
    """Tracking may lose a value; it may never end the sweep that calls it."""

    @functools.wraps(method)
    def guarded(self: Tracker, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            log.warning("not tracked: %s: %s", method.__name__, one_line(error))

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
        check_uri(uri, storage)
        prepare_environment()
        if is_local(uri):
            prepare_sqlite(uri)
        sweep = Event(
            kind="started",
            trial=None,
            time_ms=now_ms(),
            name=name,
            params=clean_params(params or {}),
            tags=clean_tags({**tags, KIND: "sweep", NAME: name}),
        )
        self._writer = Writer(uri=uri, experiment=experiment, storage=storage, sweep=sweep)
        self._writer.start()
        self._writer.tried.wait(None if is_local(uri) else START_SECONDS)
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

    def lacks(self, trial_id: str, *, end_reason: str) -> bool:
        """Whether MLflow had not heard, when this was made, that the trial had ended so; True if it is away."""
        return self._writer.ends.get(trial_id) != end_reason

    @_never_raises
    def trial_started(self, trial_id: str, *, name: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        """Open the trial's run, or open it again with what it already holds."""
        own = {KIND: "trial", TRIAL_ID: trial_id}
        self._put("started", trial_id, name=name, params=clean_params(params), tags=clean_tags({**tags, **own}))

    @_never_raises
    def trial_reported(
        self, trial_id: str, *, step: int, metrics: Mapping[str, float | None], time_ms: int | None = None
    ) -> None:
        """Log one report of a trial; `time_ms` is Unix time in milliseconds, now if not given.

        A value that is None or not finite is left out, and so is a step that the run already has.
        """
        time_ms = now_ms() if time_ms is None else int(time_ms)
        self._put("reported", trial_id, time_ms=time_ms, step=int(step), metrics=clean_metrics(metrics))

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
            metrics=clean_metrics(metrics or {}),
            tags=clean_tags({**(tags or {}), END_REASON: end_reason}),
        )

    @_never_raises
    def sweep_reported(
        self,
        *,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, str] | None = None,
        step: int | None = None,
    ) -> None:
        """Log values of the whole sweep to the parent run; those with a `step` make a curve."""
        self._put("reported", None, step=step, metrics=clean_metrics(metrics or {}), tags=clean_tags(tags or {}))

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

    def _put(self, kind: str, trial: Trial, *, time_ms: int | None = None, **fields: Any) -> None:
        event = Event(kind=kind, trial=trial, time_ms=now_ms() if time_ms is None else time_ms, **fields)
        self._writer.inbox.put(event)


def attach(paths: Iterable[Path], *, uri: str, name: str) -> None:
    """Copy files to the own run of the sweep `name`, if MLflow has it; where MLflow fails, a warning says so."""
    if not exists(uri):
        return
    prepare_environment()
    try:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id], f"tags.`{KIND}` = 'sweep'") if experiment else []
        for run in runs:
            for path in paths if run.data.tags.get(NAME) == name else ():
                client.log_artifact(run.info.run_id, str(path))
    except Exception as error:
        log.warning("the files are not in MLflow at %s: %s", shown(uri), one_line(error))
