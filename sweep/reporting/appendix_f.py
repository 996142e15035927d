"""Appendix F: Table 9, accuracy by sampling rate, with the r* behind it for steps and for epochs held fixed."""

from __future__ import annotations

import pandas as pd

from sweep.reporting import tables
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.computed import appendix_f_r_star


def view(trials: pd.DataFrame, points: pd.DataFrame, *, title: str, rung: float | None) -> Artifacts:
    """``table9``, and ``appendix_f_r_star``: both lists of r*."""
    return tables.view(trials, points, names=["table9"], title=title, rung=rung) | appendix_f_r_star()
