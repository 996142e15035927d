"""What the MLflow UI shows of a sweep: the collapse of Figure 2 as a scatter plot, coloured by alpha.

The UI reads a shared view from a tag of the experiment. Its format is not documented: it was read out of
MLflow 3.17, and this module alone knows it. A UI that does not understand it shows its plain list of runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["RUNS_PER_PAGE", "experiment_tags", "figure2_view", "ui_url"]

RUNS_PER_PAGE = 100
"""How many runs the UI loads at once; its list of runs has a button for more."""

_VIEW = "figure2"
_RATES = ("log10_effective_learning_rate", "log10_learning_rate")  # Figure 2, right and left


def experiment_tags() -> dict[str, str]:
    """Return the tags that give an experiment its view."""
    return {f"mlflow.sharedViewState.{_VIEW}": figure2_view()}


def figure2_view(*, rates: Sequence[str] = _RATES, accuracy: str = "final_accuracy") -> str:
    """Return the view as the value of its tag: `accuracy` against each of `rates`, all trials visible.

    All are names of metrics. The rates are logarithms because a scatter plot of the UI has no log axis.
    """
    state = {
        "searchFilter": "tags.`sweep.kind` = 'trial'",
        # By start time, the UI would hide the trials below their parent. An id is a hash, so that the first
        # page of a large sweep is a fair sample of it.
        "orderByKey": "tags.`sweep.trial_id`",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "runListHidden": True,
        "hideEmptyCharts": True,
        "compareRunSections": [_section()],
        "compareRunCharts": [_scatter(x=rate, y=accuracy) for rate in rates],
    }
    return json.dumps({"name": _VIEW, "createdAt": 0, "state": json.dumps(state)})


def ui_url(base: str, experiment_id: str) -> str:
    """Return the link that opens an experiment on its view; `base` is the server's address.

    >>> ui_url("http://localhost:5000/", "1")[:46]
    'http://localhost:5000/#/experiments/1/runs?com'
    """
    query = f"compareRunsMode=CHART&viewStateShareKey={_VIEW}&workflowType=machine_learning"
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs?{query}"


def _section() -> dict[str, Any]:
    return {
        "uuid": _VIEW,
        "name": "Figure 2",
        "display": True,
        "isReordered": True,
        "isGenerated": False,
        "deleted": False,
        "columns": 2,
        "cardHeight": 480,  # pixels
    }


def _scatter(*, x: str, y: str) -> dict[str, Any]:
    return {
        "uuid": f"{_VIEW}-{x}",
        "type": "SCATTER",
        "metricSectionId": _VIEW,
        "isGenerated": False,
        "deleted": False,
        "xaxis": {"key": x, "type": "METRIC"},
        "yaxis": {"key": y, "type": "METRIC"},
    }
