"""Tables in the terminal: the one a sweep ends with, and those of a report."""

from __future__ import annotations

import math

import pandas as pd
import rich.table
from rich.markup import escape

from sweep.reporting.aggregate import differing
from sweep.reporting.table import Table
from sweep.words import percent, point_cells, point_header, setting_cell

_WORDS = {
    "completed": "completed",
    "early_stopped": "early stopped",
    "budget_exhausted": "out of budget",
    "diverged": "diverged",
    "infeasible": "infeasible",
    "interrupted": "interrupted",
    "error": "failed",
    "running": "running",
}


def summary_table(trials: pd.DataFrame, points: pd.DataFrame, *, top: int = 10) -> rich.table.Table:
    """The ``top`` best points with a finished seed, and below them how all trials ended.

    Best means greatest validation accuracy where the sweep holds out data, else greatest test accuracy; the
    title says which. Shown per point: α, γ, γ_eff = γκ, r*, seeds finished of those asked, test accuracy in
    percent (mean ± standard deviation over seeds), steps T and the (nominal) ε spent, rounded up; before these,
    the parts of the setting that differ between points, and after them the validation accuracy they are sorted by.
    """
    held_out = bool(points["validation_mean"].notna().any())
    best = points[points["n"] > 0].sort_values(
        "validation_mean" if held_out else "mean", ascending=False, kind="stable"
    )
    parts = [name for name in differing(points) if name != "steps"]
    table = rich.table.Table(
        title=f"Best points by {'validation' if held_out else 'test'} accuracy",
        caption=counts_line(trials, points),
        caption_justify="left",
        caption_style="none",
    )
    for name in parts:
        table.add_column(name)
    for name in [*point_header(points), *(["validation %"] if held_out else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for _, point in best.head(top).iterrows():
        cells = [*(escape(setting_cell(point, name)) for name in parts), *point_cells(point)]
        if held_out:
            cells.append(percent(point["validation_mean"], math.nan))
        table.add_row(*cells, style=None if point["complete"] else "yellow")
    return table


def counts_line(trials: pd.DataFrame, points: pd.DataFrame) -> str:
    """How the trials ended and how many points are whole: ``16 trials: 9 completed, 7 early stopped · …``."""
    ends = trials["end_reason"].fillna("running").value_counts()
    words = _WORDS | {end: end for end in ends.index if end not in _WORDS}
    counted = ", ".join(f"{ends[end]} {word}" for end, word in words.items() if end in ends)
    whole = f"{int(points['complete'].sum())} of {len(points)} points have all their seeds"
    return f"{len(trials)} trials: {counted} · {whole}" if len(trials) else "no trials"


def rich_table(table: Table) -> rich.table.Table:
    """A table of a report for the terminal, its notes below it."""
    shown = rich.table.Table(
        title=escape(table.caption),
        caption="\n".join(escape(note) for note in table.notes),
        caption_justify="left",
        caption_style="none",
    )
    for place, name in enumerate(table.header):
        shown.add_column(escape(name), justify="left" if place < table.text_columns else "right")
    for block in table.blocks:
        for row in block:
            shown.add_row(*map(escape, row))
        shown.add_section()
    return shown
