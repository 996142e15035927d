"""The ledger: nothing that was started is missing from it, nothing counts twice that is the same, and budgets hold."""

import json
import math
from fractions import Fraction

import pytest
from mpmath import log, mp, mpf
from numpy.testing import assert_allclose

from sweep.account import Account
from sweep.campaign import Campaign
from sweep.expand import launch_order
from sweep.ledger import FOLDER, Ledger
from sweep.lock import Lock
from sweep.planning import plan
from sweep.spec import SpecError
from sweep.storage import Folder, StoreError
from sweep.store import Store

from .spaces import a_sweep, beginning, message, simulate

mp.dps = 30
ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}
GRID = {"lr": [1, 2, 3, 4, 5, 6, 7, 8]}


@pytest.fixture
def files(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def begin(tmp_path, files):
    def begin(sweep, *, device="cpu", threads=1, name="results"):
        laid_out = plan(sweep)
        account = Account(laid_out, files, device=device, threads=threads)
        return Campaign(laid_out, Store(Folder(tmp_path / name)), listeners=[], account=account), account

    return begin


def accuracy(trial, step):
    return trial.plan.lr / 100


def run(begin, sweep, *, at_once=1, score=accuracy, **how):
    campaign, account = begin(sweep, **how)
    simulate(campaign, score, at_once=at_once)
    return campaign, account


def exact(account, files, *, sweep="tiny", order=None):
    """ε of all charges on the file at 30 digits, by a way of its own: line by line, at one order."""
    lines = [json.loads(line) for line in files.read(f"{FOLDER}/{sweep}.jsonl").splitlines() if line]
    curves = {
        one["id"]: dict(zip(one["orders"], one["rdp"], strict=True)) for one in lines if one["kind"] == "mechanism"
    }
    runs = {one["run"] for one in lines if one["kind"] == "plan" and one["sweep"] == sweep}
    charges = [one for one in lines if one["kind"] == "charge" and one["run"] in runs]
    n = mpf(order or account.order)
    total = sum(
        mpf(curves[c["mechanism"]][int(n)]) * Fraction(c["share"]).numerator / Fraction(c["share"]).denominator
        for c in charges
    )
    return total + log(n - 1) - (log(mpf("1e-5")) + n * log(n)) / (n - 1)


# Planned and spent


def test_a_whole_sweep_spends_what_was_planned(begin, files):
    campaign, account = run(begin, a_sweep(GRID, seeds=2))
    assert campaign.complete and account.steps == 16 * 40
    assert_allclose(account.spent_epsilon, plan(a_sweep(GRID, seeds=2)).sweep_epsilon, rtol=1e-12)
    assert_allclose(account.planned.epsilon, account.spent.epsilon, rtol=1e-12)
    assert 0 <= account.spent_epsilon - exact(account, files) < 1e-12, "never below the sum"


def test_what_asha_saves_is_not_spent_but_planned(begin, files):
    campaign, account = run(begin, a_sweep(GRID, scheduler=ASHA))
    stopped = [record for record in campaign.records.values() if record.end_reason == "early_stopped"]
    steps = sum(record.reports[-1]["step"] for record in campaign.records.values())
    assert stopped and account.steps == steps < 8 * 40
    assert account.spent_epsilon < account.planned.epsilon == plan(a_sweep(GRID)).sweep_epsilon
    assert_allclose(account.spent_epsilon, float(exact(account, files)), rtol=1e-12)
    assert_allclose(account.spent.at(account.order), account.spent_epsilon, rtol=1e-12)


def test_a_segment_is_charged_before_it_starts(begin, files):
    campaign, _ = begin(a_sweep())
    trial = campaign.next()
    campaign.report(trial.id, beginning())
    assert charged(files) == [(0, 10)]
    campaign.report(trial.id, message(trial, 10, 0.5))
    assert charged(files) == [(0, 10), (10, 20)]
    campaign.report(trial.id, message(trial, 20, None, diverged=True))
    assert charged(files) == [(0, 10), (10, 20)], "what has ended needs nothing more"


def charged(files):
    return [(charge.start, charge.end) for charge in Ledger.read(files).charges]


def test_nothing_is_written_before_the_first_charge(begin, files):
    _, account = begin(a_sweep())
    account.know("digits", "ab" * 32)
    assert files.names() == []


def test_uneven_reports_add_up_exactly():
    for steps, reports in ((41, 4), (1000, 7), (3, 3), (20_000, 20)):
        trial = {"steps": steps, "reports": reports, "epsilon": 8}
        (point,) = plan(a_sweep(trial=trial)).points
        assert sum(segment.share for segment in point.segments) == 1
        assert [segment.end for segment in point.segments] == point.trials[0].plan.report_steps


# Starting over


@pytest.mark.parametrize(
    ("device", "trial", "times"),
    [("cpu", {}, 1), ("cuda", {}, 2), ("cpu", {"randomness": "secure"}, 2)],
)
def test_a_trial_that_starts_over_costs_again_unless_it_repeats_itself(begin, files, device, trial, times):
    sweep = a_sweep(trial=trial)
    campaign, _ = begin(sweep, device=device)
    first = campaign.next()
    campaign.report(first.id, message(first, 10, 0.5))
    campaign.close()
    _, account = run(begin, sweep, device=device)
    once = plan(sweep)
    assert account.steps == 40 + (times - 1) * 20
    assert account.spent.curve.at(2) == pytest.approx((1 + (times - 1) * 0.5) * once.curve.at(2), rel=1e-12)
    assert account.planned.curve.at(2) == pytest.approx(account.spent.curve.at(2), rel=1e-12)


def test_a_process_that_dies_costs_again_on_a_gpu(begin):
    for device, steps in (("cpu", 40), ("cuda", 40 + 20)):
        campaign, account = begin(a_sweep(), device=device, name=device)
        trial = campaign.next()
        campaign.report(trial.id, message(trial, 10, 0.5))
        campaign.report(trial.id, beginning())
        for step in (10, 20, 30, 40):
            campaign.report(trial.id, message(trial, step, 0.5))
        assert account.steps == (steps if device == "cpu" else 40 + steps)


def test_other_threads_are_other_bits(begin):
    sweep = a_sweep()
    run(begin, sweep)
    _, account = run(begin, sweep, threads=2, name="removed")
    assert account.steps == 80


@pytest.mark.parametrize(
    ("where", "other"),
    [
        ("torch.backends.cpu.get_cpu_capability", lambda: "AVX1024"),
        ("sweep.account.version", lambda package: "99"),
        ("sweep.account.project_version", lambda: "99+other"),
    ],
)
def test_other_versions_and_processors_are_other_bits(begin, monkeypatch, where, other):
    sweep = a_sweep()
    run(begin, sweep)
    monkeypatch.setattr(where, other)
    _, account = run(begin, sweep, name="removed")
    assert account.steps == 80


def test_removed_results_are_still_paid_for(begin):
    run(begin, a_sweep(GRID))
    _, account = begin(a_sweep({"lr": 9}), name="removed")
    assert_allclose(account.planned.epsilon, plan(a_sweep({"lr": [*GRID["lr"], 9]})).sweep_epsilon, rtol=1e-12)
    assert account.spent_epsilon == pytest.approx(plan(a_sweep(GRID)).sweep_epsilon, rel=1e-12)


def test_a_torn_line_is_passed_over_and_the_next_one_begins_anew(begin, files, tmp_path):
    campaign, _ = begin(a_sweep(GRID))
    campaign.report(campaign.next().id, beginning())
    with (tmp_path / FOLDER / "tiny.jsonl").open("a") as file:
        file.write('{"kind": "charge", "run"')
    campaign.report(campaign.next().id, beginning())
    assert charged(files) == [(0, 10), (0, 10)]


def test_a_ledger_that_cannot_be_written_lets_nothing_start(begin, tmp_path):
    campaign, _ = begin(a_sweep())
    (tmp_path / FOLDER / "tiny.jsonl").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"tiny\.jsonl cannot be written"):
        campaign.report(campaign.next().id, beginning())


# No bound


def test_a_trial_without_a_bound_makes_it_infinite_and_is_named(begin, files):
    campaign, account = run(begin, a_sweep({"lr": 1, "epsilon": [1, math.inf]}))
    assert account.spent_epsilon == account.planned.epsilon == math.inf
    (named,) = account.spent.unbounded
    assert campaign.records[named].plan["epsilon"] == math.inf
    assert {guarantee.strength for guarantee in account.spent.guarantees} == {"nominal", "none"}
    assert account.planned.order is not None, "the others still have their order"


def test_before_it_starts_nothing_is_infinite(begin):
    _, account = begin(a_sweep({"lr": 1, "epsilon": [1, math.inf]}))
    assert account.spent_epsilon == 0 and account.planned.epsilon == math.inf


# Data sets


def test_totals_of_a_data_set_go_across_sweeps(begin, files):
    for name, epsilon in (("one", 1), ("two", 2)):
        campaign, account = begin(
            a_sweep(GRID, trial={"epsilon": epsilon}).model_copy(update={"name": name}), name=name
        )
        account.know("digits", "ab" * 32)
        simulate(campaign, accuracy)
    (data,) = Ledger.read(files).data_sets()
    assert (data.name, data.sha256, data.sweeps) == ("digits", "ab" * 32, ("one", "two"))
    both = plan(a_sweep(GRID | {"epsilon": [1, 2]})).sweep_epsilon
    assert_allclose(data.planned.epsilon, both, rtol=1e-12)
    assert_allclose(data.spent.epsilon, both, rtol=1e-12)


def test_data_are_told_apart_by_content(begin, files):
    for name, content in (("one", "ab"), ("two", "cd"), ("three", "ab")):
        campaign, account = begin(a_sweep().model_copy(update={"name": name}), name=name)
        account.know("digits", content * 32)
        simulate(campaign, accuracy)
    assert [(data.sha256[:2], data.sweeps) for data in Ledger.read(files).data_sets()] == [
        ("ab", ("one", "three")),
        ("cd", ("two",)),
    ]


@pytest.mark.parametrize("again", [False, True])
def test_what_was_trained_on_data_that_have_changed_since_is_still_theirs(begin, files, again):
    for content, space in (("ab", {"lr": 1}), ("cd", {"lr": [1, 2]})):
        campaign, account = begin(a_sweep(space), name=content if again else "results")
        account.know("digits", content * 32)
        simulate(campaign, accuracy)
    found = {data.sha256[:2]: (data.spent.epsilon, data.planned.epsilon) for data in Ledger.read(files).data_sets()}
    assert found.keys() == {"ab", "cd"}
    assert found["ab"] == (pytest.approx(epsilon_of(1)), pytest.approx(epsilon_of(1)))
    assert found["cd"] == (pytest.approx(epsilon_of(2 if again else 1)), pytest.approx(epsilon_of(2)))


def test_data_that_change_during_a_run_are_told_apart(begin, files):
    campaign, account = begin(a_sweep({"lr": [1, 2]}))
    for content in ("ab", "cd"):
        account.know("digits", content * 32)
        trial = campaign.next()
        for step in trial.plan.report_steps:
            campaign.report(trial.id, message(trial, step, 0.5))
    found = {data.sha256[:2]: data.spent.epsilon for data in Ledger.read(files).data_sets()}
    assert found == {"ab": pytest.approx(epsilon_of(1)), "cd": pytest.approx(epsilon_of(1))}


def test_data_are_known_by_name_until_a_trial_has_read_them(begin, files):
    campaign, _ = begin(a_sweep(GRID))
    trial = campaign.next()
    campaign.report(trial.id, beginning())
    assert [(data.name, data.sha256) for data in Ledger.read(files).data_sets()] == [("digits", None)]
    campaign.report(campaign.next().id, {"info": {"data_sha256": "ab" * 32}, "end_reason": None})
    (data,) = Ledger.read(files).data_sets()
    assert data.sha256 == "ab" * 32


# The budget


def budgeted(epsilon, **keys):
    return a_sweep(GRID, budget={"sweep_epsilon": epsilon}, **keys)


def epsilon_of(trials):
    return plan(a_sweep({"lr": list(range(1, trials + 1))})).sweep_epsilon


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("room", [1, 3, 5.5, 8])
@pytest.mark.parametrize("scheduler", [None, ASHA])
def test_a_budget_is_kept(begin, files, room, at_once, scheduler):
    epsilon = (epsilon_of(math.floor(room)) + epsilon_of(math.ceil(room))) / 2
    place = {trial.id: n for n, trial in enumerate(launch_order(plan(a_sweep(GRID)).trials))}
    sweep = budgeted(epsilon, scheduler=scheduler)
    campaign, account = run(begin, sweep, at_once=at_once, score=lambda trial, step: -place[trial.id])
    assert exact(account, files) <= epsilon
    ended = {record.end_reason for record in campaign.records.values()}
    assert ended <= {"completed", "early_stopped"}, "what is begun can end"
    assert campaign.exhausted and campaign.complete
    completed = sum(record.end_reason == "completed" for record in campaign.records.values())
    assert len(campaign.records) + len(campaign.unaffordable) == 8
    if scheduler is None:
        assert completed == len(campaign.records) == math.floor(room)
    elif 1 < room < 8:
        assert len(campaign.records) > math.floor(room), "what ASHA saved was used"


def test_of_its_own_epsilon_a_trial_fits(begin):
    campaign, _ = run(begin, a_sweep(trial={"reports": 40}, budget={"sweep_epsilon": 1}))
    assert [record.end_reason for record in campaign.records.values()] == ["completed"]


def test_a_driver_that_was_taken_over_charges_nothing_more(files):
    """Between two heartbeats, too: the other one does not know what this one would start."""
    laid_out = plan(budgeted(8))
    with Lock(files) as first:
        account = Account(laid_out, files, device="cpu", threads=1, lock=first)
        assert account.charge(laid_out.trials[0], 0)
        with Lock(files, force=True) as second:
            with pytest.raises(StoreError, match="taken over"):
                account.charge(laid_out.trials[1], 0)
            other = Account(laid_out, files, device="cpu", threads=1, lock=second)
            assert other.charge(laid_out.trials[1], 0)
    assert charged(files) == [(0, 10), (0, 10)]


def test_a_raised_budget_goes_on_where_it_ended(begin, files):
    first, account = run(begin, budgeted(epsilon_of(3) * 1.0001))
    order = account.order
    raised = (epsilon_of(6) + epsilon_of(7)) / 2
    second, account = run(begin, budgeted(raised))
    assert len(first.records) == 3 < len(second.records) <= 6
    assert account.order == order, "chosen once"
    assert exact(account, files) <= raised


def test_a_lowered_budget_starts_nothing_more(begin):
    run(begin, budgeted(epsilon_of(5) * 1.0001))
    campaign, _ = begin(budgeted(epsilon_of(2)))
    assert campaign.next() is None and campaign.exhausted and len(campaign.unaffordable) == 3


def test_a_segment_that_does_not_fit_ends_its_trial(begin, files, tmp_path):
    """On a GPU an interrupted trial is paid for twice, and the budget may end before it does."""
    sweep = a_sweep(budget={"sweep_epsilon": 1})
    campaign, account = begin(sweep, device="cuda")
    trial = campaign.next()
    assert campaign.report(trial.id, message(trial, 10, 0.5))
    campaign.report(trial.id, beginning())
    ended = [step for step in (20, 30, 40) if not campaign.report(trial.id, message(trial, step, 0.5))]
    record = Store(Folder(tmp_path / "results")).read()[trial.id]
    assert record.end_reason == "budget_exhausted" and ended and record.reports[-1]["step"] < 40
    assert exact(account, files) <= 1
    assert not campaign.may_retry and campaign.complete
    more, _ = begin(a_sweep(budget={"sweep_epsilon": 4}), device="cuda")
    assert more.next().id == trial.id, "not final once there is more"


def test_repeating_the_same_bits_is_free_under_a_budget(begin):
    sweep = a_sweep(budget={"sweep_epsilon": 1})
    campaign, _ = begin(sweep)
    trial = campaign.next()
    campaign.report(trial.id, message(trial, 10, 0.5))
    campaign.close()
    campaign, account = run(begin, sweep)
    assert campaign.may_retry and account.steps == 40
    assert [record.end_reason for record in campaign.records.values()] == ["completed"]


def test_a_trial_that_goes_on_from_free_segments_still_reserves_its_rest(begin):
    sweep = budgeted(epsilon_of(2) * 1.0001)
    campaign, account = begin(sweep)
    account.know("digits", "ab" * 32)
    trial = campaign.next()
    campaign.report(trial.id, message(trial, 10, 0.5))
    campaign.close()
    campaign, account = begin(sweep)
    assert campaign.next().id == trial.id, "found again before its data have been read"
    account.know("digits", "ab" * 32)
    assert campaign.next() is not None and campaign.next() is None


def test_a_smaller_trial_fits_where_a_larger_one_does_not(begin):
    sweep = a_sweep({"lr": 1, "epsilon": [0.8, 4]}, budget={"sweep_epsilon": 3})
    campaign, _ = run(begin, sweep)
    assert [record.plan["epsilon"] for record in campaign.records.values()] == [0.8]
    assert [trial.plan.epsilon for trial in campaign.unaffordable] == [4]


def test_a_budget_beside_earlier_trials_without_a_bound_is_a_fault(begin):
    run(begin, a_sweep({"lr": 1, "epsilon": [1, math.inf]}))
    with pytest.raises(SpecError, match="earlier trials of this name had no mechanism"):
        begin(budgeted(8))


def test_a_new_space_without_the_order_of_the_budget_is_a_fault(begin):
    _, account = run(begin, a_sweep({"lr": [1, 2]}, budget={"sweep_epsilon": 2}))
    wide = {"lr": 1, "epsilon": [1, 100]}
    with pytest.raises(SpecError, match=f"opened at the Rényi order {account.order}"):
        begin(a_sweep(wide, budget={"sweep_epsilon": 200}))


def test_the_order_of_the_queue_is_that_of_the_launch(begin):
    campaign, _ = run(begin, budgeted(epsilon_of(3) * 1.0001))
    first = [trial.id for trial in launch_order(plan(a_sweep(GRID)).trials)][:3]
    assert list(campaign.records) == first
