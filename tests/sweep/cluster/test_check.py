"""The check of cluster.yaml: the shipped file passes, each broken variant of it is one line that names the fault."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import yaml

from sweep.cluster.check import check, missing_tools
from sweep.cluster.images import Image
from sweep.spec import load

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # local paths are taken from the working folder, as `ray up` takes them


@pytest.fixture(scope="module")
def shipped():
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


@pytest.fixture
def faults(shipped, tmp_path):
    """Check a variant of the shipped file, made by a function that changes it in place."""

    def of(change, sweep=None):
        config = copy.deepcopy(shipped)
        change(config)
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return check(path, sweep=sweep)

    return of


def one(found):
    (line,) = found
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", ["quickstart", "figure2", "table2"])
def test_the_shipped_file_passes(name):
    assert check(ROOT / "cluster.yaml", sweep=load(name)) == []


def test_the_shipped_image_is_the_ray_that_is_tested(shipped):
    assert Image.parse(shipped["docker"]["image"]).ray == ray.__version__


def set_(place, key, value):
    def change(config):
        for part in place:
            config = config[part]
        config[key] = value

    return change


def drop(place, key):
    def change(config):
        for part in place:
            config = config[part]
        del config[key]

    return change


IMAGE = f"rayproject/ray:{ray.__version__}-py3.11.7-gpu"
BROKEN = {
    "unknown key": (set_([], "idle_timeout", 5), "unknown key 'idle_timeout' (did you mean idle_timeout_minutes?)"),
    "legacy key": (set_([], "min_workers", 2), "min_workers: Ray ignores it here; give it to a node type"),
    "legacy head": (set_([], "head_node", {"InstanceType": "m5.large"}), "head_node: Ray ignores it"),
    "no provider type": (drop(["provider"], "type"), "provider.type is missing"),
    "commands as text": (
        set_([], "setup_commands", "pip install dirdp"),
        "setup_commands='pip install dirdp': expected a list",
    ),
    "no resources": (
        drop(["available_node_types", "gpu-worker"], "resources"),
        "available_node_types.gpu-worker.resources is missing",
    ),
    "unknown key of a node type": (
        set_(["available_node_types", "gpu-worker"], "min_worker", 1),
        "available_node_types.gpu-worker: unknown key 'min_worker' (did you mean min_workers?)",
    ),
    "unknown head": (set_([], "head_node_type", "big"), "`head_node_type` must be one of `available_node_types`."),
    "too few workers": (
        set_(["available_node_types", "gpu-worker"], "min_workers", 20),
        "`max_workers` is smaller than the sum of `min_workers`",
    ),
    "missing mount": (set_(["file_mounts"], "/home/ray/mine", "no/such/folder"), "no/such/folder does not exist"),
    "missing key file": (
        set_(["auth"], "ssh_private_key", "no-such.pem"),
        "auth.ssh_private_key: no-such.pem does not exist",
    ),
    "other Ray": (set_(["docker"], "image", "rayproject/ray:2.9.0-py311-gpu"), "has Ray 2.9.0; here is Ray"),
    "old Python": (
        set_(["docker"], "image", f"rayproject/ray:{ray.__version__}-py310"),
        "has Python 3.10; the project needs 3.11",
    ),
    "floating image": (set_(["docker"], "image", "rayproject/ray:latest-gpu"), "latest-gpu is not pinned"),
    "no tag": (set_(["docker"], "image", "rayproject/ray"), "rayproject/ray is not pinned"),
    "another Ray by a command": (
        lambda config: config["setup_commands"].append("pip install 'ray[default]==2.41.0'"),
        "a command installs Ray 2.41.0",
    ),
    "a machine without GPU": (
        set_(["available_node_types", "gpu-worker", "node_config"], "InstanceType", "m6i.2xlarge"),
        "promises 1 GPUs, and InstanceType m6i.2xlarge has none",
    ),
    "no autoscaling": (
        set_([], "head_start_ray_commands", ["ray start --head"]),
        "head_start_ray_commands: no --autoscaling-config",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_variant_is_one_line(faults, kind):
    change, expected = BROKEN[kind]
    assert expected in one(faults(change))


def test_head_and_workers_of_different_pythons_are_refused(faults):
    def change(config):
        config["docker"]["image"] = IMAGE
        config["docker"]["worker_image"] = IMAGE.replace("3.11.7", "3.11.9")

    line = one(faults(change))
    assert "gpu-worker" in line and "Python 3.11.9 and Python 3.11.7 must not meet" in line


def test_a_request_that_no_node_meets_is_refused(faults):
    sweep = load("figure2", overrides=["resources.gpu=8"])
    line = one(faults(lambda config: None, sweep))
    assert "8 GPUs" in line and "gpu-worker 8 CPUs, 1 GPUs" in line
    assert one(faults(set_(["available_node_types", "gpu-worker"], "max_workers", 0), load("figure2")))


def test_data_that_no_node_prepares_is_named(faults):
    found = faults(lambda config: config["setup_commands"].pop(), load("figure2"))
    assert len(found) == 2 and all("sweep data prepare cifar10" in line for line in found)  # the head, the workers


def without_mount(config):
    config["initialization_commands"] = config["initialization_commands"][:1]


def without_volume(config):
    config["docker"]["run_options"].remove("-v /mnt/sweep:/mnt/sweep")


def without_variable(config):
    config["docker"]["run_options"] = [o for o in config["docker"]["run_options"] if "SWEEP_STORAGE" not in o]


def split(config):
    without_variable(config)
    config["docker"]["head_run_options"].append("-e SWEEP_STORAGE=/mnt/sweep/a")
    config["docker"]["worker_run_options"] = ["-e SWEEP_STORAGE=/mnt/sweep/b"]


@pytest.mark.parametrize("change", [without_mount, without_variable, split])
def test_results_must_be_on_shared_storage(faults, change):
    found = faults(change)
    assert found and all(line.startswith("no shared storage: ") for line in found)


def test_a_mount_the_container_does_not_see_is_no_shared_storage(faults):
    def change(config):
        without_volume(config)
        config["docker"]["run_options"].append("-v /home/ubuntu/own:/mnt/sweep")

    assert all("own disk" in line for line in faults(change))


def test_storage_in_the_cloud_or_said_to_be_shared_is_shared(faults):
    def bucket(config):
        without_mount(config)
        without_variable(config)
        config["docker"]["run_options"].append("-e SWEEP_STORAGE=s3://bucket/results")

    def said(config):
        without_mount(config)
        config["metadata"] = {"shared": ["/mnt/sweep"]}

    assert faults(bucket) == faults(said) == []


def test_every_fault_has_its_line(faults):
    def change(config):
        config["min_workers"] = 1
        config["file_mounts"]["/a"] = "no/such"
        config["docker"]["image"] = "rayproject/ray:latest"

    assert len(faults(change)) == 3


@pytest.mark.parametrize("text", ["a: [1", "- a\n- b", ""])
def test_a_file_that_is_no_mapping_is_one_line(tmp_path, text):
    (tmp_path / "cluster.yaml").write_text(text)
    assert one(check(tmp_path / "cluster.yaml"))


def test_a_file_without_containers_can_pass(tmp_path):
    """A cluster of one's own machines, which share a folder anyway."""
    config = {
        "cluster_name": "lab",
        "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]},
        "auth": {"ssh_user": "me"},
        "metadata": {"shared": ["/home"]},
        "setup_commands": ["echo 'export SWEEP_STORAGE=/home/me/results' >> ~/.bashrc"],
    }
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(config))
    assert check(path) == []


# What this machine needs


def command(*arguments, path):
    code = "from sweep.cli import main; main()"
    environment = {**os.environ, "PATH": str(path), "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


@pytest.fixture
def tools(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(*names):
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        return folder

    return put


def test_what_is_missing_here_is_named_and_the_status_is_2(tools):
    done = command("cluster", "check", path=tools("ssh"))
    assert done.returncode == 2
    assert "cluster.yaml: no fault found" in done.stdout and "rsync not found on this machine" in done.stdout
    assert "ssh not found" not in done.stdout


def test_the_shipped_file_passes_without_credentials_from_the_command_line(tools):
    done = command("cluster", "check", "--space", "figure2", path=tools("ssh", "rsync"))
    assert (done.returncode, done.stdout) == (0, "cluster.yaml: no fault found\n")


def test_missing_tools_are_those_not_on_the_path(tools, monkeypatch):
    monkeypatch.setenv("PATH", str(tools("rsync")))
    assert missing_tools() == ["ssh"]
