"""The table a sweep ends with in the terminal."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

import pandas as pd
from rich.markup import escape
from rich.table import Table

from sweep.reporting.aggregate import SETTING

_WORDS = {
    "completed": "completed",
    "early_stopped": "early stopped",
    "diverged": "diverged",
    "infeasible": "infeasible",
    "interrupted": "interrupted",
    "error": "failed",
    "running": "running",
}


def summary_table(trials: pd.DataFrame, points: pd.DataFrame, *, top: int = 10) -> Table:
    """The ``top`` best points with a finished seed, and below them how all trials ended.

    Best means greatest validation accuracy where the sweep holds out data, else greatest test accuracy; the
    title says which. Shown per point: α, γ, γ_eff = γκ, r*, seeds finished of those asked, test accuracy in
    percent (mean ± standard deviation over seeds), steps T and the nominal ε spent, rounded up; before these,
    the parts of the setting that differ between points.
    """
    held_out = bool(points["validation_mean"].notna().any())
    best = points[points["n"] > 0].sort_values(
        "validation_mean" if held_out else "mean", ascending=False, kind="stable"
    )
    differing = [name for name in SETTING if name != "steps" and points[name].nunique(dropna=False) > 1]
    table = Table(
        title=f"Best points by {'validation' if held_out else 'test'} accuracy",
        caption=counts_line(trials, points),
        caption_justify="left",
        caption_style="none",
    )
    for name in differing:
        table.add_column(name)
    for name in ["α", "γ", "γ_eff", "r*", "seeds", "test accuracy %", "steps", "nominal ε"]:
        table.add_column(name, justify="right", no_wrap=True)
    for _, point in best.head(top).iterrows():
        table.add_row(*(_setting(point, name) for name in differing), *_cells(point))
    return table


def counts_line(trials: pd.DataFrame, points: pd.DataFrame) -> str:
    """How the trials ended and how many points are whole: ``16 trials: 9 completed, 7 early stopped · …``."""
    ends = trials["end_reason"].fillna("running").value_counts()
    words = _WORDS | {end: end for end in ends.index if end not in _WORDS}
    counted = ", ".join(f"{ends[end]} {word}" for end, word in words.items() if end in ends)
    whole = f"{int(points['complete'].sum())} of {len(points)} points have all their seeds"
    return f"{len(trials)} trials: {counted} · {whole}" if len(trials) else "no trials"


def round_up(value: float, *, digits: int = 4) -> str:
    """A privacy loss with at most ``digits`` decimals, never below the value; ``∞`` and ``–`` for inf and
    NaN.

    >>> round_up(0.99990001), round_up(0.3), round_up(4.0), round_up(float("inf"))
    ('1', '0.3', '4', '∞')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    # Through the shortest decimal that is this float: its exact expansion would make 0.1 into 0.1001.
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    return f"{rounded:f}".rstrip("0").rstrip(".")


def _cells(point: pd.Series) -> list[str]:
    n, asked = int(point["n"]), int(point["n_expected"])
    return [
        _cell(point["alpha"]),
        _cell(point["learning_rate"]),
        _cell(point["effective_learning_rate"]),
        _cell(point["r_star"]),
        f"{n}/{asked}" if point["complete"] else f"[yellow]{n}/{asked}[/yellow]",
        _accuracy(point["mean"], point["std"]),
        _cell(point["steps"]),
        round_up(point["epsilon_spent"]),
    ]


def _setting(point: pd.Series, name: str) -> str:
    return round_up(point[name]) if name == "epsilon" else escape(_cell(point[name]))


def _accuracy(mean: float, std: float) -> str:
    return f"{100 * mean:.2f}" if math.isnan(std) else f"{100 * mean:.2f} ± {100 * std:.2f}"


def _cell(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return "–"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return str(value)
