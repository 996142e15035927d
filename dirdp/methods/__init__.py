"""Training methods by name, one file each; `base.Method` is what they share.

Adding a method is a new file with a subclass of `Method` and a line in `_METHODS`.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dirdp.methods.base import Method
    from dirdp.plan import TrainingPlan

__all__ = ["bind", "names"]

# name -> module and class; looked up late, so that names cost no import of torch.
_METHODS = {
    "dirichlet": ("dirdp.methods.dirichlet", "Dirichlet"),
    "nonprivate": ("dirdp.methods.nonprivate", "NonPrivate"),
}


def names() -> list[str]:
    """Names that a plan may give as its method."""
    return list(_METHODS)


def bind(plan: TrainingPlan) -> Method:
    """The plan's method, calibrated. A plan with ε = ∞ has no mechanism, whichever method it names.

    Raises `dirdp.BudgetError` where the budget has no usable calibration.
    """
    module, name = _METHODS["nonprivate" if math.isinf(plan.epsilon) else plan.method]
    return getattr(import_module(module), name)(plan)
