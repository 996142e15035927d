"""From records of trials to tables and figures: ``records -> aggregate -> one view an item -> files``.

An item of the paper is a function ``view(trials, points, *, title, rung)``, which returns its
:class:`~sweep.reporting.artifacts.Artifacts`, and one line in :data:`VIEWS`; one that needs no training has its line
in :data:`~sweep.reporting.computed.COMPUTED`, and its search space says ``training: false``. Nothing but
:func:`write_report` and :func:`write_computed` touches a disk.
"""

from __future__ import annotations

import io
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from sweep.reporting import appendix_f, audit, curves, figure2, tables
from sweep.reporting.aggregate import points_frame, rows, trials_frame
from sweep.reporting.artifacts import Artifacts
from sweep.reporting.colors import STYLE
from sweep.reporting.compare import compare
from sweep.reporting.computed import COMPUTED, calibrations_frame
from sweep.reporting.page import page
from sweep.reporting.table import SUFFIXES, csv_text, text

if TYPE_CHECKING:
    from sweep.privacy import Statement
    from sweep.store import Record

__all__ = [
    "COMPUTED",
    "VIEWS",
    "compare",
    "no_figure",
    "points_frame",
    "results_rows",
    "trials_frame",
    "write_computed",
    "write_report",
]

View = Callable[..., Artifacts]
VIEWS: dict[str, View] = {
    "audit": audit.view,
    "figure1b": partial(curves.view, name="figure1b", tables=["table1"]),
    "figure2": figure2.view,
    "figure3": partial(curves.view, name="figure3", tables=["table4", "table5"]),
    "table1": partial(tables.view, names=["table1"]),
    "table2": partial(tables.view, names=["table2"]),
    "table3": partial(tables.view, names=["table3", "table8"]),
    "table4": partial(tables.view, names=["table4"]),
    "table5": partial(tables.view, names=["table5"]),
    "table8": partial(tables.view, names=["table3", "table8"]),
    "table9": appendix_f.view,
    "table10": partial(tables.view, names=["table10"]),
    "appendix_f": appendix_f.view,
    "appendix_f_epochs": appendix_f.view,
    "appendix_g": partial(tables.view, names=["table10"]),
}
"""Every item that is made from trials, by the name that a search space gives as what it ``reproduces``."""

# No date, so that the same results make the same file.
_FORMATS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 200},
    "pdf": {"metadata": {"CreationDate": None}},
}


def write_report(
    folder: Path,
    *,
    item: str,
    title: str,
    records: Sequence[Record],
    seeds: int,
    rung: float | None,
    privacy: Statement | None = None,
) -> list[Path]:
    """Write the tables and figures of a sweep into ``folder``, made if absent; return the paths of all files,
    tables first and the page last.

    ``item`` names what the sweep reproduces (:data:`VIEWS`); any other gets Figure 2's view.
    Always written: ``results.csv``, one row per trial; each of the view's tables as CSV, Markdown and LaTeX, each of
    its figures as PNG and PDF, ``privacy.txt`` if ``privacy`` is given, and ``ITEM.html``, a page that has them all in
    it. ``seeds`` is how many were asked per
    point, ``rung`` ASHA's first rung as a fraction of T or None without ASHA. A file is replaced whole or not
    at all, and the same records give the same bytes. ``OSError`` where the folder cannot be written.
    """
    trials = trials_frame(records, rung=rung)
    item = item if item in VIEWS else "figure2"
    artifacts = VIEWS[item](trials, points_frame(trials, seeds=seeds), title=title, rung=rung)
    files = _files(artifacts, item=item, title=title, plans=[record.plan for record in records], privacy=privacy)
    stated = {"privacy.txt": privacy.text().encode()} if privacy else {}
    return _written(folder, {"results.csv": csv_text(trials).encode(), **stated, **files})


def no_figure(item: str | None, paths: Sequence[Path]) -> str | None:
    """Why :func:`write_report` wrote no picture; None where it did, or where the item has none."""
    due = item not in VIEWS or VIEWS[item] is figure2.view
    return None if any(path.suffix == ".png" for path in paths) or not due else figure2.NO_FIGURE


def write_computed(
    folder: Path, *, item: str, title: str, plans: Sequence[Mapping[str, Any]], r_stars: Sequence[float | None]
) -> tuple[Artifacts, list[Path]]:
    """Write the tables and page of an item of :data:`COMPUTED` as :func:`write_report` does, from the plans of its
    points and their r* (None: infeasible); return the artifacts and the paths. ``ValueError`` for another item."""
    if item not in COMPUTED:
        raise ValueError(f"training: false leaves results to {', '.join(COMPUTED)} only, got reproduces: {item}")
    artifacts = COMPUTED[item](calibrations_frame(plans, r_stars))
    return artifacts, _written(folder, _files(artifacts, item=item, title=title, plans=[]))


def results_rows(records: Sequence[Record], fmt: str, *, rung: float | None = None) -> str:
    """The trials of ``trials_frame`` as text: ``csv``, or ``json``, a list with one object per trial.

    The JSON is strict: missing and NaN are ``null``, infinities are the strings ``"inf"`` and ``"-inf"``. An
    unknown format is a ``ValueError``.
    """
    trials = trials_frame(records, rung=rung)
    if fmt == "csv":
        return csv_text(trials)
    if fmt == "json":
        strict = [{name: _strict(value) for name, value in row.items()} for row in rows(trials)]
        return json.dumps(strict, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    raise ValueError(f"unknown format {fmt!r}; choose csv or json")


def _strict(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def _files(
    artifacts: Artifacts,
    *,
    item: str,
    title: str,
    plans: Sequence[Mapping[str, Any]],
    privacy: Statement | None = None,
) -> dict[str, bytes]:
    """All files by name: tables, then figures, then the page with both."""
    texts = {
        f"{name}.{suffix}": text(table, fmt, name=name).encode()
        for name, table in artifacts.tables.items()
        for fmt, suffix in SUFFIXES.items()
    }
    images = {
        f"{name}.{suffix}": _image(figure, suffix) for name, figure in artifacts.figures.items() for suffix in _FORMATS
    }
    pictures = {name: images[f"{name}.png"] for name in artifacts.figures}
    whole = page(title=title, plans=plans, pictures=pictures, tables=artifacts.tables, privacy=privacy)
    return {**texts, **images, f"{item}.html": whole.encode()}


def _image(figure: Figure, suffix: str) -> bytes:
    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format=suffix, **_FORMATS[suffix])
    return buffer.getvalue()


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [_replaced(folder / name, data) for name, data in files.items()]


def _replaced(path: Path, data: bytes) -> Path:
    """Write through a name of our own, so that a reader or a crash never meets half a file."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
