"""Times of the accountant, the best of several cold runs: `python benchmarks/accounting.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dirdp import calibration
from dirdp.accounting import compose, epsilon_spent
from dirdp.calibration import BudgetError, budget_floor, calibrate

CIFAR10: dict[str, Any] = {"delta": 1e-5, "alpha": 3, "sampling_rate": 0.005, "steps": 20000}
STEEP: dict[str, Any] = {"delta": 1e-5, "alpha": 3, "sampling_rate": 0.04, "steps": 20000}
OFFSETS = (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10)


def figure_2() -> list[Any]:
    """The nine offsets at ε = 1."""
    return [calibrate(epsilon=1, **{**CIFAR10, "alpha": alpha}) for alpha in OFFSETS]


def refused() -> None:
    """A budget below the floor."""
    try:
        calibrate(epsilon=4, **STEEP)
    except BudgetError:
        return
    raise AssertionError("expected a BudgetError")


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Least seconds of `repeats` runs, each with empty caches."""
    seconds = []
    for _ in range(repeats):
        calibration._calibrate.cache_clear()
        calibration._budget_floor.cache_clear()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main() -> None:
    """Print one line a task."""
    curves = [run.curve() for run in figure_2()] * 117
    tasks: dict[str, Callable[[], Any]] = {
        "epsilon_spent, 12 orders": lambda: epsilon_spent(r=0.2349, **CIFAR10),
        "epsilon_spent, 1001 orders": lambda: epsilon_spent(r=5.39e-4, **STEEP),
        "epsilon_spent, 5566 orders": lambda: epsilon_spent(r=5.39e-4, **STEEP, max_order=6000),
        "calibrate, paper's CIFAR10 at ε = 1": lambda: calibrate(epsilon=1, **CIFAR10),
        "calibrate, nine offsets of Figure 2": figure_2,
        "calibrate, ε = 10000": lambda: calibrate(epsilon=1e4, **CIFAR10),
        "calibrate, refused": refused,
        "budget_floor": lambda: budget_floor(**STEEP),
        f"compose {len(curves)} curves": lambda: compose(curves),
    }
    for name, work in tasks.items():
        print(f"{name:<38}{1000 * best(work):10.2f} ms")


if __name__ == "__main__":
    main()
