"""Which trial is next, and which goes on: pure sequences of events, driven by Ray or by a plain loop alike."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from sweep.expand import Trial, launch_order
from sweep.spec import Asha

__all__ = ["EarlyStopping", "Queue"]


class Queue:
    """Hands out trials in launch order, except those that `ended` in an earlier run.

    With `staged`, the seeds of a point belong together: its first seed is handed out at once, the others when that
    one has completed; if it ended otherwise, they are `skipped`.
    """

    def __init__(self, trials: Iterable[Trial], *, staged: bool, ended: Mapping[str, str]):
        self._ready: deque[Trial] = deque()
        self._siblings: dict[str, list[Trial]] = {}
        self.skipped: list[Trial] = []
        ordered = launch_order(trials)
        for trial in ordered:
            if trial.id in ended:
                continue
            if staged and trial.replicate > 0:
                self._siblings.setdefault(trial.point_id, []).append(trial)
            else:
                self._ready.append(trial)
        for trial in ordered:
            if trial.id in ended:
                self.settle(trial, ended[trial.id])

    def next(self, fits: Callable[[Trial], bool] = lambda trial: True) -> Trial | None:
        """The next trial that `fits`, or None if none can start now: ask again once a running one has ended."""
        for trial in self._ready:
            if fits(trial):
                self._ready.remove(trial)
                return trial
        return None

    def stuck(self, fits: Callable[[Trial], bool]) -> list[Trial]:
        """All that is left, further seeds included, if none of those that could start now fits."""
        if any(map(fits, self._ready)):
            return []
        return [*self._ready, *(trial for siblings in self._siblings.values() for trial in siblings)]

    @property
    def exhausted(self) -> bool:
        """Whether no trial will come any more."""
        return not self._ready and not self._siblings

    def settle(self, trial: Trial, end_reason: str) -> None:
        """Take note of how a trial ended."""
        if trial.replicate == 0:
            siblings = self._siblings.pop(trial.point_id, [])
            (self._ready if end_reason == "completed" else self.skipped).extend(siblings)


class EarlyStopping:
    """Asynchronous successive halving among comparable trials, by Ray's implementation, one for each group.

    A private budget is thus never cut for being more private, nor a large batch for being slower to start.
    """

    def __init__(self, rule: Asha):
        self._rule = rule
        self._groups: dict[tuple[Any, ...], ASHAScheduler] = {}

    def goes_on(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Whether a trial goes on after a report (with `step` and the metric); call it once for each, in order.

        A missing or non-finite metric stops this trial and is not compared with any other. Only the first seed of a
        point is judged.
        """
        if trial.replicate > 0:
            return True
        score = report.get(self._rule.metric or trial.plan.score)
        if score is None or not math.isfinite(score):
            return False
        if trial.group not in self._groups:
            self._groups[trial.group] = ASHAScheduler(
                time_attr="step",
                metric="score",
                mode="max",
                max_t=trial.plan.steps,
                grace_period=math.ceil(self._rule.grace * trial.plan.steps),
                reduction_factor=self._rule.reduction_factor,
                stop_last_trials=False,
            )
        # Ray's rule asks no more of a trial than its id, and nothing of a controller.
        scheduler: Any = self._groups[trial.group]
        name = SimpleNamespace(trial_id=trial.id)
        if trial.id not in scheduler._trial_info:
            scheduler.on_trial_add(None, name)
        decision = scheduler.on_trial_result(None, name, {"step": report["step"], "score": score})
        return decision != TrialScheduler.STOP
