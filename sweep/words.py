"""How reports write numbers and settings: the same words in the terminal, in captions and in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

import pandas as pd

from dirdp import methods

METHODS = {
    "dirichlet": "Algorithm 1",
    "nonprivate": "Algorithm 1",  # at ε = ∞ the mechanism is gone, whichever method the plan names
    "dpsgd": "DP-SGD",
    "gaussian_features": "Gaussian features",
    "tempered_sigmoid": "Tempered Sigmoid",
}

SYMBOLS = {
    "alpha": "α",
    "learning_rate": "γ",
    "lr": "γ",
    "effective_learning_rate": "γ_eff",
    "effective_lr": "γ_eff",
    "r_star": "r*",
    "r": "r*",
    "noise_multiplier": "σ",
    "epsilon": "ε",
    "delta": "δ",
    "sampling_rate": "q",
    "steps": "T",
}


def point_header(points: pd.DataFrame) -> list[str]:
    """What :func:`point_cells` gives of each of ``points``; the ε spent by a trial is called what it is."""
    strengths = {methods.guarantee(name).strength for name in points["method"]} - {"none"}
    epsilon = {("proved",): "ε", ("nominal", "proved"): "ε (some nominal)"}.get(tuple(sorted(strengths)), "nominal ε")
    return ["α", "γ", "γ_eff", "r*", "seeds", "test accuracy %", "steps", epsilon]


def point_cells(point: pd.Series) -> list[str]:
    """A point under :func:`point_header`; seeds as finished/asked, the ε spent rounded up."""
    return [
        cell(point["alpha"]),
        cell(point["learning_rate"]),
        cell(point["effective_learning_rate"]),
        cell(point["r_star"]),
        f"{point['n']}/{point['n_expected']}",
        percent(point["mean"], point["std"]),
        cell(point["steps"]),
        round_up(point["epsilon_spent"]),
    ]


def flat(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's fields, those of its parts under dotted names.

    >>> flat({"lr": 1, "audit": {"canaries": 500}})
    {'lr': 1, 'audit.canaries': 500}
    """
    fields: dict[str, Any] = {}
    for key, value in plan.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, Mapping) else {key: value}
        fields |= parts
    return fields


def varying(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which plans differ, without what differs only because their methods do.

    >>> plans = [{"method": "dpsgd", "norm": "group", "lr": lr} for lr in (0.1, 1)]
    >>> varying([*plans, {"method": "dirichlet", "norm": "batch", "lr": 1}])
    ['method', 'lr']
    """
    keys = dict.fromkeys(key for plan in plans for key in plan)
    taken = {key: {(repr(plan.get("method")), repr(plan.get(key))) for plan in plans} for key in keys}
    methods = len(taken.get("method", {0}))
    return [key for key in keys if len(taken[key]) > (1 if key == "method" else methods)]


def setting_cell(point: pd.Series, name: str) -> str:
    """One column of a point's setting; a budget is rounded up."""
    return round_up(point[name]) if name == "epsilon" else cell(point[name])


def cell(value: object) -> str:
    """A value in a table: four significant digits, ``∞``, and ``–`` for what is missing.

    >>> cell(0.123456), cell(math.inf), cell(math.nan), cell(20000)
    ('0.1235', '∞', '–', '20000')
    """
    if pd.isna(value):  # type: ignore[call-overload]
        return "–"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return str(value)


def percent(mean: float, std: float) -> str:
    """A fraction in percent, mean ± standard deviation where there is one.

    >>> percent(0.95, 0.0141421), percent(0.95, math.nan), percent(math.nan, math.nan)
    ('95.00 ± 1.41', '95.00', '–')
    """
    if math.isnan(mean):
        return "–"
    return f"{100 * mean:.2f}" if math.isnan(std) else f"{100 * mean:.2f} ± {100 * std:.2f}"


def signed(value: float, *, digits: int = 1) -> str:
    """A difference with its sign, ``–`` for NaN.

    >>> signed(-1.25), signed(0.04, digits=2), signed(math.nan)
    ('−1.2', '+0.04', '–')
    """
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def digits(value: float) -> str:
    """All digits of a number, as people write it: 1, 0.5, 1e-5, ∞. Nothing is rounded, least of all a budget
    down."""
    return "∞" if math.isinf(value) else repr(float(value)).removesuffix(".0").replace("e-0", "e-")


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


def count(number: int, noun: str = "point") -> str:
    """
    >>> count(1), count(2, "seed")
    ('1 point', '2 seeds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def setting(points: pd.DataFrame) -> str:
    """The setting of the first point, as a sentence; ``points`` share one."""
    if points.empty:
        return "No trials."
    point = points.iloc[0]
    parts = [f"{point['dataset']}, {point['model']}", privacy(point)]
    parts += [f"q = {point['sampling_rate']:.4g}"] if pd.notna(point["sampling_rate"]) else []
    parts += [f"T = {point['steps']}"] if pd.notna(point["steps"]) else []
    parts += [point["variant"]] if point["variant"] else []
    return ", ".join(parts) + "."


def privacy(point: pd.Series) -> str:
    """What the ε of a point's trials stands for."""
    if math.isinf(point["epsilon"]):
        return f"{point['method']}, no privacy mechanism (ε = ∞)"
    if math.isnan(point["epsilon"]):
        return str(point["method"])
    epsilon, delta = digits(point["epsilon"]), digits(point["delta"])
    return f"{methods.guarantee(point['method']).name} = {epsilon} per trial, δ = {delta}"
