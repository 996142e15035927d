"""Real MLflow servers of a test's own, what a store holds, and a tracker to write to it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import mlflow
from mlflow import MlflowClient
from mlflow.entities import ViewType

from sweep.tracking import Tracker, default_uri

PARAMS = {"alpha": 0.1, "lr": 0.025, "steps": 20_000, "optimizer": {"name": "sgd"}, "epochs": None}


def open_tracker(storage, *, uri=None, name="figure2", **more):
    uri = uri or default_uri(storage)
    return Tracker(uri=uri, experiment=name, storage=storage, name=name, tags={"sweep.version": "1"}, **more)


def run_trial(tracker, trial, *, steps=range(3), end_reason="completed"):
    tracker.trial_started(trial, name=f"trial {trial}", params=PARAMS, tags={"mlflow.runColor": "#440154"})
    for step in steps:
        tracker.trial_reported(trial, step=step, metrics={"test_accuracy": step / 10, "epsilon_spent": 1 - 2.0**-step})
    if end_reason:
        tracker.trial_ended(trial, end_reason=end_reason, metrics={"final_accuracy": 0.9, "r_star": 0.234})


class Contents:
    """What a store holds of one sweep."""

    def __init__(self, uri, name="figure2"):
        self.client = MlflowClient(tracking_uri=str(uri))
        self.experiment = self.client.get_experiment_by_name(name)
        runs = self.client.search_runs([self.experiment.experiment_id], run_view_type=ViewType.ALL, max_results=5000)
        self.parents = [run for run in runs if run.data.tags["sweep.kind"] == "sweep"]
        self.trials = {run.data.tags["sweep.trial_id"]: run for run in runs if run not in self.parents}
        self.count = len(runs)

    def points(self, trial, metric="test_accuracy"):
        history = self.client.get_metric_history(self.trials[trial].info.run_id, metric)
        return [(point.step, point.value) for point in history]

    def statuses(self):
        return {trial: run.info.status for trial, run in self.trials.items()}


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def mlflow_server(store, artifacts, port):
    """A real server on a store's URI, ended by its own process group."""
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--workers": 1,
        "--backend-store-uri": store,
        "--artifacts-destination": artifacts,
    }
    words = [str(word) for option in options.items() for word in option]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words],
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), seconds=180)
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def answers(uri):
    with contextlib.suppress(mlflow.MlflowException):
        return MlflowClient(tracking_uri=uri).search_experiments() is not None
    return False
