"""`sweep ui`: the MLflow server on a sweep's store, and the links that open on its figure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sweep.tracking import TrackingError, default_uri
from sweep.tracking.view import RUNS_PER_PAGE, ui_url

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

__all__ = ["serve"]

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a new store is initialised first
STOP_SECONDS = 10.0


def serve(storage: Path, *, port: int, tracking_uri: str | None) -> None:
    """Serve the MLflow UI of a sweep on `port` until Ctrl-C, and print a link for each experiment.

    Without `tracking_uri` it is the store inside `storage`. A server that runs already (http, https) is only
    asked for its experiments.

    Raises `TrackingError` where there is no store, the port is taken or the server does not start.
    """
    uri = tracking_uri or default_uri(storage)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if uri.startswith(("http://", "https://")):
        _link_to(uri)
        return
    _check(storage, port=port, tracking_uri=tracking_uri)
    base = f"http://{HOST}:{port}"
    with _interruptible(), tempfile.TemporaryFile() as output, _server(uri, storage, port, output) as server:
        _print_links(base, _wait_for_experiments(base, server, output))
        print("Ctrl-C ends it.", flush=True)
        server.wait()
        raise TrackingError(f"the MLflow server has ended by itself: {_tail(output)}")


def _link_to(uri: str) -> None:
    """Print the links of a server that somebody else runs."""
    from mlflow.exceptions import MlflowException

    try:
        _print_links(uri, _experiments(uri))
    except MlflowException as error:
        raise TrackingError(f"the MLflow server at {uri} does not answer: {error}") from error


def _check(storage: Path, *, port: int, tracking_uri: str | None) -> None:
    if tracking_uri is None and not (storage / "mlflow.db").exists():
        raise TrackingError(f"no sweep has been tracked in {storage}: there is no mlflow.db")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise TrackingError(f"port {port} cannot be used ({error}); choose another one") from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and both as the ordinary end."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("ended", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _server(uri: str, storage: Path, port: int, output: IO[bytes]) -> Iterator[subprocess.Popen]:
    """Run `mlflow server`. In a process group of its own, one signal reaches it and its workers once."""
    options = {
        "--artifacts-destination": (storage / "mlartifacts").absolute().as_uri(),
        "--host": HOST,
        "--port": str(port),
        "--workers": "1",
    }
    words = (word for option in options.items() for word in option)
    command = [sys.executable, "-m", "mlflow", "server", *words]
    environment = os.environ | {
        "MLFLOW_BACKEND_STORE_URI": uri,  # not on the command line, where all users could read a password
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes fewer
    }
    server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield server
    finally:
        _end(server)


def _end(server: subprocess.Popen) -> None:
    """Ask the server's group to end, insist after a while."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            os.killpg(server.pid, sign)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def _wait_for_experiments(base: str, server: subprocess.Popen, output: IO[bytes]) -> list[Experiment]:
    """Ask the API until it answers: /health is well before the API is, and even where the API refuses us."""
    from mlflow.exceptions import MlflowException

    until = time.monotonic() + START_SECONDS
    while True:
        if server.poll() is not None:
            raise TrackingError(f"the MLflow server did not start: {_tail(output)}")
        try:
            return _experiments(base)
        except MlflowException as error:
            if time.monotonic() > until:
                raise TrackingError(f"the MLflow server does not answer: {error}") from error
        time.sleep(0.3)


def _experiments(base: str) -> list[Experiment]:
    return list(_client(base).search_experiments(filter_string="name != 'Default'"))


def _client(base: str) -> MlflowClient:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=base)


def _print_links(base: str, experiments: list[Experiment]) -> None:
    for experiment in experiments:
        print(f"{experiment.name}: {ui_url(base, experiment.experiment_id)}")
    if experiments:
        print(f"A view opens with {RUNS_PER_PAGE} trials; 'Load more' in its list of runs adds others.")
    else:
        print(f"MLflow runs at {base} and holds no sweep yet.")


def _tail(output: IO[bytes]) -> str:
    """The last line that the server printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
