"""`sweep data prepare` against a server of our own that counts what it is asked for, and may be slow or break off."""

import contextlib
import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import signal
import socket
import tarfile
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from medmnist import INFO
from torchvision.datasets import CIFAR10, MNIST, SVHN
from typer.testing import CliRunner

from dirdp import TrainingPlan, datasets
from dirdp.datasets import DataError, MissingFileError
from sweep import data
from sweep.campaign import run_trial
from sweep.cli import app
from sweep.expand import Trial
from sweep.planning import plan as plan_sweep
from sweep.running import _MlflowListener
from sweep.spec import SpecError, Sweep

PROCESSES = 8


class Site(http.server.ThreadingHTTPServer):
    """Serves `files`, path to content, in slices of a tenth, `pause` seconds apart; `requests` are the paths asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.requests, self.pause, self.served = {}, [], 0.0, False
        self.stall_after = None  # bytes after which the first answer stops without an end
        self.cut = 0  # bytes left out at the end, against what Content-Length says

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        site = self.server
        site.requests.append(self.path)
        content = site.files.get(self.path.partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        content = content[: len(content) - site.cut]
        stalls = site.stall_after is not None and len(site.requests) == 1
        step = max(1, len(content) // 10)
        with contextlib.suppress(OSError):
            for start in range(0, len(content), step):
                if stalls and start >= site.stall_after:
                    self.wfile.flush()
                    time.sleep(30)
                self.wfile.write(content[start : start + step])
                time.sleep(site.pause)

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    with Site() as server:
        yield server
        if server.served:
            server.shutdown()


def serve(site):
    site.served = True
    threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True).start()


def md5(content):
    return hashlib.md5(content).hexdigest()


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def dermamnist(site, monkeypatch):
    """DermaMNIST as the server has it: some archive, with its MD5."""
    content = archive(pixels=np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8))
    site.files["/dermamnist.npz"] = content
    monkeypatch.setitem(INFO["dermamnist"], "url", f"{site.url}/dermamnist.npz?download=1")
    monkeypatch.setitem(INFO["dermamnist"], "MD5", md5(content))
    return content


def leftovers(root):
    return sorted(path.name for path in root.iterdir() if path.name.startswith(".fetching"))


def in_process(root, start, outcomes):
    start.wait()
    try:
        outcomes.put(len(data.prepare("dermamnist", root=root)))
    except Exception as error:
        outcomes.put(repr(error))


def test_a_file_is_fetched_checked_and_then_left_alone(site, dermamnist, tmp_path):
    serve(site)
    said = []
    root = tmp_path / "not" / "there" / "yet"
    assert data.prepare("dermamnist", root=root, say=said.append) == [root / "dermamnist.npz"]
    assert (root / "dermamnist.npz").read_bytes() == dermamnist
    assert said == [f"fetching {site.url}/dermamnist.npz?download=1"]
    assert data.prepare("medmnist:dermamnist", root=root) == []
    assert len(site.requests) == 1
    assert not leftovers(root)


def test_eight_processes_at_once_fetch_once(site, dermamnist, tmp_path):
    site.pause = 0.05
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Event(), context.SimpleQueue()
    workers = [context.Process(target=in_process, args=(tmp_path, start, outcomes)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    serve(site)  # after the forks: no thread of ours is in the middle of something
    start.set()
    for worker in workers:
        worker.join(30)
    assert sorted(outcomes.get() for _ in workers) == [0] * (PROCESSES - 1) + [1]
    assert len(site.requests) == 1
    assert (tmp_path / "dermamnist.npz").read_bytes() == dermamnist


def test_the_next_one_recovers_when_the_holder_is_killed(site, dermamnist, tmp_path):
    site.stall_after = 20_000
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Event(), context.SimpleQueue()
    holder = context.Process(target=in_process, args=(tmp_path, start, outcomes))
    holder.start()
    serve(site)
    start.set()
    until = time.monotonic() + 10
    while not leftovers(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    assert leftovers(tmp_path) and not (tmp_path / "dermamnist.npz").exists()
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(10)
    assert data.prepare("dermamnist", root=tmp_path) == [tmp_path / "dermamnist.npz"]
    assert (tmp_path / "dermamnist.npz").read_bytes() == dermamnist
    assert len(site.requests) == 2
    assert not leftovers(tmp_path)


def test_what_arrives_wrong_is_not_kept(site, dermamnist, tmp_path):
    serve(site)
    site.cut = 1000
    with pytest.raises(DataError, match=rf"expected {len(dermamnist)} bytes, got {len(dermamnist) - 1000}"):
        data.prepare("dermamnist", root=tmp_path)
    site.cut = 0
    site.files["/dermamnist.npz"] = archive(other=np.zeros(10))
    with pytest.raises(DataError, match=f"expected MD5 {md5(dermamnist)}, got"):
        data.prepare("dermamnist", root=tmp_path)
    site.files.clear()
    with pytest.raises(DataError, match=rf"cannot fetch dermamnist.npz: {site.url}.*404"):
        data.prepare("dermamnist", root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".sweep-locks"]


def test_offline_uses_no_network(dermamnist, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was used"))
    with pytest.raises(DataError, match=r"expected the file .*dermamnist\.npz, found none.*--offline"):
        data.prepare("dermamnist", root=tmp_path, offline=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "dermamnist.npz").write_bytes(dermamnist)
    assert data.prepare("dermamnist", root=tmp_path, offline=True) == []


def test_a_file_that_is_there_is_never_replaced(site, dermamnist, tmp_path):
    serve(site)
    other = archive(mine=np.arange(10))
    for content, complaint in ((other, "is not the official file"), (dermamnist[:-100], "is truncated")):
        (tmp_path / "dermamnist.npz").write_bytes(content)
        with pytest.raises(DataError, match=rf"dermamnist\.npz {complaint}.*move this one away"):
            data.prepare("dermamnist", root=tmp_path)
        assert (tmp_path / "dermamnist.npz").read_bytes() == content
    assert not site.requests


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(dermamnist, tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(DataError, match=f"{tmp_path} cannot be written: Permission denied"):
        data.prepare("dermamnist", root=tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "dermamnist.npz").write_bytes(dermamnist)
    tmp_path.chmod(0o555)
    assert data.prepare("dermamnist", root=tmp_path) == []
    tmp_path.chmod(0o755)


def test_mnist_is_unpacked_and_comes_from_the_first_mirror_that_has_it(site, tmp_path, monkeypatch):
    serve(site)
    info = replace(datasets.info("mnist"), train_size=3, test_size=2)
    monkeypatch.setitem(datasets._INFOS, "mnist", info)
    datasets.info.cache_clear()
    contents = [bytes(16 + 3 * 784), bytes(8 + 3), bytes(16 + 2 * 784), bytes(8 + 2)]
    packed = {name: gzip.compress(content) for (name, _), content in zip(MNIST.resources, contents, strict=True)}
    site.files |= {f"/good/{name}": content for name, content in packed.items()}
    monkeypatch.setattr(MNIST, "mirrors", [f"{site.url}/dead/", f"{site.url}/good/"])
    monkeypatch.setattr(MNIST, "resources", [(name, md5(content)) for name, content in packed.items()])
    try:
        fetched = data.prepare("mnist", root=tmp_path)
        assert [file.read_bytes() for file in fetched] == contents
        assert {file.parent for file in fetched} == {tmp_path / "MNIST" / "raw"}
        assert len(site.requests) == 8
        fetched[2].unlink()
        assert data.prepare("mnist", root=tmp_path) == [fetched[2]]
        assert len(site.requests) == 10
    finally:
        datasets.info.cache_clear()


def test_cifar10_is_unpacked(site, tmp_path, monkeypatch):
    serve(site)
    batches = [file for file, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
    contents = {file: file.encode() + b"." for file in (*batches, "batches.meta")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{file}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    site.files["/cifar.tar.gz"] = buffer.getvalue()
    monkeypatch.setattr(CIFAR10, "url", f"{site.url}/cifar.tar.gz")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(buffer.getvalue()))
    for part in ("train_list", "test_list"):
        sums = [[file, md5(contents[file])] for file, _ in getattr(CIFAR10, part)]
        monkeypatch.setattr(CIFAR10, part, sums)
    assert len(data.prepare("cifar10", root=tmp_path)) == 7
    assert {file.name: file.read_bytes() for file in (tmp_path / "cifar-10-batches-py").iterdir()} == contents
    assert datasets.check("cifar10", root=tmp_path) is False


def test_addresses_and_sums_are_the_publishers():
    assert [(d.urls[0], d.md5) for d in data.downloads("svhn")] == [
        (SVHN.split_list[part][0], SVHN.split_list[part][2]) for part in ("train", "test")
    ]
    assert data.downloads("fashionmnist")[0].files == ("FashionMNIST/raw/train-images-idx3-ubyte",)
    assert data.downloads("digits") == []
    for name in data.names():
        for download in data.downloads(name):
            assert all(url.startswith("http") for url in download.urls) and len(download.md5) == 32


def test_what_a_data_set_is_fetched_as_is_what_a_trial_reads(tmp_path):
    for name in data.names():
        files = datasets._files(name)
        read = {file.path for file in files(datasets.info(name), tmp_path)} if files else set()
        assert read <= {tmp_path / file for download in data.downloads(name) for file in download.files}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("npz:/data/mine.npz", "is your own"),
        ("folder:/data/mine", "is your own"),
        ("cifar11", "unknown dataset 'cifar11'; choose from digits, mnist"),
        ("medmnist:chestmnist", "is multi-label"),
        ("medmnist:retinamnist", "is ordinal-regression"),
    ],
)
def test_what_cannot_be_fetched(name, complaint, tmp_path):
    with pytest.raises(DataError, match=complaint):
        data.prepare(name, root=tmp_path)


@pytest.mark.parametrize("official", [True, False])
def test_a_trial_on_unofficial_data_is_tagged(official, tmp_path, monkeypatch):
    arrays = {}
    for part, size in INFO["breastmnist"]["n_samples"].items():
        arrays[f"{part}_images"] = np.zeros((size, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = np.zeros((size, 1), np.uint8)
    content = archive(**arrays)
    (tmp_path / "breastmnist.npz").write_bytes(content)
    monkeypatch.setitem(INFO["breastmnist"], "MD5", md5(content) if official else "0" * 32)
    datasets.load.cache_clear()
    fields = {"model": "mlp", "epsilon": 8, "sampling_rate": 0.02, "steps": 2, "lr": 0.1, "reports": 1}
    plan = TrainingPlan(dataset="medmnist:breastmnist", allow_unofficial=True, **fields)
    *_, message = run_trial(plan, data_root=tmp_path, gpu=0, threads=1)
    datasets.load.cache_clear()
    trial, tags = Trial(plan, 0), {}
    tracker = SimpleNamespace(trial_started=lambda *_, **told: tags.update(told["tags"]))
    _MlflowListener(tracker, SimpleNamespace(trials=[trial]), {trial.id: "trial"}).started(trial, message["info"])
    assert message["end_reason"] == "completed"
    assert tags.get("sweep.data") == (None if official else "unofficial")


def test_early_stopping_may_look_at_a_published_validation_set():
    fields = {"model": "mlp", "epsilon": 8, "sampling_rate": 0.01, "steps": 100, "lr": 0.1}
    rule = {"asha": {"metric": "validation_accuracy"}}
    sweep = {"name": "x", "title": "x", "scheduler": rule}
    assert plan_sweep(Sweep(trial=fields | {"dataset": "dermamnist"}, **sweep)).points
    with pytest.raises(SpecError, match="needs a validation set"):
        plan_sweep(Sweep(trial=fields | {"dataset": "mnist"}, **sweep))


def test_the_commands(site, dermamnist, tmp_path):
    serve(site)
    run = CliRunner().invoke
    prepared = run(app, ["data", "prepare", "digits", "dermamnist", "--root", str(tmp_path)], catch_exceptions=False)
    assert "digits: ready, 0 files fetched" in prepared.output
    assert "dermamnist: ready, 1 files fetched" in prepared.output
    (tmp_path / "bloodmnist.npz").write_bytes(dermamnist)
    listed = run(app, ["data", "list", "--root", str(tmp_path)], catch_exceptions=False).output
    states = {line.split()[0]: line for line in listed.splitlines() if line.strip()}
    assert "ready" in states["digits"] and "ready" in states["dermamnist"] and "missing" in states["svhn"]
    assert "see below" in states["medmnist:bloodmnist"]
    assert "bloodmnist.npz is not the official file" in listed
    assert "no folder given" in run(app, ["data", "list"], env={"DIRDP_DATA": ""}).output


def test_commands_without_a_folder_or_a_network(tmp_path):
    run = CliRunner().invoke
    assert "DIRDP_DATA" in str(run(app, ["data", "prepare", "svhn"], env={"DIRDP_DATA": ""}).exception)
    offline = run(app, ["data", "prepare", "svhn", "--offline", "--root", str(tmp_path)]).exception
    assert isinstance(offline, DataError) and not isinstance(offline, MissingFileError)
