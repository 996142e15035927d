"""The MLflow writer against real servers, on SQLite and, where its programs are installed, on PostgreSQL."""

import concurrent.futures
import contextlib
import glob
import io
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from sweep.planning import plan
from sweep.running import RunOptions, run
from sweep.storage import Folder
from sweep.tracking import default_uri

from ..spaces import a_sweep
from .servers import Contents, free_port, mlflow_server, open_tracker, run_trial, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL server of our own on loopback; its URI without a database."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    programs = shutil.which("initdb") or next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))[::-1]), None)
    if programs is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    folder, port = Path(tempfile.mkdtemp(prefix="pg")), free_port()
    user = {}
    if os.geteuid() == 0:  # as whom PostgreSQL refuses to run
        shutil.chown(folder, "postgres", "postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}

    def call(program, *arguments):
        command = [Path(programs).with_name(program), "-D", folder / "data", *arguments]
        # A file, since the server keeps the pipe of whoever started it.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run([*map(str, command)], stdout=output, stderr=output, cwd=folder, **user)
            output.seek(0)
            assert done.returncode == 0, output.read().decode()

    call("initdb", "--username=sweep", "--auth=trust", "--encoding=UTF8", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    call("pg_ctl", "start", "--wait", "--log", folder / "log", "-o", options)
    try:
        yield f"postgresql://sweep@127.0.0.1:{port}"
    finally:
        call("pg_ctl", "stop", "--wait", "--mode=immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request, storage):
    """The URI of an MLflow store of the test's own."""
    if request.param == "sqlite":
        return default_uri(storage)
    import psycopg

    server, name = request.getfixturevalue("postgres"), f"mlflow_{time.monotonic_ns()}"
    with contextlib.closing(psycopg.connect(f"{server}/postgres", autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


def test_a_server_started_later_gets_everything_once(storage, store):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    away = open_tracker(storage, uri=uri)
    for trial in "abc":
        run_trial(away, trial, steps=range(50))
    away.close(timeout=5)

    with mlflow_server(store, storage / "served", port):
        for _ in range(2):
            tracker = open_tracker(storage, uri=uri)
            for trial in "cd":
                run_trial(tracker, trial, steps=range(50))
            tracker.close()
        found = Contents(uri)
        assert found.count == 5
        assert set(found.statuses().values()) == {"FINISHED"}
        assert all([step for step, _ in found.points(trial)] == list(range(50)) for trial in "abcd")
    assert not list(storage.glob("*.jsonl"))


def test_a_server_that_restarts_gets_everything_once(storage, store):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with mlflow_server(store, storage / "served", port):
        tracker = open_tracker(storage, uri=uri)
        run_trial(tracker, "a", steps=range(5), end_reason=None)
        wait_for(lambda: "a" in Contents(uri).trials)
    run_trial(tracker, "a", steps=range(5, 10))
    run_trial(tracker, "b")
    time.sleep(1)
    with mlflow_server(store, storage / "served", port):
        wait_for(lambda: len(Contents(uri).trials) == 2, seconds=60)
        (storage / "figure.png").write_bytes(b"png")
        tracker.artifact(storage / "figure.png")
        tracker.close()
        found = Contents(uri)
        assert [step for step, _ in found.points("a")] == list(range(10))
        assert found.statuses() == {"a": "FINISHED", "b": "FINISHED"}
        assert [file.path for file in found.client.list_artifacts(tracker.parent_run_id)] == ["figure.png"]


def test_sixteen_clients_at_once_lose_nothing(storage, store):
    """Sixteen sweeps write through one server; each has every step of each of its trials, once."""
    port, steps = free_port(), range(50)
    uri = f"http://127.0.0.1:{port}"

    def client(number):
        folder = storage / str(number)
        folder.mkdir()
        tracker = open_tracker(folder, uri=uri, name=f"sweep {number}")
        for trial in "ab":
            run_trial(tracker, trial, steps=steps)
        tracker.close(timeout=120)
        return sorted(folder.glob("*.jsonl"))

    with mlflow_server(store, storage / "served", port):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            spooled = list(pool.map(client, range(16)))
        assert spooled == [[]] * 16
        for number in range(16):
            found = Contents(uri, name=f"sweep {number}")
            assert found.count == 3 and len(found.parents) == 1
            assert found.statuses() == {"a": "FINISHED", "b": "FINISHED"}
            for trial in "ab":
                assert found.points(trial) == [(step, step / 10) for step in steps]
                assert found.points(trial, "epsilon_spent") == [(step, 1 - 2.0**-step) for step in steps]


def test_a_sweep_through_a_server_has_each_step_once_also_after_a_second_run(storage, store):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with mlflow_server(store, storage / "served", port):
        for seeds in (1, 2):
            sweep = a_sweep({"alpha": [1, 3]}, trial={"lr": 1}, seeds=seeds)
            options = RunOptions(storage=Folder(storage / "results"), tracking_uri=uri, local=True)
            assert run(plan(sweep), options, console=Console(file=io.StringIO())).complete
        found = Contents(uri, name="tiny")
        assert len(found.parents) == 1 and found.count == 5
        assert set(found.statuses().values()) == {"FINISHED"}
        for trial in found.trials:
            assert [step for step, _ in found.points(trial)] == [10, 20, 30, 40]
        files = {file.path for file in found.client.list_artifacts(found.parents[0].info.run_id)}
        assert "results.csv" in files


@pytest.mark.postgres
def test_a_database_may_be_written_to_without_a_server(storage, postgres):
    tracker = open_tracker(storage, uri=f"{postgres}/postgres")
    run_trial(tracker, "a", steps=range(20))
    tracker.close()
    found = Contents(f"{postgres}/postgres")
    assert [step for step, _ in found.points("a")] == list(range(20)) and found.statuses() == {"a": "FINISHED"}


def test_workers_reach_a_server_by_the_names_it_allows_and_no_others(storage, monkeypatch):
    """As cluster.yaml starts it: /health answers to any name, so it is the API that must be asked."""
    import requests

    port = free_port()
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", f"127.0.0.1:{port},head-node:5000")
    with mlflow_server(default_uri(storage), storage / "served", port):
        url = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/search?max_results=1"
        for host, status in (("head-node:5000", 200), ("other:5000", 403)):
            assert requests.get(url, headers={"Host": host}, timeout=30).status_code == status
        assert MlflowClient(tracking_uri=f"http://127.0.0.1:{port}").search_experiments()
