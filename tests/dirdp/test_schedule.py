"""Learning-rate schedules: their closed forms, that the training follows them, and that it resumes bit for bit."""

import io
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dirdp import TrainingPlan, train
from dirdp.schedule import Schedule

SCHEDULES = {
    "constant": {},
    "warm-up": {"warmup": 0.3},
    "cosine": {"name": "cosine", "warmup": 0.1, "final": 0.05},
    "step": {"name": "step", "milestones": [0.5, 0.8], "decay": 0.2},
}


def plan_of(schedule, **fields):
    usual = {"epsilon": 1, "sampling_rate": 0.02, "steps": 20, "lr": 0.5, "reports": 20}
    return TrainingPlan(dataset="digits", model="mlp", schedule=schedule, **(usual | fields))


def factors(steps, **schedule):
    return [Schedule(**schedule).factor(step, steps=steps) for step in range(steps)]


def test_constant():
    assert factors(5) == [1] * 5


def test_cosine_falls_along_half_a_cosine():
    assert factors(4, name="cosine") == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert factors(2, name="cosine", final=0.2) == pytest.approx([1, 0.6])


def test_step_falls_at_the_milestones():
    assert factors(10, name="step", milestones=[0.3, 0.7]) == pytest.approx([1] * 3 + [0.1] * 4 + [0.01] * 3)


def test_warm_up_rises_in_a_straight_line_to_the_full_rate():
    assert factors(8, warmup=0.5) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    assert factors(8, name="cosine", warmup=0.5)[3:] == pytest.approx([1, *factors(4, name="cosine")])


@given(st.sampled_from(["constant", "cosine", "step"]), st.floats(0, 0.99), st.integers(1, 200))
def test_factors_lie_between_0_and_1_and_never_rise_after_the_warm_up(name, warmup, steps):
    own = {"milestones": [0.5]} if name == "step" else {}
    values = factors(steps, name=name, warmup=warmup, **own)
    assert all(0 < value <= 1 for value in values)
    after = values[round(warmup * steps) :]
    assert all(a >= b for a, b in itertools.pairwise(after))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "linear"}, "'constant', 'cosine' or 'step'"),
        ({"name": "step"}, "schedule step needs milestones"),
        ({"name": "step", "milestones": [0.8, 0.5]}, r"milestones must ascend, got \[0.8, 0.5\]"),
        ({"name": "step", "milestones": [0.5, 0.5]}, "milestones must ascend"),
        ({"name": "step", "milestones": [0.5, 1]}, "less than 1"),
        ({"name": "cosine", "milestones": [0.5]}, r"milestones=\(0.5,\) belongs to schedule step, not cosine"),
        ({"name": "cosine", "decay": 0.5}, "decay=0.5 belongs to schedule step, not cosine"),
        ({"final": 0.1}, "final=0.1 belongs to schedule cosine, not constant"),
        ({"warmup": 1}, "less than 1"),
        ({"warm_up": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_schedules_are_refused(fields, complaint):
    with pytest.raises(ValidationError, match=complaint):
        plan_of(fields)


@pytest.mark.parametrize("fields", SCHEDULES.values(), ids=SCHEDULES)
def test_reports_give_the_rate_of_the_step_just_made(fields):
    training = train(plan_of(fields))
    peak = training.method.learning_rate * training.method.attenuation
    rates = [report.effective_learning_rate for report in training]
    assert rates == pytest.approx([peak * factor for factor in factors(20, **fields)])


def test_the_network_moves_by_the_rate_of_the_step(monkeypatch):
    """SGD without momentum: the parameters change by rate times gradient, exactly."""
    training = train(plan_of(SCHEDULES["warm-up"], lr=0.5, epsilon=float("inf")))
    rates = [0.5 * factor for factor in factors(20, **SCHEDULES["warm-up"])]
    weight = training.model[-1].weight
    for rate in rates:
        before = weight.detach().clone()
        next(training)
        assert torch.allclose(weight, before - rate * weight.grad, atol=1e-7)


def test_a_constant_schedule_changes_no_bit():
    plain = list(train(plan_of({})))
    assert [report.train_loss for report in train(plan_of({"name": "constant"}))] == [r.train_loss for r in plain]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("fields", SCHEDULES.values(), ids=SCHEDULES)
def test_a_resumed_training_is_the_same_bit_for_bit(fields, optimizer):
    plan = plan_of(fields, optimizer={"name": optimizer}, lr=0.01, reports=4)
    whole, first = train(plan), train(plan)
    for _ in whole:
        pass
    next(first), next(first)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = train(plan)
    second.load_state_dict(torch.load(saved))
    rest = list(second)
    assert [report.step for report in rest] == [15, 20]
    for mine, theirs in zip(second.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_schedules_survive_json():
    plan = plan_of(SCHEDULES["step"])
    assert TrainingPlan.model_validate_json(plan.model_dump_json()) == plan
    assert TrainingPlan(**plan.model_dump()).trial_id == plan.trial_id
