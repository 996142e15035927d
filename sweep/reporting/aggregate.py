"""Records of trials become two tables: one row a trial, one row a point. Pure: no file is touched."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from dirdp.plan import Audit
from sweep.words import varying

if TYPE_CHECKING:
    from sweep.store import Record

# What must be equal for trials to be compared; points of one setting differ in α and learning rate only.
SETTING = ["dataset", "model", "method", "epsilon", "delta", "sampling_rate", "steps", "variant"]

TRIAL_COLUMNS = {
    "trial_id": "object",
    "point_id": "object",
    "seed": "Int64",
    "end_reason": "object",
    "dataset": "object",
    "model": "object",
    "method": "object",
    "epsilon": "float64",
    "delta": "float64",
    "alpha": "float64",
    "sampling_rate": "float64",
    "steps": "Int64",
    "steps_done": "Int64",
    "learning_rate": "float64",
    "effective_learning_rate": "float64",
    "r_star": "float64",
    "noise_multiplier": "float64",
    "attenuation": "float64",
    "epsilon_spent": "float64",
    "train_loss": "float64",
    "validation_accuracy": "float64",
    "test_accuracy": "float64",
    "rung_step": "Int64",
    "rung_accuracy": "float64",
    "audit_epsilon_lower": "float64",
    "audit_correct": "Int64",
    "audit_guesses": "Int64",
    "audit_canaries": "Int64",
    "audit_confidence": "float64",
    "variant": "object",
}

POINT_COLUMNS = {
    "point_id": "object",
    "dataset": "object",
    "model": "object",
    "method": "object",
    "epsilon": "float64",
    "delta": "float64",
    "alpha": "float64",
    "sampling_rate": "float64",
    "steps": "Int64",
    "learning_rate": "float64",
    "effective_learning_rate": "float64",
    "r_star": "float64",
    "noise_multiplier": "float64",
    "attenuation": "float64",
    "n": "Int64",
    "n_expected": "Int64",
    "complete": "bool",
    "mean": "float64",
    "std": "float64",
    "validation_mean": "float64",
    "rung_mean": "float64",
    "rung_n": "Int64",
    "diverged": "Int64",
    "stopped": "Int64",
    "infeasible": "Int64",
    "epsilon_spent": "float64",
    "variant": "object",
}

_ORDER = [*SETTING, "alpha", "learning_rate", "effective_learning_rate"]

_AUDIT = "audit"
# Plan fields that a column tells already, in other words, and what tells the seeds of a point apart.
_TOLD = {*TRIAL_COLUMNS, "lr", "effective_lr", "epochs", "expected_batch_size", "repeat"}


def trials_frame(records: Sequence[Record], *, rung: float | None) -> pd.DataFrame:
    """One row per trial, sorted by setting, α, learning rate and seed; columns as in :data:`TRIAL_COLUMNS`.

    ``trial_id, point_id, seed``; ``end_reason`` (missing: still running); ``dataset, model, method``; the
    asked-for ``epsilon`` (``inf``: no mechanism) and ``delta``; ``alpha``; ``sampling_rate`` q; ``steps`` T
    and ``steps_done``; ``learning_rate`` γ and ``effective_learning_rate`` γκ at s_y = 0.9; ``r_star``,
    ``noise_multiplier`` σ and ``attenuation`` κ; then of the last report ``epsilon_spent`` (of this trial alone, in the
    method's own sense), ``train_loss`` in nats, ``validation_accuracy`` and ``test_accuracy``; ``rung_step`` and
    ``rung_accuracy``, the first report with step ≥ ``rung``·T and its test accuracy; ``audit_epsilon_lower``, what the
    plan's audit found at ``audit_confidence``, with ``audit_correct`` of ``audit_guesses`` right guesses about
    ``audit_canaries`` canaries; ``variant``, an audit and all else in which the plans of these records differ, empty
    where they do not. Accuracies are fractions from 0 to 1.
    What a trial does not have is missing (NaN).

    ``rung`` is a fraction of T in (0, 1], or None; anything else is a ``ValueError``.
    """
    if rung is not None and not 0 < rung <= 1:
        raise ValueError(f"rung must be a fraction of the steps in (0, 1] or None, got {rung!r}")
    variants = _variants([record.plan for record in records])
    rows = [_trial(record, variant, rung=rung) for record, variant in zip(records, variants, strict=True)]
    frame = pd.DataFrame(rows, columns=list(TRIAL_COLUMNS)).astype(TRIAL_COLUMNS)
    return frame.sort_values([*_ORDER, "seed", "trial_id"], kind="stable", ignore_index=True)


def points_frame(trials: pd.DataFrame, *, seeds: int) -> pd.DataFrame:
    """One row per point, its seeds together, sorted like the trials; columns as in :data:`POINT_COLUMNS`.

    Beside the columns that the trials of a point share: ``n`` trials completed with a test accuracy,
    ``n_expected`` = ``seeds``, ``complete`` (n ≥ n_expected); ``mean`` and ``std`` of the test accuracy over
    those n and ``validation_mean`` likewise; ``rung_mean`` and ``rung_n`` over all trials that reached the
    rung, whatever came later; how many ``diverged``, were ``stopped`` early or are ``infeasible``;
    ``epsilon_spent``, the greatest of any trial. Accuracies are fractions. ``std`` is the sample standard
    deviation (divisor n − 1), NaN for n < 2. A trial that stopped or diverged is never averaged with finished
    ones: a point with n = 0 is listed with a NaN mean.
    """
    rows = [_point(group, seeds=seeds) for _, group in trials.groupby("point_id", sort=False)]
    frame = pd.DataFrame(rows, columns=list(POINT_COLUMNS)).astype(POINT_COLUMNS)
    return frame.sort_values([*_ORDER, "point_id"], kind="stable", ignore_index=True)


def settings(points: pd.DataFrame) -> list[pd.DataFrame]:
    """The points of each setting (:data:`SETTING`), in order: what may stand in one picture."""
    return [group for _, group in points.groupby(SETTING, sort=False, dropna=False)]


def differing(points: pd.DataFrame) -> list[str]:
    """The parts of the setting that are not the same for all points."""
    return [name for name in SETTING if points[name].nunique(dropna=False) > 1]


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows as dictionaries, column to value."""
    return frame.to_dict(orient="records")  # type: ignore[return-value]


def _trial(record: Record, variant: str, *, rung: float | None) -> dict[str, Any]:
    plan, info = record.plan, record.info
    last = record.reports[-1] if record.reports else {}
    reached = _first_at(record.reports, rung)
    audit = Audit(**plan[_AUDIT]) if plan.get(_AUDIT) else None
    return {
        "trial_id": record.trial_id,
        "point_id": record.point_id,
        "seed": plan.get("seed"),
        "end_reason": record.end_reason,
        "dataset": plan.get("dataset"),
        "model": plan.get("model"),
        "method": plan.get("method"),
        "epsilon": _number(plan.get("epsilon")),
        "delta": _number(plan.get("delta")),
        "alpha": _number(plan.get("alpha")),
        "sampling_rate": _number(plan.get("sampling_rate")),
        "steps": _either(plan.get("steps"), last.get("steps")),
        "steps_done": last.get("step", 0),
        "learning_rate": _number(_either(info.get("learning_rate"), plan.get("lr"))),
        "effective_learning_rate": _number(_either(info.get("effective_learning_rate"), plan.get("effective_lr"))),
        "r_star": _number(info.get("r")),
        "noise_multiplier": _number(info.get("noise_multiplier")),
        "attenuation": _number(info.get("attenuation")),
        "epsilon_spent": _number(last.get("epsilon_spent")),
        "train_loss": _number(last.get("train_loss")),
        "validation_accuracy": _number(last.get("validation_accuracy")),
        "test_accuracy": _number(last.get("test_accuracy")),
        "rung_step": reached.get("step"),
        "rung_accuracy": _number(reached.get("test_accuracy")),
        "audit_epsilon_lower": _number(last.get("audit_epsilon_lower")),
        "audit_correct": last.get("audit_correct"),
        "audit_guesses": audit.number_of_guesses if audit else None,
        "audit_canaries": audit.canaries if audit else None,
        "audit_confidence": audit.confidence if audit else math.nan,
        "variant": variant,
    }


def _point(trials: pd.DataFrame, *, seeds: int) -> dict[str, Any]:
    finished = trials[(trials["end_reason"] == "completed") & trials["test_accuracy"].notna()]
    reached = trials["rung_accuracy"].dropna()
    ends = trials["end_reason"].value_counts()
    shared = {column: _shared(trials[column]) for column in POINT_COLUMNS if column in TRIAL_COLUMNS}
    return shared | {
        "n": len(finished),
        "n_expected": seeds,
        "complete": len(finished) >= seeds,
        "mean": finished["test_accuracy"].mean(),
        "std": finished["test_accuracy"].std(ddof=1),
        "validation_mean": finished["validation_accuracy"].mean(),
        "rung_mean": reached.mean(),
        "rung_n": len(reached),
        "diverged": ends.get("diverged", 0),
        "stopped": ends.get("early_stopped", 0),
        "infeasible": ends.get("infeasible", 0),
        "epsilon_spent": trials["epsilon_spent"].max(),
    }


def _shared(values: pd.Series) -> Any:
    """The value all trials of a point share, from the first that knows it: a trial not yet started does
    not."""
    known = values.dropna()
    return known.iloc[0] if len(known) else None


def _first_at(reports: Sequence[dict[str, Any]], rung: float | None) -> dict[str, Any]:
    """The first report at or after the rung, {} where there is none."""
    if rung is None:
        return {}
    # The slack undoes rounding: 0.07 * 100 is 7.000000000000001 and would miss step 7.
    return next((report for report in reports if report["step"] >= rung * report["steps"] * (1 - 1e-9)), {})


def _variants(plans: Sequence[dict[str, Any]]) -> list[str]:
    """For each plan the fields without a column of their own in which the plans of a method differ:
    ``optimizer="adam"``. An audit is always among them, since it means training on other data."""
    texts = [
        {key: _compact(value) for key, value in plan.items() if key not in _TOLD and not (key == _AUDIT and not value)}
        for plan in plans
    ]
    told = [text | {"method": plan.get("method")} for text, plan in zip(texts, plans, strict=True)]
    varied = sorted({*varying(told), _AUDIT} - {"method"})
    return [", ".join(f"{key}={text[key]}" for key in varied if key in text) for text in texts]


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _either(preferred: Any, otherwise: Any) -> Any:
    return otherwise if preferred is None else preferred


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
