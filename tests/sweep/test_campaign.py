"""A campaign: what is run, run again or left alone, and that everybody hears of it once."""

import math

import pytest

from dirdp import models
from dirdp.plan import TrainingPlan
from sweep.campaign import Campaign, run_trial
from sweep.planning import plan
from sweep.storage import Folder, StoreError
from sweep.store import FINAL, Store

from .spaces import TRIAL, a_sweep, ends, message, simulate, train

ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}


class Notes:
    """A listener that writes everything down."""

    def __init__(self):
        self.heard = []

    def started(self, trial, info):
        self.heard.append(("started", trial.id, dict(info)))

    def reported(self, trial, report):
        self.heard.append(("reported", trial.id, report["step"]))

    def ended(self, trial, record):
        self.heard.append(("ended", trial.id, record.end_reason))

    def of(self, kind):
        return [entry[1:] for entry in self.heard if entry[0] == kind]


@pytest.fixture
def store(tmp_path):
    return Store(Folder(tmp_path / "tiny"))


def accuracy(trial, step):
    return trial.plan.lr / 100


def begin(store, sweep, *listeners):
    return Campaign(plan(sweep), store, listeners=list(listeners))


def run(store, sweep, *listeners, score=accuracy):
    campaign = begin(store, sweep, *listeners)
    simulate(campaign, score)
    return campaign


def by_rate(campaign):
    return {record.plan["lr"]: record.end_reason for record in campaign.records.values()}


GRID = {"lr": [1, 2]}


# One run


def test_every_trial_is_run_and_written_down(store):
    notes = Notes()
    campaign = run(store, a_sweep(GRID, seeds=2), notes)
    assert campaign.exhausted and campaign.complete
    assert len(campaign.records) == 4 and set(ends(campaign).values()) == {"completed"}
    assert store.read() == campaign.records
    for kind, each in [("started", 1), ("reported", 4), ("ended", 1)]:
        heard = notes.of(kind)
        assert len(heard) == len(set(map(str, heard))) == 4 * each


def test_a_listener_hears_of_a_trial_in_order(store):
    notes = Notes()
    run(store, a_sweep(), notes)
    assert [entry[0] for entry in notes.heard] == ["started", *["reported"] * 4, "ended"]
    assert [step for _, step in notes.of("reported")] == [10, 20, 30, 40]
    assert notes.of("started")[0][1]["r"] == 0.2


def test_reports_that_come_again_are_passed_over(store):
    """The process of a trial died after two reports and starts over."""
    notes = Notes()
    campaign = begin(store, a_sweep(), notes)
    trial = campaign.next()
    for step in (10, 20, 10, 20, 30):
        assert campaign.report(trial.id, message(trial, step, 0.5))
    assert not campaign.report(trial.id, message(trial, 40, 0.5))
    assert [report["step"] for report in store.read()[trial.id].reports] == [10, 20, 30, 40]
    assert len(notes.heard) == 6


def test_reports_that_come_again_are_not_judged_again(store):
    """At step 20 the second trial passes; when its process starts over, step 10 is no new arrival at a rung."""
    campaign = begin(store, a_sweep(GRID, scheduler={"asha": {"grace": 0.5, "reduction_factor": 2}}))
    first, second = campaign.next(), campaign.next()
    assert campaign.report(first.id, message(first, 20, 0.5)) and campaign.report(second.id, message(second, 20, 0.6))
    assert campaign.report(second.id, message(second, 10, 0.0)) and campaign.report(second.id, message(second, 20, 0.0))
    assert campaign.records[second.id].end_reason is None


def test_what_comes_after_the_end_is_passed_over(store):
    notes = Notes()
    campaign = begin(store, a_sweep(), notes)
    trial = campaign.next()
    campaign.report(trial.id, message(trial, 10, None, diverged=True))
    assert not campaign.report(trial.id, message(trial, 20, 0.5))
    assert len(notes.heard) == 3 and len(store.read()[trial.id].reports) == 1


@pytest.mark.parametrize(
    "end", [{"end_reason": "infeasible", "message": "no r*"}, {"end_reason": "error", "message": "ValueError: broken"}]
)
def test_an_end_before_any_report(store, end):
    notes = Notes()
    campaign = begin(store, a_sweep(), notes)
    trial = campaign.next()
    assert not campaign.report(trial.id, end)
    record = store.read()[trial.id]
    assert (record.end_reason, record.message, record.reports) == (end["end_reason"], end["message"], [])
    assert [entry[0] for entry in notes.heard] == ["started", "ended"]


def test_a_lost_trial_is_an_error(store):
    campaign = begin(store, a_sweep(GRID))
    never_heard_of, trial = campaign.next(), campaign.next()
    campaign.report(trial.id, message(trial, 10, 0.5))
    campaign.lost(never_heard_of.id, "its process died")
    campaign.lost(trial.id, "its process died")
    assert {(record.end_reason, record.message) for record in store.read().values()} == {("error", "its process died")}
    assert campaign.exhausted and not campaign.complete


def test_what_still_runs_at_the_end_is_interrupted(store):
    campaign = begin(store, a_sweep({"lr": [1, 2, 3]}))
    done, running = campaign.next(), campaign.next()
    for step in (10, 20, 30, 40):
        campaign.report(done.id, message(done, step, 0.5))
    campaign.report(running.id, message(running, 10, 0.5))
    campaign.cancel()
    campaign.close()
    assert campaign.next() is None and campaign.exhausted and not campaign.complete
    assert {name: record.end_reason for name, record in store.read().items()} == {
        done.id: "completed",
        running.id: "interrupted",
    }


@pytest.mark.parametrize("handed_out", [0, 1])
def test_cancelled_before_any_report_is_not_complete(store, handed_out):
    campaign = begin(store, a_sweep())
    for _ in range(handed_out):
        campaign.next()
    campaign.cancel()
    campaign.close()
    assert campaign.exhausted and not campaign.complete and store.read() == {}


# Run again


def test_run_again_is_no_work(store):
    sweep, notes = a_sweep(GRID, seeds=2), Notes()
    run(store, sweep)
    before = {path: path.read_bytes() for path in store.storage.local.rglob("*.jsonl")}
    again = run(store, sweep, notes)
    assert again.exhausted and again.complete and again.next() is None
    assert len(again.finished_before) == 4 and not again.unfinished and not again.failed and not again.removed
    assert not notes.heard and {path: path.read_bytes() for path in store.storage.local.rglob("*.jsonl")} == before


def test_run_again_under_asha_is_no_work(store):
    sweep, notes = a_sweep({"lr": [1, 2, 3, 4]}, seeds=2, scheduler=ASHA), Notes()
    first = run(store, sweep)
    assert "early_stopped" in ends(first).values()
    again = run(store, sweep, notes)
    assert again.exhausted and again.complete and not notes.heard
    assert ends(again) == ends(first)
    assert {trial.id for trial in again.skipped} == {trial.id for trial in first.skipped}


@pytest.mark.parametrize("end_reason", sorted(FINAL | {"interrupted", "error"}))
def test_who_is_run_again(store, end_reason):
    """Under a scheduler, all but what ended for good."""
    sweep = a_sweep(scheduler=ASHA)
    campaign = begin(store, sweep)
    trial = campaign.next()
    campaign.report(trial.id, {"end_reason": end_reason, "message": "so it was"})
    again = begin(store, sweep)
    retried = end_reason in ("interrupted", "error")
    assert again.next() == (trial if retried else None)
    assert again.unfinished == ([trial] if end_reason == "interrupted" else [])
    assert again.failed == ([trial] if end_reason == "error" else [])
    assert again.finished_before == ([] if retried else [trial])


def test_a_trial_that_never_ended_is_run_again(store):
    """The driver died: nobody wrote an end."""
    campaign = begin(store, a_sweep())
    trial = campaign.next()
    campaign.report(trial.id, message(trial, 10, 0.1))
    notes = Notes()
    again = run(store, a_sweep(), notes)
    assert again.unfinished == [trial] and again.complete
    assert [step for _, step in notes.of("reported")] == [10, 20, 30, 40], "from the start"
    assert len(store.read()[trial.id].reports) == 4


def test_without_its_scheduler_an_early_stopped_trial_is_unfinished(store):
    space = {"lr": [1, 2, 3, 4]}
    stopped = run(store, a_sweep(space, scheduler=ASHA))
    early = {name for name, end in ends(stopped).items() if end == "early_stopped"}
    assert early
    full = run(store, a_sweep(space))
    assert {trial.id for trial in full.unfinished} == early and len(full.finished_before) == 4 - len(early)
    assert set(ends(full).values()) == {"completed"}
    assert begin(store, a_sweep(space, scheduler=ASHA)).exhausted, "and with it again, all is done"


def test_a_scheduler_that_comes_later_skips_no_seed_that_ended(store):
    """Without a scheduler, both seeds of the bad point diverged; the count of what is new stays right."""
    sweep = a_sweep(GRID, seeds=2)
    campaign = begin(store, sweep)
    while (trial := campaign.next()) is not None:
        for step in (10, 20, 30, 40):
            if not campaign.report(trial.id, message(trial, step, 0.5, diverged=trial.plan.lr == 2)):
                break
    later = begin(store, a_sweep(GRID, seeds=2, scheduler=ASHA))
    assert len(later.finished_before) == 4 and not later.skipped and later.exhausted


def test_a_seed_that_is_skipped_is_not_run_again(store):
    campaign = begin(store, a_sweep(seeds=2))
    first, second = campaign.next(), campaign.next()
    campaign.report(first.id, message(first, 10, 0.5, diverged=first.replicate == 0))
    campaign.report(second.id, message(second, 10, 0.5, diverged=second.replicate == 0))
    campaign.close()  # the second seed is interrupted
    later = begin(store, a_sweep(seeds=2, scheduler=ASHA))
    assert [trial.replicate for trial in later.skipped] == [1] and not later.unfinished and later.exhausted


def test_an_enlarged_grid_runs_the_new_trials_alone(store):
    run(store, a_sweep(GRID))
    notes = Notes()
    larger = run(store, a_sweep({"lr": [1, 2, 3]}), notes)
    assert len(larger.finished_before) == 2 and len(larger.records) == 3
    assert [name for name, _ in notes.of("ended")] == [t.id for t in plan(a_sweep({"lr": [3]})).trials]
    assert run(store, a_sweep({"lr": [1, 2, 3]}), notes).exhausted and len(notes.of("ended")) == 1


def test_more_seeds_run_the_new_seeds_alone(store):
    run(store, a_sweep(seeds=2))
    notes = Notes()
    run(store, a_sweep(seeds=3), notes)
    assert len(notes.of("ended")) == 1


def test_points_that_are_gone_are_kept_and_counted(store):
    run(store, a_sweep({"lr": [1, 2, 3]}))
    smaller = run(store, a_sweep({"lr": [2]}))
    assert len(smaller.finished_before) == 1 and sorted(r.plan["lr"] for r in smaller.removed) == [1, 3]
    assert smaller.exhausted and smaller.complete
    assert len(store.read()) == 3
    back = begin(store, a_sweep({"lr": [1, 2, 3]}))
    assert back.exhausted and not back.removed


def test_a_removed_trial_that_failed_does_not_spoil_the_rest(store):
    campaign = begin(store, a_sweep({"lr": [7]}))
    campaign.report(campaign.next().id, {"end_reason": "error", "message": "broken"})
    assert run(store, a_sweep({"lr": [1]})).complete


def test_what_another_setting_means_is_another_trial(store):
    run(store, a_sweep())
    assert not begin(store, a_sweep(trial={"epsilon": 2})).exhausted


def test_infinity_survives_the_round_trip(store):
    sweep = a_sweep(trial={"epsilon": math.inf})
    campaign = run(store, sweep)
    again = begin(store, sweep)
    assert again.exhausted and again.records == campaign.records
    (record,) = again.records.values()
    assert record.plan["epsilon"] == record.reports[-1]["epsilon_spent"] == math.inf


def test_scores_of_an_earlier_run_are_shown_to_the_scheduler(store):
    """A newcomer at a rung is measured by those that were there before the driver went away."""
    rule = {"asha": {"grace": 0.25, "reduction_factor": 2}}
    run(store, a_sweep({"lr": [50, 60, 70]}, scheduler=rule))
    notes = Notes()
    larger = run(store, a_sweep({"lr": [1, 50, 60, 70]}, scheduler=rule), notes)
    assert by_rate(larger)[1] == "early_stopped"
    assert notes.of("reported") == [(plan(a_sweep({"lr": [1]})).trials[0].id, 10)]


# A store that fails


def test_a_disk_that_fills_up_is_not_hidden(store, monkeypatch):
    notes = Notes()
    campaign = begin(store, a_sweep(), notes)
    trial = campaign.next()
    campaign.report(trial.id, message(trial, 10, 0.5))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        campaign.report(trial.id, message(trial, 20, 0.5))
    assert [step for _, step in notes.of("reported")] == [10], "nobody is told what is not on the disk"


# The messages of a trial


def a_plan(**fields):
    return TrainingPlan(**TRIAL | {"lr": 1, "seed": 0} | fields)


def messages(plan, **how):
    return list(run_trial(plan, **{"data_root": None, "gpu": 0, "threads": 1} | how))


def test_messages_of_a_training():
    first, *said = messages(a_plan())
    assert first == {"info": said[0]["info"], "end_reason": None}, "before anything is trained"
    assert [one["report"]["step"] for one in said] == [10, 20, 30, 40]
    assert [one["end_reason"] for one in said] == [None, None, None, "completed"]
    info = said[-1]["info"]
    assert info["epsilon"] <= 1 and info["order"] >= 2
    assert info["effective_learning_rate"] == info["learning_rate"] * info["attenuation"]
    assert (info["device"], info["threads"], info["claim"]) == ("cpu", 1, "nominal ε (Theorem 10)")
    assert {"host", "python", "torch"} <= info.keys()


def test_messages_without_a_mechanism():
    said = messages(a_plan(epsilon=math.inf))
    assert "r" not in said[-1]["info"] and said[-1]["report"]["epsilon_spent"] == math.inf


def test_infeasible_is_a_message():
    (said,) = messages(a_plan(epsilon=4, sampling_rate=0.04, steps=20_000))
    assert said["end_reason"] == "infeasible" and "6.08" in said["message"]


def test_divergence_is_a_message():
    *_, said = messages(a_plan(lr=1e30))
    assert said["end_reason"] == said["report"]["end_reason"] == "diverged"
    assert said["report"]["test_accuracy"] is None


def test_missing_data_are_a_message(tmp_path):
    (said,) = messages(a_plan(dataset="mnist"), data_root=tmp_path)
    assert said["end_reason"] == "error" and "Error: " in said["message"] and str(tmp_path) in said["message"]


def test_a_fault_in_a_model_is_a_message(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("the layer is broken")

    monkeypatch.setattr(models, "build", broken)
    assert messages(a_plan()) == [{"end_reason": "error", "message": "RuntimeError: the layer is broken"}]


def test_threads_are_those_of_the_trial():
    assert messages(a_plan(steps=1, reports=1), threads=2)[0]["info"]["threads"] == 2


def test_a_campaign_takes_the_messages_of_a_training(store):
    campaign = begin(store, a_sweep({"lr": [0.1, 1]}))
    train(campaign)
    assert campaign.complete and store.read() == campaign.records
    reports = [record.reports for record in campaign.records.values()]
    assert all([report["step"] for report in one] == [10, 20, 30, 40] for one in reports)
    assert all(one[-1]["epsilon_spent"] <= 1 for one in reports)
