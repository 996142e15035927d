"""Figures 1b and 3: accuracy against ε, this sweep's curves solid, those of the paper dashed."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sweep.reporting import published
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.colors import STYLE, method_colors
from sweep.reporting.comparison import OURS, PUBLISHED, QUOTED, comparison
from sweep.reporting.plotting import SHAPES, SIZE, WIDTH, title_and_caption
from sweep.reporting.table import Table
from sweep.reporting.tables import accuracy_table, laid_out
from sweep.words import METHODS, count, digits

LEGEND_WIDTH = 26  # characters
_ORDER = [OURS, PUBLISHED, QUOTED]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One data set's part of a figure: a ``comparison`` against ε."""

    heading: str
    frame: pd.DataFrame


def view(
    trials: pd.DataFrame, points: pd.DataFrame, *, name: str, tables: list[str], title: str, rung: float | None
) -> Artifacts:
    """One panel and one table for each of the sweep's data sets.

    ``tables`` are the paper's that the figure draws; a data set that none of them is about stands alone.
    """
    by_dataset = {published.values(table)["dataset"].iloc[0]: table for table in tables}
    groups = {str(dataset): group for dataset, group in points.groupby("dataset", sort=False)}
    panels, found = [], {}
    for dataset in sorted(groups, key=[*by_dataset, *groups].index) or list(by_dataset):
        group, table = groups.get(dataset, points), by_dataset.get(dataset)
        panels.append(Panel(heading=published.DATASETS.get(dataset, dataset), frame=comparison(group, table)))
        found[table or f"{name}-{dataset}"] = _table(group, table, dataset)
    return Artifacts(tables=found, figures={name: accuracy_figure(panels, title=title)})


def accuracy_figure(panels: list[Panel], *, title: str) -> Figure:
    """A panel for each data set: mean accuracy in percent against ε on a log axis, ε = ∞ at its right end.

    This sweep's curves are solid, the paper's dashed; a band, at ε = ∞ a bar, is ± one standard deviation where
    one is known. Every artist's ``gid`` says what it is: ``Algorithm 1, this sweep``; ``… band``.
    """
    everything = pd.concat([panel.frame for panel in panels], ignore_index=True)
    curves = _curve_names(everything)
    names = [_legend_label(name) for name in curves]
    height = max(4.4, 1.8 + sum(0.25 + 0.135 * name.count("\n") for name in names))  # inches; a long legend needs them
    measured = everything.loc[everything["source"] == OURS, "method"]
    alone = measured.str.startswith(METHODS["dirichlet"]).all()
    budget = "Nominal $\\varepsilon$ (Theorem 10)" if alone else "$\\varepsilon$, for Algorithm 1 nominal (Theorem 10)"
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, panel in zip(axes, panels, strict=True):
            _draw_panel(ax, panel.frame, curves=curves)
            ax.set_title(panel.heading, loc="left")
            ax.set_xlabel(budget)
        axes[0].set_ylabel("Test accuracy (%)")
        handles = [Line2D([], [], label=name, **look) for name, look in zip(names, curves.values(), strict=True)]
        axes[-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, labelspacing=0.8)
        title_and_caption(figure, title, _caption(everything))
    return figure


def _table(points: pd.DataFrame, table: str | None, dataset: str) -> Table:
    if table:
        return accuracy_table(points, table)
    caption = f"Test accuracy (%) on {dataset}; nominal ε (Theorem 10)"
    return laid_out(comparison(points, None), caption=caption, notes=[f"The paper has no numbers for {dataset} here."])


def _curve_names(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Every curve's name and look; one method has one colour and shape, whoever ran it."""
    pairs = frame[["method", "source"]].drop_duplicates().itertuples(index=False, name=None)
    ordered = sorted(pairs, key=lambda pair: _ORDER.index(pair[1]))
    families = list(dict.fromkeys(_family(method) for method, _ in ordered))
    colors = method_colors(families)
    return {
        f"{method}, {source}": {
            "color": colors[_family(method)],
            "linestyle": "-" if source == OURS else "--",
            "marker": SHAPES[families.index(_family(method)) % len(SHAPES)],
            "markerfacecolor": colors[_family(method)] if source == OURS else "white",
            "markersize": SIZE if source == OURS else SIZE + 2,  # a ring where both are at one place
            "zorder": 5 - _ORDER.index(source),
        }
        for method, source in ordered
    }


def _legend_label(name: str) -> str:
    """A curve's name in lines that are not too long, who ran it on one of its own if need be."""
    if len(name) <= LEGEND_WIDTH:
        return name
    method, _, source = name.replace(" = ", "\u00a0=\u00a0").rpartition(", ")
    return f"{textwrap.fill(method, LEGEND_WIDTH)},\n{source}"


def _family(method: str) -> str:
    """DP-SGD (Opacus) and our DP-SGD are one method."""
    return method.partition(" (")[0]


def _draw_panel(ax: Axes, frame: pd.DataFrame, *, curves: dict[str, dict[str, Any]]) -> None:
    ax.set_xscale("log")
    budgets = sorted(frame["value"].unique())
    place = _places(budgets)
    for name, look in curves.items():
        curve = frame[frame["method"] + ", " + frame["source"] == name].sort_values("value")
        if len(curve):
            _draw_curve(ax, curve.assign(x=curve["value"].map(place)), name=name, look=look)
    ax.xaxis.set_major_locator(FixedLocator([place[budget] for budget in _ticked(frame)]))
    ax.xaxis.set_minor_locator(NullLocator())
    names = {position: digits(budget) for budget, position in place.items()}
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names.get(x, "")))


def _draw_curve(ax: Axes, curve: pd.DataFrame, *, name: str, look: dict[str, Any]) -> None:
    finite, infinite = curve[curve["value"] < math.inf], curve[curve["value"] == math.inf]
    marks = look | {"linestyle": "none"}
    # NaN means break the line, so that it never runs across a point that did not finish.
    ax.plot(finite["x"], finite["mean"], **look, gid=name)
    ax.plot(infinite["x"], infinite["mean"], **marks, gid=f"{name} at infinity")
    partial = curve[_partial(curve)]
    ax.plot(
        partial["x"], partial["mean"], **marks, fillstyle="bottom", markerfacecoloralt="white", gid=f"{name} partial"
    )
    _draw_deviations(
        ax, finite, infinite, name=name, color=look["color"], strength=0.22 if look["linestyle"] == "-" else 0.1
    )


def _draw_deviations(
    ax: Axes, finite: pd.DataFrame, infinite: pd.DataFrame, *, name: str, color: str, strength: float
) -> None:
    low, high = finite["mean"] - finite["std"], finite["mean"] + finite["std"]
    if finite["std"].notna().any():
        band = ax.fill_between(finite["x"], low, high, color=color, alpha=strength, linewidth=0)
        band.set_gid(f"{name} band")
    spread = infinite[infinite["std"].notna()]
    ax.errorbar(spread["x"], spread["mean"], yerr=spread["std"], fmt="none", ecolor=color, capsize=2)


def _partial(frame: pd.DataFrame) -> pd.Series:
    """Which points have an accuracy, but fewer seeds than asked."""
    return (frame["n"] > 0) & (frame["n"] < frame["n_expected"]).fillna(False)


def _places(budgets: list[float]) -> dict[float, float]:
    """Where each budget lies on the axis: at itself, and ∞ a little beyond the greatest."""
    finite = [budget for budget in budgets if budget < math.inf] or [1.0]
    beyond = finite[-1] * max(1.4, (finite[-1] / finite[0]) ** 0.15)
    return {budget: min(budget, beyond) for budget in budgets}


def _ticked(frame: pd.DataFrame) -> list[float]:
    """Budgets with a tick: those of the methods that have most of them, so that 4 and 4.46 do not overprint."""
    counts = frame.groupby(["method", "source"])["value"].apply(set)
    ticked = set().union(*(values for values in counts if len(values) > 3)) or set(frame["value"])
    return sorted(ticked)


def _caption(frame: pd.DataFrame) -> str:
    ours = frame[frame["source"] == OURS]
    asked = int(ours["n_expected"].max()) if len(ours) else 0
    partial = int(_partial(ours).sum())
    others = ~frame["method"].str.startswith(METHODS["dirichlet"])
    lost = ours.loc[ours["outcome"] != "", "outcome"].value_counts()
    sentences = [
        f"Solid: this sweep, mean over {count(asked, 'seed')}." if asked else "No trials of this sweep.",
        "Dashed: as the paper prints it, not run here." if len(ours) < len(frame) else "",
        "Bands: ± one standard deviation, where one is known.",
        "ε = ∞: no mechanism." if (frame["value"] == math.inf).any() else "",
        "Other methods than Algorithm 1 have ε by their own accountants." if others.any() else "",
        f"Half-filled: fewer seeds finished ({count(partial)})." if partial else "",
        f"Not drawn: {', '.join(f'{number} {outcome}' for outcome, number in lost.items())}." if len(lost) else "",
    ]
    return " ".join(filter(None, sentences))
