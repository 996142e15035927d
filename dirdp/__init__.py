"""Training of classifiers with Dirichlet-perturbed softmax outputs, and its privacy accounting.

Accounting needs no torch, so `import dirdp` does not load it; the training names load it on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dirdp.accounting import PrivacySpent, RdpCurve, epsilon_spent
from dirdp.calibration import BudgetError, Calibration, budget_floor, calibrate
from dirdp.theory import attenuation, effective_learning_rate

if TYPE_CHECKING:
    from dirdp.plan import TrainingPlan
    from dirdp.training import Report, Training, train

__all__ = [
    "BudgetError",
    "Calibration",
    "PrivacySpent",
    "RdpCurve",
    "Report",
    "Training",
    "TrainingPlan",
    "attenuation",
    "budget_floor",
    "calibrate",
    "effective_learning_rate",
    "epsilon_spent",
    "train",
]

_LAZY = {
    "TrainingPlan": "dirdp.plan",
    "Report": "dirdp.training",
    "Training": "dirdp.training",
    "train": "dirdp.training",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
