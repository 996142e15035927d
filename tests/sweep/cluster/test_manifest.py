"""The Kubernetes manifests under deploy/: valid by Kubernetes' schemas, Ray's reader and our strict model."""

import copy
from pathlib import Path

import pytest
import ray
import yaml

from sweep.cluster.check import check
from sweep.spec import load

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module")
def shipped():
    return yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())


@pytest.fixture
def faults(shipped, tmp_path):
    def of(change, sweep=None):
        config = copy.deepcopy(shipped)
        change(config, config["spec"], config["spec"]["rayClusterSpec"])
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(config))
        return check(path, sweep=sweep)

    return of


def one(found):
    (line,) = found
    assert "\n" not in line
    return line


def test_the_shipped_manifest_passes():
    pytest.importorskip("kubernetes_validate")
    assert check(DEPLOY / "rayjob.yaml", sweep=load("figure2")) == []


def test_what_stands_beside_the_job_is_valid():
    validator = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all((DEPLOY / "mlflow.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["PersistentVolumeClaim"] * 2 + ["Deployment", "Service"]
    for document in documents:
        validator.validate(document, validator.latest_version(), strict=True)


def test_the_manifests_agree_with_each_other(shipped):
    documents = {
        (document["kind"], document["metadata"]["name"]): document
        for document in yaml.safe_load_all((DEPLOY / "mlflow.yaml").read_text())
    }
    cluster = shipped["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]["template"]["spec"]
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in head["volumes"]}
    assert {("PersistentVolumeClaim", claim) for claim in claims} <= documents.keys()
    uri = next(one["value"] for one in head["containers"][0]["env"] if one["name"] == "MLFLOW_TRACKING_URI")
    assert uri == "http://mlflow:5000" and ("Service", "mlflow") in documents
    server = documents["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"][0]
    assert server["image"] == head["containers"][0]["image"]
    assert any("--allowed-hosts=mlflow:5000," in word for word in server["command"])


def test_the_image_is_built_on_the_ray_that_is_tested():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    bases = {line.split()[1] for line in lines if line.startswith("FROM")}
    assert bases == {f"rayproject/ray:{ray.__version__}-py311-gpu"}


def worker(cluster):
    return cluster["workerGroupSpecs"][0]["template"]["spec"]


BROKEN = {
    "unknown field": (
        lambda config, spec, cluster: spec.update(activeDeadlineSecond=5),
        "spec: unknown key 'activeDeadlineSecond' (did you mean activeDeadlineSeconds?)",
    ),
    "unknown field of the cluster": (
        lambda config, spec, cluster: cluster.update(enableAutoscaling=True),
        "spec.rayClusterSpec: unknown key 'enableAutoscaling'",
    ),
    "unknown field of a group": (
        lambda config, spec, cluster: cluster["workerGroupSpecs"][0].update(maxReplica=3),
        "spec.rayClusterSpec.workerGroupSpecs.0: unknown key 'maxReplica' (did you mean maxReplicas?)",
    ),
    "wrong type": (
        lambda config, spec, cluster: spec.update(backoffLimit="3"),
        "spec.backoffLimit='3': input should be a valid integer",
    ),
    "wrong mode": (lambda config, spec, cluster: spec.update(submissionMode="Http"), "spec.submissionMode='Http'"),
    "a number as a start parameter": (
        lambda config, spec, cluster: cluster["headGroupSpec"].update(rayStartParams={"num-cpus": 0}),
        "spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus=0: input should be a valid string",
    ),
    "no deadline": (
        lambda config, spec, cluster: spec.pop("activeDeadlineSeconds"),
        "spec.activeDeadlineSeconds is missing: a job that cannot be scheduled would wait for ever",
    ),
    "no worker comes": (
        lambda config, spec, cluster: cluster.update(enableInTreeAutoscaling=False),
        "no worker would ever come",
    ),
    "other image": (
        lambda config, spec, cluster: worker(cluster)["containers"][0].update(
            image="registry.example.com/sweep:ray2.60.0-py312"
        ),
        "Python 3.12 and Python 3.11 must not meet",
    ),
    "other Ray": (
        lambda config, spec, cluster: cluster.update(rayVersion="2.9.0"),
        "rayVersion='2.9.0'; here is Ray",
    ),
    "own disk": (
        lambda config, spec, cluster: worker(cluster)["volumes"].__setitem__(0, {"name": "storage", "emptyDir": {}}),
        "no shared storage: SWEEP_STORAGE=/mnt/sweep/results is on no volume of workerGroupSpecs.gpu-worker",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_variant_is_one_line(faults, kind):
    change, expected = BROKEN[kind]
    assert expected in one(faults(change))


def test_a_pod_that_kubernetes_would_refuse_is_one_line(faults):
    pytest.importorskip("kubernetes_validate")

    def change(config, spec, cluster):
        worker(cluster)["containers"][0]["volumeMount"] = []

    assert "workerGroupSpecs.gpu-worker" in one(faults(change)) and "volumeMount" in one(faults(change))


def test_a_request_that_no_pod_meets_is_refused(faults):
    """Else the job would wait for its deadline."""
    line = one(faults(lambda *_: None, load("figure2", overrides=["resources.gpu=8"])))
    assert "8 GPUs" in line and "gpu-worker 8 CPUs, 1 GPUs" in line
