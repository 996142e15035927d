"""Two sweeps side by side, point by point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from sweep.reporting.aggregate import POINT_COLUMNS, SETTING, points_frame, rows, trials_frame
from sweep.reporting.table import Table
from sweep.words import SYMBOLS, cell, percent, signed

if TYPE_CHECKING:
    from sweep.results import Results

_AXES = [*SETTING, "alpha"]
_RATES = ["learning_rate", "effective_learning_rate"]

COLUMNS = {
    **{name: POINT_COLUMNS[name] for name in [*_AXES, *_RATES]},
    **{f"{name}_{side}": POINT_COLUMNS[name] for side in "ab" for name in ("mean", "std", "n", "n_expected")},
    "difference": "float64",
    "standard_error": "float64",
}


def compare(results_a: Results, results_b: Results) -> Table:
    """The points of two sweeps side by side: test accuracy in percent, mean ± standard deviation over n seeds, and
    the difference B − A with its standard error √(s_A²/n_A + s_B²/n_B), where both n are 2 or more.

    Points are the same if their ``point_id`` is, or else their setting, α and learning rate (γ, or where that finds
    none, γ_eff). A part of the setting that is constant in A and constant in B may be another in B: it is what is
    being compared, and the notes say so. Points of one sweep alone are listed last. The CSV has
    :data:`COLUMNS`: the setting and rates, then accuracies as fractions.
    """
    a, b = _points(results_a), _points(results_b)
    apart = _apart(a, b)
    data = pd.DataFrame([_row(*pair) for pair in _pairs(a, b)], columns=list(COLUMNS)).astype(COLUMNS)
    shown = [name for name in [*_AXES, *_RATES] if data[name].nunique(dropna=False) > 1 and name not in apart]
    if "learning_rate" not in shown:  # then γ_eff differs by κ alone, which follows from the rest
        shown = [name for name in shown if name != "effective_learning_rate"]
    paired = data[["n_a", "n_b"]].notna().all(axis=1)
    blocks = [[_cells(row, shown) for row in rows(part)] for part in (data[paired], data[~paired])]
    return Table(
        caption=f"Test accuracy (%): A = {results_a.sweep.name}, B = {results_b.sweep.name}",
        header=[*(SYMBOLS.get(name, name) for name in shown), "A", "n", "B", "n", "B − A"],
        blocks=[block for block in blocks if block],
        data=data,
        notes=[
            *(f"{name}: A {cell(one)}, B {cell(other)}." for name, (one, other) in apart.items()),
            "Mean ± sample standard deviation over n seeds; n: finished/asked.",
            "B − A: in percentage points, ± its standard error √(s_A²/n_A + s_B²/n_B); – where an n < 2.",
        ],
        text_columns=0,
    )


def _points(results: Results) -> pd.DataFrame:
    return points_frame(trials_frame(results.records, rung=results.rung), seeds=results.sweep.seeds)


def _pairs(a: pd.DataFrame, b: pd.DataFrame) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """The points of A in their order, each with its like in B, then what is in B alone."""
    left, right = rows(a), dict(enumerate(rows(b)))
    found: dict[int, dict[str, Any]] = {}
    for key in _keys(a, b):
        places = {key(point): place for place, point in right.items()}
        for place, point in enumerate(left):
            if place not in found and key(point) in places:
                found[place] = right.pop(places.pop(key(point)))
    yield from ((point, found.get(place)) for place, point in enumerate(left))
    yield from ((None, point) for point in right.values())


def _keys(a: pd.DataFrame, b: pd.DataFrame) -> list[Callable[[dict[str, Any]], Any]]:
    """By what two points are the same, the strictest first."""
    axes = [name for name in _AXES if name not in _apart(a, b)]
    by_setting = [lambda point, rate=rate: _rounded(point, [*axes, rate]) for rate in _RATES]
    return [lambda point: point["point_id"], *by_setting]


def _apart(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    """What is one thing in all of A and another in all of B, as (A's, B's)."""
    constant = [name for name in _AXES if a[name].nunique(dropna=False) == b[name].nunique(dropna=False) == 1]
    ends = {name: (a[name].iloc[0], b[name].iloc[0]) for name in constant}
    return {name: (one, other) for name, (one, other) in ends.items() if _rounded_value(one) != _rounded_value(other)}


def _rounded(point: dict[str, Any], names: list[str]) -> tuple[Any, ...]:
    return tuple(_rounded_value(point[name]) for name in names)


def _rounded_value(value: Any) -> Any:
    """A value to compare: equal within nine digits is equal, and what is missing equals what is missing."""
    if pd.isna(value):
        return None
    return value if isinstance(value, str) else f"{float(value):.9g}"


def _row(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    known: dict[str, Any] = one or other or {}
    row = {name: known[name] for name in [*_AXES, *_RATES]}
    for side, point in (("a", one), ("b", other)):
        row |= {f"{name}_{side}": point[name] if point else None for name in ("mean", "std", "n", "n_expected")}
    if one and other:
        row |= {
            "difference": other["mean"] - one["mean"],
            "standard_error": math.sqrt(_variance(one) + _variance(other)),
        }
    return row


def _variance(point: dict[str, Any]) -> float:
    """Of a point's mean; NaN for n < 2."""
    return point["std"] ** 2 / point["n"] if point["n"] > 1 else math.nan


def _cells(row: dict[str, Any], shown: list[str]) -> list[str]:
    sides = [
        text
        for side in "ab"
        for text in (
            percent(row[f"mean_{side}"], row[f"std_{side}"]),
            _seeds(row[f"n_{side}"], row[f"n_expected_{side}"]),
        )
    ]
    return [*(cell(row[name]) for name in shown), *sides, _difference(row["difference"], row["standard_error"])]


def _seeds(n: Any, expected: Any) -> str:
    return "–" if pd.isna(n) else f"{n}/{expected}"


def _difference(difference: float, error: float) -> str:
    return "–" if math.isnan(error) else f"{signed(100 * difference, digits=2)} ± {100 * error:.2f}"
