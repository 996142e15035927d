"""Kill -9 at any moment: every trial finishes once, bit for bit as if nothing had happened, and MLflow tells no lie."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from sweep.campaign import Campaign, run_trial
from sweep.checkpoints import Checkpoints
from sweep.expand import expand
from sweep.planning import plan
from sweep.spec import load
from sweep.storage import Folder
from sweep.store import Store
from sweep.tracking import default_uri

from .spaces import TRIAL, a_sweep, train

REPORTS = 10
SPACE = {
    "title": "Survives",
    "trial": {**TRIAL, "steps": 400, "reports": REPORTS, "alpha": 3},
    "space": {"lr": [0.1, 0.3, 1]},
    "seeds": 2,
}
DEADLINE_S = 400


def timeless(record):
    """What a record says, but for what depends on where and how fast it ran."""
    info = {key: value for key, value in record.info.items() if key not in ("host", "resumed")}
    reports = [{key: value for key, value in one.items() if key != "steps_per_second"} for one in record.reports]
    return record.plan, info, reports, record.end_reason, record.message


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "survives.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    return path


@pytest.fixture(scope="module")
def undisturbed(space, tmp_path_factory):
    """The records of the same sweep where nothing happened."""
    campaign = Campaign(plan(load(str(space))), Store(Folder(tmp_path_factory.mktemp("undisturbed"))), listeners=[])
    train(campaign)
    return {name: timeless(record) for name, record in campaign.records.items()}


@pytest.fixture
def folder(tmp_path, empty_store):
    """A storage with a prepared MLflow store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


class Driver:
    """`sweep run` in a process of its own, on a storage that others may have worked on before."""

    def __init__(self, space, folder, *options):
        self.folder = folder
        command = [sys.executable, "-m", "sweep", "run", space, "--storage", self.folder, *options]
        # Not a pipe: Ray says so much of each death that it would fill up, and the driver wait for a reader.
        self._printed = folder / f"printed-{uuid.uuid4().hex}"
        with self._printed.open("w") as output:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            )

    def wait_for(self, reports):
        """Wait until the storage has so many reports of all trials together; return whether the driver still runs."""
        until = time.monotonic() + DEADLINE_S
        while self._process.poll() is None and time.monotonic() < until:
            lines = [path.read_text() for path in (self.folder / "survives" / "trials").glob("*.jsonl")]
            steps = {(name, step) for name, text in enumerate(lines) for step in reported(text)}
            if len(steps) >= reports:
                return True
            time.sleep(0.01)
        return False

    def kill(self):
        self._process.kill()
        self._process.wait()

    def finish(self):
        status = self._process.wait(timeout=DEADLINE_S)
        printed = self._printed.read_text()
        assert status == 0, printed
        return printed


def reported(text):
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "report" in entry:
            yield entry["report"]["step"]


def check(folder, undisturbed):
    """Every trial once and as if nothing had happened, on the storage and in MLflow."""
    store = Store(Folder(folder / "survives"))
    records = store.read()
    assert {name: timeless(record) for name, record in records.items()} == undisturbed
    assert not store.with_checkpoint(), "what is done needs no checkpoint"
    for name, record in records.items():
        ends = [line for line in (folder / "survives" / "trials" / f"{name}.jsonl").read_text().splitlines() if line]
        assert sum('"completed", "message"' in line for line in ends) == 1, "finished exactly once"
        spent = [report["epsilon_spent"] for report in record.reports]
        assert len(spent) == REPORTS and spent == sorted(set(spent))

    client = MlflowClient(tracking_uri=default_uri(folder))
    experiment = client.get_experiment_by_name("survives")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert len(runs) == len(records) + 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    trials = {run.data.tags["sweep.trial_id"]: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert trials.keys() == records.keys()
    for name, run in trials.items():
        for metric in ("test_accuracy", "epsilon_spent"):
            history = client.get_metric_history(run.info.run_id, metric)
            assert Counter(point.step for point in history) == {r["step"]: 1 for r in records[name].reports}
            last = max(history, key=lambda point: point.step)
            assert last.value == pytest.approx(records[name].reports[-1][metric], rel=1e-12, abs=0)


# A trial


class Died(BaseException):
    """Stands for the death of the process."""


def dying(checkpoints, *, at, before):
    """Checkpoints whose process dies at a step, before or after the checkpoint is on the storage."""

    class Dying(Checkpoints):
        def save(self, step, content):
            if not (step == at and before):
                super().save(step, content)
            if step == at:
                raise Died

    return Dying(checkpoints._storage)


@pytest.mark.parametrize("before", [True, False], ids=["before its checkpoint", "between checkpoint and report"])
@pytest.mark.parametrize("at", [10, 30, 40])
def test_a_trial_that_dies_around_a_checkpoint(tmp_path, at, before):
    sweep = a_sweep()
    alone = Campaign(plan(sweep), Store(Folder(tmp_path / "alone")), listeners=[])
    train(alone)

    store = Store(Folder(tmp_path / "tiny"))
    campaign = Campaign(plan(sweep), store, listeners=[])
    trial = campaign.next()
    checkpoints = store.checkpoints(trial.id)
    sent = []
    with pytest.raises(Died):
        for said in run_trial(
            trial.plan, data_root=None, gpu=0, threads=1, checkpoints=dying(checkpoints, at=at, before=before)
        ):
            sent += [said["report"]["step"]] if "report" in said else []
            campaign.report(trial.id, said)
    for said in run_trial(trial.plan, data_root=None, gpu=0, threads=1, checkpoints=checkpoints):
        sent += [said["report"]["step"]] if "report" in said else []
        campaign.report(trial.id, said)
    known = [step for step in (10, 20, 30, 40) if step < at]
    assert sent == [*known, 10, 20, 30, 40], "after a death all reports are sent again, the last one included"
    assert timeless(campaign.records[trial.id]) == timeless(alone.records[trial.id]) == timeless(store.read()[trial.id])
    resumed = at if not before else at - 10
    assert campaign.records[trial.id].info.get("resumed") == ([resumed] if resumed else None)


def test_a_checkpoint_of_another_calibration_is_not_gone_on_from(tmp_path):
    """Its accountant gave another r*: the trial starts over and says so."""
    trial = expand(a_sweep())[0]
    checkpoints = Checkpoints(Folder(tmp_path))
    messages = list(run_trial(trial.plan, data_root=None, gpu=0, threads=1, checkpoints=checkpoints))
    saved = next(checkpoints.newest_first())
    saved["training"]["calibrated"]["r"] *= 2
    for step in (30, 40):
        checkpoints.save(step, saved)
    again = list(run_trial(trial.plan, data_root=None, gpu=0, threads=1, checkpoints=checkpoints))
    assert "this training has calibrated=" in again[-1]["info"]["started_over"]
    assert [one["report"]["test_accuracy"] for one in again[1:]] == [
        one["report"]["test_accuracy"] for one in messages[1:]
    ]


def test_a_storage_that_fills_up_under_a_checkpoint_is_no_fault_of_the_trial(tmp_path, monkeypatch):
    trial = expand(a_sweep())[0]

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    *_, message = run_trial(trial.plan, data_root=None, gpu=0, threads=1, checkpoints=Checkpoints(Folder(tmp_path)))
    assert "No space left on device" in message["fault"] and message["end_reason"] == "interrupted"


# The driver


def kill_the_driver(space, folder, *, moments, options=()):
    for moment in moments:
        driver = Driver(space, folder, *options)
        if not driver.wait_for(moment):
            break
        time.sleep(random.Random(moment).random() / 20)
        driver.kill()
    return Driver(space, folder, *options).finish()


def moments(kills, *, trials=6, seed=0):
    """Numbers of reports at which to kill, seeded and increasing; the last one leaves something to do."""
    return sorted(random.Random(seed).sample(range(1, trials * REPORTS - 2), kills))


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--local"], []], ids=["in process", "on ray"])
def test_the_driver_is_killed_ten_times(space, undisturbed, folder, options):
    kill_the_driver(space, folder, moments=moments(10), options=options)
    check(folder, undisturbed)


# A worker


def workers_of(pid):
    """Processes below `pid` that train, by /proc."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state = Path("/proc", entry, "stat").read_text()
                children.setdefault(int(state.rpartition(")")[2].split()[1]), []).append(int(entry))
            except (OSError, IndexError):
                continue
    found, todo = [], [pid]
    while todo:
        process = todo.pop()
        todo += children.get(process, [])
        try:
            title = Path("/proc", str(process), "cmdline").read_text()
        except OSError:
            continue
        if title.startswith(("ray::_RayTrial", "ray::ResourceTrainable")):
            found.append(process)
    return found


def kill_workers(driver, *, moments):
    """Kill a random worker at each moment; return how many died."""
    dice, killed = random.Random(1), 0
    for moment in moments:
        if not driver.wait_for(moment):
            break
        time.sleep(dice.random() / 20)
        if workers := workers_of(driver._process.pid):
            os.kill(dice.choice(sorted(workers)), signal.SIGKILL)
            killed += 1
    return killed


finds_workers = pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds the workers through /proc")


@finds_workers
@pytest.mark.slow
def test_workers_are_killed_ten_times(space, undisturbed, folder):
    driver = Driver(space, folder)
    assert kill_workers(driver, moments=moments(10, seed=2)) == 10
    driver.finish()
    check(folder, undisturbed)


@finds_workers
def test_a_worker_is_killed_and_then_the_driver(space, undisturbed, folder):
    """The two above, once each."""
    driver = Driver(space, folder)
    assert kill_workers(driver, moments=[12]) == 1
    assert driver.wait_for(25)  # no multiple of `REPORTS`: a trial is under way
    driver.kill()
    printed = Driver(space, folder).finish()
    assert "of them from their last checkpoint" in printed
    check(folder, undisturbed)


# A node


@pytest.fixture
def nodes(monkeypatch):
    """Three nodes of one CPU, beside a head that has none."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.mark.cluster
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_nodes_go_away(space, undisturbed, folder, nodes, kills):
    driver, dice = Driver(space, folder, "--address", nodes.address), random.Random(3)
    for moment in moments(kills, seed=4):
        assert driver.wait_for(moment)
        time.sleep(dice.random() / 20)
        nodes.remove_node(
            dice.choice(sorted(nodes.worker_nodes, key=lambda node: node.unique_id)), allow_graceful=False
        )
        nodes.add_node(num_cpus=1)
    driver.finish()
    check(folder, undisturbed)
