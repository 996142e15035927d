"""Figure 2: test accuracy against the learning rate γ, and against the effective learning rate γκ.

The claim it tests: plotted against γκ the curves of all offsets α fall on one another. :func:`collapse` is
the number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sweep.reporting.aggregate import differing, settings
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.colors import ALPHA_MAP, STYLE, alpha_colors
from sweep.reporting.plotting import NEUTRAL, SHAPES, SIZE, WIDTH, tick_decades, title_and_caption
from sweep.reporting.table import points_table
from sweep.words import count, setting

PANELS = {
    "learning_rate": r"Learning rate $\gamma$",
    "effective_learning_rate": r"Effective learning rate $\gamma_\mathrm{eff} = \gamma\kappa$  ($s_y = 0.9$)",
}
MOST_CURVES_NAMED = 10  # with more a colour bar takes the legend's place
GRID = 1001
LEAST_OVERLAP = 0.1
NO_FIGURE = "No figure: it takes results at two learning rates or more, all else but α equal."


def view(trials: pd.DataFrame, points: pd.DataFrame, *, title: str, rung: float | None) -> Artifacts:
    """The table ``figure2``, all points, and a figure for every setting that makes a curve.

    A setting is drawn if it has results at two learning rates or more. One such figure is called ``figure2``;
    several are ``figure2-1``, ``figure2-2``, … in the order of the points, each captioned with its setting.
    """
    drawn = [group for group in settings(points) if _rates_drawn(group, rung=rung) > 1]
    names = ["figure2"] if len(drawn) == 1 else [f"figure2-{number}" for number in range(1, len(drawn) + 1)]
    figures = {name: figure2(group, title=title, rung=rung) for name, group in zip(names, drawn, strict=True)}
    table = points_table(points)
    if not figures:
        table = replace(table, notes=[*table.notes, NO_FIGURE])
    return Artifacts(tables={"figure2": table}, figures=figures)


def figure2(points: pd.DataFrame, *, title: str, rung: float | None, metric_label: str = "Test accuracy") -> Figure:
    """Two panels with one curve per α: mean accuracy in percent against γ and against γκ, both on a log axis.

    ``points`` is :func:`~sweep.reporting.aggregate.points_frame`'s table, of one setting; several are a
    ``ValueError``. Filled marks with a bar of ± one standard deviation: all seeds finished; half-filled: some
    did. A line joins only neighbours in γ that both finished. With ``rung``, a fraction of T, every point
    that reached it is drawn there as a hollow mark on a dotted line as well. A cross at the foot: no seed
    finished and at least one diverged. Every artist's ``gid`` says what it is: ``alpha=3 finished``.
    """
    if parts := differing(points):
        raise ValueError(f"Figure 2 shows points of one setting, but here differ: {', '.join(parts)}")
    if points["r_star"].isna().all():
        points = points.assign(alpha=math.nan)  # α acts through r* alone; a plan without mechanism has it idle
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        colors = alpha_colors(points["alpha"])
        for ax, (rate, label) in zip(axes, PANELS.items(), strict=True):
            _draw_panel(ax, points, rate=rate, colors=colors, rung=rung)
            ax.set_xlabel(label)
        axes[1].tick_params(left=False)
        axes[0].set_ylabel(f"{metric_label} (%)")
        _add_legends(figure, axes, points, colors=colors, rung=rung)
        title_and_caption(figure, title, _caption(points, rung=rung, metric=metric_label))
    return figure


def collapse(points: pd.DataFrame, *, accuracy: str = "mean") -> float | None:
    """Share of the between-α variance of accuracy at equal γ that is gone at equal γ_eff: R = 1 − V_eff/V_γ.

    V is defined in the same way on x = log10 γ (V_γ) and on x = log10 γ_eff (V_eff):

    1. The curve of an α is the column ``accuracy`` of its points against x, joined by straight lines between
       neighbours. Points without an accuracy are left out, those at equal x averaged; a curve has two points
       or more and is defined from its first to its last, never extrapolated.
    2. From the least to the greatest x of any curve lies a grid of 1001 equidistant points. A grid point
       counts if at least two curves are defined there, and its between-α variance is the sample variance
       (divisor k − 1) of their k values.
    3. V is the plain average of these variances over the grid points that count.

    1: the curves are one curve of γ_eff. 0: γ_eff orders them no better than γ does; negative: worse. Seed
    noise is in both V, so with finitely many seeds even a perfect law stays below 1. None where nothing can
    be said: in either coordinate fewer than a tenth of the grid points count, or the curves already agree at
    equal γ (V_γ ≤ 1e-12).

    ``points`` is a table of one setting; ``accuracy`` is ``mean``, or ``rung_mean`` for trials cut short by
    ASHA, whose finished points alone would be a choice of the best.
    """
    at_gamma = _variance_between_alphas(points, rate="learning_rate", accuracy=accuracy)
    at_effective = _variance_between_alphas(points, rate="effective_learning_rate", accuracy=accuracy)
    if at_gamma is None or at_effective is None or at_gamma <= 1e-12:
        return None
    return 1 - at_effective / at_gamma


def _variance_between_alphas(points: pd.DataFrame, *, rate: str, accuracy: str) -> float | None:
    known = points[[rate, accuracy, "alpha"]].dropna()
    known = known[known[rate] > 0].assign(x=lambda frame: np.log10(frame[rate]))
    curves = [group.groupby("x")[accuracy].mean() for _, group in known.groupby("alpha")]
    curves = [curve for curve in curves if len(curve) > 1]
    if len(curves) < 2:
        return None
    first, last = min(curve.index[0] for curve in curves), max(curve.index[-1] for curve in curves)
    grid = np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, curve.index, curve, left=np.nan, right=np.nan) for curve in curves])
    counting = np.isfinite(values).sum(axis=0) > 1
    if counting.mean() < LEAST_OVERLAP:
        return None
    return float(np.nanvar(values[:, counting], axis=0, ddof=1).mean())


def _draw_panel(ax: Axes, points: pd.DataFrame, *, rate: str, colors: dict[float, str], rung: float | None) -> None:
    ax.set_xscale("log")
    for place, (alpha, curve) in enumerate(_curves(points, rate=rate)):
        color, shape = colors.get(alpha, NEUTRAL), _shape(place, len(colors))
        name = f"alpha={alpha:g}"
        if rung is not None:
            _draw_rung(ax, curve, rate=rate, color=color, shape=shape, name=name)
        _draw_finished(ax, curve, rate=rate, color=color, shape=shape, name=name)
        _draw_diverged(ax, curve, rate=rate, color=color, name=name)
    if not (points[rate] > 0).any():
        ax.text(0.5, 0.5, "not defined for these trials", transform=ax.transAxes, ha="center", color=NEUTRAL)
    tick_decades(ax.xaxis, *ax.get_xlim())


def _draw_rung(ax: Axes, curve: pd.DataFrame, *, rate: str, color: str, shape: str, name: str) -> None:
    ax.plot(
        curve[rate],
        100 * curve["rung_mean"],
        linestyle=":",
        linewidth=0.9,
        color=color,
        marker=shape,
        markersize=SIZE - 1.2,
        markerfacecolor="white",
        markeredgewidth=0.9,
        gid=f"{name} rung",
    )


def _draw_finished(ax: Axes, curve: pd.DataFrame, *, rate: str, color: str, shape: str, name: str) -> None:
    # NaN means break the line, so that it never runs across a point that did not finish.
    ax.plot(curve[rate], 100 * curve["mean"], color=color, zorder=3, gid=f"{name} line")
    spread = curve[curve["std"].notna()]
    if len(spread):
        bars = ax.errorbar(
            spread[rate],
            100 * spread["mean"],
            yerr=100 * spread["std"],
            fmt="none",
            ecolor=color,
            elinewidth=0.9,
            capsize=2,
            zorder=3,
        )
        bars[2][0].set_gid(f"{name} deviation")
    whole = curve[curve["complete"] & curve["mean"].notna()]
    partial = curve[~curve["complete"] & curve["mean"].notna()]
    for group, fill, gid in [(whole, "full", "finished"), (partial, "bottom", "partial")]:
        if len(group):
            ax.plot(
                group[rate],
                100 * group["mean"],
                linestyle="none",
                marker=shape,
                markersize=SIZE,
                color=color,
                fillstyle=fill,  # type: ignore[arg-type]
                markerfacecoloralt="white",
                markeredgewidth=0.9,
                zorder=4,
                gid=f"{name} {gid}",
            )


def _draw_diverged(ax: Axes, curve: pd.DataFrame, *, rate: str, color: str, name: str) -> None:
    lost = curve[_lost(curve)]
    if len(lost):
        ax.plot(
            lost[rate],
            [0.025] * len(lost),
            transform=ax.get_xaxis_transform(),  # y in parts of the panel: what diverged has no accuracy
            linestyle="none",
            marker="x",
            markersize=SIZE,
            color=color,
            gid=f"{name} diverged",
        )


def _curves(points: pd.DataFrame, *, rate: str) -> Iterable[tuple[float, pd.DataFrame]]:
    """Each α, ascending, NaN (a method without one) last, with those of its points that have a place in x."""
    placed = points[points[rate] > 0].sort_values(rate, kind="stable")
    return placed.groupby("alpha", dropna=False)  # type: ignore[return-value]


def _lost(points: pd.DataFrame) -> pd.Series:
    return points["mean"].isna() & (points["diverged"] > 0)


def _rates_drawn(points: pd.DataFrame, *, rung: float | None) -> int:
    """At how many learning rates there is an accuracy to draw."""
    seen = points["mean"].notna() | (points["rung_mean"].notna() & (rung is not None))
    return int(points.loc[seen & (points["learning_rate"] > 0), "learning_rate"].nunique())


def _add_legends(
    figure: Figure, axes: list[Axes], points: pd.DataFrame, *, colors: dict[float, str], rung: float | None
) -> None:
    """Right of the panels: the curves above, the kinds of mark below."""
    curves, marks = _curve_handles(points, colors=colors), _mark_handles(points, rung=rung)
    if len(curves) > MOST_CURVES_NAMED:
        norm = LogNorm(min(colors), max(colors))
        scale = ScalarMappable(norm, ALPHA_MAP)
        bar = figure.colorbar(scale, ax=axes, label=r"Offset $\alpha$", pad=0.015, aspect=30)
        tick_decades(bar.ax.yaxis, *bar.ax.get_ylim())
        axes[0].legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks))
        return
    above = axes[-1].legend(handles=curves, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    axes[-1].legend(handles=marks, loc="lower left", bbox_to_anchor=(1.02, 0), borderaxespad=0)
    axes[-1].add_artist(above)  # a second legend would replace the first


def _curve_handles(points: pd.DataFrame, *, colors: dict[float, str]) -> list[Line2D]:
    alphas: list[float] = [*colors, *([math.nan] if points["alpha"].isna().any() else [])]
    return [
        Line2D(
            [],
            [],
            color=colors.get(alpha, NEUTRAL),
            marker=_shape(place, len(colors)),
            markersize=SIZE,
            label=_label(alpha),
        )
        for place, alpha in enumerate(alphas)
    ]


def _mark_handles(points: pd.DataFrame, *, rung: float | None) -> list[Line2D]:
    """Legend entries for the kinds of mark that the figure really has."""
    finished = points["mean"].notna()
    shown: dict[str, tuple[pd.Series, dict[str, Any]]] = {
        "all seeds finished" if (points["n_expected"] > 1).any() else "finished": (
            finished & points["complete"],
            {},
        ),
        "fewer finished": (finished & ~points["complete"], {"fillstyle": "bottom"}),
        f"first rung, {rung:g} T" if rung else "": (
            points["rung_mean"].notna() & (rung is not None),
            {"markerfacecolor": "white", "linestyle": ":", "linewidth": 0.9, "markersize": SIZE - 1.2},
        ),
        "diverged": (_lost(points), {"marker": "x"}),
    }
    common: dict[str, Any] = {"marker": "o", "markersize": SIZE, "linestyle": "none", "color": NEUTRAL}
    common |= {"markerfacecoloralt": "white", "markeredgewidth": 0.9}
    return [Line2D([], [], label=label, **(common | look)) for label, (there, look) in shown.items() if there.any()]


def _caption(points: pd.DataFrame, *, rung: float | None, metric: str) -> str:
    asked = int(points["n_expected"].max()) if len(points) else 0
    finished = points["mean"].notna()
    partial, lost = int((finished & ~points["complete"]).sum()), int(_lost(points).sum())
    infeasible = int((points["infeasible"] > 0).sum())
    deviation = f"{metric}: mean over {asked} seeds, bars ± one standard deviation. Filled: all seeds finished."
    sentences = [
        setting(points),
        deviation if asked > 1 else f"{metric}, one seed a point. Filled: finished.",
        f"Half-filled: fewer seeds finished ({count(partial)})." if partial else "",
        f"Hollow, dotted: all trials that reached the first rung ({rung:g} T), stopped or not." if rung else "",
        f"Crosses: diverged ({count(lost)})." if lost else "",
        f"Not drawn: {count(infeasible)} without a usable r*." if infeasible else "",
        _collapse_sentence(points, rung=rung),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _collapse_sentence(points: pd.DataFrame, *, rung: float | None) -> str:
    if points["alpha"].nunique() < 2:
        return ""
    at = "finished points" if rung is None else "first rung"
    share = collapse(points, accuracy="mean" if rung is None else "rung_mean")
    if share is None:
        return f"Collapse ({at}): the curves overlap too little to tell."
    return f"Collapse R = {share:.3f} ({at}): share of the between-α variance at equal γ gone at equal γκ."


def _label(alpha: float) -> str:
    return "no α" if math.isnan(alpha) else f"α = {alpha:g}"


def _shape(place: int, curves: int) -> str:
    return SHAPES[place % len(SHAPES)] if curves <= MOST_CURVES_NAMED else "o"
