"""What all figures share beside their style: title and caption, log axes in plain numbers, marks."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

WIDTH = 9.6  # inches, of every figure
NEUTRAL = "#555555"
SHAPES = "os^Dv"  # beside the colour, for readers and printers that have none
SIZE = 5.5
TITLE_WIDTH, CAPTION_WIDTH = 95, 145  # characters that fit the figure's width


def title_and_caption(figure: Figure, title: str, caption: str) -> None:
    """The title above and the caption below all panels, both from the left edge."""
    heading = plain(textwrap.fill(title, TITLE_WIDTH)).replace("γ_eff", r"γ$_\mathbf{eff}$")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold")
    caption = textwrap.fill(caption.replace(" = ", "\u00a0=\u00a0"), CAPTION_WIDTH)  # no line ends inside an equation
    figure.supxlabel(plain(caption), x=0.01, ha="left", fontsize=8.5, color="#333333", linespacing=1.35)


def plain(text: str) -> str:
    """Text in which a dollar sign is a dollar sign."""
    return text.replace("$", r"\$")


def tick_decades(axis: Axis, low: float, high: float) -> None:
    """Plain numbers on a log axis: decades, and 2 and 5 between them where there are few decades."""
    few = math.log10(high / low) < 2
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
