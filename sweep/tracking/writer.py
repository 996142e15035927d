"""The thread that calls MLflow: what waits, when it is written, where it goes if it cannot be."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from pathlib import Path

from sweep.tracking.environment import THREAD
from sweep.tracking.errors import TrackingError, explained, is_final, one_line, unless_refused
from sweep.tracking.events import END_REASON, END_STATUS, Event, Trial, by_trial, end_event
from sweep.tracking.spool import Spool
from sweep.tracking.store import Store
from sweep.tracking.uri import is_local, is_server, shown

log = logging.getLogger("sweep")

FLUSH_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while the store is away
EVENTS_IN_MEMORY = 20_000  # some 20 MB; the spool takes over beyond


class Writer(threading.Thread):
    """Owns all that waits to be written. Only this thread calls MLflow."""

    def __init__(self, *, uri: str, experiment: str, storage: Path, sweep: Event) -> None:
        super().__init__(name=THREAD, daemon=True)
        self.inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # None: the sweep is over
        self.tried = threading.Event()  # the first attempt is over
        self.refusal: TrackingError | None = None
        self.parent_run_id: str | None = None
        self.experiment_id: str | None = None
        self.ends: dict[Trial, str | None] = {}  # of the runs that had ended before
        self._uri = uri
        self._experiment = experiment
        self._artifacts = None if is_server(uri) else (storage / "mlartifacts").absolute().as_uri()
        self._sweep = sweep
        self._spool = Spool(storage / ("mlflow-spool-" + re.sub(r"[^\w.-]", "_", experiment) + ".jsonl"))
        self._store: Store | None = None
        self._waiting: dict[Trial, list[Event]] = {None: [sweep]}
        self._live: set[str] = set()
        self._final_status = "FINISHED"
        self._closed, self._abandoned = False, False
        self._away, self._pause, self._retry_at = False, FIRST_PAUSE, 0.0
        self._troubled = False  # whether a call ever failed

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

    def _accept(self, event: Event) -> None:
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

    def _connect(self) -> Store:
        """Open the store, send what an earlier sweep left, and close the runs of a driver that died."""
        store = Store(self._uri, experiment=self._experiment, artifacts=self._artifacts, sweep=self._sweep)
        self.parent_run_id, self.experiment_id = store.run_ids[None], store.experiment_id
        self.ends = store.ends
        for trial, events in by_trial(self._spool.read()).items():
            unless_refused(store.write, trial, events)
        store.close_orphans(live=self._live)
        self._spool.forget()
        self._store = store
        return store

    def _write_all(self, store: Store) -> None:
        for trial, events in sorted(self._waiting.items(), key=lambda item: item[0] is None):  # parent last
            if self._abandoned:
                return
            unless_refused(store.write, trial, events)
            self._waiting.pop(trial, None)

    def _finish(self) -> None:
        for trial in sorted(self._live):
            self._accept(end_event(trial, status=END_STATUS["interrupted"], tags={END_REASON: "interrupted"}))
        self._accept(end_event(None, status=self._final_status, tags={}))
        if self._troubled:
            self._store = None  # a call that timed out may have arrived late: look for runs that are there twice
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
                *(shown(self._uri), why, len(events), self._spool.path),
            )
        except OSError as error:
            log.error("%d events for MLflow are lost: %s", len(events), one_line(error))
        self._waiting.clear()

    def _note_away(self, error: Exception) -> None:
        if self._abandoned:
            return
        if not self.tried.is_set() and (is_local(self._uri) or is_final(error)):
            self.refusal = TrackingError(f"cannot track to {shown(self._uri)}: {explained(error)}")
            return
        if not self._away:
            log.warning(
                "MLflow at %s is away (%s); training goes on, results wait for it",
                *(shown(self._uri), one_line(error)),
            )
        self._away = self._troubled = True
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _note_back(self) -> None:
        if self._away:
            log.warning("MLflow at %s is back", shown(self._uri))
        self._away, self._pause, self._retry_at = False, FIRST_PAUSE, 0.0
