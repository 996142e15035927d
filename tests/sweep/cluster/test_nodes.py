"""Sweeps on clusters of several nodes: nodes that come when they are needed, and nodes that may not take part."""

import os
import subprocess
import sys
import textwrap

import pytest
import yaml

from sweep.campaign import Campaign
from sweep.planning import plan
from sweep.spec import load
from sweep.store import Store

from ..spaces import TEXT, train
from .heads import address, free_port, ray_head

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
SWEEP = """
    import sys
    from pathlib import Path
    from sweep import on_ray
    from sweep.campaign import Campaign
    from sweep.planning import plan
    from sweep.spec import load
    from sweep.store import Store

    folder = Path(sys.argv[1])

    def run(address, **options):
        sweep = load(str(folder / "tiny.yaml"))
        campaign = Campaign(plan(sweep), Store(folder / "cluster"), listeners=[])
        on_ray.run_on_ray(
            campaign, sweep.resources, folder=folder / ".tune", data_root=None, address=address, **options
        )
        assert campaign.complete
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TEXT)
    return tmp_path


def driver(folder, code, *arguments):
    """Run a driver as a process of its own, since Ray has one cluster in a process; give back what it printed."""
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(SWEEP) + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, script, folder, *arguments],
        env=os.environ | SETTINGS,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def results(store):
    """Reports and end of each trial, without the times."""
    return {
        name: (
            record.end_reason,
            [{key: value for key, value in one.items() if key != "steps_per_second"} for one in record.reports],
        )
        for name, record in store.read().items()
    }


def in_process(folder):
    campaign = Campaign(plan(load(str(folder / "tiny.yaml"))), Store(folder / "local"), listeners=[])
    train(campaign)
    return results(Store(folder / "local"))


def test_nodes_come_when_a_sweep_asks_for_more_than_the_head_has(folder):
    """On Ray's fake provider, whose nodes are processes here; the results are those of one process, bit for bit."""
    port, head_id = free_port(), "f" * 51 + "00000"
    config = {
        "cluster_name": "fake",
        "max_workers": 2,
        "idle_timeout_minutes": 2,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": head_id,
            "gcs_address": address(port),
            "launch_multiple": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",  # as the fake provider calls it
        "upscaling_speed": 10,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }
    path = folder / "fake.yaml"
    path.write_text(yaml.safe_dump(config))
    environment = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": head_id,
        "RAY_CLOUD_INSTANCE_ID": head_id,
    }
    code = """
        import ray, time
        from sweep import on_ray

        check = on_ray._check_resources
        def spied(resources, *, wait):
            print("before", ray.cluster_resources().get("CPU", 0))
            check(resources, wait=wait)
        on_ray._check_resources = spied
        shutdown = ray.shutdown
        def last_look():
            if ray.is_initialized():
                print("after", ray.cluster_resources().get("CPU", 0))
            shutdown()
        ray.shutdown = last_look
        while True:
            try:
                run(sys.argv[2], wait_for_resources=300)
                break
            except (on_ray.ResourceError, ConnectionError) as error:  # the head may still be on its way
                if "no node has them" in str(error):
                    raise
                time.sleep(1)
    """
    with ray_head("--num-cpus=0", f"--autoscaling-config={path}", port=port, environment=environment) as head:
        printed, _ = driver(folder, code, head)
    seen = dict(line.split() for line in printed.splitlines() if line.startswith(("before", "after")))
    assert float(seen["before"]) == 0 and float(seen["after"]) >= 1  # the second may still be on its way
    assert results(Store(folder / "cluster")) == in_process(folder)


@pytest.mark.parametrize("kind", ["project", "data"])
def test_a_worker_that_differs_is_named_and_gets_no_trial(folder, kind):
    """Two nodes of one CPU, and one of them has another project or other data."""
    code = """
        import json, os
        from ray.cluster_utils import Cluster

        kind = sys.argv[2]

        class Injected(on_ray._RayTrial):  # made here, so that it travels to the workers by value
            def _refusal(self, plan, config):
                from sweep import workers

                if os.environ.get("OTHER") == "project":
                    workers.project_version = lambda: "0.0.1+other"
                elif os.environ.get("OTHER") == "data":
                    workers.data_checksum = lambda *a, **k: "0" * 64
                return super()._refusal(plan, config)

            def step(self):
                result = super().step()
                if "refused" not in json.loads(result["message"]):
                    with open(FOLDER + "/trained", "a") as file:
                        file.write(os.environ.get("OTHER", "same") + "\\n")
                return result

        FOLDER = str(folder)
        on_ray._RayTrial = Injected
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        other = cluster.add_node(num_cpus=1, env_vars={"OTHER": kind})
        print("other", other.node_id)
        cluster.wait_for_nodes()
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        try:
            run(cluster.address)
        finally:
            cluster.shutdown()
    """
    printed, said = driver(folder, code, kind)
    other = next(line.split()[1] for line in printed.splitlines() if line.startswith("other"))
    (line,) = [line for line in said.splitlines() if "gets no trial" in line]
    assert f"node {other[:12]}" in line
    expected = {"project": "project version 0.0.1+other where the driver has ", "data": "data of digits 000000000000"}
    assert expected[kind] in line
    assert set((folder / "trained").read_text().split()) == {"same"}
    assert results(Store(folder / "cluster")) == in_process(folder)
