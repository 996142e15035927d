"""What a sweep will do and cost, before it starts: calibrations, feasibility, steps, and the ε of the whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dirdp import BudgetError, methods
from dirdp.accounting import compose
from dirdp.methods.base import Method
from sweep.expand import Trial, expand
from sweep.spec import SpecError, Sweep

__all__ = ["Plan", "Point", "plan"]


@dataclass(frozen=True)
class Point:
    """One point of the search space with its seeds; `method` is None where the budget is below its floor."""

    trials: tuple[Trial, ...]
    method: Method | None
    reason: str | None

    @property
    def feasible(self) -> bool:
        """Whether the budget has a usable calibration."""
        return self.method is not None

    @cached_property
    def floor(self) -> float:
        """The least ε that this point's method can be calibrated to; 0 where there is no mechanism."""
        return methods.floor(self.trials[0].plan)


@dataclass(frozen=True)
class Plan:
    """A sweep laid out."""

    sweep: Sweep
    points: tuple[Point, ...]

    @property
    def trials(self) -> list[Trial]:
        """All trials, infeasible ones included."""
        return [trial for point in self.points for trial in point.trials]

    @property
    def total_steps(self) -> int:
        """Training steps of all feasible trials at full length."""
        return sum(trial.plan.steps for point in self.points if point.feasible for trial in point.trials)

    @property
    def expected_steps(self) -> int:
        """`total_steps` less what the scheduler may save, if each rung keeps exactly its share.

        An estimate: asynchronous halving keeps more, since it judges early comers against few.
        """
        rule = self.sweep.asha
        if rule is None:
            return self.total_steps
        total = 0.0
        groups = Counter(point.trials[0].group for point in self.points if point.feasible)
        for group, size in groups.items():
            steps, at, alive = group[-1], rule.grace, float(size)
            total += size * rule.grace * steps
            while at < 1:
                alive = max(1.0, alive / rule.reduction_factor)
                following = min(1.0, at * rule.reduction_factor)
                total += alive * (following - at) * steps
                at = following
            total += alive * (self.sweep.seeds - 1) * steps
        return round(total)

    @cached_property
    def sweep_epsilon(self) -> float:
        """Nominal ε of the whole sweep: every feasible trial to its full length, composed at the common Rényi orders.

        Sound whatever is stopped early, since a stopped sweep is a function of the full one. At the least δ of the
        trials; infinite where a trial has no mechanism.
        """
        curves = [
            # Seeds share one curve, so n seeds of T steps are one training of n·T steps.
            point.method.rdp(point.trials[0].plan.steps * len(point.trials))
            for point in self.points
            if point.method
        ]
        if any(curve is None for curve in curves):
            return math.inf
        return compose([curve for curve in curves if curve]).epsilon(self.delta).epsilon

    @property
    def delta(self) -> float:
        """The least δ of the trials."""
        return min(trial.plan.delta for trial in self.trials)


def plan(sweep: Sweep) -> Plan:
    """Expand a sweep and calibrate each of its points.

    Raises `SpecError` for an impossible combination, or if no point has a usable budget.
    """
    by_point: dict[str, list[Trial]] = {}
    for trial in expand(sweep):
        by_point.setdefault(trial.point_id, []).append(trial)
    points = tuple(_point(trials) for trials in by_point.values())
    _check_metric(sweep, points)
    if not any(point.feasible for point in points):
        raise SpecError(f"{sweep.name}: no point has a usable r*: {points[0].reason}")
    return Plan(sweep, points)


def _point(trials: Sequence[Trial]) -> Point:
    try:
        return Point(tuple(trials), methods.bind(trials[0].plan), None)
    except BudgetError as error:
        return Point(tuple(trials), None, str(error))


def _check_metric(sweep: Sweep, points: Sequence[Point]) -> None:
    if sweep.asha and sweep.asha.metric == "validation_accuracy":
        for point in points:
            if point.trials[0].plan.score != "validation_accuracy":
                raise SpecError(
                    f"{sweep.name}: scheduler.asha.metric=validation_accuracy needs a validation set: "
                    "give trial.validation: {fraction: 0.1}, or metric: test_accuracy"
                )
