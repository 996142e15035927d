"""Canaries: what they are, where they stand, what is guessed of them, and audited trainings of known guilt."""

import math

import pytest
import torch
from pydantic import ValidationError

from dirdp import TrainingPlan, train
from dirdp.audit import input_canary, one_run
from dirdp.audit.canaries import OneRun, OneRunResult
from dirdp.methods.dpsgd import DpSgd
from dirdp.plan import Audit
from dirdp.randomness import SeededStream

BASE = {
    "dataset": "digits",
    "model": "mlp",
    "epsilon": 1,
    "sampling_rate": 0.02,
    "steps": 60,
    "lr": 0.3,
    "reports": 2,
}
NONPRIVATE = {"method": "nonprivate", "epsilon": math.inf}


def plan_of(canaries=40, *, canary="mislabelled", **changes):
    return TrainingPlan(**(BASE | {"audit": {"canaries": canaries, "canary": canary}} | changes))


def planted(canary, *, canaries=20, seed=3, records=200):
    """A one-run audit of random images with labels 0, 1, …, 9 in turn."""
    images = SeededStream(1, "images").integers(200, (records, 1, 8, 8)).to(torch.uint8) + 1
    labels = torch.arange(records) % 10
    audit = Audit(canaries=canaries, canary=canary)
    run = OneRun(audit, images, labels, classes=10, coins=SeededStream(seed, "audit"))
    return run, images, labels


# Plan


def test_the_issue_s_form_is_a_plan():
    plan = TrainingPlan(**BASE, audit={"kind": "one_run", "canaries": 500})
    assert plan.audit.number_of_guesses == 200
    assert plan_of(50, canary="unique_coordinate").audit.number_of_guesses == 50
    assert plan.trial_id != TrainingPlan(**BASE).trial_id
    assert plan.point_id != TrainingPlan(**BASE).point_id
    assert plan.training_size == TrainingPlan(**BASE).training_size


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        ({"canaries": 0}, "canaries"),
        ({"canaries": 1437}, "fewer than the 1437 records"),
        ({"canaries": 10, "guesses": 11}, "guesses=11"),
        ({"canaries": 10, "guesses": 3}, "even"),
        ({"canaries": 10, "canary": "bird"}, "mislabelled"),
        ({"canaries": 10, "kind": "many_runs"}, "one_run"),
        ({"canaries": 10, "confidence": 1}, "confidence"),
        ({"canaries": 10, "size": 1}, "size"),
    ],
)
def test_a_wrong_audit_is_refused(audit, words):
    with pytest.raises(ValidationError, match=words):
        TrainingPlan(**BASE, audit=audit)


@pytest.mark.parametrize("changes", [{"optimizer": {"weight_decay": 0.1}}, {"augmentation": "crop-flip"}])
def test_unique_coordinates_need_weights_that_nothing_else_moves(changes):
    with pytest.raises(ValidationError, match="unique_coordinate needs"):
        plan_of(canary="unique_coordinate", **changes)
    plan_of(canary="noise", **changes)


# The canaries


@pytest.mark.parametrize("canary", ["mislabelled", "noise", "unique_coordinate"])
def test_canaries_stand_in_the_places_of_records(canary):
    run, images, _ = planted(canary)
    trained, labels = run.records
    used = int(run.coins.sum())
    assert 0 < used < 20
    assert len(trained) == len(labels) == 200 - 20 + used
    assert torch.equal(trained[180:], run.images[run.coins]) and torch.equal(labels[180:], run.labels[run.coins])
    assert trained.shape[1:] == images.shape[1:] and trained.dtype == torch.uint8
    assert int(run.labels.min()) >= 0 and int(run.labels.max()) <= 9


def test_the_canaries_are_those_of_every_seed_and_the_coins_are_not():
    (one, *_), (other, *_) = planted("noise", seed=0), planted("noise", seed=1)
    assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
    assert not torch.equal(one.coins, other.coins)
    assert torch.equal(one.coins, planted("noise", seed=0)[0].coins)


def test_coins_are_fair():
    coins = torch.stack([planted("noise", seed=seed)[0].coins for seed in range(200)]).double()
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / math.sqrt(4000)
    assert (coins.mean(0) - 0.5).abs().max() < 4 * 0.5 / math.sqrt(200)


def test_mislabelled_canaries_are_records_with_another_label():
    run, images, labels = planted("mislabelled")
    for image, label in zip(run.images, run.labels, strict=True):
        (place,) = (images == image).flatten(1).all(1).nonzero().flatten().tolist()
        assert label != labels[place]
        assert not (run.records[0][:180] == image).flatten(1).all(1).any()


def test_unique_coordinates_are_unique():
    run, *_ = planted("unique_coordinate")
    lit = run.images.flatten(1) > 0
    assert (lit.sum(1) == 1).all() and len(set(lit.nonzero()[:, 1].tolist())) == 20
    others = run.records[0][:180].flatten(1)
    assert not others[:, lit.any(0)].any()
    assert not others[:, run._coordinates[20:]].any() and len(run._coordinates) == 28
    assert others[:, ~torch.isin(torch.arange(64), run._coordinates)].all()


def test_too_many_unique_coordinates_are_refused():
    with pytest.raises(ValueError, match="at most 56 canaries"):
        planted("unique_coordinate", canaries=57)


# Guesses


class Told(OneRun):
    """An audit whose scores are told."""

    def __init__(self, scores, coins, **audit):
        self.audit, self.coins, self._told = Audit(canaries=len(coins), **audit), torch.tensor(coins), scores

    def scores(self, model, inputs):
        return torch.tensor(self._told, dtype=torch.float64), 0.5


@pytest.mark.parametrize(("guesses", "correct"), [(6, 4), (4, 2), (2, 2), (None, 2)])
def test_guesses_go_to_the_ends_of_the_ranking(guesses, correct):
    audit = Told([0.9, 0.8, 0.7, 0.2, 0.3, 0.1], [True, False, True, True, False, False], guesses=guesses)
    found = audit.result(None, None, delta=0)
    assert (found.guesses, found.correct) == (guesses or 2, correct)


def test_a_result_says_bound_and_cap():
    result = OneRunResult(canaries=500, guesses=200, correct=200, delta=1e-5, confidence=0.95)
    assert result.epsilon_lower == result.cap > result.epsilon_lower_at(0.999)
    assert "200 of 200" in str(result) and "95 %" in str(result) and "cap 4.1" in str(result)


# Audited trainings


def last(plan):
    return list(train(plan))[-1]


def test_unique_coordinates_give_themselves_away_at_any_nominal_epsilon():
    """docs/privacy.md's first point, as an audit: the bound is above the nominal ε."""
    report = last(plan_of(canary="unique_coordinate", steps=150, epsilon=0.8))
    assert report.audit_correct >= 37
    assert report.audit_epsilon_lower > 0.8 >= report.epsilon_spent


def test_only_the_last_report_has_the_bound():
    first, final = train(plan_of())
    assert first.audit_epsilon_lower is None and first.audit_correct is None
    assert final.audit_epsilon_lower >= 0 and 0 <= final.audit_correct <= 16


def test_an_ordinary_training_has_no_bound():
    report = last(TrainingPlan(**BASE))
    assert report.audit_epsilon_lower is None
    with pytest.raises(ValueError, match="no audit"):
        train(TrainingPlan(**BASE)).audit_result()


def test_the_audit_is_that_of_the_seed():
    plan = plan_of(canary="noise")
    assert last(plan).audit_correct == last(plan).audit_correct == one_run(plan).correct
    one, other = train(plan), train(plan_of(canary="noise", seed=1))
    assert not torch.equal(one._audit.coins, other._audit.coins)


@pytest.mark.parametrize("randomness", [{}, {"randomness": "secure", "seed": None}])
def test_a_resumed_audit_keeps_its_coins(randomness):
    plan = plan_of(canary="unique_coordinate", **randomness)
    training = train(plan)
    next(training)
    resumed = train(plan)
    resumed.load_state_dict(training.state_dict())
    assert torch.equal(resumed._audit.coins, training._audit.coins)
    assert len(resumed._train) == resumed._sampler.size == len(training._train)
    assert torch.equal(resumed._audit._start, training._audit._start)
    (report,) = resumed
    if not randomness:
        (straight,) = training
        assert report.audit_correct == straight.audit_correct and report.test_accuracy == straight.test_accuracy


def test_a_convolution_has_no_unique_coordinate():
    with pytest.raises(ValueError, match=r"dense first layer .* got Conv2d"):
        train(plan_of(canary="unique_coordinate", model="cnn"))


def test_input_canary_tells_a_nominal_method():
    plan = TrainingPlan(**BASE | {"steps": 150, "epsilon": 0.8})
    found = input_canary(plan, trainings=12)
    assert found.true_positives >= found.positives - 1 and found.false_positives == 0
    assert found.positives + found.negatives == 6
    assert "trainings with the canary" in str(found)


def test_input_canary_refuses_an_audited_plan():
    with pytest.raises(ValueError, match="without an audit"):
        input_canary(plan_of(), trainings=4)


@pytest.mark.slow
def test_a_training_without_privacy_is_caught():
    plan = plan_of(500, steps=2000, sampling_rate=0.05, **NONPRIVATE)
    assert one_run(plan).epsilon_lower_at(0.999) > 2


DPSGD = {"method": "dpsgd", "epsilon": 1, "lr": 1, "steps": 100, "sampling_rate": 0.05, "reports": 1}


@pytest.mark.slow
def test_dpsgd_is_not_caught_and_dpsgd_without_noise_is(monkeypatch):
    """The same audit of the same training, once as it should be and once broken."""
    plan = plan_of(canary="unique_coordinate", **DPSGD)
    assert one_run(plan).epsilon_lower_at(0.999) <= plan.epsilon
    calibrate = DpSgd.__init__

    def without_noise(self, plan):
        calibrate(self, plan)
        self.noise_multiplier = 1e-6

    monkeypatch.setattr(DpSgd, "__init__", without_noise)
    assert one_run(plan).epsilon_lower_at(0.999) > plan.epsilon
