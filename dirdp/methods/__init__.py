"""Training methods by name, one file each; `base.Method` is what they share.

Adding a method is a new file with a subclass of `Method` and a line in `_METHODS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dirdp.methods.base import Method
    from dirdp.plan import TrainingPlan

__all__ = ["bind", "check", "defaults", "floor", "names"]

# name -> module and class; looked up late, so that names cost no import of what a method needs.
_METHODS = {
    "dirichlet": ("dirdp.methods.dirichlet", "Dirichlet"),
    "nonprivate": ("dirdp.methods.nonprivate", "NonPrivate"),
    "dpsgd": ("dirdp.methods.dpsgd", "DpSgd"),
    "tempered_sigmoid": ("dirdp.methods.tempered_sigmoid", "TemperedSigmoid"),
    "gaussian_features": ("dirdp.methods.gaussian_features", "GaussianFeatures"),
}


def names() -> list[str]:
    """Names that a plan may give as its method."""
    return list(_METHODS)


def defaults(name: str) -> Mapping[str, Any]:
    """Fields that a plan of this method has unless it is given others: its options, and what else it changes."""
    if name not in _METHODS:
        return {}
    method = _class(name)
    return {**method.defaults, **{family: {} for family in method.options}}


def check(plan: TrainingPlan) -> None:
    """Raise `ValueError` for a plan that its method cannot run, or with options that are not its method's."""
    users: dict[str, list[str]] = {}
    for name in names():
        for family in _class(name).options:
            users.setdefault(family, []).append(name)
    for family, theirs in users.items():
        options = getattr(plan, family)
        if options is not None and plan.method not in theirs:
            given = ", ".join(f"{key}={value}" for key, value in options)
            raise ValueError(f"{family}: {given} belongs to method {' or '.join(theirs)}, not {plan.method}")
    _class(plan.method).check(plan)


def bind(plan: TrainingPlan) -> Method:
    """The plan's method, calibrated. A plan with ε = ∞ has no mechanism, whichever method it names.

    Raises `dirdp.BudgetError` where the budget has no usable calibration.
    """
    return _acting(plan)(plan)


def floor(plan: TrainingPlan) -> float:
    """The least ε that the plan's method can be calibrated to at the plan's other settings; 0 without a mechanism."""
    return _acting(plan).floor(plan)


def _acting(plan: TrainingPlan) -> type[Method]:
    return _class("nonprivate" if math.isinf(plan.epsilon) else plan.method)


def _class(name: str) -> type[Method]:
    module, attribute = _METHODS[name]
    return getattr(import_module(module), attribute)
