"""From a search space to its trials: pure, and the same every time."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from dirdp.plan import TrainingPlan
from sweep.spec import SpecError, Sweep, fault, is_distribution

__all__ = ["Trial", "expand", "launch_order", "support"]


@dataclass(frozen=True)
class Trial:
    """One training of a sweep. `replicate` counts the seeds of a point from 0."""

    plan: TrainingPlan
    replicate: int

    @property
    def id(self) -> str:
        """The content hash of the plan, which is the trial's identity everywhere."""
        return self.plan.trial_id

    @property
    def point_id(self) -> str:
        """The same for all seeds of a point."""
        return self.plan.point_id

    @property
    def group(self) -> tuple[Any, ...]:
        """Trials are compared while they train only with those of the same group."""
        plan = self.plan
        return (
            plan.dataset,
            plan.model,
            plan.method,
            plan.epsilon,
            plan.delta,
            plan.sampling_rate,
            plan.audit,
            plan.steps,
        )


def expand(sweep: Sweep) -> list[Trial]:
    """All trials of a sweep, in the order of the file, seeds of a point together; equal ones once.

    A list in `space` is a grid axis. Distributions are drawn `samples` times for each grid cell; a draw depends only on
    the cell, its number and `sampling_seed`, so that a larger `samples` or a wider grid keeps the points there were.

    Raises `SpecError` for an impossible combination.

    >>> from sweep.spec import load
    >>> len(expand(load("figure2")))
    1050
    """
    trials: dict[str, Trial] = {}
    for index, grid in enumerate(sweep.space):
        for number, point in enumerate(_points(sweep, grid, f"{sweep.name}: space[{index}]")):
            # Draws that are to be independent have seeds of their own, so that equal ones are still two.
            first = number * sweep.seeds if sweep.random_stopping else 0
            for replicate in range(sweep.seeds):
                trial = Trial(_plan(sweep, point, first + replicate), replicate)
                trials.setdefault(trial.id, trial)
    return list(trials.values())


def support(sweep: Sweep) -> list[TrainingPlan]:
    """Every plan that the space of a `random_stopping` may draw, but for what the privacy loss does not depend on.

    Choices are all taken; of a continuous distribution, which only a learning rate and the like may have, one value.
    """
    axes = {key: _values(key, value) for key, value in sweep.space[0].items()}
    return [_plan(sweep, dict(zip(axes, cell, strict=True)), 0) for cell in itertools.product(*axes.values())]


def _values(key: str, value: Any) -> list[Any]:
    values = value["choice"] if is_distribution(value) and "choice" in value else [value]
    values = [next(iter(one.values()))[0] if is_distribution(one) else one for one in values]
    return values[:1] if key in ("lr", "effective_lr") else values


def launch_order(trials: Iterable[Trial]) -> list[Trial]:
    """A fixed shuffle by trial hash.

    The first trial to reach a rung is never stopped, so the order must not be that of the file, where neighbours are
    alike and the smallest rate comes first.
    """
    return sorted(trials, key=lambda trial: hashlib.sha256(trial.id.encode()).digest())


def _points(sweep: Sweep, grid: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    if both := sorted(sweep.trial.keys() & grid.keys()):
        raise SpecError(f"{where}: {both[0]} is in trial and in space; keep one of them")
    drawn = {key: value for key, value in grid.items() if is_distribution(value)}
    if drawn and sweep.draws is None:
        raise SpecError(f"{where}: {next(iter(drawn))} is a distribution, so `samples` must say how many draws")
    if (
        sweep.samples is not None
        and not sweep.random_stopping
        and not any(is_distribution(v) for g in sweep.space for v in g.values())
    ):
        raise SpecError(f"{where}: samples={sweep.samples} but nothing in space is a distribution")
    axes = {key: value if isinstance(value, list) else [value] for key, value in grid.items() if key not in drawn}
    for key, values in axes.items():
        if not values:
            raise SpecError(f"{where}: {key} has no value")
    for chosen in itertools.product(*axes.values()):
        cell = dict(zip(axes, chosen, strict=True))
        for number in range(sweep.draws or 0 if drawn or sweep.random_stopping else 1):
            yield cell | _draw(drawn, cell=cell, number=number, seed=sweep.sampling_seed, where=where)


def _draw(distributions: dict[str, Any], *, cell: dict[str, Any], number: int, seed: int, where: str) -> dict[str, Any]:
    content = json.dumps([seed, number, cell], sort_keys=True, default=str)
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big"))
    return {key: _sample(generator, distributions[key], f"{where}: {key}") for key in sorted(distributions)}


def _sample(generator: np.random.Generator, distribution: dict[str, Any], where: str) -> Any:
    (kind, arguments), *_ = distribution.items()
    if kind == "choice" and isinstance(arguments, list) and arguments:
        return arguments[int(generator.integers(len(arguments)))]
    bounds = isinstance(arguments, list) and len(arguments) == 2 and all(_is_number(a) for a in arguments)
    if kind == "choice" or not bounds or not arguments[0] < arguments[1]:
        expected = "a list of values" if kind == "choice" else "[low, high] with low < high"
        raise SpecError(f"{where}={distribution}: {kind} takes {expected}")
    low, high = arguments
    if kind == "randint":
        if not (isinstance(low, int) and isinstance(high, int)):
            raise SpecError(f"{where}={distribution}: randint takes integers")
        return int(generator.integers(low, high + 1))
    if kind == "uniform":
        return float(generator.uniform(low, high))
    if low <= 0:
        raise SpecError(f"{where}={distribution}: loguniform takes bounds above 0")
    return float(math.exp(generator.uniform(math.log(low), math.log(high))))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _plan(sweep: Sweep, point: dict[str, Any], replicate: int) -> TrainingPlan:
    fields = sweep.trial | point
    fields["repeat" if fields.get("randomness") == "secure" else "seed"] = replicate
    try:
        return TrainingPlan(**fields)
    except ValidationError as error:
        at = ", ".join(f"{key}={value}" for key, value in point.items())
        raise SpecError(f"{sweep.name}: {fault(error, TrainingPlan)}" + (f" (at {at})" if at else "")) from error
