"""The trials of a campaign on Ray Tune: a trainable, and the adapters by which Tune asks and tells the campaign."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.autoscaler.sdk import request_resources
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dirdp.plan import TrainingPlan
from sweep import workers
from sweep.campaign import Campaign, run_trial
from sweep.spec import Resources
from sweep.storage import Storage, open_storage
from sweep.store import Store
from sweep.workers import Gate

__all__ = ["ResourceError", "run_on_ray"]

_RETRIES = 4
"""Deaths in a row that a trial may have without getting any further: on spot machines they come in bursts."""
_CONNECT_SECONDS = 5.0
_PENDING = 8
"""Trials that wait for a place on a cluster: what an autoscaler sees, so as many nodes may come at once."""


class ResourceError(ValueError):
    """No node can run a trial; the message says what was asked for and what there is."""


def run_on_ray(
    campaign: Campaign,
    resources: Resources,
    *,
    data_root: Path | None,
    address: str | None = None,
    max_concurrent: int | None = None,
    wait_for_resources: float = 0.0,
) -> None:
    """Run the trials on Ray Tune, on the cluster at `address` ("auto" or host:port) or on one of this machine's own.

    `wait_for_resources` is how long to wait for a node that can run a trial, in seconds. Raises `ResourceError` if
    there is none, or if a node does not see the storage, `WorkerError` if no node has the driver's project and data,
    and whatever `campaign.report` raised.
    """
    gate = Gate(resources, data_root=data_root, guarded=address is not None)
    # New noise costs anew, which a budget has not set aside.
    retries = _RETRIES if campaign.may_retry else 0
    judge = _Judge(campaign, gate, retries=retries)
    # Tune's own files are of no use afterwards: what a trial has done is in our store.
    with _connected(address), tempfile.TemporaryDirectory(prefix="tune", ignore_cleanup_errors=True) as scratch:
        _check_resources(resources, wait=wait_for_resources)
        _check_storage(campaign.storage)
        request = {"cpu": resources.cpu, "gpu": resources.gpu}
        tune.Tuner(
            tune.with_resources(_RayTrial, workers.request),
            param_space={
                "data_root": str(data_root) if data_root else None,
                "storage": campaign.storage.uri,
                "resources": request,
            },
            tune_config=tune.TuneConfig(
                search_alg=_Search(campaign, judge, gate),
                scheduler=judge,
                num_samples=-1,
                max_concurrent_trials=max_concurrent,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config["trial_id"],
            ),
            run_config=tune.RunConfig(
                name=str(time.time_ns()),
                storage_path=scratch,
                failure_config=tune.FailureConfig(max_failures=retries),
                # Tune's checkpoints stay off: ours are saved with each report, whatever Tune is doing.
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    if judge.failure is not None:
        raise judge.failure


class _RayTrial(tune.Trainable):
    """One trial in an actor, which afterwards serves the next one."""

    def setup(self, config: dict[str, Any]) -> None:
        plan, resources = TrainingPlan.model_validate_json(config["plan"]), config["resources"]
        if refusal := self._refusal(plan, config):
            self._messages = (message for message in [refusal])
            return
        self._messages = run_trial(
            plan,
            data_root=config["data_root"],
            gpu=resources["gpu"],
            threads=resources["cpu"],
            checkpoints=Store(open_storage(config["storage"])).checkpoints(config["trial_id"]),
        )

    def _refusal(self, plan: TrainingPlan, config: dict[str, Any]) -> dict[str, Any] | None:
        return workers.refusal(config["expects"], plan, data_root=config["data_root"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._messages.close()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        # Text, so that Tune neither flattens nor converts the values.
        return {"message": json.dumps(next(self._messages))}


class _Unsaved:
    """Tune pickles its parts for a restore; ours start from the store instead, so there is nothing to keep."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Search(_Unsaved, Searcher):
    """Tune asks it for the next trial, and tells it when it has given one up."""

    def __init__(self, campaign: Campaign, judge: _Judge, gate: Gate):
        super().__init__()
        self._campaign = campaign
        self._judge = judge
        self._gate = gate
        self._ours: dict[str, str] = {}  # Tune's trial id to the campaign's

    def suggest(self, trial_id: str) -> Any:
        if self._judge.failure is not None:
            return Searcher.FINISHED
        trial = self._gate.returned() or self._campaign.next()
        if trial is not None:
            self._ours[trial_id] = trial.id
            return {"trial_id": trial.id, "plan": trial.plan.model_dump_json(), **self._gate.admit(trial)}
        return Searcher.FINISHED if self._campaign.exhausted and not self._gate.waiting else None

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Note an error: it is one that is not tried again. Of any other end the campaign has heard from the judge."""
        if error:
            self._judge.lost(self._ours[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the store is what a later run starts from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as `save`."""


class _Judge(_Unsaved, TrialScheduler):
    """Tune shows it every result; it passes them to the campaign and stops the trials that do not go on."""

    def __init__(self, campaign: Campaign, gate: Gate, *, retries: int):
        super().__init__()
        self._campaign = campaign
        self._gate = gate
        self._retries = retries
        self.failure: Exception | None = None

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        name = trial.config["trial_id"]
        try:
            message, known = json.loads(result["message"]), self._campaign.step(name)
            goes_on = self._gate.passes(name, message) and self._campaign.report(name, message)
            if self._campaign.step(name) > known:
                trial.run_metadata.num_failures = 0  # deaths count since the last progress: nodes may come and go
        except Exception as error:  # an exception here would leave Tune's actors behind
            self.failure = self.failure or error
            self._campaign.cancel()
            goes_on = False
        return TrialScheduler.CONTINUE if goes_on and self.failure is None else TrialScheduler.STOP

    def lost(self, trial_id: str) -> None:
        """Pass on that a trial's process died once too often."""
        try:
            self._gate.settled(trial_id)
            self._campaign.lost(trial_id, f"its process died {self._retries + 1} times without getting any further")
        except Exception as error:
            self.failure = self.failure or error
            self._campaign.cancel()

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Nothing: Tune says so at each death, even if it tries again."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        waiting = (trial for trial in tune_controller.get_trials() if trial.status == "PENDING")
        return next(waiting, None)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Nothing."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        """Drop Tune's statistics of the trial: nobody asks for them, and over a long sweep they add up."""
        kept = trial.run_metadata
        kept.last_result = {}
        kept.metric_analysis.clear()
        kept.metric_n_steps.clear()

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Nothing."""

    def debug_string(self) -> str:
        return "sweep"


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Within, Ray is there: the cluster at `address`, or one of our own that then ends and leaves nothing behind."""
    if address and not address.startswith(("auto", "ray://")):
        _check_reachable(address)
    # A snapshot of all trials every few seconds would serve a restore by Tune; ours starts from the store.
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "inf")
    # Tune looks for result files that we do not let it write, and would name each one it misses.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    logging.getLogger("ray.tune.execution.tune_controller").addFilter(_without_traceback)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # A short folder, since Ray's socket paths lie below it and have a length limit; "local", since a bare init would
    # join any cluster on this machine.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        try:
            if address:
                os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", str(_PENDING))
                ray.init(address=address, **quiet)
            else:
                ray.init(address="local", include_dashboard=False, _temp_dir=folder, **quiet)
            yield
        finally:
            ray.shutdown()


def _without_traceback(record: logging.LogRecord) -> bool:
    """A trial raises nothing, so that what Tune reports is a death; where Ray has noticed it is of no help."""
    record.exc_info = None
    return True


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ResourceError(f"no Ray cluster answers at --address {address}: {error}") from error


def _check_resources(resources: Resources, *, wait: float) -> None:
    deadline = time.monotonic() + wait
    asked = False
    try:
        while True:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if any(node.get("CPU", 0) >= resources.cpu and node.get("GPU", 0) >= resources.gpu for node in nodes):
                return
            if time.monotonic() >= deadline:
                break
            if not asked:  # an autoscaling cluster starts no node before somebody wants one
                request_resources(bundles=[{"CPU": resources.cpu, "GPU": resources.gpu}])
                asked = True
            time.sleep(1)
    finally:
        if asked:
            request_resources(bundles=[])
    have = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise ResourceError(
        f"a trial asks for {resources.cpu} CPUs and {resources.gpu:g} GPUs and no node has them ({have}); lower "
        "resources with --set resources.gpu=0, or wait for an autoscaling cluster with --wait-for-resources SECONDS"
    )


def _check_storage(storage: Storage) -> None:
    """Each node must see what the driver writes: a trial's checkpoints would else be lost with its node."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    token = f".seen-{uuid.uuid4().hex}"
    storage.write(token, b"")
    try:
        there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        sees = ray.remote(num_cpus=0)(_sees)
        asked = [sees.options(scheduling_strategy=place).remote(storage.uri, token) for place in there]
        for node, found in zip(nodes, ray.get(asked), strict=True):
            if not found:
                raise ResourceError(
                    f"node {node['NodeManagerHostname']} does not see the storage {storage}; give a --storage that "
                    "all nodes share: a mounted file system, s3:// or gs://"
                )
    finally:
        storage.delete(token)


def _sees(uri: str, name: str) -> bool:
    return open_storage(uri).read(name) is not None
