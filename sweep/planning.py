"""What a sweep will do and cost, before it starts: calibrations, feasibility, steps, and the ε of the whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from dirdp import BudgetError, datasets, methods
from dirdp.accounting import RdpCurve, compose, conversion, worst
from dirdp.filter import RenyiFilter
from dirdp.methods.base import Guarantee, Method
from sweep.expand import Trial, expand, support
from sweep.spec import SpecError, Sweep
from sweep.words import round_up

__all__ = ["Plan", "Point", "Segment", "Spending", "data_faults", "plan"]


@dataclass(frozen=True, eq=False)
class Spending:
    """Some trainings together, at δ.

    `curve` is the Rényi loss of those that have a bound, None if there are none; `unbounded` are the trials that have
    none, `guarantees` what the losses stand for.
    """

    delta: float
    curve: RdpCurve | None
    unbounded: tuple[str, ...]
    guarantees: tuple[Guarantee, ...]

    @property
    def epsilon(self) -> float:
        """ε at δ, at the order where it is least; infinite with a trial that has no bound, 0 without any trial."""
        if self.unbounded:
            return math.inf
        return self.curve.epsilon(self.delta).epsilon if self.curve else 0.0

    @property
    def order(self) -> int | None:
        """The order of `epsilon`."""
        return self.curve.epsilon(self.delta).order if self.curve else None

    def at(self, order: int) -> float:
        """ε at δ and this order, infinite and 0 as `epsilon`."""
        if self.unbounded:
            return math.inf
        loss = self.curve.at(order) if self.curve else 0.0
        return max(0.0, loss + conversion(order, self.delta)) if loss else 0.0


@dataclass(frozen=True)
class Segment:
    """Steps `start` to `end` of a trial, from one report to the next, and their `share` of its whole privacy loss."""

    start: int
    end: int
    share: Fraction


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
    def curve(self) -> RdpCurve | None:
        """Rényi loss of one of the trials at full length; None where it has no bound or is infeasible."""
        return self.method.rdp(self.trials[0].plan.steps) if self.method else None

    @cached_property
    def segments(self) -> list[Segment]:
        """What lies between the reports of one of the trials; nothing where the point is infeasible.

        Where a method's loss does not grow evenly with the steps, the share is the greatest over the orders.
        """
        if self.method is None:
            return []
        plan, shares = self.trials[0].plan, [Fraction(0)]
        for step in plan.report_steps:
            curve, even = self.method.rdp(step), Fraction(step, plan.steps)
            if curve is None or self.curve is None:
                shares.append(even)
                continue
            ratio = float(np.max(curve.rdp / self.curve.rdp.clip(min=np.finfo(float).tiny)))
            shares.append(even if math.isclose(ratio, even, rel_tol=1e-12) else Fraction(ratio))
        ends = pairwise(zip([0, *plan.report_steps], shares, strict=True))
        return [Segment(start, end, to - since) for (start, since), (end, to) in ends]

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
    def unbounded(self) -> list[Trial]:
        """Feasible trials without a bound on their privacy loss: those at ε = ∞."""
        return [t for point in self.points if point.method and point.curve is None for t in point.trials]

    @cached_property
    def curve(self) -> RdpCurve | None:
        """Rényi loss of all trials that have a bound, each to its full length, at the orders all of them have.

        Sound whatever is stopped early, since a stopped sweep is a function of the full one. None where none has one.
        """
        # Seeds share one curve.
        curves = [point.curve * len(point.trials) for point in self.points if point.curve is not None]
        return compose(curves) if curves else None

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the trials' losses stand for."""
        return tuple(dict.fromkeys(point.method.guarantee for point in self.points if point.method))

    @property
    def spending(self) -> Spending:
        """All trials together, each at its full length."""
        return Spending(self.delta, self.curve, tuple(trial.id for trial in self.unbounded), self.guarantees)

    @property
    def sweep_epsilon(self) -> float:
        """ε of `spending`: nominal if any trial's is; infinite where a trial has no mechanism."""
        return self.spending.epsilon

    @cached_property
    def best_of(self) -> RdpCurve | None:
        """Rényi loss of publishing the best trial alone; None without `random_stopping` or without a mechanism.

        One run is a draw from the space, trained with all its seeds; its loss at an order is the greatest over the
        space. A draw whose budget is infeasible trains nothing and costs nothing.
        """
        stopping = self.sweep.random_stopping
        if stopping is None:
            return None
        curves = [method.rdp(method.plan.steps) for method in self.drawable]
        bounded = [curve for curve in curves if curve is not None]
        return (
            stopping.law.best_of(worst(bounded) * self.sweep.seeds) if bounded and len(bounded) == len(curves) else None
        )

    @cached_property
    def drawable(self) -> list[Method]:
        """The methods of all that `random_stopping` may draw, whether it was drawn or not."""
        found = []
        for trial_plan in support(self.sweep):
            try:
                found.append(methods.bind(trial_plan))
            except BudgetError:
                continue
        return found

    @cached_property
    def by_point(self) -> dict[str, Point]:
        """The points by their id, to look up that of a trial."""
        return {trial.point_id: point for point in self.points for trial in point.trials}

    def filter(self, demand: RdpCurve) -> RenyiFilter:
        """The filter of the sweep's budget for all that is or was planned, `demand`; `ValueError` if nothing fits."""
        assert self.sweep.budget is not None
        return RenyiFilter.for_budget(demand, epsilon=self.sweep.budget.sweep_epsilon, delta=self.delta)

    @property
    def scores_are_private(self) -> bool:
        """Whether the accuracy that steers the search is computed from records under the guarantee."""
        return self.sweep.score_data == "private" or _held_out_score(self.sweep, self.points)

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
    if not by_point:
        raise SpecError(f"{sweep.name}: the number of trials that was drawn is 0: nothing is run, nothing published")
    points = tuple(_point(trials) for trials in by_point.values())
    _check_metric(sweep, points)
    if sweep.score_data == "public" and _held_out_score(sweep, points):
        raise SpecError(
            f"{sweep.name}: score_data=public, but the search is steered by records held out of the private training "
            "set (trial.validation); say private, or take validation away"
        )
    if not any(point.feasible for point in points):
        raise SpecError(f"{sweep.name}: no point has a usable r*: {points[0].reason}")
    laid_out = Plan(sweep, points)
    _check_budget(laid_out)
    return laid_out


def data_faults(plan: Plan, root: Path) -> list[str]:
    """What is missing or wrong under the data folder `root`, one line a data set; empty: the plan can run on it."""
    faults = []
    asked = ((trial.plan.dataset, trial.plan.allow_unofficial) for trial in plan.trials)
    for name, allow_unofficial in dict.fromkeys(asked):
        try:
            datasets.check(name, root=root, allow_unofficial=allow_unofficial)
        except datasets.DataError as error:
            faults.append(str(error))
    return faults


def _point(trials: Sequence[Trial]) -> Point:
    try:
        return Point(tuple(trials), methods.bind(trials[0].plan), None)
    except BudgetError as error:
        return Point(tuple(trials), None, str(error))


def _held_out_score(sweep: Sweep, points: Sequence[Point]) -> bool:
    metric = sweep.asha.metric if sweep.asha else None
    plans = [point.trials[0].plan for point in points]
    return any(plan.validation and (metric or plan.score) == "validation_accuracy" for plan in plans)


def _check_budget(laid_out: Plan) -> None:
    """A budget that nothing could be run under is a fault of the search space."""
    budget = laid_out.sweep.budget
    if budget is None:
        return
    where = f"{laid_out.sweep.name}: budget.sweep_epsilon={budget.sweep_epsilon:g}"
    if laid_out.unbounded:
        raise SpecError(
            f"{where} bounds nothing while {len(laid_out.unbounded)} trials have no mechanism (epsilon=inf)"
        )
    assert laid_out.curve is not None
    try:
        limit = laid_out.filter(laid_out.curve)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from error
    least = min(point.curve.at(limit.order) for point in laid_out.points if point.curve)
    if not limit.fits(least):
        needed = least + conversion(limit.order, laid_out.delta)
        raise SpecError(f"{where} does not reach for a single trial: the least needs {round_up(needed)}")


def _check_metric(sweep: Sweep, points: Sequence[Point]) -> None:
    if sweep.asha and sweep.asha.metric == "validation_accuracy":
        for point in points:
            if point.trials[0].plan.score != "validation_accuracy":
                raise SpecError(
                    f"{sweep.name}: scheduler.asha.metric=validation_accuracy needs a validation set: "
                    "give trial.validation: {fraction: 0.1}, or metric: test_accuracy"
                )
