"""Checks of arguments, shared by the package: an error names the argument, its range and its value."""

from __future__ import annotations

from math import inf, nan
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def real(
    name: str,
    value: Any,
    *,
    above: float = -inf,
    at_least: float = -inf,
    below: float = inf,
    at_most: float = inf,
) -> float:
    """`value` as a finite float inside the range; bools, strings and NaN are refused.

    Raises:
        ValueError: `value` is no real number or lies outside the range.

    >>> real("delta", 1e-5, above=0, below=1)
    1e-05
    >>> real("delta", 2, above=0, below=1)
    Traceback (most recent call last):
    ValueError: delta must be a number in (0, 1), got 2
    """
    number = _as_float(value)
    if above < number < below and at_least <= number <= at_most:
        return number
    raise ValueError(f"{name} must be a number in {_range(above, at_least, below, at_most)}, got {value!r}")


def reals(
    name: str,
    value: Any,
    *,
    above: float = -inf,
    at_least: float = -inf,
    below: float = inf,
    at_most: float = inf,
) -> NDArray[np.float64]:
    """`value`, a number or an array of any shape, as finite floats that all lie inside the range.

    Raises:
        ValueError: some element is no real number or lies outside the range.

    >>> reals("s_y", [0.1, 0.9], at_least=0, at_most=1)
    array([0.1, 0.9])
    """
    array = np.asarray(value)
    numbers = array.astype(float) if array.dtype.kind in "iuf" else np.asarray(nan)
    if np.all((above < numbers) & (numbers < below) & (at_least <= numbers) & (numbers <= at_most)):
        return numbers
    raise ValueError(f"{name} must be numbers in {_range(above, at_least, below, at_most)}, got {value!r}")


def integer(name: str, value: Any, *, at_least: float = -inf, at_most: float = inf) -> int:
    """`value` as an int inside the range; bools are refused, 3.0 is taken as 3 and 3.5 refused.

    Raises:
        ValueError: `value` is no integer or lies outside the range.

    >>> integer("steps", 20000.0, at_least=1)
    20000
    >>> integer("steps", True, at_least=1)
    Traceback (most recent call last):
    ValueError: steps must be an integer in [1, inf), got True
    """
    number = _as_float(value)
    if at_least <= number <= at_most and number.is_integer():
        return int(value)
    raise ValueError(f"{name} must be an integer in {_range(-inf, at_least, inf, at_most)}, got {value!r}")


def plain(values: Any) -> Any:
    """A 0-dimensional numpy result as a float; an array as it is."""
    return values if np.ndim(values) else float(values)


def _as_float(value: Any) -> float:
    """NaN, which lies in no range, stands for whatever is not a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def _range(above: float, at_least: float, below: float, at_most: float) -> str:
    low = f"({above:.12g}" if above >= at_least else f"[{at_least:.12g}"
    high = f"{below:.12g})" if below <= at_most else f"{at_most:.12g}]"
    return f"{low}, {high}"
