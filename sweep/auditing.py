"""The audit of a sweep: its winner among two controls, as a small sweep of its own."""

from __future__ import annotations

import math
from typing import Any

from sweep.results import Results
from sweep.spec import SpecError, Sweep
from sweep.store import Record

__all__ = ["audit_sweep", "winner"]

# What a control does not take over from the winner, since it belongs to the winner's method.
_OWN = {
    *("method", "epsilon", "lr", "effective_lr", "alpha", "bound", "norm", "normalize"),
    *("dpsgd", "tempered_sigmoid", "gaussian_features"),
}
_LEFT_OUT = {"seed", "repeat", "audit", "reports"}
# The rate of the paper's DP-SGD baselines; a control need not be good, only private.
_DPSGD_LR = 0.1


def winner(results: Results) -> Record:
    """The completed trial with an ε that has the best validation accuracy, or test accuracy where none is held out.

    Raises `SpecError` if there is none.
    """
    done = [
        record
        for record in results.records
        if record.end_reason == "completed" and not math.isinf(float(record.plan["epsilon"]))
    ]
    if not done:
        raise SpecError(f"{results.sweep.name}: no trial with a finite ε has completed; there is nothing to audit")
    return max(done, key=_score)


def audit_sweep(results: Results, *, canaries: int, canary: str, seeds: int) -> Sweep:
    """The winner's plan with canaries, the same without a mechanism, and DP-SGD at the same ε.

    The control without a mechanism trains at the winner's effective rate, and must be caught; DP-SGD must not be.
    """
    best = winner(results)
    fields = {name: value for name, value in best.plan.items() if name not in _LEFT_OUT and value is not None}
    shared = {name: value for name, value in fields.items() if name not in _OWN}
    own = {name: value for name, value in fields.items() if name in _OWN}
    rate = best.info.get("effective_learning_rate") or best.info["learning_rate"]
    space: list[dict[str, Any]] = [own, {"method": "nonprivate", "epsilon": math.inf, "lr": rate}]
    if best.plan["method"] != "dpsgd":
        space.append({"method": "dpsgd", "epsilon": fields["epsilon"], "lr": _DPSGD_LR, "norm": "group"})
    shared |= {"reports": 1, "audit": {"kind": "one_run", "canaries": canaries, "canary": canary}}
    return Sweep.model_validate(
        {
            "name": f"{results.sweep.name}-audit-{canary}",
            "title": f"Audit of {results.sweep.name} with {canaries} canaries ({canary.replace('_', ' ')})",
            "reproduces": "audit",
            "trial": shared,
            "space": space,
            "seeds": seeds,
            "resources": results.sweep.resources.model_dump(),
        }
    )


def _score(record: Record) -> float:
    last = record.reports[-1]
    score = last.get("validation_accuracy")
    return float(last["test_accuracy"] if score is None else score)
