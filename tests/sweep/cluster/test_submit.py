"""A sweep handed to a cluster: what is sent, what is refused, and, on a real head, that it runs there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private.authentication import authentication_utils

from sweep.cluster import submit as submitting
from sweep.cluster.submit import SubmitError, package, size_line, submit
from sweep.storage import Folder
from sweep.store import Store

from ..spaces import TEXT
from ..web import answering
from .heads import free_port, ray_head, wait_for


@pytest.fixture(autouse=True)
def no_token(monkeypatch, tmp_path):
    """None of the user's own tokens and settings."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "SWEEP_STORAGE", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "no-token"))
    # A process that ran Ray before, as another test may have, has its authentication on for good, with that token.
    monkeypatch.setattr(authentication_utils, "is_token_auth_enabled", lambda: False)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return path


class Recorder:
    """Stands in for Ray's client; keeps what it was given, and what lay in the working folder."""

    def __call__(self, address):
        self.address = address
        return self

    def submit_job(self, *, entrypoint, runtime_env, metadata):
        self.entrypoint = entrypoint
        folder = Path(runtime_env["working_dir"])
        self.files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        return "raysubmit_1"


# The package


def test_the_package_is_the_code_and_the_search_space_alone(tiny):
    files = package(str(tiny))
    assert {place.partition("/")[0] for place in files} == {"dirdp", "sweep", "search_spaces", "tiny.yaml"}
    assert {Path(place).suffix for place in files} == {".py", ".csv", ".yaml"}
    assert {"dirdp/accounting.py", "sweep/reporting/paper_values.csv", "search_spaces/figure2.yaml"} <= files.keys()
    assert size_line(files).startswith(f"package: {len(files)} files, 0.")


def test_the_code_of_the_package_runs_from_it_alone(tiny, tmp_path):
    """In an empty folder, with nothing else of the project on the path."""
    recorder = Recorder()

    def copy(*, entrypoint, runtime_env, metadata):
        shutil.copytree(runtime_env["working_dir"], tmp_path / "job")
        return "raysubmit_1"

    recorder.submit_job = copy
    submit(str(tiny), address="http://head:8265", files=package(str(tiny)), client=recorder)
    code = "import sweep, dirdp; print(sweep.__file__, dirdp.__file__); from sweep.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "tiny.yaml"],
        cwd=tmp_path / "job",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].count(str(tmp_path / "job")) == 2


def test_a_large_package_is_refused_with_its_largest_files(tmp_path):
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    for name, mib in (("deep/weights.pt", 40), ("images.npz", 11), ("net.py", 0)):
        with (folder / name).open("wb") as file:
            file.truncate(mib * 2**20)
    with pytest.raises(SubmitError, match=r"51\.\d MiB, more than 50\.0 MiB") as caught:
        size_line(package("quickstart", include=[folder]))
    said = str(caught.value)
    assert f"{folder}/deep/weights.pt (40.0 MiB), {folder}/images.npz (11.0 MiB)" in said and "\n" not in said


def test_what_is_included_keeps_its_name(tmp_path):
    folder = tmp_path / "mine"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "net.py").write_text("")
    (folder / "__pycache__" / "net.pyc").write_text("")
    (tmp_path / "one.py").write_text("")
    files = package("quickstart", include=[folder, tmp_path / "one.py"])
    assert {"mine/net.py", "one.py"} <= files.keys() and not [place for place in files if "pycache" in place]
    with pytest.raises(SubmitError, match="--include nowhere: no such file or folder"):
        package("quickstart", include=[Path("nowhere")])


# The job


def test_the_job_runs_the_sweep_on_its_own_cluster(tiny):
    recorder = Recorder()
    options = ["--size", "small", "--set", "alpha=[1, 3]"]
    job = submit(
        str(tiny),
        address="http://head:8265",
        options=options,
        storage="/mnt/a b",
        files=package(str(tiny)),
        client=recorder,
    )
    assert job == "raysubmit_1" and recorder.address == "http://head:8265"
    assert recorder.entrypoint == (
        "python -m sweep run tiny.yaml --address auto --size small --set 'alpha=[1, 3]' --storage '/mnt/a b'"
    )
    assert "tiny.yaml" in recorder.files and "sweep/__main__.py" in recorder.files


def test_a_job_without_storage_ends_before_it_starts(tiny):
    recorder = Recorder()
    submit(str(tiny), address="http://head:8265", files=package(str(tiny)), client=recorder)
    empty = {name: value for name, value in os.environ.items() if name != "SWEEP_STORAGE"}
    done = subprocess.run(["sh", "-c", recorder.entrypoint], env=empty, capture_output=True, text=True)
    assert done.returncode and "give sweep submit --storage" in done.stderr


# Faults


def tokens(requests):
    return [headers["Authorization"] for headers, _ in requests]


def refused(address):
    with pytest.raises(SubmitError) as caught:
        submit("quickstart", address=address, files={})
    assert "\n" not in str(caught.value) and address in str(caught.value)
    return str(caught.value)


def test_a_missing_token_is_named(tmp_path):
    with answering(status=401, said="Unauthorized: Missing authentication token") as (address, requests):
        said = refused(address)
    assert f"asks for a token, and {tmp_path / 'no-token'} has none" in said
    assert "ray get-auth-token" in said and "RAY_AUTH_TOKEN" in said and tokens(requests) == [None]


@pytest.mark.parametrize("place", ["variable", "file"])
def test_a_wrong_token_is_named_by_where_it_is_from(tmp_path, monkeypatch, place):
    if place == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "not-this")
    else:
        (tmp_path / "no-token").write_text("not-this\n")
    with answering(status=403, said="Forbidden: Invalid authentication token") as (address, requests):
        said = refused(address)
    source = "RAY_AUTH_TOKEN" if place == "variable" else str(tmp_path / "no-token")
    assert f"does not know the token from {source};" in said and tokens(requests) == ["Bearer not-this"]
    assert "not-this" not in said


def test_no_token_is_sent_where_authentication_is_off(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    with answering(status=404) as (address, requests):
        assert "404" in refused(address)
    assert tokens(requests) == [None]


def test_an_address_where_nothing_answers_is_named():
    assert "no Ray dashboard answers there" in refused(f"http://127.0.0.1:{free_port()}")


# A real head


@pytest.mark.slow
@pytest.mark.cluster
def test_a_submitted_sweep_runs_on_the_cluster(tiny, tmp_path, monkeypatch, empty_store):
    """A head with a token: refused without it; with it, the sweep runs, and `sweep submit --wait` ends as it does."""
    pytest.importorskip("aiohttp_cors", reason="the dashboard needs ray[default]")
    storage, port, ports = tmp_path / "results", free_port(), [free_port() for _ in range(3)]
    storage.mkdir()
    shutil.copy(empty_store, storage / "mlflow.db")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "the-cluster-s-own-token-0123456789"}
    address = f"http://127.0.0.1:{port}"
    arguments = [
        "--num-cpus=2",
        "--include-dashboard=true",
        f"--dashboard-port={port}",
        f"--dashboard-agent-listen-port={ports[0]}",
        f"--metrics-export-port={ports[1]}",
        f"--ray-client-server-port={ports[2]}",
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the entrypoint's python
    with ray_head(*arguments, environment=token | {"PATH": path}, cwd=tmp_path):
        wait_for(lambda: "asks for a token" in answer(address), seconds=60)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "sweep",
                "submit",
                str(tiny),
                "--address",
                address,
                "--storage",
                str(storage),
                "--wait",
            ],
            env=os.environ | {"RAY_AUTH_TOKEN": token["RAY_AUTH_TOKEN"]},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "package: " in done.stdout and "tiny: 4 trials: 4 new" in done.stdout
    records = Store(Folder(storage / "tiny")).read().values()
    assert [record.end_reason for record in records] == ["completed"] * 4


def answer(address):
    try:
        submitting.connect(address)
    except Exception as error:
        with pytest.raises(SubmitError) as caught, submitting._answers(address):
            raise error
        return str(caught.value)
    return "connected"
