"""How all figures look: one colour an offset α, and Matplotlib settings that do not depend on the user's
own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import ListedColormap, to_hex

# Viridis without its pale end, which vanishes on white paper.
ALPHA_MAP = ListedColormap([colormaps["viridis"](0.82 * step / 255) for step in range(256)], name="alpha")

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib and has every Greek letter
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, Type 3
    "text.usetex": False,
}


def alpha_colors(alphas: Iterable[float]) -> dict[float, str]:
    """Colour of every offset α, as ``#rrggbb``, ascending in α.

    The place on the map is linear in log α between the least and the greatest α given, so neighbours look
    alike and a colour bar over :data:`ALPHA_MAP` with a logarithmic norm shows the same mapping. NaN (no
    mechanism) is left out.

    >>> alpha_colors([3, 0.3])
    {0.3: '#440154', 3.0: '#86d549'}
    """
    offsets = sorted({float(alpha) for alpha in alphas if not math.isnan(alpha)})
    if not offsets:
        return {}
    least, span = math.log(offsets[0]), math.log(offsets[-1] / offsets[0]) or 1.0
    return {alpha: to_hex(ALPHA_MAP((math.log(alpha) - least) / span)) for alpha in offsets}


def method_colors(methods: Iterable[str]) -> dict[str, str]:
    """Colour of every method in the order given, as ``#rrggbb``; apart for colour-blind readers, too.

    >>> method_colors(["Algorithm 1", "DP-SGD"])
    {'Algorithm 1': '#0072b2', 'DP-SGD': '#d55e00'}
    """
    palette = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f"]
    return {method: palette[place % len(palette)] for place, method in enumerate(methods)}
