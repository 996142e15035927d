"""Launch order, the seeds of a point, and early stopping, as pure sequences of reports."""

import itertools
import math
import random

import pytest

from sweep.campaign import Campaign
from sweep.expand import expand, launch_order
from sweep.planning import plan
from sweep.scheduling import EarlyStopping, Queue
from sweep.spec import Asha
from sweep.storage import Folder
from sweep.store import Store

from .spaces import a_sweep, ends, message, simulate, steps_run, train

RATES = [10.0**k for k in range(-3, 3)]


@pytest.fixture
def run(tmp_path):
    """Run a sweep on simulated accuracies, in a store of its own; return its campaign."""
    number = itertools.count()

    def run_simulated(sweep, score, *, at_once=1):
        campaign = Campaign(plan(sweep), Store(Folder(tmp_path / str(next(number)))), listeners=[])
        simulate(campaign, score, at_once=at_once)
        assert campaign.exhausted and campaign.complete
        return campaign

    return run_simulated


def asha(**rule):
    return {"asha": {"grace": 0.25, "reduction_factor": 2} | rule}


def goes_on(stopping, trial, step, score):
    return stopping.goes_on(trial, message(trial, step, score)["report"])


def one_seed_each(count, **trial):
    return expand(a_sweep({"lr": [float(k + 1) for k in range(count)]}, trial=trial))


# Launch order


def test_launch_order_is_fixed_and_not_the_file_s():
    trials = expand(a_sweep({"lr": RATES, "alpha": [1, 2, 3]}, seeds=2))
    order = launch_order(trials)
    assert sorted(trial.id for trial in order) == sorted(trial.id for trial in trials)
    shuffled = random.Random(1).sample(trials, len(trials))
    assert launch_order(shuffled) == launch_order(reversed(trials)) == order
    assert order not in (trials, trials[::-1], sorted(trials, key=lambda t: t.id))
    neighbours = sum(a.point_id == b.point_id for a, b in itertools.pairwise(order))
    assert neighbours < 9, "in the file's order there are 18"


def test_launch_order_stays_when_the_grid_grows():
    few = expand(a_sweep({"lr": RATES[:3]}))
    many = launch_order(expand(a_sweep({"lr": RATES})))
    assert [trial for trial in many if trial in few] == launch_order(few)


# The queue


def test_queue_without_stages_hands_out_all():
    trials = expand(a_sweep({"lr": [0.1, 1]}, seeds=2))
    queue = Queue(trials, staged=False, ended={})
    assert not queue.exhausted
    assert [queue.next() for _ in range(4)] == launch_order(trials)
    assert queue.exhausted and queue.next() is None


def test_queue_leaves_out_what_ended():
    trials = expand(a_sweep({"lr": [0.1, 1, 10]}))
    ended = {trials[0].id: "completed", trials[2].id: "diverged"}
    queue = Queue(trials, staged=False, ended=ended)
    assert queue.next() == trials[1] and queue.exhausted and not queue.skipped


def test_siblings_are_released_by_completion_alone():
    first, *others = expand(a_sweep(seeds=3))
    queue = Queue([*others, first], staged=True, ended={})
    assert queue.next() == first
    assert queue.next() is None and not queue.exhausted, "the others wait"
    queue.settle(first, "completed")
    assert {queue.next(), queue.next()} == set(others)
    assert queue.exhausted and not queue.skipped


@pytest.mark.parametrize("end_reason", ["early_stopped", "diverged", "infeasible", "interrupted", "error"])
def test_siblings_are_skipped_otherwise(end_reason):
    first, *others = expand(a_sweep(seeds=3))
    queue = Queue([first, *others], staged=True, ended={})
    queue.next()
    queue.settle(first, end_reason)
    assert queue.next() is None and queue.exhausted
    assert set(queue.skipped) == set(others)


def test_siblings_of_other_points_are_not_released():
    trials = expand(a_sweep({"lr": [1, 2]}, seeds=2))
    queue = Queue(trials, staged=True, ended={})
    firsts = [queue.next(), queue.next()]
    assert all(trial.replicate == 0 for trial in firsts)
    queue.settle(firsts[0], "completed")
    released = queue.next()
    assert released.point_id == firsts[0].point_id and released.replicate == 1
    assert queue.next() is None and not queue.exhausted


def test_the_end_of_a_sibling_releases_nothing():
    trials = expand(a_sweep(seeds=3))
    queue = Queue(trials, staged=True, ended={trials[0].id: "completed", trials[1].id: "diverged"})
    assert queue.next() == trials[2] and queue.exhausted and not queue.skipped


def test_a_first_seed_that_ended_earlier_decides_at_once():
    trials = expand(a_sweep({"lr": [1, 2]}, seeds=3))
    ended = {trials[0].id: "completed", trials[3].id: "early_stopped"}
    queue = Queue(trials, staged=True, ended=ended)
    assert {queue.next(), queue.next()} == set(trials[1:3]) and queue.exhausted
    assert set(queue.skipped) == set(trials[4:])


def test_what_has_ended_is_not_skipped():
    trials = expand(a_sweep(seeds=3))
    ended = {trials[0].id: "diverged", trials[1].id: "completed"}
    queue = Queue(trials, staged=True, ended=ended)
    assert queue.exhausted and queue.skipped == [trials[2]]


# Early stopping


def test_the_first_at_a_rung_goes_on_however_bad():
    stopping = EarlyStopping(Asha(grace=0.25, reduction_factor=2))
    assert all(goes_on(stopping, one_seed_each(1)[0], step, 0.0) for step in (10, 20, 30))


def test_below_the_best_half_is_stopped_at_the_rung():
    first, worse, better = one_seed_each(3)
    stopping = EarlyStopping(Asha(grace=0.5, reduction_factor=2))
    assert goes_on(stopping, first, 10, 0.5) and goes_on(stopping, worse, 10, 0.1), "before the rung all go on"
    assert goes_on(stopping, first, 20, 0.5)
    assert not goes_on(stopping, worse, 20, 0.4)
    assert goes_on(stopping, better, 20, 0.6)


def test_a_judgement_is_final():
    """What goes on after a rung goes on to the next, even when better ones come."""
    first, second, third = one_seed_each(3)
    stopping = EarlyStopping(Asha(grace=0.25, reduction_factor=4))
    assert goes_on(stopping, first, 10, 0.5)
    assert goes_on(stopping, second, 10, 0.9) and goes_on(stopping, third, 10, 0.9)
    assert goes_on(stopping, first, 20, 0.1) and goes_on(stopping, first, 30, 0.1)


def test_a_rung_between_two_reports_is_judged_at_the_next():
    first, second = one_seed_each(2)
    stopping = EarlyStopping(Asha(grace=0.3, reduction_factor=3))  # at step 12 of 40
    assert goes_on(stopping, first, 20, 0.5)
    assert goes_on(stopping, second, 10, 0.1)
    assert not goes_on(stopping, second, 20, 0.4)


def test_a_rung_that_was_passed_over_is_not_judged_later():
    """The first report, at step 10, is beyond the rungs 2, 4 and 8, and counts at 8 alone."""
    first, second = one_seed_each(2)
    stopping = EarlyStopping(Asha(grace=0.05, reduction_factor=2))
    assert all(goes_on(stopping, first, step, 0.5) for step in (10, 20, 30))
    assert goes_on(stopping, second, 10, 0.6) and goes_on(stopping, second, 20, 0.6)
    assert goes_on(stopping, second, 30, 0.1), "the next rung is at 32"


@pytest.mark.parametrize("score", [None, math.nan, math.inf, -math.inf])
def test_without_a_number_this_trial_stops_alone(score):
    first, bad, third = one_seed_each(3)
    stopping = EarlyStopping(Asha(grace=0.25, reduction_factor=2))
    assert not goes_on(stopping, bad, 10, score)
    assert goes_on(stopping, first, 10, 0.1), "it was not compared: this one is the first"
    assert goes_on(stopping, third, 10, 0.2)


def test_without_a_number_between_the_rungs_too():
    trial = one_seed_each(1)[0]
    stopping = EarlyStopping(Asha(grace=0.75))
    assert goes_on(stopping, trial, 10, 0.5)
    assert not goes_on(stopping, trial, 20, math.nan)


def test_a_report_without_the_metric():
    trial = one_seed_each(1)[0]
    assert not EarlyStopping(Asha()).goes_on(trial, {"step": 10})
    assert not EarlyStopping(Asha(metric="validation_accuracy")).goes_on(trial, {"step": 10, "test_accuracy": 0.9})


def test_only_first_seeds_are_judged():
    trials = expand(a_sweep({"lr": [1, 2]}, seeds=2))
    stopping = EarlyStopping(Asha(grace=0.25, reduction_factor=2))
    assert goes_on(stopping, trials[1], 10, 0.9), "a second seed sets no standard"
    assert goes_on(stopping, trials[0], 10, 0.5)
    assert goes_on(stopping, trials[3], 10, 0.0) and goes_on(stopping, trials[3], 20, math.nan), "and meets none"
    assert not goes_on(stopping, trials[2], 10, 0.4)


@pytest.mark.parametrize("metric", [None, "test_accuracy", "validation_accuracy"])
def test_the_metric_is_the_rule_s_or_the_plan_s_own(metric):
    """The second trial is better in the test set, worse in the validation set."""
    first, second = one_seed_each(2, validation={"fraction": 0.1})
    stopping = EarlyStopping(Asha(metric=metric, grace=0.25, reduction_factor=2))
    assert stopping.goes_on(first, {"step": 10, "test_accuracy": 0.5, "validation_accuracy": 0.5})
    later = stopping.goes_on(second, {"step": 10, "test_accuracy": 0.6, "validation_accuracy": 0.4})
    assert later == (metric == "test_accuracy")


def test_rungs_are_fractions_of_each_trial_s_own_length():
    short = expand(a_sweep({"lr": [1, 2], "steps": [40]}))
    long = expand(a_sweep({"lr": [1, 2], "steps": [400]}))
    stopping = EarlyStopping(Asha(grace=0.5, reduction_factor=2))
    assert goes_on(stopping, short[0], 20, 0.9) and goes_on(stopping, long[0], 200, 0.9)
    assert goes_on(stopping, long[1], 100, 0.1), "far beyond the short ones' rung"
    assert not goes_on(stopping, long[1], 200, 0.1) and not goes_on(stopping, short[1], 20, 0.1)


@pytest.mark.parametrize(
    "key, values",
    [("epsilon", [1, 2]), ("delta", [1e-5, 1e-6]), ("sampling_rate", [0.01, 0.02]), ("model", ["mlp", "cnn"])],
)
def test_groups_are_not_compared(key, values):
    trials = expand(a_sweep({"lr": [1, 2], key: values}))
    stopping = EarlyStopping(Asha(grace=0.25, reduction_factor=2))
    good = [trial for trial in trials if trial.group == trials[0].group]
    others = [trial for trial in trials if trial.group != trials[0].group]
    assert goes_on(stopping, good[0], 10, 0.9)
    assert goes_on(stopping, others[0], 10, 0.2), "the first of its own group"
    assert not goes_on(stopping, others[1], 10, 0.1)
    assert not goes_on(stopping, good[1], 10, 0.8)


# Whole sweeps, simulated


def by_rate(trial, step):
    """Saturating curves; the best rate is 0.1 decades from 1, absurd ones learn nothing."""
    rate = trial.plan.lr
    if not 1e-3 < rate < 50:
        return 0.1
    best = 0.95 - 0.1 * abs(math.log10(rate) - 0.1) - 0.001 * trial.replicate
    return best * (1 - math.exp(-8 * step / trial.plan.steps))


@pytest.mark.parametrize("at_once", [1, 2, 4, 30])
def test_a_private_budget_is_never_cut_for_being_private(run, at_once):
    """Five budgets, three seeds, accuracy growing with ε: compared across budgets, ε <= 2 would all stop early."""
    sweep = a_sweep({"lr": [0.5, 1], "epsilon": [8, 4, 2, 1, 0.5]}, seeds=3, scheduler=asha())
    campaign = run(
        sweep, lambda trial, step: (0.5 + 0.05 * trial.plan.epsilon + 0.01 * trial.plan.lr) * step / 40, at_once=at_once
    )
    for epsilon in (8, 4, 2, 1, 0.5):
        full = {r.plan["seed"] for r in campaign.records.values() if r.plan["epsilon"] == epsilon and _complete(r)}
        assert full == {0, 1, 2}


def _complete(record):
    return record.end_reason == "completed" and record.reports[-1]["step"] == record.plan["steps"]


@pytest.mark.parametrize("at_once", [1, 2, 8])
@pytest.mark.parametrize("seeds", [1, 2])
def test_absurd_rates_beside_good_ones(run, at_once, seeds):
    space = {"lr": [1e-4, 1e-3, 0.03, 0.1, 0.3, 1, 3, 10, 100, 1000], "alpha": [1, 3]}
    # δ changes nothing here but the order of launch; over nine of them, 33 to 55 % of the steps were saved.
    trial = {"delta": 2e-5}
    stopped = run(a_sweep(space, trial=trial, seeds=seeds, scheduler=asha()), by_rate, at_once=at_once)
    full = run(a_sweep(space, trial=trial, seeds=seeds), by_rate)
    assert steps_run(full) == 20 * seeds * 40
    saved = 1 - steps_run(stopped) / steps_run(full)
    assert saved >= 0.4
    absurd = [r for r in stopped.records.values() if not 1e-3 < r.plan["lr"] < 50]
    # The first to come may run on for want of a standard; that is one in each rung.
    assert sum(record.end_reason == "early_stopped" for record in absurd) >= len(absurd) - 2
    best = [r for r in stopped.records.values() if r.plan["lr"] == 1]
    assert len(best) == 2 * seeds and all(record.end_reason == "completed" for record in best)
    assert best_accuracy(stopped) == best_accuracy(full)


def best_accuracy(campaign):
    return max(r.reports[-1]["test_accuracy"] for r in campaign.records.values() if r.end_reason == "completed")


def test_a_nan_in_the_middle_of_a_sweep_harms_no_other(run):
    """The same sweep with and without a trial that has no number."""
    space = {"lr": [0.1, 0.3, 1, 3]}
    without = run(a_sweep(space, scheduler=asha()), by_rate)
    space = {"lr": [*space["lr"], 7]}
    beside = run(
        a_sweep(space, scheduler=asha()), lambda trial, step: math.nan if trial.plan.lr == 7 else by_rate(trial, step)
    )
    (bad,) = beside.records.keys() - without.records.keys()
    assert beside.records[bad].end_reason == "early_stopped" and len(beside.records[bad].reports) == 1
    assert {name: end for name, end in ends(beside).items() if name != bad} == ends(without)


def test_skipped_seeds_are_those_of_points_that_did_not_complete(run):
    campaign = run(a_sweep({"lr": RATES}, seeds=3, scheduler=asha()), by_rate)
    completed = {r.point_id for r in campaign.records.values() if r.plan["seed"] == 0 and r.end_reason == "completed"}
    assert 0 < len(completed) < len(RATES)
    assert len(campaign.records) == len(RATES) + 2 * len(completed)
    assert {trial.point_id for trial in campaign.skipped}.isdisjoint(completed)
    assert len(campaign.skipped) == 2 * (len(RATES) - len(completed))


# A whole sweep, real


def test_absurd_rates_are_stopped_in_real_training(tmp_path):
    """Digits and an MLP: half of the rates learn nothing (1e-4, 1e-3) or nothing but noise (30, 100)."""
    space = {"alpha": 3, "effective_lr": [1e-4, 1e-3, 0.1, 0.3, 30, 100]}
    trial = {"steps": 240, "epsilon": 8, "validation": {"fraction": 0.1}}  # an order of launch that is no bad luck
    stopped = Campaign(
        plan(a_sweep(space, trial=trial, scheduler=asha())), Store(Folder(tmp_path / "stopped")), listeners=[]
    )
    full = Campaign(plan(a_sweep(space, trial=trial)), Store(Folder(tmp_path / "full")), listeners=[])
    train(stopped)
    train(full)
    for record in stopped.records.values():
        same = full.records[record.trial_id].reports[: len(record.reports)]
        assert _timeless(record.reports) == _timeless(same), "stopping changes nothing before the stop"
    found = {record.plan["effective_lr"]: record for record in stopped.records.values()}
    absurd = [found[rate].end_reason for rate in (1e-4, 1e-3, 30, 100)]
    assert absurd.count("early_stopped") >= 3, "all but a first one without a standard"
    good = [found[rate].end_reason for rate in (0.1, 0.3)]
    assert "completed" in good
    assert 1 - steps_run(stopped) / steps_run(full) >= 0.4
    assert best_accuracy(stopped) == best_accuracy(full) > 0.7


def _timeless(reports):
    return [{key: value for key, value in report.items() if key != "steps_per_second"} for report in reports]
