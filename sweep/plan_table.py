"""What `sweep plan` and `sweep calibrate` print."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from dirdp import BudgetError, attenuation, methods
from dirdp.plan import TrainingPlan
from dirdp.theory import expected_loss, loss_variance
from sweep.expand import launch_order
from sweep.ledger import Ledger
from sweep.planning import Plan, Point, Spending
from sweep.privacy import UNACCOUNTED, choosing, weakest
from sweep.spec import SpecError, fault
from sweep.words import SYMBOLS, cell, digits, flat, round_up, varying

__all__ = ["calibration_row", "calibration_table", "plan_table", "plan_totals", "sweep_epsilon_line", "sweep_lines"]

_SHOWN = {"alpha", "lr", "effective_lr", "steps", "seed", "repeat"}  # in columns of their own, or not at all


def plan_table(plan: Plan) -> Table:
    """One row for each point: what varies, its calibration, and whether its budget is feasible."""
    plans = [flat(point.trials[0].plan.model_dump()) for point in plan.points]
    varied = [key for key in varying(plans) if key not in _SHOWN]
    calibrated = list(dict.fromkeys(name for point in plan.points if point.method for name in point.method.calibrated))
    table = Table(title=escape(plan.sweep.title), box=None)
    symbols = (SYMBOLS.get(name, name) for name in calibrated)
    for name in (*varied, "α", "γ", "γ_eff", *symbols, "κ", "floor", "steps", "seeds", ""):
        table.add_column(name, justify="right")
    for fields, point in zip(plans, plan.points, strict=True):
        table.add_row(*(cell(fields.get(key)) for key in varied), *_point_cells(point, calibrated))
    return table


def _point_cells(point: Point, calibrated: list[str]) -> list[str]:
    plan, method = point.trials[0].plan, point.method
    rates = [method.learning_rate, method.effective(method.learning_rate)] if method else [plan.lr, plan.effective_lr]
    return [
        *(cell(value) for value in (plan.alpha, *rates)),
        *(cell(method and method.calibrated.get(name)) for name in calibrated),
        cell(method and method.attenuation),
        round_up(point.floor),
        str(plan.steps),
        str(len(point.trials)),
        "" if method else "infeasible",
    ]


def plan_totals(plan: Plan) -> str:
    """Trials, steps, what early stopping may save, and the nominal ε of the whole sweep, as lines of text."""
    infeasible = [point for point in plan.points if not point.feasible]
    feasible = len(plan.points) - len(infeasible)
    points = f"{len(plan.points)} points, {feasible} feasible"
    if plan.sweep.training:
        lines = [f"{points}; {len(plan.trials)} trials; {plan.total_steps:,} steps", _early_stopping_line(plan)]
        lines.append(sweep_epsilon_line(plan))
        lines.extend(_budget_lines(plan))
        if plan.sweep.random_stopping:
            law = plan.sweep.random_stopping.law
            lines.append(
                f"`sweep run` draws the number of trials: {law.name} law, mean {law.mean:g}; shown are "
                f"{plan.sweep.draws}"
            )
            lines.append(f"choosing the best: {choosing(plan)}")
    else:
        lines = [f"{points}; no training: `sweep run {plan.sweep.name}` writes the table at once"]
    lines.extend(f"infeasible: {reason}" for reason in dict.fromkeys(point.reason for point in infeasible))
    return "\n".join(lines)


def _early_stopping_line(plan: Plan) -> str:
    if not plan.sweep.asha:
        return "no scheduler: every trial runs to its end"
    saved = 1 - plan.expected_steps / plan.total_steps
    return f"ASHA may save about {saved:.0%} of the steps, if each rung keeps its share"


def sweep_epsilon_line(plan: Plan, planned: Spending | None = None, *, removed: int = 0) -> str:
    """The ε of the whole sweep beside that of a trial, which does not include the choice among trials.

    `planned` is the ledger's, which includes `removed` trials of earlier runs under the same name; the plan's if None.
    """
    planned = planned or plan.spending
    others = f" and over {removed} earlier trials of this name that are not in the space any more" if removed else ""
    unaccounted = f"; {UNACCOUNTED}" if plan.scores_are_private else ""
    return (
        f"the whole sweep, every trial at full length: {round_up(planned.epsilon)} at δ = {digits(planned.delta)}, "
        f"{weakest(planned.guarantees)}, composed over all trials{others}{unaccounted}"
    )


def sweep_lines(plan: Plan, ledger: Ledger, *, removed: int = 0) -> list[str]:
    """What a sweep costs as a whole and what it has spent, once it has been run."""
    name, ledger = plan.sweep.name, ledger.expecting(plan)
    if name not in ledger.sweeps:
        return [sweep_epsilon_line(plan)]
    spent, order = ledger.spent(name), ledger.plans[ledger.runs(name)[-1]]["order"]
    of = f" of {digits(plan.sweep.budget.sweep_epsilon)}" if plan.sweep.budget else ""
    return [
        sweep_epsilon_line(plan, ledger.planned(name), removed=removed),
        f"spent so far{of}: {round_up(spent.at(order))} at order λ = {order}, {weakest(spent.guarantees)}, ex post; "
        f"`sweep privacy {name}` says more",
    ]


def _budget_lines(plan: Plan) -> list[str]:
    """How far the budget reaches: in trials at full length, and with what early stopping may save."""
    if plan.sweep.budget is None or plan.curve is None:
        return []
    budget = plan.filter(plan.curve)
    trials = [trial for trial in launch_order(plan.trials) if plan.by_point[trial.point_id].feasible]
    losses = [Fraction(plan.by_point[trial.point_id].curve.at(budget.order)) for trial in trials]  # type: ignore[union-attr]
    reached = sum(budget.charge(loss) for loss in losses)
    share = min(1.0, budget.limit / (plan.curve.at(budget.order) * plan.expected_steps / plan.total_steps))
    line = (
        f"budget.sweep_epsilon = {digits(plan.sweep.budget.sweep_epsilon)} at order λ = {budget.order} reaches for "
        f"{reached} of {len(trials)} trials at full length"
    )
    return [line + (f"; for about {share:.0%} of the search, if each rung keeps its share" if plan.sweep.asha else "")]


def calibration_row(
    *,
    epsilon: float,
    delta: float,
    alpha: float,
    sampling_rate: float,
    steps: int,
    classes: int | None,
    s_y: float,
    method: str = "dirichlet",
    bound: str = "lemma9",
) -> dict[str, Any]:
    """What `method` calibrates (r* or σ), the achieved ε, its order, the floor, and of r* also κ at `s_y` and, with
    `classes`, E[L] and Var[L].

    A budget below the floor gives a row with None for what it has not. ε = ∞ has no mechanism: κ = 1. Raises
    `SpecError`.
    """
    setting: dict[str, Any] = {
        "method": method,
        "epsilon": epsilon,
        "delta": delta,
        "alpha": alpha,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "bound": bound,
    }
    try:
        # Calibration asks for no data and no network: these are some that every method takes.
        plan = TrainingPlan(
            dataset="fashionmnist", model="papernot_cnn", lr=1, reports=1, allow_large_delta=True, **setting
        )
    except ValidationError as error:
        raise SpecError(fault(error, TrainingPlan)) from error
    row = setting | {"r": None, "achieved": None, "order": None, "kappa": None, "floor": methods.floor(plan)}
    try:
        calibrated = methods.bind(plan)
    except BudgetError:
        return row
    row |= {**calibrated.calibrated, "achieved": calibrated.epsilon, "order": calibrated.order}
    if row["r"] is None:
        return row | {"kappa": calibrated.attenuation}
    at = {"s_y": s_y, "r": row["r"], "alpha": alpha}
    row["kappa"] = float(attenuation(**at))
    if classes is not None:
        row["expected_loss"] = float(expected_loss(**at, classes=classes))
        row["loss_variance"] = float(loss_variance(**at, classes=classes))
    return row


_HEADERS = {
    "method": "method",
    "epsilon": "ε",
    "delta": "δ",
    "alpha": "α",
    "sampling_rate": "q",
    "steps": "T",
    "bound": "bound",
    "r": "r*",
    "noise_multiplier": "σ",
    "achieved": "achieved ε",
    "order": "λ",
    "kappa": "κ",
    "floor": "floor",
    "expected_loss": "E[L]",
    "loss_variance": "Var[L]",
}
_ROUNDED_UP = ("achieved", "floor")
_USUAL = {"method": "dirichlet", "bound": "lemma9"}
_OF_DIRICHLET = ("alpha", "r", "kappa")


def calibration_table(rows: list[dict[str, Any]]) -> Table:
    """Rows of `calibration_row`, under the paper's letters."""
    names = dict.fromkeys(row["method"] for row in rows)
    claims = dict.fromkeys(methods.guarantee(name).name for name in names)
    table = Table(title=f"Calibration to {', '.join(claims)}", box=None)
    left_out = {key for key, usual in _USUAL.items() if all(row[key] == usual for row in rows)}
    left_out |= set() if "dirichlet" in names else set(_OF_DIRICHLET)
    columns = [key for key in _HEADERS if any(key in row for row in rows) and key not in left_out]
    for key in columns:
        table.add_column(_HEADERS[key], justify="right")
    for row in rows:
        table.add_row(*(_calibration_cell(key, row) for key in columns))
    return table


def _calibration_cell(key: str, row: dict[str, Any]) -> str:
    value = row.get(key)
    if key in _OF_DIRICHLET and row["method"] != "dirichlet":
        return "–"
    if key == "r" and value is None:
        return "none"
    if key in _ROUNDED_UP and value is not None:
        return round_up(value, digits=5)
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else cell(value)
