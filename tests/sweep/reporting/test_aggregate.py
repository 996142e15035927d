"""Records to tables: what is averaged, what never is, and the exact CSV."""

import math
import random

import numpy as np
import pandas as pd
import pytest

from sweep.reporting.aggregate import POINT_COLUMNS, TRIAL_COLUMNS, points_frame, settings, trials_frame

GOLDEN = """\
point_id,dataset,model,method,epsilon,delta,alpha,sampling_rate,steps,learning_rate,effective_learning_rate,\
r_star,noise_multiplier,attenuation,n,n_expected,complete,mean,std,validation_mean,rung_mean,rung_n,diverged,stopped,infeasible,\
epsilon_spent,variant
ID0,digits,mlp,dirichlet,1.0,1e-05,1.0,0.01,100,0.5,0.057375,0.08,,0.11475,2,2,True,0.75,0.3535533905932738,,0.5,2,\
0,0,0,0.9999,
ID1,digits,mlp,dirichlet,1.0,1e-05,3.0,0.01,100,0.5,0.03856,0.24,,0.07712,0,2,False,,,,0.5,1,0,1,0,0.09999000000000001,
"""


def points_of(records, *, seeds=2, rung=0.1):
    return points_frame(trials_frame(records, rung=rung), seeds=seeds)


def test_a_trial_becomes_one_row_with_its_last_report(record):
    made = record(alpha=1.0, lr=0.5, seed=7, accuracy=0.75, early=0.25, validation={"fraction": 0.1})
    (row,) = trials_frame([made], rung=0.3).to_dict(orient="records")
    assert list(row) == list(TRIAL_COLUMNS)
    assert all(pd.isna(row.pop(name)) for name in TRIAL_COLUMNS if name.startswith("audit_"))
    assert math.isnan(row.pop("noise_multiplier"))
    assert row == {
        "trial_id": made.trial_id,
        "point_id": made.point_id,
        "seed": 7,
        "end_reason": "completed",
        "dataset": "digits",
        "model": "mlp",
        "method": "dirichlet",
        "epsilon": 1.0,
        "delta": 1e-5,
        "alpha": 1.0,
        "sampling_rate": 0.01,
        "steps": 100,
        "steps_done": 100,
        "learning_rate": 0.5,
        "effective_learning_rate": 0.5 * 0.11475,
        "r_star": 0.08,
        "attenuation": 0.11475,
        "epsilon_spent": 0.9999,
        "train_loss": 0.25,
        "validation_accuracy": 0.74,
        "test_accuracy": 0.75,
        "rung_step": 50,
        "rung_accuracy": 0.25,
        "variant": "",
    }


def test_an_infeasible_trial_keeps_what_its_plan_says(record):
    (row,) = trials_frame([record(lr=0.5, end="infeasible")], rung=None).to_dict(orient="records")
    assert row["learning_rate"] == 0.5 and row["steps_done"] == 0
    assert all(math.isnan(row[name]) for name in ["effective_learning_rate", "r_star", "test_accuracy"])


@pytest.mark.parametrize(("rung", "step"), [(0.1, 10), (0.11, 50), (0.5, 50), (1, 100)])
def test_the_rung_is_the_first_report_at_or_after_it(record, rung, step):
    assert trials_frame([record()], rung=rung)["rung_step"].tolist() == [step]


def test_a_rung_survives_floating_point(record):
    made = record()
    made.reports[0]["step"] = 7
    assert 0.07 * 100 > 7
    assert trials_frame([made], rung=0.07)["rung_step"].tolist() == [7]


@pytest.mark.parametrize("rung", [0, -0.1, 1.5, math.nan])
def test_a_rung_outside_its_range_is_refused(rung):
    with pytest.raises(ValueError, match="rung must be a fraction"):
        trials_frame([], rung=rung)


def test_stopped_and_diverged_trials_are_never_averaged_with_finished_ones(record):
    records = [
        record(seed=0, accuracy=0.9),
        record(seed=1, accuracy=0.8),
        record(seed=2, end="early_stopped", early=0.1),
        record(seed=3, end="diverged", done=50, early=0.2),
        record(seed=4, end="interrupted", done=50, early=0.3),
        record(seed=5, end=None, done=10, early=0.4),
    ]
    (point,) = points_of(records, seeds=6).to_dict(orient="records")
    assert (point["n"], point["n_expected"], point["complete"]) == (2, 6, False)
    assert point["mean"] == pytest.approx(0.85)
    assert point["std"] == pytest.approx(0.1 / math.sqrt(2))  # sample deviation, divisor n − 1
    assert (point["stopped"], point["diverged"], point["infeasible"]) == (1, 1, 0)
    assert point["rung_n"] == 6
    assert point["rung_mean"] == pytest.approx((0.5 + 0.5 + 0.1 + 0.2 + 0.3 + 0.4) / 6)


def test_one_seed_has_no_deviation_and_no_seed_no_mean(record):
    points = points_of([record(lr=0.1), record(lr=0.2, end="early_stopped")], seeds=1)
    assert points["n"].tolist() == [1, 0]
    assert points["complete"].tolist() == [True, False]
    assert points["std"].isna().all()
    assert points["mean"].isna().tolist() == [False, True]


def test_a_finished_trial_without_a_number_does_not_count(record):
    (point,) = points_of([record(seed=0), record(seed=1, accuracy=math.nan)]).to_dict(orient="records")
    assert (point["n"], point["complete"], point["mean"]) == (1, False, 0.9)


def test_columns_and_kinds_are_the_same_for_no_records(sweep):
    for frame, columns in [
        (trials_frame([], rung=None), TRIAL_COLUMNS),
        (points_of([], rung=None), POINT_COLUMNS),
        (points_of(sweep()), POINT_COLUMNS),
    ]:
        assert frame.dtypes.astype(str).to_dict() == columns


def test_the_points_file_to_the_letter(record):
    stopped = record(alpha=3.0, lr=0.5, end="early_stopped")
    finished = [record(alpha=1.0, lr=0.5, seed=seed, accuracy=0.5 + seed / 2) for seed in (0, 1)]
    text = points_of([stopped, *finished]).to_csv(index=False)
    assert text == GOLDEN.replace("ID0", finished[0].point_id).replace("ID1", stopped.point_id)


def test_the_order_of_records_changes_nothing(sweep):
    records = sweep(asha=True)
    mixed = random.Random(0).sample(records, len(records))
    assert trials_frame(mixed, rung=0.1).equals(trials_frame(records, rung=0.1))
    assert points_of(mixed).equals(points_of(records))


def test_a_field_without_a_column_still_separates_settings(record):
    records = [record(optimizer={"name": name}, lr=lr) for name in ("sgd", "adam") for lr in (0.1, 0.2)]
    points = points_of(records)
    assert set(points["variant"]) == {'optimizer={"name": "adam"}', 'optimizer={"name": "sgd"}'}
    assert [len(group) for group in settings(points)] == [2, 2]
    assert (trials_frame(records[:2], rung=None)["variant"] == "").all()


def test_missing_and_infinite_settings_are_settings_too(record):
    plain = [record(lr=lr, epsilon=math.inf, delta=None, method="nonprivate") for lr in (0.1, 0.2)]
    groups = settings(points_of([*plain, record()]))
    assert [len(group) for group in groups] == [1, 2]
    assert np.isinf(groups[1]["epsilon"]).all()


def test_repeats_of_an_unseeded_point_stay_together(record):
    records = [record(seed=repeat) for repeat in (0, 1)]
    for repeat, made in enumerate(records):
        made.plan |= {"seed": None, "repeat": repeat, "randomness": "secure"}
    (point,) = points_of(records).to_dict(orient="records")
    assert (point["n"], point["complete"], point["variant"]) == (2, True, "")


def test_an_audited_trial_is_a_setting_of_its_own(record):
    """It trains on other data: never averaged with an ordinary one, nor in one picture with it."""
    audited = record(audit={"kind": "one_run", "canaries": 500})
    audited.reports[-1] |= {"audit_epsilon_lower": 1.25, "audit_correct": 160}
    ordinary = record(audit=None)
    for records in ([audited], [ordinary, audited]):
        trials = trials_frame(records, rung=None)
        row = trials[trials["trial_id"] == audited.trial_id].iloc[0]
        assert (row["audit_epsilon_lower"], row["audit_correct"]) == (1.25, 160)
        assert (row["audit_guesses"], row["audit_canaries"], row["audit_confidence"]) == (200, 500, 0.95)
        assert "canaries" in row["variant"]
    assert len(settings(points_of([ordinary, audited]))) == 2
    assert trials_frame([ordinary], rung=None)["variant"].eq("").all()
