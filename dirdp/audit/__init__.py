"""What an attacker really learns from a training: lower bounds on ε, measured, to be held against the ε claimed.

A lower bound above the claim refutes the claim, at the stated confidence. One below it refutes nothing: a better attack
may find more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dirdp.audit.bounds import distinguisher_epsilon, one_run_cap, one_run_epsilon, one_run_p_value

if TYPE_CHECKING:
    from dirdp.audit.attacks import input_canary, one_run

__all__ = [
    "distinguisher_epsilon",
    "input_canary",
    "one_run",
    "one_run_cap",
    "one_run_epsilon",
    "one_run_p_value",
]


def __getattr__(name: str) -> Any:
    if name in ("input_canary", "one_run"):  # which train, and so load torch
        return getattr(import_module("dirdp.audit.attacks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
