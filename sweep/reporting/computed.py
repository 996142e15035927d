"""Items that need no training: the calibrated r* of Tables 6 and 7, and Appendix F's two lists of r*."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dirdp.calibration import BudgetError, calibrate
from sweep.reporting import published
from sweep.reporting.aggregate import rows
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.published import DATASETS, DELTA, SETTINGS
from sweep.reporting.table import Table
from sweep.reporting.tables import placed
from sweep.words import digits, round_up

_NUMBERS = ["sampling_rate", "steps", "delta", "alpha", "epsilon"]


def table6(calibrations: pd.DataFrame) -> Artifacts:
    """r* and r*/α by α, computed and printed. The CSV has ``_beside_the_paper``'s columns."""
    data = _beside_the_paper(calibrations, "table6", epsilon=1.0)
    lines = [
        [
            digits(row["alpha"]),
            _six_digits(row["r_star"]),
            row["printed"] or "–",
            f"{row['r_star'] / row['alpha']:.4f}" if row["r_star"] > 0 else "–",
            published.TABLE6_RATIOS.get(row["alpha"], "–"),
        ]
        for row in rows(data)
    ]
    table = Table(
        caption=f"Table 6: r* on {_listed(data, 'dataset')} (q = {_listed(data, 'sampling_rate')}, "
        f"T = {_listed(data, 'steps')}) at nominal ε (Theorem 10) = {_listed(data, 'epsilon')}, "
        f"δ = {_listed(data, 'delta')}",
        header=["α", "r* computed", "r* printed", "r*/α computed", "r*/α printed"],
        blocks=[lines],
        data=data,
        notes=[_agreement(data), published.ODDITIES["table6"]],
        text_columns=0,
    )
    return Artifacts(tables={"table6": table})


def table7(calibrations: pd.DataFrame) -> Artifacts:
    """r* by data set and ε, computed and printed. The CSV has ``_beside_the_paper``'s columns."""
    data = _beside_the_paper(calibrations, "table7", alpha=3.0)
    grid = sorted(data["epsilon"][data["epsilon"] != 7.42].unique())  # 7.42 has no column in the paper
    table = Table(
        caption=f"Table 7: r* at nominal ε (Theorem 10), α = {_listed(data, 'alpha')}, δ = {_listed(data, 'delta')}",
        header=["Data set", "q", "T", "r*", *(f"nominal ε = {digits(epsilon)}" for epsilon in grid)],
        blocks=[
            _setting_rows(group, grid) for _, group in data.groupby(["dataset", "sampling_rate", "steps"], sort=False)
        ],
        data=data,
        notes=[_agreement(data)],
        text_columns=4,
    )
    return Artifacts(tables={"table7": table})


def appendix_f_r_star() -> Artifacts:
    """Appendix F's r* by q if every q trains T = 20000 steps, as printed, or 100 epochs, as its accuracies suggest.

    Columns of the CSV: ``sampling_rate``, ``steps``, ``epsilon``, ``r_star`` (NaN: none that is usable), ``floor``,
    the least usable budget where ε is below it.
    """
    rates = list(published.values("table9")["value"])
    data = pd.DataFrame(_usable(rate, steps) for rate in rates for steps in (20_000, round(100 / rate)))
    pairs = [rows(data[data["sampling_rate"] == rate]) for rate in rates]
    lines = [
        [digits(rate), _r_star(as_printed), str(by_epochs["steps"]), _r_star(by_epochs)]
        for rate, (as_printed, by_epochs) in zip(rates, pairs, strict=True)
    ]
    table = Table(
        caption="Appendix F: r* on CIFAR10, steps or epochs held fixed; nominal ε (Theorem 10) = 4, α = 3, δ = 1e-5",
        header=["q", "r* at T = 20000", "T of 100 epochs", "r* at 100 epochs"],
        blocks=[lines],
        data=data,
        notes=["100 epochs: T = 100/q. Infeasible: r* would be below α/1000, where nothing learns."],
        text_columns=0,
    )
    return Artifacts(tables={"appendix_f_r_star": table})


COMPUTED = {"table6": table6, "table7": table7}
"""The items of search spaces with ``training: false``, by name: each a function of ``calibrations_frame``'s table."""


def calibrations_frame(plans: Sequence[Mapping[str, Any]], r_stars: Sequence[float | None]) -> pd.DataFrame:
    """One row a point: ``dataset, sampling_rate, steps, delta, alpha, epsilon`` of its plan, and its ``r_star``, NaN
    where the budget has none that is usable."""
    columns = ["dataset", *_NUMBERS]
    frame = pd.DataFrame([{name: plan[name] for name in columns} for plan in plans], columns=columns)
    return frame.assign(r_star=pd.Series(r_stars, dtype="float64"))


def _beside_the_paper(calibrations: pd.DataFrame, item: str, **fixed: float) -> pd.DataFrame:
    """The calibrations, each with the paper's digits, ``printed`` (empty where the paper has none at that setting), and
    whether r* rounded to as many decimals ``agrees``. ``fixed`` is what all of the paper's numbers share."""
    paper = {}
    for row in rows(published.values(item)):
        setting = SETTINGS[row["dataset"]]
        at = {"sampling_rate": setting.sampling_rate, "steps": setting.steps, "delta": DELTA, **fixed}
        paper[_key(at | {"dataset": row["dataset"], row["variable"]: row["value"]})] = row["printed"]
    printed = [paper.get(_key(row), "") for row in rows(calibrations)]
    pairs = zip(calibrations["r_star"], printed, strict=True)
    agrees = [bool(text) and f"{r:.{_decimals(text)}f}" == text for r, text in pairs]
    return calibrations.assign(printed=printed, agrees=agrees)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A setting such that a rate written as 0.0041666667 is 250/60000."""
    return row["dataset"], *(f"{row[name]:.6g}" for name in _NUMBERS)


def _agreement(data: pd.DataFrame) -> str:
    """How many printed values the computed ones round to, and what explains the others."""
    known = data[data["printed"] != ""]
    if known.empty:
        return "The paper has no values at this setting."
    others = known[~known["agrees"]]
    text = f"{len(known) - len(others)} of {len(known)} computed values round to the printed digits."
    twice = [round(round(row["r_star"], 4) + 1e-9, 3) == float(row["printed"]) for _, row in others.iterrows()]
    if len(others) and all(twice):
        named = ", ".join(f"{row['r_star']:.6f} printed as {row['printed']}" for _, row in others.iterrows())
        return f"{text} The others do if rounded to four decimals first, then to three: {named}."
    return text


def _setting_rows(data: pd.DataFrame, grid: list[float]) -> list[list[str]]:
    """Computed and printed r* of one data set, q and T by ε."""
    first = data.iloc[0]
    columns = placed(list(data["epsilon"]), grid)
    computed = {columns[row["epsilon"]]: _six_digits(row["r_star"]) for row in rows(data)}
    printed = {
        columns[epsilon]: text if epsilon in grid else f"{text} (nominal ε = {digits(epsilon)})"
        for epsilon, text in zip(data["epsilon"], data["printed"], strict=True)
        if text
    }
    about = [DATASETS.get(first["dataset"], first["dataset"]), f"{first['sampling_rate']:.4g}", str(first["steps"])]
    return [
        [*about, "computed", *(computed.get(epsilon, "–") for epsilon in grid)],
        ["", "", "", "printed", *(printed.get(epsilon, "–") for epsilon in grid)],
    ]


def _six_digits(r_star: float) -> str:
    return "infeasible" if math.isnan(r_star) else f"{r_star:.6f}"


def _listed(data: pd.DataFrame, name: str) -> str:
    """The values of a column, each once."""
    values = data[name].unique()
    return ", ".join(DATASETS.get(value, value) if isinstance(value, str) else digits(value) for value in values)


def _usable(rate: float, steps: int) -> dict[str, Any]:
    row: dict[str, Any] = {"sampling_rate": rate, "steps": steps, "epsilon": 4.0}
    try:
        r = calibrate(epsilon=4.0, delta=DELTA, alpha=3.0, sampling_rate=rate, steps=steps).r
    except BudgetError as error:
        return row | {"r_star": math.nan, "floor": error.floor}
    return row | {"r_star": r, "floor": math.nan}


def _r_star(row: dict[str, Any]) -> str:
    if math.isnan(row["r_star"]):
        return f"infeasible (least usable ε: {round_up(row['floor'], digits=3)})"
    return f"{row['r_star']:.4f}"


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])
