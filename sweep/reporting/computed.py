"""Items that need no training: the calibrated r* of Tables 6 and 7, and Appendix F's two lists of r*."""

from __future__ import annotations

import math
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


def table6() -> Artifacts:
    """r* and r*/α by α, computed and printed: CIFAR10, ε = 1. The CSV has ``_calibrated``'s columns."""
    data = pd.DataFrame(_calibrated(row, alpha=row["value"], epsilon=1.0) for row in rows(published.values("table6")))
    lines = [
        [
            digits(row["alpha"]),
            f"{row['r_star']:.6f}",
            row["printed"],
            f"{row['r_star'] / row['alpha']:.4f}",
            published.TABLE6_RATIOS[row["alpha"]],
        ]
        for _, row in data.iterrows()
    ]
    table = Table(
        caption="Table 6: r* on CIFAR10 (q = 0.005, T = 20000) at nominal ε (Theorem 10) = 1, δ = 1e-5",
        header=["α", "r* computed", "r* printed", "r*/α computed", "r*/α printed"],
        blocks=[lines],
        data=data,
        notes=[_agreement(data), published.ODDITIES["table6"]],
        text_columns=0,
    )
    return Artifacts(tables={"table6": table})


def table7() -> Artifacts:
    """r* by data set and ε, computed and printed, α = 3. The CSV has ``_calibrated``'s columns."""
    data = pd.DataFrame(_calibrated(row, alpha=3.0, epsilon=row["value"]) for row in rows(published.values("table7")))
    grid = sorted(data["epsilon"][data["epsilon"] != 7.42].unique())  # 7.42 has no column in the paper
    table = Table(
        caption="Table 7: r* at nominal ε (Theorem 10), α = 3, δ = 1e-5",
        header=["Data set", "q", "T", "r*", *(f"ε = {digits(epsilon)}" for epsilon in grid)],
        blocks=[_dataset_rows(group, grid) for _, group in data.groupby("dataset", sort=False)],
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
"""Items that are computed at once, by name."""


def _calibrated(row: dict[str, Any], *, alpha: float, epsilon: float) -> dict[str, Any]:
    """``dataset, sampling_rate, steps, delta, alpha, epsilon``; ``r_star`` computed; ``printed``, the paper's digits,
    and whether r* rounded to as many decimals ``agrees``."""
    setting = SETTINGS[row["dataset"]]
    at = {"sampling_rate": setting.sampling_rate, "steps": setting.steps, "delta": DELTA, "alpha": alpha}
    r = calibrate(**at, epsilon=epsilon).r  # type: ignore[arg-type]
    agrees = f"{r:.{_decimals(row['printed'])}f}" == row["printed"]
    return {
        "dataset": row["dataset"],
        **at,
        "epsilon": epsilon,
        "r_star": r,
        "printed": row["printed"],
        "agrees": agrees,
    }


def _agreement(data: pd.DataFrame) -> str:
    """How many printed values the computed ones round to, and what explains the others."""
    others = data[~data["agrees"]]
    text = f"{len(data) - len(others)} of {len(data)} computed values round to the printed digits."
    twice = [round(round(row["r_star"], 4) + 1e-9, 3) == float(row["printed"]) for _, row in others.iterrows()]
    if len(others) and all(twice):
        named = ", ".join(f"{row['r_star']:.6f} printed as {row['printed']}" for _, row in others.iterrows())
        return f"{text} The others do if rounded to four decimals first, then to three: {named}."
    return text


def _dataset_rows(data: pd.DataFrame, grid: list[float]) -> list[list[str]]:
    setting = SETTINGS[data["dataset"].iloc[0]]
    columns = placed(list(data["epsilon"]), grid)
    computed = {columns[row["epsilon"]]: f"{row['r_star']:.6f}" for _, row in data.iterrows()}
    printed = {
        columns[epsilon]: text if epsilon in grid else f"{text} (ε = {digits(epsilon)})"
        for epsilon, text in zip(data["epsilon"], data["printed"], strict=True)
    }
    about = [DATASETS[setting.dataset], f"{setting.sampling_rate:.4g}", str(setting.steps)]
    return [
        [*about, "computed", *(computed.get(epsilon, "–") for epsilon in grid)],
        ["", "", "", "printed", *(printed.get(epsilon, "–") for epsilon in grid)],
    ]


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
