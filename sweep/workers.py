"""Whether a worker may run a trial: only with the project and the data of the driver, else its result is another's.

A worker says what it has before it trains. One that has something else hands the trial back; the driver names its node
once and places no further trial there. So it also goes for nodes that join while the sweep runs.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from dirdp import datasets
from dirdp.plan import TrainingPlan
from sweep.spec import Resources
from sweep.version import project_version

if TYPE_CHECKING:
    from sweep.expand import Trial

__all__ = ["Gate", "WorkerError", "data_checksum", "identity", "refusal", "request"]

log = logging.getLogger("sweep")

_NO_DATA = "none: "
_NODE_ID = "ray.io/node-id"  # a label that Ray gives to each node


class WorkerError(ValueError):
    """No node is left that has the driver's project and data; the message names the nodes."""


@lru_cache(maxsize=8)
def data_checksum(name: str, *, root: str | None, allow_unofficial: bool = False) -> str:
    """SHA-256 of what a trial sees of a data set: all images and labels, in order. Raises as `datasets.load` does.

    >>> data_checksum("digits", root=None)[:12] == data_checksum("digits", root=None)[:12]
    True
    """
    data = datasets.load(name, root=root, allow_unofficial=allow_unofficial)
    digest = hashlib.sha256()
    for tensor in (data.train_images, data.train_labels, data.test_images, data.test_labels, *(data.validation or ())):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


def identity(plan: TrainingPlan, *, data_root: str | None) -> dict[str, str]:
    """What must be the same where a trial runs: the project's version, and the data it trains on."""
    try:
        data = data_checksum(plan.dataset, root=data_root, allow_unofficial=plan.allow_unofficial)
    except datasets.DataError as error:
        data = f"{_NO_DATA}{error}"
    return {"project": project_version(), "data": data}


def refusal(expected: Mapping[str, str], plan: TrainingPlan, *, data_root: str | None) -> dict[str, Any] | None:
    """The message of a worker that may not run `plan`; None for one that may. Called in the worker."""
    if not expected:
        return None
    found = identity(plan, data_root=data_root)
    differing = [key for key in expected if found[key] != expected[key]]
    if not differing:
        return None
    parts = [
        f"{'project version' if key == 'project' else f'data of {plan.dataset}'} {_short(found[key])} where the driver "
        f"has {_short(expected[key])}"
        for key in differing
    ]
    return {
        "refused": " and ".join(parts),
        "node": ray.get_runtime_context().get_node_id(),
        "host": socket.gethostname(),
    }


def request(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """What a trial asks of Ray: its resources, on none of the nodes that `Gate.admit` told it to keep away from."""
    bundle = {"CPU": float(config["resources"]["cpu"]), "GPU": float(config["resources"]["gpu"])}
    if not config["away"]:
        return tune.PlacementGroupFactory([bundle])
    elsewhere = {_NODE_ID: f"!in({','.join(config['away'])})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[elsewhere])


class Gate:
    """The driver's side: what workers must have, which nodes were turned away, and the trials these handed back.

    Not `guarded`, it lets everything pass: on this machine alone there is only one project and one data folder.
    """

    def __init__(self, asked: Resources, *, data_root: Path | None, guarded: bool):
        self._asked = asked
        self._root = str(data_root) if data_root else None
        self._guarded = guarded
        self._refused: dict[str, str] = {}  # node id to what is wrong with it
        self._returned: list[Trial] = []
        self._unproven: dict[str, Trial] = {}  # handed out, and nothing heard yet

    def admit(self, trial: Trial) -> dict[str, Any]:
        """Note that a trial is handed out; return what its worker must have, and the nodes to keep away from.

        A driver without the data, which may lie on the workers alone, compares only the project.
        """
        if not self._guarded:
            return {"expects": {}, "away": []}
        self._unproven[trial.id] = trial
        own = identity(trial.plan, data_root=self._root)
        datasets.load.cache_clear()
        expects = {key: value for key, value in own.items() if not value.startswith(_NO_DATA)}
        return {"expects": expects, "away": sorted(self._refused)}

    def passes(self, trial_id: str, message: Mapping[str, Any]) -> bool:
        """Whether a message is a trial's; a refusal takes the trial back and its node out.

        Raises `WorkerError` if it was the last node.
        """
        trial = self._unproven.pop(trial_id, None)
        if "refused" not in message:
            return True
        if trial is not None:
            self._returned.append(trial)
        name = f"node {message['node'][:12]} ({message['host']})"
        if message["node"] not in self._refused:
            self._refused[message["node"]] = f"{name}: {message['refused']}"
            log.warning("%s gets no trial: %s", name, message["refused"])
        self._check_left()
        return False

    def settled(self, trial_id: str) -> None:
        """Note that a trial has ended without a message."""
        self._unproven.pop(trial_id, None)

    def returned(self) -> Trial | None:
        """A trial that was handed back, if there is one."""
        return self._returned.pop(0) if self._returned else None

    @property
    def waiting(self) -> bool:
        """Whether a trial may still be handed back."""
        return bool(self._returned or self._unproven)

    def _check_left(self) -> None:
        able = {
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"]
            and node["Resources"].get("CPU", 0) >= self._asked.cpu
            and node["Resources"].get("GPU", 0) >= self._asked.gpu
        }
        if able <= self._refused.keys():
            raise WorkerError("no node may run a trial: " + "; ".join(self._refused.values()))


def _short(value: str) -> str:
    return value[:12] if len(value) == hashlib.sha256().digest_size * 2 else value
