"""The same campaign on Ray: the same results bit for bit, and what happens when processes die or cannot start."""

import collections
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import ray

from sweep import on_ray
from sweep.campaign import Campaign
from sweep.expand import expand, launch_order
from sweep.on_ray import ResourceError, run_on_ray
from sweep.planning import plan
from sweep.spec import Resources
from sweep.storage import Folder, StoreError
from sweep.store import Store

from .spaces import RATE, a_sweep, ends, steps_run, train

pytestmark = pytest.mark.cluster

ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}
ABSURD = (1e-4, 1e-3, 30, 100)
STOPPED = a_sweep(
    {"alpha": 3, "effective_lr": [*ABSURD, 0.1, 0.3]},
    trial={"steps": 240, "epsilon": 8, "validation": {"fraction": 0.1}},
    scheduler=ASHA,
    seeds=2,
)


@pytest.fixture(scope="module")
def cluster():
    """One Ray of our own for all runs of this module, since to start one takes seconds."""
    with pytest.MonkeyPatch.context() as patch, on_ray._connected(None):
        patch.setattr(on_ray, "_connected", lambda address: contextlib.nullcontext())
        yield


def watched(folder, *, dies_once=(), dies_always=()):
    """A trainable that notes each attempt with its process, and kills that process at the third report of some."""

    class Watched(on_ray._RayTrial):  # made here, so that it travels to the workers by value
        def setup(self, config):
            super().setup(config)
            self._trial, self._begun = config["trial_id"], False

        def step(self):
            if not self._begun:  # Tune also sets up actors that it then does not use
                with (folder / "attempts").open("a") as file:
                    file.write(f"{self._trial} {os.getpid()}\n")
                self._begun = True
            result = super().step()
            report = json.loads(result["message"]).get("report") or {}
            mark = folder / f"{self._trial}-died"
            dies = self._trial in dies_always or (self._trial in dies_once and not mark.exists())
            if dies and report.get("step") == 30:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return result

    return Watched


def attempts(folder):
    """Pairs (trial, process), in order."""
    return [tuple(line.split()) for line in (folder / "attempts").read_text().splitlines()]


class Run:
    """A campaign that was run on Ray, with its attempts."""

    def __init__(self, sweep, folder, *, max_concurrent=None, **deaths):
        self.notes = []
        self.campaign = Campaign(plan(sweep), Store(Folder(folder / "tiny")), listeners=[self])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_ray, "_RayTrial", watched(folder, **deaths))
            patch.setattr(on_ray, "_RETRIES", 2)
            run_on_ray(
                self.campaign,
                sweep.resources,
                data_root=folder / "no-data",
                max_concurrent=max_concurrent,
            )
        self.attempts = attempts(folder)
        self.stored = Store(Folder(folder / "tiny")).read()

    def started(self, trial, info):
        self.notes.append(("started", trial.id))

    def reported(self, trial, report):
        self.notes.append((report["step"], trial.id))

    def ended(self, trial, record):
        self.notes.append(("ended", trial.id))

    def count(self, trial):
        return sum(name == trial.id for name, _ in self.attempts)


def timeless(record):
    reports = [{key: value for key, value in one.items() if key != "steps_per_second"} for one in record.reports]
    info = {key: value for key, value in record.info.items() if key != "resumed"}
    return record.plan, info, reports, record.end_reason, record.message


# Early stopping, one trial at a time


@pytest.fixture(scope="module")
def stopped(cluster, tmp_path_factory):
    return Run(STOPPED, tmp_path_factory.mktemp("stopped"), max_concurrent=1)


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    campaign = Campaign(plan(STOPPED), Store(Folder(tmp_path_factory.mktemp("local"))), listeners=[])
    train(campaign)
    return campaign


def test_ray_gives_what_a_plain_loop_gives_bit_for_bit(stopped, in_process):
    assert stopped.campaign.complete
    assert ends(stopped.campaign) == ends(in_process)
    for name, record in in_process.records.items():
        assert timeless(stopped.stored[name]) == timeless(record)


def test_absurd_rates_are_stopped_and_the_best_finish(stopped):
    found = {r.plan["effective_lr"]: r for r in stopped.stored.values() if r.plan["seed"] == 0}
    assert [found[rate].end_reason for rate in ABSURD].count("early_stopped") >= 3
    assert "completed" in {found[0.1].end_reason, found[0.3].end_reason}
    assert steps_run(stopped.campaign) <= 0.6 * sum(trial.plan.steps for trial in expand(STOPPED))
    best = max(r.reports[-1]["test_accuracy"] for r in stopped.stored.values() if r.end_reason == "completed")
    assert best > 0.7


def test_trials_start_in_launch_order_and_each_once(stopped):
    firsts = [trial.id for trial in launch_order(expand(STOPPED)) if trial.replicate == 0]
    started = [name for name, _ in stopped.attempts]
    assert [name for name in started if name in firsts] == firsts
    assert len(started) == len(set(started)) == len(stopped.stored)


def test_one_actor_serves_many_trials_and_each_is_as_in_a_fresh_process(stopped):
    (process, served), *_ = collections.Counter(process for _, process in stopped.attempts).most_common(1)
    assert served >= 4
    last = [name for name, who in stopped.attempts if who == process][-1]
    trial = next(trial for trial in expand(STOPPED) if trial.id == last)
    code = (
        "import sys, json; from dirdp import TrainingPlan; from sweep.campaign import run_trial\n"
        "plan = TrainingPlan.model_validate_json(sys.argv[1])\n"
        "print(json.dumps(list(run_trial(plan, data_root=None, gpu=0, threads=1))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, trial.plan.model_dump_json()], capture_output=True, text=True, check=True
    )
    fresh = [
        {key: v for key, v in one["report"].items() if key != "steps_per_second"} for one in json.loads(done.stdout)[1:]
    ]
    reports = timeless(stopped.stored[last])[2]
    assert reports and reports == fresh[: len(reports)]


# Faults and deaths


def faulty(**fields):
    return {"lr": 1, "epsilon": 1, "sampling_rate": RATE, "steps": 40, "dataset": "digits"} | fields


KINDS = {
    "good": faulty(lr=0.1),
    "no mechanism": faulty(epsilon=math.inf),
    "diverges": faulty(lr=1e30),
    "infeasible": faulty(epsilon=4, sampling_rate=0.04, steps=20_000),
    "broken": faulty(dataset="mnist", delta=1e-6),
    "dies once": faulty(lr=2),
    "dies always": faulty(lr=3),
}


@pytest.fixture(scope="module")
def faults(cluster, tmp_path_factory):
    sweep = a_sweep(list(KINDS.values()))
    trials = dict(zip(KINDS, expand(sweep), strict=True))
    run = Run(
        sweep,
        tmp_path_factory.mktemp("faults"),
        dies_once=[trials["dies once"].id],
        dies_always=[trials["dies always"].id],
    )
    return run, trials


def test_the_death_of_a_process_alone_is_worth_another_try(faults):
    run, trials = faults
    assert {kind: (run.stored[trial.id].end_reason, run.count(trial)) for kind, trial in trials.items()} == {
        "good": ("completed", 1),
        "no mechanism": ("completed", 1),
        "diverges": ("diverged", 1),
        "infeasible": ("infeasible", 1),
        "broken": ("error", 1),
        "dies once": ("completed", 2),
        "dies always": ("error", 3),
    }


def test_a_trial_whose_process_died_finishes_once(faults):
    run, trials = faults
    trial = trials["dies once"]
    heard = [what for what, name in run.notes if name == trial.id]
    assert heard == ["started", 10, 20, 30, 40, "ended"]
    first, second = (process for name, process in run.attempts if name == trial.id)
    assert first != second
    alone = Campaign(
        plan(a_sweep([KINDS["dies once"]])), Store(Folder(run.campaign.storage.local / "alone")), listeners=[]
    )
    train(alone)
    assert timeless(run.stored[trial.id]) == timeless(alone.records[trial.id])


def test_a_trial_whose_process_always_dies_keeps_what_it_had(faults):
    run, trials = faults
    record = run.stored[trials["dies always"].id]
    assert [report["step"] for report in record.reports] == [10, 20]
    assert record.message == "its process died 3 times without getting any further"


def test_faults_say_what_they_are(faults):
    run, trials = faults
    assert "6.08" in run.stored[trials["infeasible"].id].message
    assert "no-data" in run.stored[trials["broken"].id].message
    assert run.campaign.exhausted and not run.campaign.complete


def test_infinity_travels(faults):
    run, trials = faults
    record = run.stored[trials["no mechanism"].id]
    assert record.plan["epsilon"] == record.reports[-1]["epsilon_spent"] == math.inf and "r" not in record.info


def test_a_store_that_fails_ends_the_sweep(cluster, tmp_path, monkeypatch):
    """The disk fills up at the third report: the error reaches the caller, and no further trial starts."""
    store = Store(Folder(tmp_path / "tiny"))
    campaign = Campaign(plan(a_sweep({"lr": [0.1, 0.2, 0.3, 1, 2, 3]})), store, listeners=[])
    written, reported = [], store.reported

    def fill_up(trial_id, report):
        written.append(trial_id)
        if len(written) >= 3:
            raise StoreError("the disk is full")
        reported(trial_id, report)

    monkeypatch.setattr(store, "reported", fill_up)
    with pytest.raises(StoreError, match="the disk is full"):
        run_on_ray(campaign, Resources(), data_root=None, max_concurrent=1)
    assert len(campaign.records) == 1 and campaign.next() is None


# Resources


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_what_no_node_has_is_an_error_at_once(cluster, tmp_path, kind):
    have = ray.cluster_resources().get(kind.upper(), 0)
    asked = Resources.model_validate({kind: int(have) + 1})
    campaign = Campaign(plan(a_sweep()), Store(Folder(tmp_path)), listeners=[])
    started = time.monotonic()
    with pytest.raises(ResourceError) as caught:
        run_on_ray(campaign, asked, data_root=None)
    assert time.monotonic() - started < 10
    said = str(caught.value)
    assert "\n" not in said and f"{asked.cpu} CPUs and {asked.gpu:g} GPUs" in said
    assert f"{have:g} {kind.upper()}s" in said and "--set resources.gpu=0" in said and "--wait-for-resources" in said
    assert not campaign.records and campaign.next() is not None


def test_a_cluster_that_does_not_answer_is_an_error_at_once():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ResourceError, match=f"no Ray cluster answers at --address {address}"):
            on_ray._check_reachable(address)
        nobody.listen()
        on_ray._check_reachable(address)
    with pytest.raises(ResourceError, match="no Ray cluster answers at --address nonsense"):
        on_ray._check_reachable("nonsense")


def test_waiting_for_resources_is_bounded(cluster, tmp_path):
    campaign = Campaign(plan(a_sweep()), Store(Folder(tmp_path)), listeners=[])
    started = time.monotonic()
    with pytest.raises(ResourceError):
        run_on_ray(campaign, Resources(cpu=9999), data_root=None, wait_for_resources=1.5)
    assert 1.5 <= time.monotonic() - started < 10
