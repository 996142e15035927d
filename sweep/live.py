"""The live view of a sweep: a few lines that stay in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sweep.campaign import Campaign, Listener
from sweep.expand import Trial
from sweep.planning import Plan
from sweep.store import Record

__all__ = ["LiveView"]

_PLAIN_INTERVAL_S = 10.0


class LiveView(Listener):
    """Counts trials done, running, stopped and failed, and shows the best so far and the time left at most.

    A context manager. The time left assumes that no further trial is stopped early.
    """

    def __init__(self, plan: Plan, *, console: Console, labels: Mapping[str, str]):
        self._console = console
        self._labels = labels
        self._steps_left = {t.id: t.plan.steps for point in plan.points if point.feasible for t in point.trials}
        self._count = Counter[str]()
        self._running: dict[str, int] = {}
        self._best: tuple[float, str] | None = None
        self._first_report: tuple[float, int] | None = None  # when, and how many steps
        self._steps_done = 0
        self._printed = 0.0
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=2, transient=True)

    def attach(self, campaign: Campaign) -> None:
        """Leave out what an earlier run has finished, and what is skipped."""
        self._campaign = campaign
        for trial in campaign.finished_before:
            self._steps_left.pop(trial.id, None)
            self._note_best(trial, campaign.records[trial.id])

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        """Count a running trial."""
        self._running[trial.id] = 0

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Count its steps."""
        self._steps_done += report["step"] - self._running[trial.id]
        self._running[trial.id] = report["step"]
        self._steps_left[trial.id] = trial.plan.steps - report["step"]
        self._first_report = self._first_report or (time.monotonic(), self._steps_done)
        self._print_now_and_then()

    def ended(self, trial: Trial, record: Record) -> None:
        """Count it among those that ended so."""
        self._running.pop(trial.id, None)
        self._steps_left.pop(trial.id, None)
        for skipped in self._campaign.skipped:
            self._steps_left.pop(skipped.id, None)
        self._count[str(record.end_reason)] += 1
        self._note_best(trial, record)
        self._print_now_and_then()

    def _note_best(self, trial: Trial, record: Record) -> None:
        score = record.reports[-1].get(trial.plan.score) if record.end_reason == "completed" else None
        if score is not None and (self._best is None or score > self._best[0]):
            test = record.reports[-1]["test_accuracy"]
            self._best = (score, f"{self._labels[trial.id]}: test accuracy {test:.2%}")

    @property
    def seconds_left(self) -> float | None:
        """Time left at most, from the pace since the first report, which start-up delays; None before the second."""
        if self._first_report is None or self._steps_done == self._first_report[1]:
            return None
        seconds, steps = time.monotonic() - self._first_report[0], self._steps_done - self._first_report[1]
        return seconds * sum(self._steps_left.values()) / steps

    def _cells(self) -> dict[str, str]:
        failed = self._count["error"] + self._count["diverged"] + self._count["infeasible"]
        left = "…" if self.seconds_left is None else "{} min {} s".format(*divmod(round(self.seconds_left), 60))
        return {
            "done": str(self._count["completed"]),
            "running": str(len(self._running)),
            "stopped early": str(self._count["early_stopped"] + self._count["budget_exhausted"]),
            "failed": str(failed),
            "time left at most": left,
            "best so far": self._best[1] if self._best else "…",
        }

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        cells = self._cells()
        for name in cells:
            table.add_column(name)
        table.add_row(*map(escape, cells.values()))
        return table

    def _print_now_and_then(self) -> None:
        if not self._console.is_terminal and time.monotonic() - self._printed >= _PLAIN_INTERVAL_S:
            self._printed = time.monotonic()
            line = ", ".join(f"{name}: {value}" for name, value in self._cells().items())
            self._console.print(line, soft_wrap=True, markup=False)
