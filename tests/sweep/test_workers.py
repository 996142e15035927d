"""Workers with another project or other data: they are named, and what they would have trained runs elsewhere."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import ray

from dirdp import datasets
from sweep import workers
from sweep.expand import expand
from sweep.spec import Resources
from sweep.version import project_version
from sweep.workers import Gate, WorkerError, data_checksum, identity, refusal

from .spaces import a_sweep

TRIALS = expand(a_sweep({"lr": [0.1, 1]}))
HERE = {"project": "1", "data": "a" * 64}


@pytest.fixture
def worker(monkeypatch):
    """What a worker says it has."""
    has = dict(HERE)
    monkeypatch.setattr(workers, "identity", lambda plan, data_root: dict(has))
    return has


@pytest.fixture
def nodes(monkeypatch):
    """The nodes that Ray knows."""
    there = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 1.0}} for name in ("n1", "n2")]
    monkeypatch.setattr(ray, "nodes", lambda: there)

    class Context:
        def get_node_id(self):
            return "n1"

    monkeypatch.setattr(ray, "get_runtime_context", Context)
    return there


def test_the_checksum_sees_every_image_and_label(tmp_path):
    def checksum(**changed):
        arrays = {
            "train_images": np.zeros((4, 6, 6), np.uint8),
            "train_labels": np.array([0, 1, 0, 1]),
            "test_images": np.zeros((2, 6, 6), np.uint8),
            "test_labels": np.array([0, 1]),
        }
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays | changed)
        for cache in (datasets.load, datasets.info, data_checksum):
            cache.cache_clear()
        return data_checksum(f"npz:{path}", root=None)

    image = np.zeros((4, 6, 6), np.uint8)
    image[3, 5, 5] = 1
    sums = [checksum(), checksum(train_images=image), checksum(test_labels=np.array([1, 0]))]
    assert len(set(sums)) == 3 and sums[0] == checksum()


def test_a_worker_like_the_driver_may_train():
    expects = identity(TRIALS[0].plan, data_root=None)
    assert refusal(expects, TRIALS[0].plan, data_root=None) is None
    assert refusal({}, TRIALS[0].plan, data_root=None) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("project", "2", "project version 2 where the driver has 1"),
        ("data", "b" * 64, "data of digits bbbbbbbbbbbb where the driver has aaaaaaaaaaaa"),
        ("data", "none: no file", "data of digits none: no file where the driver has aaaaaaaaaaaa"),
    ],
)
def test_a_worker_that_differs_says_in_what(worker, nodes, key, value, said):
    worker[key] = value
    message = refusal(HERE, TRIALS[0].plan, data_root=None)
    assert message["refused"] == said and message["node"] == "n1" and json.dumps(message)


def test_a_refused_trial_comes_back_and_keeps_away_from_the_node(nodes, caplog):
    gate = Gate(Resources(), data_root=None, guarded=True)
    assert gate.admit(TRIALS[0])["away"] == [] and gate.waiting
    refused = {"refused": "project version 2 where the driver has 1", "node": "n1", "host": "pc"}
    with caplog.at_level(logging.WARNING, logger="sweep"):
        assert not gate.passes(TRIALS[0].id, refused)
        gate.admit(TRIALS[1])
        assert not gate.passes(TRIALS[1].id, refused)
    assert [record.getMessage() for record in caplog.records] == [
        "node n1 (pc) gets no trial: project version 2 where the driver has 1"
    ]
    assert gate.returned() is TRIALS[0] and gate.returned() is TRIALS[1] and gate.returned() is None
    admitted = gate.admit(TRIALS[0])
    asked = workers.request({"resources": {"cpu": 1, "gpu": 0}, **admitted})
    assert asked._bound.arguments["bundle_label_selector"] == [{"ray.io/node-id": "!in(n1)"}]
    assert gate.passes(TRIALS[0].id, {"report": {}}) and not gate.waiting


def test_with_the_last_node_the_sweep_ends(nodes):
    gate = Gate(Resources(), data_root=None, guarded=True)
    for trial, node in zip(TRIALS, ("n1", "n2"), strict=True):
        gate.admit(trial)
        if node == "n1":
            gate.passes(trial.id, {"refused": "project version 2", "node": node, "host": "a"})
    with pytest.raises(
        WorkerError, match=r"no node may run a trial: node n1 \(a\): project version 2; node n2 \(b\): data"
    ):
        gate.passes(TRIALS[1].id, {"refused": "data of digits", "node": "n2", "host": "b"})


def test_a_node_that_could_run_no_trial_anyway_is_not_waited_for(nodes):
    gate = Gate(Resources(cpu=2), data_root=None, guarded=True)
    nodes[0]["Resources"]["CPU"] = 2.0
    with pytest.raises(WorkerError, match="no node may run a trial"):
        gate.passes(TRIALS[0].id, {"refused": "project version 2", "node": "n1", "host": "a"})


def test_a_driver_without_the_data_compares_the_project_alone(nodes):
    trial = expand(a_sweep(trial={"dataset": "mnist", "delta": 1e-6}))[0]
    gate = Gate(Resources(), data_root=Path("no-such-folder"), guarded=True)
    assert gate.admit(trial)["expects"] == {"project": project_version()}


def test_on_one_machine_nothing_is_compared():
    gate = Gate(Resources(), data_root=None, guarded=False)
    assert gate.admit(TRIALS[0]) == {"expects": {}, "away": []} and not gate.waiting
