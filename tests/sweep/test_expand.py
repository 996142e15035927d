"""From a search space to its trials: which there are, in which order, and that they stay what they were."""

import math

import pytest

from sweep.expand import expand
from sweep.spec import SpecError, load

from .spaces import RATE, a_sweep


def drawn(sweep, key="lr"):
    """The values of `key`, one for each point."""
    return [getattr(trial.plan, key) for trial in expand(sweep) if trial.replicate == 0]


def fault(sweep):
    with pytest.raises(SpecError) as caught:
        expand(sweep)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Grids


def test_the_same_every_time():
    trials = expand(load("figure2"))
    assert trials == expand(load("figure2"))
    assert len({trial.id for trial in trials}) == len(trials) == 1050


def test_grid_in_the_order_of_the_file():
    trials = expand(a_sweep({"alpha": [3, 1], "lr": [1, 0.1]}, seeds=2))
    found = [(trial.plan.alpha, trial.plan.lr, trial.plan.seed) for trial in trials]
    assert found == [(a, lr, seed) for a in (3, 1) for lr in (1, 0.1) for seed in (0, 1)]


def test_overlapping_grids_give_a_trial_once():
    trials = expand(a_sweep([{"lr": [0.1, 1]}, {"lr": [1, 10]}], seeds=2))
    assert [(trial.plan.lr, trial.plan.seed) for trial in trials] == [
        (lr, seed) for lr in (0.1, 1, 10) for seed in (0, 1)
    ]


def test_the_same_value_in_other_words_is_the_same_trial():
    by_rate = expand(a_sweep([{"lr": [1]}, {"lr": [1.0, 1e0]}]))
    assert len(by_rate) == 1
    in_epochs = a_sweep(trial={"epochs": 40 * RATE, "steps": None})
    assert [trial.id for trial in expand(in_epochs)] == [trial.id for trial in expand(a_sweep())]


def test_constants_may_stand_in_space():
    assert [trial.id for trial in expand(a_sweep({"lr": 1, "alpha": 2}))] == [
        trial.id for trial in expand(a_sweep({"lr": 1}, trial={"alpha": 2}))
    ]


def test_an_optimizer_may_be_an_axis_or_a_constant():
    axis = expand(a_sweep({"lr": 1, "optimizer": [{"name": "sgd"}, {"name": "adam"}]}))
    assert [trial.plan.optimizer.name for trial in axis] == ["sgd", "adam"]
    assert expand(a_sweep({"lr": 1, "optimizer": {"name": "adam"}}))[0].plan.optimizer.name == "adam"


# Seeds


def test_seeds_are_paired_across_points():
    trials = expand(a_sweep({"lr": [0.1, 1, 10]}, seeds=3))
    seeds = {}
    for trial in trials:
        seeds.setdefault(trial.point_id, []).append((trial.plan.seed, trial.replicate))
    assert list(seeds.values()) == [[(0, 0), (1, 1), (2, 2)]] * 3


def test_more_seeds_keep_the_trials_there_were():
    few, many = expand(a_sweep(seeds=2)), expand(a_sweep(seeds=5))
    assert [trial.id for trial in many[:2]] == [trial.id for trial in few]
    assert len({trial.id for trial in many}) == 5 and len({trial.point_id for trial in many}) == 1


def test_secure_randomness_counts_repeats_and_has_no_seed():
    trials = expand(a_sweep(trial={"randomness": "secure"}, seeds=3))
    assert [(trial.plan.seed, trial.plan.repeat) for trial in trials] == [(None, 0), (None, 1), (None, 2)]
    assert len({trial.id for trial in trials}) == 3 and len({trial.point_id for trial in trials}) == 1


def test_both_kinds_of_randomness_in_one_space():
    trials = expand(a_sweep({"lr": 1, "randomness": ["research", "secure"]}, seeds=2))
    assert [(trial.plan.seed, trial.plan.repeat) for trial in trials] == [(0, 0), (1, 0), (None, 0), (None, 1)]


# Groups


@pytest.mark.parametrize(
    "key, values, apart",
    [
        ("epsilon", [1, 2], True),
        ("delta", [1e-5, 1e-6], True),
        ("sampling_rate", [0.01, 0.02], True),
        ("steps", [40, 80], True),
        ("model", ["mlp", "cnn"], True),
        ("dataset", ["digits", "mnist"], True),
        ("lr", [0.1, 1], False),
        ("alpha", [1, 3], False),
        ("optimizer", [{"name": "sgd"}, {"name": "adam"}], False),
    ],
)
def test_what_is_compared(key, values, apart):
    first, second = expand(a_sweep({"lr": 1, key: values}, trial={"delta": 1e-6} if key == "dataset" else {}))
    assert (first.group != second.group) == apart


# Random draws


LOG = {"loguniform": [1e-3, 10]}


def test_draws_are_the_same_every_time_and_differ():
    sweep = a_sweep({"lr": LOG, "alpha": [1, 3]}, samples=10)
    assert drawn(sweep) == drawn(sweep)
    assert len(set(drawn(sweep))) == 20, "no two cells share their draws"


def test_draws_stay_when_samples_grow():
    assert drawn(a_sweep({"lr": LOG}, samples=20))[:5] == drawn(a_sweep({"lr": LOG}, samples=5))


@pytest.mark.parametrize("alphas", [[1, 3, 10], [0.5, 3, 1]])
def test_draws_stay_when_the_grid_grows(alphas):
    few = {trial.id for trial in expand(a_sweep({"alpha": [1, 3], "lr": LOG}, samples=4))}
    many = {trial.id for trial in expand(a_sweep({"alpha": alphas, "lr": LOG}, samples=4))}
    assert few < many and len(many) == 12


def test_draws_stay_when_a_grid_is_added_in_front():
    few = {trial.id for trial in expand(a_sweep([{"alpha": 1, "lr": LOG}], samples=4))}
    many = {trial.id for trial in expand(a_sweep([{"alpha": 9, "lr": 1}, {"alpha": 1, "lr": LOG}], samples=4))}
    assert few < many and len(many) == 5, "a grid without a distribution has no draws"


def test_draws_stay_when_seeds_grow():
    assert drawn(a_sweep({"lr": LOG}, samples=4, seeds=3)) == drawn(a_sweep({"lr": LOG}, samples=4))


def test_another_sampling_seed_draws_anew():
    assert not set(drawn(a_sweep({"lr": LOG}, samples=4))) & set(
        drawn(a_sweep({"lr": LOG}, samples=4, sampling_seed=1))
    )


def test_two_distributions_are_drawn_independently():
    sweep = a_sweep({"lr": {"uniform": [1, 2]}, "alpha": {"uniform": [1, 2]}}, samples=10)
    assert all(lr != alpha for lr, alpha in zip(drawn(sweep), drawn(sweep, "alpha"), strict=True))


def test_uniform():
    values = drawn(a_sweep({"lr": {"uniform": [1, 3]}}, samples=400))
    assert all(1 <= value <= 3 for value in values)
    # The mean is 2 with a standard error of 0.029; a log-uniform law has 1.82.
    assert abs(sum(values) / 400 - 2) < 0.1


def test_loguniform():
    values = drawn(a_sweep({"lr": {"loguniform": [0.01, 100]}}, samples=400))
    assert all(0.01 <= value <= 100 for value in values)
    # A fifth lies below 10^-1.2 with a standard error of 0.02; of a uniform law, next to nothing does.
    assert abs(sum(value < 10**-1.2 for value in values) / 400 - 0.2) < 0.08


def test_randint_has_both_bounds():
    assert set(drawn(a_sweep({"lr": 1, "steps": {"randint": [40, 43]}}, samples=60), "steps")) == {40, 41, 42, 43}


def test_choice():
    assert set(drawn(a_sweep({"lr": {"choice": [0.1, 1, 10]}}, samples=40))) == {0.1, 1, 10}


def test_draws_become_plain_numbers():
    plan = expand(a_sweep({"lr": LOG, "steps": {"randint": [40, 99]}}, samples=1))[0].plan
    assert type(plan.lr) is float and type(plan.steps) is int


@pytest.mark.parametrize(
    "distribution, expected",
    [
        ({"uniform": [2, 1]}, "uniform takes [low, high] with low < high"),
        ({"uniform": [1, 1]}, "low < high"),
        ({"uniform": [1]}, "[low, high]"),
        ({"uniform": 1}, "[low, high]"),
        ({"uniform": ["a", "b"]}, "[low, high]"),
        ({"uniform": [0, math.inf]}, "[low, high]"),
        ({"uniform": [False, True]}, "[low, high]"),
        ({"loguniform": [0, 1]}, "loguniform takes bounds above 0"),
        ({"loguniform": [-1, 1]}, "bounds above 0"),
        ({"choice": []}, "choice takes a list of values"),
        ({"choice": 3}, "choice takes a list of values"),
    ],
)
def test_bad_distribution(distribution, expected):
    said = fault(a_sweep({"lr": distribution}, samples=2))
    assert all(part in said for part in ("tiny", "space[0]", "lr", str(distribution), expected))


def test_a_bad_randint_of_fractions():
    said = fault(a_sweep({"lr": 1, "steps": {"randint": [1.5, 2.5]}}, samples=2))
    assert "steps" in said and "randint takes" in said and "integers" in said


def test_samples_and_distributions_belong_together():
    assert "`samples`" in fault(a_sweep({"lr": LOG}))
    assert "samples=3 but nothing in space is a distribution" in fault(a_sweep({"lr": 1}, samples=3))


# Faults


def test_a_key_in_trial_and_in_space():
    said = fault(a_sweep({"lr": 1, "alpha": [1]}, trial={"alpha": 2}))
    assert all(part in said for part in ("tiny", "space[0]", "alpha", "keep one"))


def test_an_impossible_point_is_named():
    said = fault(a_sweep({"lr": [1], "alpha": [1, -3]}))
    assert all(part in said for part in ("tiny", "alpha", "-3", "greater than 0", "lr=1"))


def test_a_large_delta_is_refused_before_anything_starts():
    assert "delta=0.01" in fault(a_sweep(trial={"delta": 0.01}))
    assert expand(a_sweep(trial={"delta": 0.01, "allow_large_delta": True}))
