"""The paper's accuracy tables, with a sweep's own rows in them: Tables 1 to 5 and 8 to 10."""

from __future__ import annotations

import math

import pandas as pd

from dirdp import methods
from sweep.reporting import published
from sweep.reporting.aggregate import points_frame
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.comparison import OURS, QUOTED, as_validation, comparison, departures
from sweep.reporting.table import Table
from sweep.words import METHODS, SYMBOLS, digits, signed

CAPTIONS = {
    "table1": "Table 1: test accuracy (%) on CIFAR10",
    "table2": "Table 2: test accuracy (%) on MNIST",
    "table3": "Table 3: test accuracy (%) on DermaMNIST",
    "table4": "Table 4: test accuracy (%) on FashionMNIST",
    "table5": "Table 5: test accuracy (%) on SVHN",
    "table8": "Table 8: validation accuracy (%) on DermaMNIST",
    "table9": "Table 9: test accuracy (%) on CIFAR10 for sampling rates q",
    "table10": "Table 10: test accuracy (%) on CIFAR10 with Adam",
}


def view(trials: pd.DataFrame, points: pd.DataFrame, *, names: list[str], title: str, rung: float | None) -> Artifacts:
    """The tables ``names`` with this sweep's rows; one of validation accuracy takes its means from that."""
    return Artifacts(tables={name: _of_split(name, trials, points) for name in names})


def accuracy_table(points: pd.DataFrame, name: str) -> Table:
    """A table as the paper prints it, method × ε (or q), each row from one ``source``: what the paper quotes,
    what it publishes for its own method, this sweep's means, and their difference in standard errors.

    The CSV has ``comparison``'s columns.
    """
    paper = published.values(name)
    variable, split = paper["variable"].iloc[0], paper["split"].iloc[0]
    frame = comparison(points, name, variable=variable, split=split)
    notes = [*_notes(frame), *_departure_notes(points, name), published.ODDITIES.get(name, "")]
    return laid_out(frame, caption=f"{CAPTIONS[name]}; {_budget(points, name)}", notes=notes)


def laid_out(frame: pd.DataFrame, *, caption: str, notes: list[str]) -> Table:
    """A ``comparison`` as a table: one column a value, the quoted rows above the others."""
    grid = _grid(frame)
    symbol = SYMBOLS[frame["variable"].iloc[0]] if len(frame) else "ε"
    quoted, others = frame[frame["source"] == QUOTED], frame[frame["source"] != QUOTED]
    blocks = [_rows(quoted, grid, symbol=symbol), _rows(others, grid, symbol=symbol)]
    return Table(
        caption=caption,
        header=["Method", "Model", "Source", *(f"{symbol} = {digits(value)}" for value in grid)],
        blocks=[block for block in blocks if block],
        data=frame,
        notes=[note for note in notes if note],
        text_columns=3,
    )


def placed(values: list[float], grid: list[float]) -> dict[float, float]:
    """For each value the column that shows it: its own, or the nearest in ratio that is still free.

    This is where the paper has its off-grid numbers: 4.46 under 6, because the row has a number under 4.

    >>> placed([4, 4.46], [1, 2, 4, 6, 8]), placed([2.93], [0.5, 1, 2, 4])
    ({4: 4, 4.46: 6}, {2.93: 4})
    """
    found = {value: value for value in values if value in grid}
    for value in values:
        free = [column for column in grid if column not in found.values() and column < math.inf]
        if value not in found and free:
            found[value] = min(free, key=lambda column: abs(math.log(column / value)))
    return found


def _of_split(name: str, trials: pd.DataFrame, points: pd.DataFrame) -> Table:
    if published.values(name)["split"].iloc[0] == "validation" and len(points):
        points = points_frame(as_validation(trials), seeds=int(points["n_expected"].iloc[0]))
    return accuracy_table(points, name)


def _grid(frame: pd.DataFrame) -> list[float]:
    """The columns: every value of this sweep and of the paper's own method."""
    return sorted(frame.loc[frame["source"] != QUOTED, "value"].unique())


def _rows(frame: pd.DataFrame, grid: list[float], *, symbol: str) -> list[list[str]]:
    lines = []
    for (method, model, source), cells in frame.groupby(["method", "model", "source"], sort=False):
        columns = placed(list(cells["value"]), grid)
        texts = {columns[row["value"]]: _cell(row, columns, symbol) for _, row in cells.iterrows()}
        lines.append([method, model, source, *(texts.get(value, _absent(source)) for value in grid)])
        if source == OURS and cells["published_mean"].notna().any():
            units = {row["value"]: signed(row["difference"]) for _, row in cells.iterrows()}
            lines.append(["", "", "difference", *(units.get(value, "–") for value in grid)])
    return lines


def _cell(row: pd.Series, columns: dict[float, float], symbol: str) -> str:
    if row["source"] == OURS:
        return _own_cell(row)
    mark = "†" if "reproduced" in row["note"] else ""
    elsewhere = f" ({symbol} = {digits(row['value'])})" if columns[row["value"]] != row["value"] else ""
    return f"{row['printed']}{mark}{elsewhere}"


def _own_cell(row: pd.Series) -> str:
    seeds = f"n = {row['n']}" if row["n"] >= row["n_expected"] else f"{row['n']} of {row['n_expected']}"
    if row["outcome"] == "infeasible":
        return "infeasible"
    if row["outcome"]:
        return f"{row['outcome']} ({seeds})"
    deviation = "" if math.isnan(row["std"]) else f" ± {row['std']:.2f}"
    return f"{row['mean']:.2f}{deviation} ({seeds})"


def _absent(source: str) -> str:
    return "not run" if source == OURS else "–"


def _budget(points: pd.DataFrame, name: str) -> str:
    """What ε means in a table, its value where the columns are something else, and δ."""
    private = points[points["epsilon"] < math.inf]
    deltas = private["delta"].dropna().unique()
    fixed = published.setting(name).epsilon
    budgets = [] if fixed is None else list(private["epsilon"].unique()) or [fixed]
    value = f" = {', '.join(map(digits, budgets))}" if budgets else ""
    rivals = set(private["method"]) - {"dirichlet"}
    what = f"ε{value}, nominal (Theorem 10) for Algorithm 1" if rivals else f"nominal ε (Theorem 10){value}"
    return f"{what}, δ = {', '.join(map(digits, deltas)) or digits(published.DELTA)}"


def _notes(frame: pd.DataFrame) -> list[str]:
    ours = frame[frame["source"] == OURS]
    compared = ours["published_mean"].notna().any()
    return [
        "Mean ± sample standard deviation over n seeds, k of n where fewer finished than were asked.",
        "Published: arXiv 2607.19580, over 5 runs.",
        "Quoted: a baseline as that paper prints it, not run here; its ε is by its own accountant."
        if (frame["source"] == QUOTED).any()
        else "",
        "Difference: this sweep − the paper's number for the same method, in units of √(s²/5 + s′²/n), s the paper's "
        "and s′ this sweep's standard deviation; – where none is printed or n < 2."
        if compared
        else "",
        *_claims(ours),
        "† Reproduced by the paper's authors." if frame["note"].str.contains("reproduced").any() else "",
        "Infeasible: no usable r* (at least α/1000) within the budget."
        if (ours["outcome"] == "infeasible").any()
        else "",
    ]


def _claims(ours: pd.DataFrame) -> list[str]:
    """What the ε of each rival method that was run stands for."""
    rivals = [name for name in methods.names() if name not in ("dirichlet", "nonprivate")]
    run = [name for name in rivals if ours["method"].str.startswith(METHODS[name]).any()]
    said = {name: methods.guarantee(name) for name in run}
    return [
        f"{METHODS[name]}, this sweep: {it.name}; covers {it.release} ({it.protects})." for name, it in said.items()
    ]


def _departure_notes(points: pd.DataFrame, name: str) -> list[str]:
    found = departures(points, name)
    return [f"Not the paper's setting: {'; '.join(found)}."] if found else []
