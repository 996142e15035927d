"""The trials of a campaign on Ray Tune: a trainable, and the adapters by which Tune asks and tells the campaign."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from dirdp.plan import TrainingPlan
from sweep.campaign import Campaign, run_trial
from sweep.spec import Resources

__all__ = ["ResourceError", "run_on_ray"]

_RETRIES = 2
_CONNECT_SECONDS = 5.0


class ResourceError(ValueError):
    """No node can run a trial; the message says what was asked for and what there is."""


def run_on_ray(
    campaign: Campaign,
    resources: Resources,
    *,
    folder: Path,
    data_root: Path | None,
    address: str | None = None,
    max_concurrent: int | None = None,
    wait_for_resources: float = 0.0,
) -> None:
    """Run the trials on Ray Tune, on the cluster at `address` ("auto" or host:port) or on one of this machine's own.

    Tune's own state lies in `folder`. `wait_for_resources` is how long to wait for a node that can run a trial, in
    seconds. Raises `ResourceError` if there is none, and whatever `campaign.report` raised.
    """
    # New noise costs anew, which a budget has not set aside.
    retries = _RETRIES if campaign.may_retry else 0
    judge = _Judge(campaign, retries=retries)
    with _connected(address), _scratch(folder):
        _check_resources(resources, wait=wait_for_resources)
        request = {"cpu": resources.cpu, "gpu": resources.gpu}
        tune.Tuner(
            tune.with_resources(_RayTrial, request),
            param_space={
                "data_root": str(data_root) if data_root else None,
                "resources": request,
            },
            tune_config=tune.TuneConfig(
                search_alg=_Search(campaign, judge),
                scheduler=judge,
                num_samples=-1,
                max_concurrent_trials=max_concurrent,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config["trial_id"],
            ),
            run_config=tune.RunConfig(
                name=str(time.time_ns()),
                storage_path=str(folder.absolute()),
                failure_config=tune.FailureConfig(max_failures=retries),
                # Tune's checkpoints stay off: what a trial has done is in our own store.
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
        self._messages = run_trial(plan, data_root=config["data_root"], gpu=resources["gpu"], threads=resources["cpu"])

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

    def __init__(self, campaign: Campaign, judge: _Judge):
        super().__init__()
        self._campaign = campaign
        self._judge = judge
        self._ours: dict[str, str] = {}  # Tune's trial id to the campaign's

    def suggest(self, trial_id: str) -> Any:
        trial = self._campaign.next()
        if trial is not None:
            self._ours[trial_id] = trial.id
            return {"trial_id": trial.id, "plan": trial.plan.model_dump_json()}
        return Searcher.FINISHED if self._campaign.exhausted else None

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

    def __init__(self, campaign: Campaign, *, retries: int):
        super().__init__()
        self._campaign = campaign
        self._retries = retries
        self.failure: Exception | None = None

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        try:
            goes_on = self._campaign.report(trial.config["trial_id"], json.loads(result["message"]))
        except Exception as error:  # an exception here would leave Tune's actors behind
            self.failure = self.failure or error
            self._campaign.cancel()
            goes_on = False
        return TrialScheduler.CONTINUE if goes_on and self.failure is None else TrialScheduler.STOP

    def lost(self, trial_id: str) -> None:
        """Pass on that a trial's process died once too often."""
        try:
            self._campaign.lost(trial_id, f"its process died {self._retries + 1} times")
        except Exception as error:
            self.failure = self.failure or error
            self._campaign.cancel()

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Pass on that a trial starts over; Tune says so at each death, the last one included."""
        if not trial.should_recover():
            return
        try:
            self._campaign.restarts(trial.config["trial_id"])
        except Exception as error:
            self.failure = self.failure or error
            self._campaign.cancel()

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        waiting = (trial for trial in tune_controller.get_trials() if trial.status == "PENDING")
        return next(waiting, None)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Nothing."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        """Nothing: the trial's last message said so."""

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Nothing."""

    def debug_string(self) -> str:
        return "sweep"


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Within, Tune may write into `folder`; afterwards it is gone, since nothing reads what Tune wrote."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Within, Ray is there: the cluster at `address`, or one of our own that then ends and leaves nothing behind."""
    if address and not address.startswith(("auto", "ray://")):
        _check_reachable(address)
    # Tune looks for result files that we do not let it write, and would name each one it misses.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # A short folder, since Ray's socket paths lie below it and have a length limit; "local", since a bare init would
    # join any cluster on this machine.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                ray.init(address="local", include_dashboard=False, _temp_dir=folder, **quiet)
            yield
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ResourceError(f"no Ray cluster answers at --address {address}: {error}") from error


def _check_resources(resources: Resources, *, wait: float) -> None:
    deadline = time.monotonic() + wait
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= resources.cpu and node.get("GPU", 0) >= resources.gpu for node in nodes):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(1)
    have = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise ResourceError(
        f"a trial asks for {resources.cpu} CPUs and {resources.gpu:g} GPUs and no node has them ({have}); lower "
        "resources with --set resources.gpu=0, or wait for an autoscaling cluster with --wait-for-resources SECONDS"
    )
