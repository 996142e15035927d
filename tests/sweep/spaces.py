"""Small sweeps and simulated trials that the tests share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dirdp.training import Report
from sweep.campaign import Campaign, run_trial
from sweep.expand import Trial
from sweep.spec import Sweep

RATE = 16 / 1437
TRIAL: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "sampling_rate": RATE,
    "steps": 40,
    "epsilon": 1,
    "reports": 4,
}
TEXT = """\
title: Tiny
trial: {dataset: digits, model: mlp, sampling_rate: 16/1437, steps: 40, epsilon: 1, reports: 4}
space: {alpha: [1, 3], lr: [0.1, 1]}
"""

_INFO = {"r": 0.2, "attenuation": 0.1, "learning_rate": 1.0, "effective_learning_rate": 0.1}

Score = Callable[[Trial, int], float | None]


def a_sweep(space: Any = None, *, trial: Mapping[str, Any] | None = None, **keys: Any) -> Sweep:
    """A sweep over `space` (one point if None); the rest is as in `TRIAL` or as `trial` says, None for not at all."""
    grids = [space or {"lr": 1}] if not isinstance(space, list) else space
    default = {key: value for key, value in TRIAL.items() if not any(key in grid for grid in grids)}
    fixed = {key: value for key, value in (default | dict(trial or {})).items() if value is not None}
    return Sweep.model_validate({"name": "tiny", "title": "Tiny", "trial": fixed, "space": grids} | keys)


def message(trial: Trial, step: int, score: float | None, *, diverged: bool = False) -> dict[str, Any]:
    """What `run_trial` would send after `step` steps."""
    steps = trial.plan.steps
    end_reason = "diverged" if diverged else "completed" if step == steps else None
    report = Report(
        step=step,
        steps=steps,
        epoch=step * trial.plan.sampling_rate,
        train_loss=1.0,
        test_accuracy=None if diverged else score,
        validation_accuracy=score if trial.plan.validation and not diverged else None,
        epsilon_spent=math.inf if math.isinf(trial.plan.epsilon) else trial.plan.epsilon * step / steps,
        effective_learning_rate=0.1,
        steps_per_second=1000.0,
        end_reason=end_reason,
    )
    return {"info": dict(_INFO), "report": asdict(report), "end_reason": end_reason}


def beginning() -> dict[str, Any]:
    """What `run_trial` sends before it trains."""
    return {"info": dict(_INFO), "end_reason": None}


def simulated(trial: Trial, score: Score) -> Iterator[dict[str, Any]]:
    """The messages of a trial whose accuracy after each step is `score`."""
    return (message(trial, step, score(trial, step)) for step in trial.plan.report_steps)


def simulate(campaign: Campaign, score: Score, *, at_once: int = 1) -> None:
    """Run a campaign on simulated trials, `at_once` of them turn by turn."""
    running: list[tuple[Trial, Iterator[dict[str, Any]]]] = []
    while True:
        while len(running) < at_once and (trial := campaign.next()) is not None:
            running.append((trial, simulated(trial, score)))
        if not running:
            return
        for entry in list(running):
            if not campaign.report(entry[0].id, next(entry[1])):
                running.remove(entry)


def train(campaign: Campaign) -> None:
    """Really run a campaign, in this process."""
    while (trial := campaign.next()) is not None:
        for said in run_trial(trial.plan, data_root=None, gpu=0, threads=1):
            if not campaign.report(trial.id, said):
                break


def steps_run(campaign: Campaign) -> int:
    """Training steps of all trials of a campaign together."""
    return sum(record.reports[-1]["step"] for record in campaign.records.values() if record.reports)


def ends(campaign: Campaign) -> dict[str, str | None]:
    """How each trial ended, by id."""
    return {name: record.end_reason for name, record in campaign.records.items()}
