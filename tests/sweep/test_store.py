"""The store: what is written is read, whatever happened in between."""

import json
import math

import pytest

from sweep.expand import expand
from sweep.storage import Folder, StoreError
from sweep.store import Record, Store

from .spaces import a_sweep, message

INFO = {"r": 0.25, "epsilon": 0.9999, "claim": "nominal ε (Theorem 10)", "order": 12, "threads": 1}


@pytest.fixture
def store(tmp_path):
    return Store(Folder(tmp_path / "sweep"))


@pytest.fixture
def trial():
    return expand(a_sweep())[0]


def report(trial, step, score=0.5):
    return message(trial, step, score)["report"]


def file_of(store, trial):
    return store.storage.local / "trials" / f"{trial.id}.jsonl"


def test_a_trial_comes_back_as_it_was(store, trial):
    store.started(trial, INFO)
    store.reported(trial.id, report(trial, 10))
    store.reported(trial.id, report(trial, 20))
    store.ended(trial.id, "early_stopped", "with a “message”")
    assert Store(Folder(store.storage.local)).read() == {
        trial.id: Record(
            trial_id=trial.id,
            point_id=trial.point_id,
            plan=trial.plan.model_dump(mode="json"),
            info=INFO,
            reports=[report(trial, 10), report(trial, 20)],
            end_reason="early_stopped",
            message="with a “message”",
        )
    }


def test_a_running_trial_has_no_end(store, trial):
    store.started(trial, INFO)
    assert store.read()[trial.id].end_reason is None
    assert store.read()[trial.id].reports == []


def test_an_empty_store(tmp_path):
    assert Store(Folder(tmp_path / "deep" / "below")).read() == {}


def test_trials_do_not_mix(store):
    trials = expand(a_sweep({"lr": [0.1, 1, 10]}, seeds=2))
    for trial in trials:
        store.started(trial, INFO)
    for trial in trials:
        store.reported(trial.id, report(trial, 10, trial.plan.lr / 100))
    records = store.read()
    assert set(records) == {trial.id for trial in trials}
    assert all(record.reports[0]["test_accuracy"] == record.plan["lr"] / 100 for record in records.values())


def test_to_start_is_to_start_over(store, trial):
    store.started(trial, {"r": 1})
    store.reported(trial.id, report(trial, 10))
    store.ended(trial.id, "error", "broken")
    store.started(trial, INFO)
    store.reported(trial.id, report(trial, 10, 0.7))
    record = store.read()[trial.id]
    assert (record.info, record.end_reason, record.message) == (INFO, None, None)
    assert [one["test_accuracy"] for one in record.reports] == [0.7]


def test_infinity_survives(store):
    trial = expand(a_sweep(trial={"epsilon": math.inf}))[0]
    store.started(trial, {"epsilon": math.inf})
    store.reported(trial.id, report(trial, 10))
    record = store.read()[trial.id]
    assert record.plan["epsilon"] == record.info["epsilon"] == record.reports[0]["epsilon_spent"] == math.inf


def test_floats_survive_to_the_last_bit(store, trial):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": 16 / 1437, "d": -0.0}
    store.started(trial, values)
    assert {key: value.hex() for key, value in store.read()[trial.id].info.items()} == {
        key: value.hex() for key, value in values.items()
    }


def test_every_line_is_on_the_disk_at_once(store, trial):
    store.started(trial, INFO)
    store.reported(trial.id, report(trial, 10))
    lines = [json.loads(line) for line in file_of(store, trial).read_text().splitlines() if line]
    assert [list(line) for line in lines] == [["trial_id", "point_id", "plan", "info"], ["report"]]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_passed_over(store, trial, cut):
    store.started(trial, INFO)
    store.reported(trial.id, report(trial, 10))
    store.reported(trial.id, report(trial, 20))
    path = file_of(store, trial)
    path.write_bytes(path.read_bytes().rstrip()[:-cut])
    assert store.read()[trial.id].reports == [report(trial, 10)]


@pytest.mark.parametrize("tail", [b'{"report": {"st', b"\0\0\0\0", b"\xff\xfe", b"\n\n"])
def test_what_follows_a_torn_line_is_whole(store, trial, tail):
    """A new attempt after a crash starts over; its lines are not glued to the torn one."""
    store.started(trial, {"r": 1})
    store.reported(trial.id, report(trial, 10))
    with file_of(store, trial).open("ab") as file:
        file.write(tail)
    later = Store(Folder(store.storage.local))
    assert later.read()[trial.id].reports == [report(trial, 10)]
    later.started(trial, INFO)
    later.reported(trial.id, report(trial, 10, 0.7))
    later.ended(trial.id, "completed")
    record = later.read()[trial.id]
    assert (record.info, record.end_reason) == (INFO, "completed")
    assert record.reports == [report(trial, 10, 0.7)]


def test_a_file_torn_in_its_first_line_is_no_trial(store, trial):
    file_of(store, trial).parent.mkdir(parents=True)
    file_of(store, trial).write_text('{"trial_id": "abc", "pl')
    assert store.read() == {}
    store.started(trial, INFO)
    assert store.read()[trial.id].info == INFO


def test_other_files_are_let_be(store, trial):
    store.started(trial, INFO)
    (store.storage.local / "trials" / "notes.txt").write_text("mine")
    assert list(store.read()) == [trial.id]


def test_a_full_disk_names_the_file(store, trial, monkeypatch):
    store.started(trial, INFO)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError) as caught:
        store.reported(trial.id, report(trial, 10))
    assert str(caught.value) == f"{file_of(store, trial)} cannot be written: No space left on device"
