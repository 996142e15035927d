"""`sweep cluster check`: what is wrong with a file for `ray up` or KubeRay, found here and not on rented machines.

Ray's own schema and validation come first. Then what Ray lets pass and a sweep does not survive: keys it ignores,
mounts that do not exist, nodes that differ, a request no node can meet, results on a disk that goes with its node.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import logging
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import ray
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from dirdp import datasets
from sweep.cluster.images import Image
from sweep.cluster.manifest import autoscaling_config, manifest_faults
from sweep.spec import Sweep, unknown

__all__ = ["TOOLS", "check", "missing_tools"]

TOOLS = {"rsync": "rsync", "ssh": "openssh-client"}
"""What `ray up` calls on the machine it is called on, even for a file without mounts, and Debian's package of it."""

_IGNORED = {
    "min_workers": "Ray ignores it here; give it to a node type under available_node_types",
    "initial_workers": "Ray no longer knows it; give a node type min_workers",
    "autoscaling_mode": "Ray no longer knows it; upscaling_speed says how fast nodes come",
    "target_utilization_fraction": "Ray no longer knows it; upscaling_speed says how fast nodes come",
    "head_node": "Ray ignores it beside available_node_types; put it into node_config of the head's type",
    "worker_nodes": "Ray ignores it beside available_node_types; put it into node_config of a worker's type",
}
_EVERY_NODE = ("initialization_commands", "setup_commands")
_REMOTE = ("s3://", "gs://", "gcs://", "abfs://", "hdfs://")
_MOUNTS = re.compile(r"(^|/)(mount(\.\w+)?|mount-s3|gcsfuse|s3fs|goofys|blobfuse2|ceph-fuse)$")
_WITHOUT_GPU = re.compile(r"^(a1|c|d|h1|hpc|i|m|r|t|u-|x|z)\d?")


def check(path: Path, *, sweep: Sweep | None = None) -> list[str]:
    """The faults of a cluster's file, one line each; none for one that `ray up`, or KubeRay, and a sweep can work with.

    With `sweep`, also whether a node can run its trials and has its data. Nothing outside this machine is asked, and
    no credentials are needed. Local paths are taken as `ray up` takes them, from the working folder.

    Raises `OSError` if the file cannot be read.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [" ".join(str(error).split())]
    if not isinstance(config, dict):
        return ["expected a mapping with cluster_name, provider, available_node_types, …"]
    if "kind" in config:  # a manifest of Kubernetes
        faults = manifest_faults(config)
        return faults or (_resource_faults(_Cluster(autoscaling_config(config)), sweep) if sweep else [])
    faults = [f"{key}: {_IGNORED[key]}" for key in config if key in _IGNORED]
    known = {key: value for key, value in config.items() if key not in _IGNORED}
    if broken := _schema_faults(known) or _ray_faults(known):
        return faults + broken  # the rest would stumble over what is wrong already
    cluster = _Cluster(known)
    faults += _mount_faults(cluster)
    faults += _image_faults(cluster)
    faults += _node_type_faults(cluster)
    faults += _storage_faults(cluster)
    faults += _autoscaling_faults(cluster)
    if sweep is not None:
        faults += _resource_faults(cluster, sweep)
        faults += _data_faults(cluster, sweep)
    return list(dict.fromkeys(faults))


def missing_tools() -> list[str]:
    """The `TOOLS` that are not on this machine's path."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@dataclass(frozen=True)
class _Role:
    """The head, or the workers of one type: all that runs on such a node, and its image."""

    name: str
    image: str | None
    commands: tuple[str, ...]
    run_options: tuple[str, ...]

    def variable(self, name: str) -> str | None:
        """What an environment variable is set to, wherever that is done."""
        for text in (*self.run_options, *self.commands):
            if found := re.search(rf"(?<![\w$]){name}=[\"']?([^\s\"';&]+)", text):
                return found[1]
        return None

    def words(self) -> Iterator[list[str]]:
        """The words of each simple command."""
        for command in self.commands:
            for simple in re.split(r"&&|\|\||[;|\n]", command):
                try:
                    yield shlex.split(simple)
                except ValueError:
                    continue

    def host_path(self, path: str) -> str:
        """Where a path inside the container lies on the machine; without a container, the path itself."""
        for option in self.run_options:
            words = option.replace("--volume=", "-v ").split()
            for flag, volume in itertools.pairwise(words):
                outer, _, inner = volume.partition(":")
                inner = inner.partition(":")[0]
                if flag in ("-v", "--volume") and inner and PurePosixPath(path).is_relative_to(inner):
                    return str(PurePosixPath(outer) / PurePosixPath(path).relative_to(inner))
        return path

    def mounted(self) -> list[str]:
        """Where the node's commands mount a file system."""
        return [words[-1] for words in self.words() if any(map(_MOUNTS.search, words)) and words[-1].startswith("/")]


class _Cluster:
    """What the check asks of a file that satisfies the schema."""

    def __init__(self, config: Mapping[str, Any]):
        self.config = config
        self.node_types: dict[str, dict[str, Any]] = config.get("available_node_types") or {}
        self.head_type = config.get("head_node_type")
        self.docker: dict[str, Any] = config.get("docker") or {}

    @cached_property
    def roles(self) -> list[_Role]:
        docker, types = self.docker, self.node_types
        head = types.get(self.head_type or "", {})
        roles = [
            _Role(
                "head",
                docker.get("head_image") or docker.get("image"),
                self._commands(head, "head"),
                (*docker.get("run_options", ()), *docker.get("head_run_options", ())),
            )
        ]
        for name, kind in types.items():
            if name == self.head_type:
                continue
            own = kind.get("docker") or {}
            options = (*docker.get("run_options", ()), *docker.get("worker_run_options", ()))
            image = own.get("worker_image") or docker.get("worker_image") or docker.get("image")
            roles.append(
                _Role(name, image, self._commands(kind, "worker"), (*options, *own.get("worker_run_options", ())))
            )
        return roles

    def _commands(self, kind: Mapping[str, Any], role: str) -> tuple[str, ...]:
        config = dict(self.config)
        if role == "worker" and "worker_setup_commands" in kind:  # which replace the common ones, too
            config |= {"setup_commands": [], "worker_setup_commands": kind["worker_setup_commands"]}
        if "initialization_commands" in kind:
            config["initialization_commands"] = kind["initialization_commands"]
        keys = (*_EVERY_NODE, f"{role}_setup_commands", f"{role}_start_ray_commands")
        return tuple(command for key in keys for command in config.get(key) or ())


def _schema() -> dict[str, Any]:
    return json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))


def _schema_faults(config: Mapping[str, Any]) -> list[str]:
    errors = jsonschema.Draft7Validator(_schema()).iter_errors(config)
    return [fault for error in errors for fault in _schema_fault(error)]


def _schema_fault(error: jsonschema.ValidationError) -> list[str]:
    """One fault of the schema in lines of ours: the key, its value, and what is valid."""
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        choices = sorted(error.schema.get("properties", {}))
        return [
            f"{where}: {unknown(key, choices)}" if where else unknown(key, choices)
            for key in error.instance
            if key not in choices
        ]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [f"{f'{where}.' if where else ''}{key} is missing" for key in missing]
    if error.validator == "type":
        kind = {"array": "a list", "object": "a mapping", "integer": "a whole number"}.get(error.validator_value)
        return [f"{where}={error.instance!r}: expected {kind or f'a {error.validator_value}'}"]
    return [f"{where}: {error.message}".splitlines()[0]]


def _ray_faults(config: Mapping[str, Any]) -> list[str]:
    """What `ray up` itself would say, after it has filled in its defaults."""
    try:
        with _quiet():
            validate_config(prepare_config(copy.deepcopy(dict(config))))
    except KeyError as error:
        return [f"{error.args[0]} is missing"]
    except ImportError as error:  # other clouds' defaults
        return [f"provider.type={config['provider']['type']!r}: Ray needs a package for it: {error}"]
    except Exception as error:
        said = str(error) or type(error).__name__
        return [" ".join(said.split())]
    return []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, Ray prints none of its hints, which are not faults."""
    logger = logging.getLogger("ray.autoscaler")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


def _mount_faults(cluster: _Cluster) -> list[str]:
    faults = [
        f"file_mounts: {remote}: {local} does not exist, seen from {Path.cwd()}"
        for remote, local in (cluster.config.get("file_mounts") or {}).items()
        if not Path(local).expanduser().exists()
    ]
    key = (cluster.config.get("auth") or {}).get("ssh_private_key")
    if key and not Path(key).expanduser().exists():
        faults.append(f"auth.ssh_private_key: {key} does not exist")
    return faults


def _image_faults(cluster: _Cluster) -> list[str]:
    images = {role.name: Image.parse(role.image) for role in cluster.roles if role.image}
    faults = [f"docker: {fault}" for image in dict.fromkeys(images.values()) for fault in image.faults()]
    head = images.get("head")
    for name, image in images.items():
        if head is not None and image.name != head.name:
            faults.append(f"docker: {name} runs {image.name} and the head {head.name}: {image.difference(head)}")
    if images and len(images) < len(cluster.roles):
        bare = [role.name for role in cluster.roles if role.name not in images]
        faults.append(f"docker: {', '.join(bare)} has no image and the other nodes have one")
    faults += [
        f"a command installs Ray {version}; here is Ray {ray.__version__}: {command}"
        for role in cluster.roles
        for command in role.commands
        for version in re.findall(r"\bray(?:\[[\w,-]+\])?==([\w.]+)", command)
        if version != ray.__version__
    ]
    return faults


def _node_type_faults(cluster: _Cluster) -> list[str]:
    faults = []
    aws = cluster.config["provider"]["type"] == "aws"
    for name, kind in cluster.node_types.items():
        machine = str(kind["node_config"].get("InstanceType", ""))
        if aws and kind["resources"].get("GPU") and _WITHOUT_GPU.match(machine):
            faults.append(
                f"available_node_types.{name}: promises {kind['resources']['GPU']} GPUs, and InstanceType {machine} "
                "has none"
            )
    return faults


def _storage_faults(cluster: _Cluster) -> list[str]:
    """Whether all nodes see one folder of results. `metadata.shared` lists what they share without a mount of ours."""
    shared_anyway = [str(path) for path in (cluster.config.get("metadata") or {}).get("shared", ())]
    faults, seen = [], {}
    for role in cluster.roles:
        storage = role.variable("SWEEP_STORAGE")
        if storage is None:
            faults.append(
                f"no shared storage: {role.name} has no SWEEP_STORAGE; give it to all nodes in docker.run_options "
                "as -e SWEEP_STORAGE=…"
            )
            continue
        seen[role.name] = storage
        if storage.startswith(_REMOTE):
            continue
        place = PurePosixPath(role.host_path(storage))
        if not any(place.is_relative_to(mount) for mount in (*role.mounted(), *shared_anyway)):
            faults.append(
                f"no shared storage: SWEEP_STORAGE={storage} is on the own disk of {role.name}; mount a shared file "
                "system there in initialization_commands, or list the path under metadata.shared if all nodes have it"
            )
    if len(set(seen.values())) > 1:
        faults.append("no shared storage: " + ", ".join(f"{name} has SWEEP_STORAGE={at}" for name, at in seen.items()))
    return faults


def _autoscaling_faults(cluster: _Cluster) -> list[str]:
    commands = cluster.config.get("head_start_ray_commands")
    if commands and not any("--autoscaling-config" in command for command in commands):
        return ["head_start_ray_commands: no --autoscaling-config, so that no worker would ever come"]
    return []


def _resource_faults(cluster: _Cluster, sweep: Sweep) -> list[str]:
    """Whether some node type can run a trial; a resource that a type leaves for Ray to find out counts as there."""
    asked = {"CPU": sweep.resources.cpu, "GPU": sweep.resources.gpu}
    offers = []
    for name, kind in cluster.node_types.items():
        most = kind.get("max_workers", cluster.config.get("max_workers", 1))
        if not most and name != cluster.head_type:
            continue
        resources = kind["resources"]
        if all(resources.get(key, 0 if resources else amount) >= amount for key, amount in asked.items()):
            return []
        offers.append(f"{name} {resources.get('CPU', 0)} CPUs, {resources.get('GPU', 0)} GPUs")
    return [
        f"available_node_types: a trial of {sweep.name} asks for {asked['CPU']} CPUs and {asked['GPU']:g} GPUs and no "
        f"node type has them ({'; '.join(offers)})"
    ]


def _data_faults(cluster: _Cluster, sweep: Sweep) -> list[str]:
    """Whether the commands of each node prepare the published data sets; digits comes with scikit-learn."""
    names = {datasets.canonical(name) for name in _named(sweep, "dataset")} - {"digits"}
    wanted = sorted(name for name in names if not name.startswith(("npz:", "folder:")))
    faults = []
    for role in cluster.roles:
        prepared = {
            datasets.canonical(word)
            for words in role.words()
            if words[:3] == ["sweep", "data", "prepare"]
            for word in words[3:]
        }
        faults += [
            f"{sweep.name} trains on {name}, and no command of {role.name} prepares it: sweep data prepare {name}"
            for name in wanted
            if name not in prepared
        ]
    return faults


def _named(sweep: Sweep, key: str) -> set[str]:
    """The values that a key whose values are names has anywhere in a search space."""
    values = [place[key] for place in (sweep.trial, *sweep.space) if key in place]
    found = set()
    for value in values:
        listed = value["choice"] if isinstance(value, Mapping) else value
        found |= set(listed) if isinstance(listed, list) else {listed}
    return found
