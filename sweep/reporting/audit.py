"""What audits found: the ε that each method claims against the lower bound that was measured, table and picture."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from dirdp import methods
from dirdp.audit import one_run_cap, one_run_epsilon
from sweep.reporting.aggregate import rows
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.colors import STYLE, method_colors
from sweep.reporting.plotting import NEUTRAL, WIDTH, title_and_caption
from sweep.reporting.table import Table
from sweep.words import METHODS, cell, digits

STRICT = 0.999
"""The confidence at which a control that is private must not be caught."""

COLUMNS = ["method", "epsilon", "delta", "seed", "correct", "guesses", "canaries", "lower", "cap", "lower_strict"]


def view(trials: pd.DataFrame, points: pd.DataFrame, *, title: str, rung: float | None) -> Artifacts:
    """The audited trials that are complete, as the table and the figure ``audit``."""
    data = findings(trials)
    return Artifacts(tables={"audit": _table(data)}, figures={"audit": figure(data, title=title)})


def findings(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per audited and completed trial: :data:`COLUMNS`.

    ``epsilon`` is what the method claims, ``lower`` the bound at the plan's confidence, ``lower_strict`` that at
    :data:`STRICT`, ``cap`` what ``lower`` would be with every guess right.
    """
    audited = trials[trials["audit_correct"].notna() & (trials["end_reason"] == "completed")]
    return pd.DataFrame([_finding(row) for row in rows(audited)], columns=COLUMNS)


def verdict(row: dict[str, Any]) -> str:
    """What a finding says about the claim beside it."""
    if math.isinf(row["epsilon"]):
        return "claims nothing"
    if row["lower_strict"] > row["epsilon"]:
        return "refuted (99.9 %)"
    return "refuted" if row["lower"] > row["epsilon"] else "not refuted"


def controls(data: pd.DataFrame) -> list[str]:
    """Whether the controls came out as they must, a line each: what has no mechanism is caught, DP-SGD is not.

    What has no mechanism claims nothing itself; it is held against the greatest ε claimed beside it.
    """
    claimed = [row["epsilon"] for row in rows(data) if math.isfinite(row["epsilon"])]
    lines = []
    for row in rows(data):
        if row["method"] == "nonprivate":
            caught = row["lower"] > max(claimed, default=0.0)
            lines.append(f"control without a mechanism: {'caught' if caught else 'NOT CAUGHT, the audit is too weak'}")
        if row["method"] == "dpsgd":
            caught = row["lower_strict"] > row["epsilon"]
            lines.append(f"control DP-SGD: {'CAUGHT at 99.9 %, something is broken' if caught else 'not caught'}")
    return lines


def figure(data: pd.DataFrame, *, title: str) -> Figure:
    """A line a method: what it claims, what was found, and the most that could have been found."""
    names = list(dict.fromkeys(data["method"]))
    colors = method_colors(names)
    finite = [value for value in [*data["epsilon"], *data["cap"], 1.0] if math.isfinite(value)]
    edge = 1.12 * max(finite)
    with rc_context(STYLE):
        drawing = Figure(figsize=(WIDTH, 1.9 + 0.55 * len(names)), layout="constrained")
        axes = drawing.add_subplot()
        for place, method in enumerate(names):
            own = data[data["method"] == method]
            claim, cap = own["epsilon"].iloc[0], own["cap"].max()
            axes.plot([0, own["lower"].max()], [place, place], color=colors[method], linewidth=6, alpha=0.35)
            axes.plot(own["lower"], [place] * len(own), "o", color=colors[method], ms=7, zorder=4, clip_on=False)
            axes.plot(min(claim, edge), place, ">" if math.isinf(claim) else "D", color=NEUTRAL, mfc="white", ms=8)
            axes.plot(cap, place, "|", color=NEUTRAL, markersize=14)
        axes.set_yticks(range(len(names)), [_name(name) for name in names])
        axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
        axes.set_xlim(0, 1.05 * edge)
        axes.set_xlabel("ε")
        title_and_caption(drawing, title, _caption(data))
    return drawing


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    counts = {"canaries": row["audit_canaries"], "guesses": row["audit_guesses"], "delta": row["delta"]}
    return {
        "method": "nonprivate" if math.isinf(row["epsilon"]) else row["method"],
        "epsilon": row["epsilon"],
        "delta": row["delta"],
        "seed": row["seed"],
        "correct": row["audit_correct"],
        "guesses": row["audit_guesses"],
        "canaries": row["audit_canaries"],
        "lower": row["audit_epsilon_lower"],
        "cap": one_run_cap(**counts, confidence=row["audit_confidence"]),
        "lower_strict": one_run_epsilon(**counts, correct=row["audit_correct"], confidence=STRICT),
    }


def _table(data: pd.DataFrame) -> Table:
    lines = [
        [
            _name(row["method"]),
            _claim(row),
            cell(row["seed"]),
            f"{row['correct']}/{row['guesses']}",
            _down(row["lower"]),
            _down(row["lower_strict"]),
            _down(row["cap"]),
            verdict(row),
        ]
        for row in rows(data)
    ]
    return Table(
        caption="Audit: ε claimed, and the lower bound on ε that guesses about canaries give",
        header=["Method", "ε claimed", "seed", "right", "ε found ≥", "at 99.9 %", "cap", "claim"],
        blocks=[lines],
        data=data,
        notes=[
            "A bound above the claim refutes it, read as one about the trained weights, at its confidence (95 % unless "
            "the plan says otherwise); one below it refutes nothing, for a better attack may find more.",
            "Cap: the bound with every guess right. The ε of Algorithm 1 is nominal (Theorem 10).",
        ],
        text_columns=1,
    )


def _claim(row: dict[str, Any]) -> str:
    nominal = methods.guarantee(row["method"]).strength == "nominal"
    return f"{'nominal ' if nominal else ''}{digits(row['epsilon'])}"


def _name(method: str) -> str:
    return "no mechanism" if method == "nonprivate" else METHODS.get(method, method)


def _caption(data: pd.DataFrame) -> str:
    if data.empty:
        return "No audited trial has completed."
    guesses, canaries = data["guesses"].iloc[0], data["canaries"].iloc[0]
    return (
        f"Dots: lower bound on ε from {guesses} guesses about {canaries} canaries in one training, δ = "
        f"{digits(data['delta'].iloc[0])}. Diamonds: ε claimed (nominal, Theorem 10, for Algorithm 1); arrow: none. "
        "Ticks: the most that could have been found. A dot right of its diamond refutes the claim."
    )


def _down(value: float) -> str:
    return f"{math.floor(100 * value) / 100:.2f}"
