"""The MLflow writer against real SQLite stores; test_servers.py has real servers."""

import collections
import contextlib
import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from sweep import tracking
from sweep.tracking import END_STATUS, TrackingError, default_uri, writer

from ..web import answering
from .servers import Contents, free_port, open_tracker, run_trial, wait_for

pytestmark = pytest.mark.usefixtures("quick")


def contents(storage):
    return Contents(default_uri(storage))


class Recorder:
    """Stands in for MlflowClient: counts the calls, and raises what the test wants raised."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.faults = {}
        real, recorder = MlflowClient, self

        class Recorded:
            def __init__(self, tracking_uri):
                self._client = real(tracking_uri=tracking_uri)

            def __getattr__(self, name):
                def call(*args, **kwargs):
                    recorder.calls.append(name)
                    return recorder.faults.get(name, recorder.pass_on)(getattr(self._client, name), args, kwargs)

                return call

        monkeypatch.setattr(mlflow, "MlflowClient", Recorded)

    @staticmethod
    def pass_on(method, args, kwargs):
        return method(*args, **kwargs)

    def fail(self, *names, error=None, after=False):
        def fault(method, args, kwargs):
            if after:  # the call arrives, its answer does not
                method(*args, **kwargs)
            raise error or ConnectionError("no route")

        self.faults |= dict.fromkeys(names, fault)


WRITES = ("create_run", "log_batch", "set_terminated", "update_run", "log_artifact", "delete_tag")


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


# --- URI and environment


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///tmp/mlruns", "file:mlruns"])
def test_a_folder_is_refused_with_the_way_out(tmp_path, uri):
    with pytest.raises(TrackingError, match=r"sqlite:////.*mlflow\.db.*mlflow migrate-filestore --source") as raised:
        open_tracker(tmp_path, uri=uri)
    assert "\n" not in str(raised.value)


def test_an_unknown_scheme_is_refused_with_the_valid_ones(tmp_path):
    with pytest.raises(TrackingError, match="'ftp'; valid: sqlite, postgresql, http, https"):
        open_tracker(tmp_path, uri="ftp://user:secret@host/x")


def test_a_password_is_not_shown(tmp_path):
    with pytest.raises(TrackingError) as raised:
        open_tracker(tmp_path, uri="ftp://user:secret@host/x")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(tmp_path, uri):
    with pytest.raises(TrackingError, match="names no file"):
        open_tracker(tmp_path, uri=uri)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "mlflow.db").write_text("something else entirely, and long enough to be looked at\n" * 50)
    with pytest.raises(TrackingError, match=r"mlflow\.db: file is not a database"):
        open_tracker(tmp_path)


def test_all_files_lie_in_storage(storage, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("cwd")
    monkeypatch.chdir(elsewhere)
    tracker = open_tracker(storage)
    (storage / "results.csv").write_text("alpha,lr\n")
    tracker.artifact(storage / "results.csv", folder="tables")
    tracker.close()
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in (storage / "mlartifacts").rglob("*.csv")] == ["results.csv"]
    with contextlib.closing(sqlite3.connect(storage / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_exported_variables_do_not_lead_astray(storage, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    tracker = open_tracker(storage)
    monkeypatch.setenv("MLFLOW_RUN_ID", tracker.parent_run_id)
    tracker.close()

    monkeypatch.setenv("MLFLOW_RUN_ID", tracker.parent_run_id)
    tracker = open_tracker(storage)
    assert "MLFLOW_RUN_ID" not in os.environ
    assert "MLFLOW_EXPERIMENT_NAME" not in os.environ
    for trial in "abc":
        run_trial(tracker, trial)
    tracker.close()

    found = contents(storage)
    assert found.count == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in found.trials.values()} == {tracker.parent_run_id}
    assert "alpha" not in found.parents[0].data.params


def test_usage_statistics_are_off_unless_wanted(storage, monkeypatch):
    open_tracker(storage).close()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    open_tracker(storage).close()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"


# --- What a run holds


def test_a_trial_takes_four_calls(storage, recorder):
    tracker = open_tracker(storage)
    recorder.calls.clear()
    run_trial(tracker, "a", end_reason=None)
    wait_for(lambda: "log_batch" in recorder.calls)
    tracker.trial_reported("a", step=3, metrics={"test_accuracy": 0.3})
    tracker.trial_ended("a", end_reason="completed", metrics={"final_accuracy": 0.3})
    wait_for(lambda: "set_terminated" in recorder.calls)
    assert recorder.calls == ["create_run", "log_batch", "log_batch", "set_terminated"]
    tracker.close()


def test_a_trial_between_two_flushes_takes_three_calls(storage, recorder, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 30)  # the end of a trial does not wait for it
    tracker = open_tracker(storage)
    recorder.calls.clear()
    run_trial(tracker, "a")
    wait_for(lambda: "set_terminated" in recorder.calls)
    assert recorder.calls == ["create_run", "log_batch", "set_terminated"]
    tracker.close()


def test_a_trial_has_what_it_was_given(storage):
    tracker = open_tracker(storage, params={"title": "Figure 2", "seeds": 10})
    run_trial(tracker, "a")
    tracker.sweep_reported(metrics={"sweep_epsilon_planned": 3.5}, tags={"note": "nominal"})
    tracker.close()

    found = contents(storage)
    (parent,), trial = found.parents, found.trials["a"]
    assert trial.info.run_name == "trial a"
    assert trial.data.params == {
        "alpha": "0.1",
        "lr": "0.025",
        "steps": "20000",
        "optimizer": '{"name": "sgd"}',
    }
    assert trial.data.tags | {"mlflow.runName": "trial a"} == {
        "mlflow.parentRunId": tracker.parent_run_id,
        "mlflow.runColor": "#440154",
        "mlflow.runName": "trial a",
        "sweep.end_reason": "completed",
        "sweep.kind": "trial",
        "sweep.trial_id": "a",
    }
    assert trial.data.metrics == {
        "test_accuracy": 0.2,
        "epsilon_spent": 0.75,
        "final_accuracy": 0.9,
        "r_star": 0.234,
    }
    assert found.points("a") == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert found.points("a", "final_accuracy") == [(2, 0.9)]
    assert parent.info.run_id == tracker.parent_run_id
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {"title": "Figure 2", "seeds": "10"}
    assert parent.data.metrics == {"sweep_epsilon_planned": 3.5}
    assert parent.data.tags["note"] == "nominal"
    assert found.experiment.experiment_id == tracker.experiment_id
    assert "mlflow.sharedViewState.figure2" in found.experiment.tags


def test_every_end_has_its_status(storage):
    tracker = open_tracker(storage)
    for reason in END_STATUS:
        run_trial(tracker, reason, end_reason=reason)
    run_trial(tracker, "alive", end_reason=None)
    run_trial(tracker, "unheard-of", end_reason="tired")
    tracker.close(status="KILLED")

    found = contents(storage)
    assert found.statuses() == END_STATUS | {"alive": "KILLED", "unheard-of": "FAILED"}
    assert found.trials["alive"].data.tags["sweep.end_reason"] == "interrupted"
    assert found.trials["diverged"].data.tags["sweep.end_reason"] == "diverged"
    assert found.parents[0].info.status == "KILLED"


def test_only_finite_numbers_are_logged(storage):
    tracker = open_tracker(storage)
    run_trial(tracker, "a", steps=[], end_reason=None)
    wrong = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "none": None, "text": "x", "huge": 10**400}
    tracker.trial_reported("a", step=0, metrics={"r*": 0.5, "train_loss": 2, **wrong})
    tracker.trial_ended("a", end_reason="diverged", metrics=wrong)
    tracker.sweep_reported(metrics=wrong)
    tracker.close()
    found = contents(storage)
    assert found.trials["a"].data.metrics == {"r_": 0.5, "train_loss": 2.0}
    assert found.parents[0].data.metrics == {}


def test_long_values_are_cut_and_large_batches_split(storage):
    tracker = open_tracker(storage)
    params = {f"p{i}": i for i in range(250)} | {"long": "x" * 7000}
    tracker.trial_started("a", name="a", params=params, tags={f"t{i}": "y" for i in range(120)})
    for step in range(1800):
        tracker.trial_reported("a", step=step, metrics={"test_accuracy": 0.5})
    tracker.close()
    found = contents(storage)
    assert len(found.trials["a"].data.params) == 251
    assert len(found.trials["a"].data.params["long"]) == 6000
    assert len(found.points("a")) == 1800


def test_a_refused_value_costs_only_its_part(storage, recorder, caplog):
    tracker = open_tracker(storage)

    def refuse_params(method, args, kwargs):
        if kwargs.get("params"):
            raise mlflow.MlflowException("no", error_code=1000)  # INVALID_PARAMETER_VALUE
        return method(*args, **kwargs)

    recorder.faults["log_batch"] = refuse_params
    run_trial(tracker, "a")
    tracker.close()
    found = contents(storage)
    assert found.trials["a"].data.params == {}
    assert found.points("a") == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert found.statuses() == {"a": "FINISHED"}
    assert [record.message for record in caplog.records] == ["MLflow refused a value, which is left out: no"]


# --- One run for ever


def test_a_second_tracker_goes_on_with_the_same_runs(storage):
    first = open_tracker(storage)
    run_trial(first, "done")
    run_trial(first, "half", steps=range(2), end_reason="interrupted")
    first.close(status="KILLED")

    second = open_tracker(storage)
    run_trial(second, "done")  # the same reports again, with new timestamps
    run_trial(second, "half", steps=range(4))
    run_trial(second, "new")
    second.close()

    found = contents(storage)
    assert second.parent_run_id == first.parent_run_id
    assert found.count == 4
    assert found.statuses() == {"done": "FINISHED", "half": "FINISHED", "new": "FINISHED"}
    assert [step for step, _ in found.points("done")] == [0, 1, 2]
    assert [step for step, _ in found.points("half")] == [0, 1, 2, 3]
    assert found.points("done", "final_accuracy") == [(2, 0.9)]
    assert found.trials["half"].data.tags["sweep.end_reason"] == "completed"


def test_a_reopened_run_does_not_claim_to_have_ended(storage):
    first = open_tracker(storage)
    run_trial(first, "a", end_reason="interrupted")
    first.close()
    second = open_tracker(storage)
    run_trial(second, "a", steps=range(4), end_reason=None)
    wait_for(lambda: len(contents(storage).points("a")) == 4)
    trial = contents(storage).trials["a"]
    assert trial.info.status == "RUNNING"
    assert "sweep.end_reason" not in trial.data.tags
    assert contents(storage).parents[0].info.status == "RUNNING"
    second.close()


def test_a_trial_started_again_in_one_process_keeps_its_run(storage):
    tracker = open_tracker(storage)
    run_trial(tracker, "a", end_reason=None)
    run_trial(tracker, "a", end_reason="error")  # its worker died
    wait_for(lambda: contents(storage).trials and contents(storage).statuses()["a"] == "FAILED")
    run_trial(tracker, "a", steps=range(5))
    tracker.close()
    found = contents(storage)
    assert [step for step, _ in found.points("a")] == [0, 1, 2, 3, 4]
    assert found.statuses() == {"a": "FINISHED"}


def test_sweeps_of_different_names_stay_apart(storage):
    names = ["it's", 'a "name"']
    ids = []
    for name in names * 2:
        tracker = open_tracker(storage, name=name)
        ids.append(tracker.parent_run_id)
        tracker.close()
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def test_a_deleted_experiment_comes_back(storage):
    first = open_tracker(storage)
    run_trial(first, "a")
    first.close()
    contents(storage).client.delete_experiment(first.experiment_id)
    second = open_tracker(storage)
    second.close()
    assert second.parent_run_id == first.parent_run_id
    assert contents(storage).experiment.lifecycle_stage == "active"


def test_orphans_of_a_killed_driver_are_closed(storage):
    script = f"""
        import os, signal, time
        from pathlib import Path
        from sweep import tracking
        from sweep.tracking import writer
        writer.FLUSH_SECONDS = 0.1
        storage = Path({str(storage)!r})
        tracker = tracking.Tracker(
            uri=tracking.default_uri(storage), experiment="figure2", storage=storage, name="figure2", tags={{}}
        )
        tracker.trial_started("done", name="done", params={{}}, tags={{}})
        tracker.trial_ended("done", end_reason="completed")
        tracker.trial_started("orphan", name="orphan", params={{}}, tags={{}})
        tracker.trial_reported("orphan", step=0, metrics={{"test_accuracy": 0.0}})
        while not tracker._writer.inbox.empty() or tracker._writer._waiting:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    assert contents(storage).statuses() == {"done": "FINISHED", "orphan": "RUNNING"}

    tracker = open_tracker(storage)
    assert contents(storage).statuses() == {"done": "FINISHED", "orphan": "KILLED"}
    assert contents(storage).trials["orphan"].data.tags["sweep.end_reason"] == "interrupted"
    run_trial(tracker, "orphan")
    tracker.close()
    found = contents(storage)
    assert found.count == 3
    assert found.points("orphan") == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert {*found.statuses().values(), found.parents[0].info.status} == {"FINISHED"}


# --- Failure


def test_a_store_that_goes_and_comes_loses_and_repeats_nothing(storage, recorder, caplog):
    tracker = open_tracker(storage)
    recorder.fail(*WRITES, after=True)  # everything arrives, nothing is answered
    for trial in "abc":
        run_trial(tracker, trial)
    wait_for(lambda: recorder.calls.count("create_run") >= 2)
    recorder.faults.clear()
    wait_for(lambda: set(contents(storage).statuses().values()) == {"FINISHED"})
    tracker.close()

    found = contents(storage)
    assert found.count == 4
    assert all(found.points(trial) == [(0, 0.0), (1, 0.1), (2, 0.2)] for trial in "abc")
    assert not list(storage.glob("*.jsonl"))
    away, back = [record.message for record in caplog.records]
    assert "is away (no route)" in away
    assert back.endswith("is back")


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("x"), OSError(28, "No space left"), Exception()])
def test_nothing_is_raised_whatever_the_client_raises(storage, recorder, error):
    tracker = open_tracker(storage)
    recorder.fail(*WRITES, "search_runs", "get_run", error=error)
    run_trial(tracker, "a")
    tracker.sweep_reported(metrics={"x": 1})
    tracker.artifact(storage / "missing")
    tracker.trial_started("b", name="b", params={"bad": object()}, tags={"bad": object()})
    tracker.trial_reported("b", step="no number", metrics={})
    tracker.trial_reported("b", step=0, metrics=None)
    tracker.close()
    tracker.close()

    recorder.faults.clear()
    open_tracker(storage).close()
    found = contents(storage)
    assert found.points("a") == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert found.statuses() == {"a": "FINISHED", "b": "KILLED"}


def test_what_does_not_fit_into_memory_goes_to_the_spool(storage, recorder, monkeypatch):
    monkeypatch.setattr(writer, "EVENTS_IN_MEMORY", 50)
    tracker = open_tracker(storage)
    recorder.fail(*WRITES)
    run_trial(tracker, "a", steps=range(200), end_reason=None)
    spool = storage / "mlflow-spool-figure2.jsonl"
    wait_for(spool.exists)
    recorder.faults.clear()
    wait_for(lambda: not spool.exists())
    assert contents(storage).statuses() == {"a": "RUNNING"}  # it lives, although the spool holds no end of it
    run_trial(tracker, "a", steps=range(190, 210))
    tracker.close()
    assert [step for step, _ in contents(storage).points("a")] == list(range(210))


def test_a_torn_spool_is_read_as_far_as_it_is_whole(storage, recorder):
    tracker = open_tracker(storage)
    recorder.fail(*WRITES)
    run_trial(tracker, "a")
    tracker.close()
    spool = storage / "mlflow-spool-figure2.jsonl"
    with spool.open("a") as file:
        file.write('\n{"kind": "reported", "trial": "a", "ti')
    recorder.faults.clear()
    open_tracker(storage).close()
    assert contents(storage).statuses() == {"a": "FINISHED"}
    assert not spool.exists()


def test_a_dead_server_costs_one_warning_and_a_spool(tmp_path, caplog):
    start = time.monotonic()
    tracker = open_tracker(tmp_path, uri=f"http://127.0.0.1:{free_port()}")
    run_trial(tracker, "a", steps=range(100))
    assert time.monotonic() - start < 5
    assert tracker.parent_run_id is None
    time.sleep(1)
    start = time.monotonic()
    tracker.close(timeout=10)
    assert time.monotonic() - start < 5

    events = [line for line in (tmp_path / "mlflow-spool-figure2.jsonl").read_text().splitlines() if line]
    assert len(events) == 1 + 102 + 1
    away, spooled = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "is away" in away
    assert "104 events wait in" in spooled


def test_a_slow_server_slows_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "START_SECONDS", 0.5)
    with answering(status=403, seconds=30) as (uri, _):
        start = time.monotonic()
        tracker = open_tracker(tmp_path, uri=uri)
        assert time.monotonic() - start < 3
        longest = 0.0
        for step in range(1000):
            start = time.perf_counter()
            tracker.trial_reported("a", step=step, metrics={"test_accuracy": 0.5, "train_loss": 1.0})
            longest = max(longest, time.perf_counter() - start)
        start = time.monotonic()
        tracker.close(timeout=1)
        assert time.monotonic() - start < 3
    assert longest < 0.1
    assert (tmp_path / "mlflow-spool-figure2.jsonl").exists()


def test_a_server_that_refuses_is_a_clear_error(tmp_path):
    with answering(status=403) as (uri, _), pytest.raises(TrackingError, match=f"cannot track to {uri}: .*403"):
        open_tracker(tmp_path, uri=uri)


@pytest.mark.slow
def test_the_first_tracker_initialises_the_database(tmp_path):
    open_tracker(tmp_path / "new" / "folder").close()
    assert contents(tmp_path / "new" / "folder").count == 1


@pytest.mark.slow
def test_a_thousand_trials_stay_cheap(storage, recorder, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 2.0)
    tracker = open_tracker(storage)
    recorder.calls.clear()
    start = time.monotonic()
    for trial in range(1000):
        run_trial(tracker, f"{trial:04d}")
        time.sleep(0.02)
    tracker.close(timeout=300)
    milliseconds = time.monotonic() - start
    calls = collections.Counter(recorder.calls)
    print(f"{milliseconds:.1f} ms a trial, calls: {dict(calls)}")
    assert milliseconds < 100
    assert sum(calls.values()) <= 4 * 1000 + 10
    assert len(contents(storage).trials) == 1000
