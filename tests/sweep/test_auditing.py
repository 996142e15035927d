"""`sweep audit`: the sweep it lays out, what it says of the findings, and the picture."""

import math

import pandas as pd
import pytest

from dirdp import TrainingPlan
from sweep.auditing import audit_sweep, winner
from sweep.planning import plan as plan_sweep
from sweep.reporting import audit as report
from sweep.reporting import trials_frame, write_report
from sweep.results import Results
from sweep.spec import SpecError
from sweep.store import Record

from .spaces import TRIAL, a_sweep


def record(accuracy, *, validation_accuracy=None, end="completed", correct=None, **changes):
    plan = TrainingPlan(**(TRIAL | {"lr": 1.0} | changes))
    last = {"step": 40, "steps": 40, "test_accuracy": accuracy, "validation_accuracy": validation_accuracy}
    last |= {"epsilon_spent": plan.epsilon, "end_reason": end, "audit_correct": correct}
    if correct is not None:
        found = {"canaries": plan.audit.canaries, "guesses": plan.audit.number_of_guesses, "correct": correct}
        last["audit_epsilon_lower"] = report.one_run_epsilon(**found, delta=plan.delta, confidence=0.95)
    info = {"learning_rate": plan.lr, "effective_learning_rate": 0.07}
    return Record(plan.trial_id, plan.point_id, plan.model_dump(mode="json"), info, [last], end)


def results_of(tmp_path, *records):
    return Results(tmp_path, a_sweep(), list(records))


def test_the_winner_is_the_best_by_validation_that_claims_an_epsilon(tmp_path):
    poor, good = record(0.9, validation_accuracy=0.5, alpha=1), record(0.6, validation_accuracy=0.8, alpha=2)
    free = record(0.99, validation_accuracy=0.99, epsilon=math.inf)
    stopped = record(0.99, validation_accuracy=0.99, alpha=5, end="early_stopped")
    assert winner(results_of(tmp_path, poor, good, free, stopped)) is good
    with pytest.raises(SpecError, match="nothing to audit"):
        winner(results_of(tmp_path, free, stopped))


def test_the_winner_stands_beside_two_controls(tmp_path):
    best = record(0.9, alpha=1, seed=4, bound="exact", epsilon=2)
    sweep = audit_sweep(results_of(tmp_path, best), canaries=100, canary="mislabelled", seeds=2)
    laid_out = plan_sweep(sweep)
    plans = [trial.plan for trial in laid_out.trials]
    assert sweep.name == "tiny-audit-mislabelled" and len(plans) == 6
    assert all(plan.audit.canaries == 100 and plan.audit.canary == "mislabelled" for plan in plans)
    own, free, private = plans[::2]
    assert own.model_copy(update={"audit": None, "seed": 4, "reports": 4}) == TrainingPlan(**best.plan)
    assert (free.method, free.epsilon, free.lr) == ("nonprivate", math.inf, 0.07)
    assert (private.method, private.epsilon, private.norm, private.normalize) == ("dpsgd", 2, "group", "expected")
    assert {(plan.sampling_rate, plan.steps, plan.delta) for plan in plans} == {(own.sampling_rate, 40, 1e-5)}


def test_a_winner_that_is_the_control_stands_once(tmp_path):
    best = record(0.9, method="dpsgd", epsilon=2)
    sweep = audit_sweep(results_of(tmp_path, best), canaries=100, canary="noise", seeds=1)
    assert [trial.plan.method for trial in plan_sweep(sweep).trials] == ["dpsgd", "nonprivate"]


AUDIT = {"audit": {"canaries": 500}}


@pytest.fixture
def audited():
    return [
        record(0.9, correct=160, **AUDIT),
        record(0.95, correct=200, method="nonprivate", epsilon=math.inf, **AUDIT),
        record(0.8, correct=104, method="dpsgd", **AUDIT),
    ]


def test_findings_are_held_against_the_claims(audited):
    data = report.findings(trials_frame(audited, rung=None)).set_index("method")
    assert list(data["guesses"]) == [200] * 3
    assert data.loc["nonprivate", "lower"] == pytest.approx(data.loc["nonprivate", "cap"])
    assert (data["lower_strict"] <= data["lower"]).all()
    verdicts = {row["method"]: report.verdict(row) for row in data.reset_index().to_dict("records")}
    assert verdicts == {"dirichlet": "refuted", "nonprivate": "claims nothing", "dpsgd": "not refuted"}


def test_controls_that_fail_are_named(audited):
    assert report.controls(report.findings(trials_frame(audited, rung=None))) == [
        "control DP-SGD: not caught",
        "control without a mechanism: caught",
    ]
    broken = [
        record(0.9, correct=104, method="nonprivate", epsilon=math.inf, **AUDIT),
        record(0.9, correct=195, method="dpsgd", **AUDIT),
    ]
    lines = report.controls(report.findings(trials_frame(broken, rung=None)))
    assert any("CAUGHT at 99.9 %" in line for line in lines) and any("NOT CAUGHT" in line for line in lines)


def test_the_report_has_table_and_picture(audited, tmp_path):
    paths = write_report(tmp_path, item="audit", title="Audit of tiny", records=audited, seeds=1, rung=None)
    assert {path.name for path in paths} >= {"audit.csv", "audit.md", "audit.png", "audit.pdf", "audit.html"}
    table = (tmp_path / "audit.md").read_text(encoding="utf-8")
    assert "nominal 1" in table and "160/200" in table and "refuted" in table and "nominal (Theorem 10)" in table
    saved = pd.read_csv(tmp_path / "audit.csv")
    assert list(saved.columns) == report.COLUMNS and len(saved) == 3


def test_no_finding_is_a_page_too(tmp_path):
    assert write_report(tmp_path, item="audit", title="Audit", records=[], seeds=1, rung=None)
