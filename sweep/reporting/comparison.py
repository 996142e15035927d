"""A sweep's accuracies beside the paper's, as one long table: what tables print and figures draw."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd

from sweep.reporting import published
from sweep.reporting.aggregate import rows
from sweep.words import METHODS, SYMBOLS, cell

COLUMNS = {
    "source": "object",
    "method": "object",
    "model": "object",
    "dataset": "object",
    "split": "object",
    "variable": "object",
    "value": "float64",
    "mean": "float64",
    "std": "float64",
    "n": "Int64",
    "n_expected": "Int64",
    "outcome": "object",
    "published_mean": "float64",
    "published_std": "float64",
    "published_n": "Int64",
    "difference": "float64",
    "printed": "object",
    "note": "object",
}

OURS, PUBLISHED, QUOTED = "this sweep", "published", "quoted"

# Of our methods those that the paper reports too, and how its names for them begin.
_PAPER_NAMES = {
    "dirichlet": ("dirichlet",),
    "nonprivate": ("dirichlet",),
    "dpsgd": ("DP-SGD",),
    "gaussian_features": ("Monir and Ghinita",),
    "tempered_sigmoid": ("Tempered Sigmoid", "Papernot"),
}
# Our networks under the paper's names.
_MODELS = {
    "inception": "Inception",
    "resnet18": "ResNet-18",
    "resnet9": "ResNet-9",
    "wrn40_4": "WRN-40-4",
    "mlp": "MLP",
    "papernot_cnn": "CNN",
}
_VALUES = ["learning_rate", "effective_learning_rate", "delta", "sampling_rate", "epsilon", "steps", "point_id"]


def comparison(
    points: pd.DataFrame, item: str | None, *, variable: str = "epsilon", split: str = "test"
) -> pd.DataFrame:
    """The paper's rows of a table, then this sweep's points; columns as in :data:`COLUMNS`.

    ``source``: ``quoted`` (a baseline's number from the paper), ``published`` (the paper's number for its own
    method) or ``this sweep``; ``method``, with what tells apart points of one ``value`` of ``variable``;
    ``model``, ``dataset``, ``split``; ``mean`` and ``std`` (sample standard deviation) in percent over ``n`` runs
    of ``n_expected``; ``outcome``, why a point has no accuracy (``infeasible``, ``diverged``, ``stopped early``,
    ``missing``), else empty; ``published_…``, the paper's number for the same data set, method and value;
    ``difference`` from it, see :func:`difference`; ``printed``, the paper's digits; ``note``, its remark.

    ``item`` None means that the paper has no such table. ``points`` is ``points_frame``'s table.
    """
    paper = published.values(item) if item else published.values("table1").iloc[:0]
    theirs = [_paper_row(row) for row in rows(paper)]
    labelled = points.assign(label=_labels(points, variable=variable))
    ours = [_row(point, paper, variable=variable, split=split) for point in rows(labelled)]
    frame = pd.DataFrame([*theirs, *ours], columns=list(COLUMNS))
    return frame.astype(COLUMNS)


def difference(
    *, mean: float, std: float, n: int, published_mean: float, published_std: float, published_n: float
) -> float:
    """(mean − published mean) / √(s²/m + s′²/n), where s is the paper's standard deviation over its m = 5 runs
    and s′ ours over n. NaN where one is not known or n < 2.

    >>> round(difference(mean=88.0, std=0.4, n=4, published_mean=88.5, published_std=0.3, published_n=5), 4)
    -2.0761
    """
    variance = published_std**2 / published_n + std**2 / n if n > 1 else math.nan
    return (mean - published_mean) / math.sqrt(variance) if variance > 0 else math.nan


def departures(points: pd.DataFrame, item: str) -> list[str]:
    """In what this sweep's points are not the paper's setting: ``T = 500 (paper: 20000)``; empty: in nothing.

    What ``points_frame`` has a column for is checked; optimiser and augmentation it has not. In Table 9 100 epochs
    are as good as the T that Appendix F states.
    """
    paper = published.setting(item)
    if item == "table9":
        by_epochs = (points["steps"] * points["sampling_rate"] - 100).abs().lt(0.5).fillna(False)
        points = points.assign(steps=points["steps"].mask(by_epochs, paper.steps))
    expected = {
        "dataset": paper.dataset,
        "model": paper.model,
        "sampling_rate": paper.sampling_rate,
        "steps": paper.steps,
        "learning_rate": paper.learning_rate,
        "alpha": paper.alpha,
        "delta": published.DELTA,
        "epsilon": paper.epsilon,
    }
    private = points[points["epsilon"] < math.inf]
    found = {name: (private if name in ("alpha", "delta") else points)[name].dropna().unique() for name in expected}
    return [
        f"{SYMBOLS.get(name, name)} = {_listed(others)} (paper: {cell(value)})"
        for name, value in expected.items()
        if value is not None and (others := [other for other in found[name] if not _equal(other, value)])
    ]


def as_validation(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with their validation accuracy in the place of the test accuracy."""
    return trials.assign(test_accuracy=trials["validation_accuracy"])


def _paper_row(row: dict[str, Any]) -> dict[str, Any]:
    deviation = f" ± {row['printed_std']}" if row["printed_std"] else ""
    return {name: row[name] for name in COLUMNS if name in row} | {
        "source": PUBLISHED if row["method"] == "dirichlet" else QUOTED,
        "method": METHODS.get(row["method"], row["method"]),
        "n": _whole(row["n"]),
        "outcome": "",
        "printed": row["printed"] + deviation,
    }


def _row(point: dict[str, Any], paper: pd.DataFrame, *, variable: str, split: str) -> dict[str, Any]:
    known = _published(point, paper, variable=variable)
    row = {
        "source": OURS,
        "method": point["label"],
        "model": point["model"],
        "dataset": point["dataset"],
        "split": split,
        "variable": variable,
        "value": point[variable],
        "mean": 100 * point["mean"],
        "std": 100 * point["std"],
        "n": point["n"],
        "n_expected": point["n_expected"],
        "outcome": _outcome(point),
        "published_mean": known.get("mean", math.nan),
        "published_std": known.get("std", math.nan),
        "published_n": _whole(known.get("n", math.nan)),
        "printed": "",
        "note": "",
    }
    compared = ("mean", "std", "n", "published_mean", "published_std")
    of_paper = known.get("n", math.nan)
    return row | {"difference": difference(**{name: row[name] for name in compared}, published_n=of_paper)}


def _published(point: dict[str, Any], paper: pd.DataFrame, *, variable: str) -> dict[str, Any]:
    """The paper's row for a point; {} where there is none."""
    names = _PAPER_NAMES.get(point["method"], ())
    for row in rows(paper):
        same = row["dataset"] == point["dataset"] and row["variable"] == variable
        # A baseline is another training on another network; of its own method the paper has one network a table.
        same &= row["method"] == "dirichlet" or _MODELS.get(point["model"]) == row["model"]
        if same and row["method"].startswith(names) and math.isclose(row["value"], point[variable]):
            return row
    return {}


def _outcome(point: dict[str, Any]) -> str:
    if point["n"] > 0:
        return ""
    reasons = {"infeasible": "infeasible", "diverged": "diverged", "stopped": "stopped early"}
    return next((reason for name, reason in reasons.items() if point[name] > 0), "missing")


def _labels(points: pd.DataFrame, *, variable: str) -> pd.Series:
    """A point's method, and what tells it from others of the same method at the same value."""
    names = points["method"].map(lambda name: METHODS.get(name, name))
    frame = points.assign(method=names, alpha=_acting_alpha(points))
    row = ["method", "dataset", "model", "variant", "alpha"]
    candidates = [name for name in _VALUES if name != variable]
    more = next(
        [*chosen]
        for size in range(len(candidates) + 1)
        for chosen in itertools.combinations(candidates, size)
        if not frame.duplicated([*row, variable, *chosen]).any()
    )
    told = [name for name in ("dataset", "alpha", *more) if name in more or frame[name].nunique(dropna=False) > 1]
    labels = [_label(point, told) for point in rows(frame)]
    return pd.Series(labels, index=points.index, dtype="object")


def _acting_alpha(points: pd.DataFrame) -> pd.Series:
    """α, which has no part at ε = ∞: there it is the other points' α, if they have one in common."""
    acting = points["alpha"].where(points["epsilon"] < math.inf)
    return acting.fillna(acting.dropna().iloc[0]) if acting.nunique() == 1 else acting


def _label(point: dict[str, Any], told: list[str]) -> str:
    parts = [f"{SYMBOLS.get(name, name)} = {cell(point[name])}" for name in told if pd.notna(point[name])]
    return ", ".join([point["method"], *parts, *filter(None, [point["variant"]])])


def _listed(others: list[Any]) -> str:
    return ", ".join(cell(other) for other in others)


def _equal(one: Any, other: Any) -> bool:
    """The same setting: a rate written as 0.004167 is 250/60000."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(one == other or math.isclose(float(one), float(other), rel_tol=1e-3))


def _whole(number: float) -> int | None:
    return None if math.isnan(number) else int(number)
