"""Metrics, parameters and tags as MLflow takes them: names, finite numbers, and texts that are not too long."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping

LONGEST_PARAM, LONGEST_TAG, LONGEST_KEY = 6000, 5000, 250  # characters


def clean_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The values that are finite numbers: MLflow would turn infinity into 1.8e308 and keep NaN."""
    found = {}
    for name, value in metrics.items():
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number):
            found[_key(name)] = number
    return found


def clean_tags(tags: Mapping[str, object]) -> dict[str, str]:
    """The tags that have a value, as text that is not too long."""
    return {_key(name): str(value)[:LONGEST_TAG] for name, value in tags.items() if value is not None}


def clean_params(params: Mapping[str, object]) -> dict[str, str]:
    """The parameters that have a value, each as its one text."""
    return {_key(name): _text(value)[:LONGEST_PARAM] for name, value in params.items() if value is not None}


def _key(name: str) -> str:
    """A name as MLflow allows it: an asterisk, for one, is not."""
    return re.sub(r"[^\w\-. :/]", "_", str(name))[:LONGEST_KEY]


def _text(value: object) -> str:
    """One text for one value: MLflow refuses a parameter that comes again as 0.10 instead of 0.1.

    >>> _text(0.10), _text(1e-5), _text(True), _text({"b": [1, 0.5], "a": None})
    ('0.1', '1e-05', 'true', '{"a": null, "b": [1, 0.5]}')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return repr(float(value))
    return json.dumps(value, sort_keys=True, default=str)
