"""What is wrong with a KubeRay RayJob manifest, which nothing in Ray validates before the cluster does.

The fields of RayJob and RayCluster are read by strict models of KubeRay's v1 types, the RayCluster also goes through
the reader that Ray's own autoscaler has for it, and pod templates through `kubernetes-validate` where it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sweep.cluster.images import Image
from sweep.spec import unknown

__all__ = ["autoscaling_config", "manifest_faults"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[int, Field(ge=1)]
Pod = dict[str, Any]  # checked by Kubernetes' own schema


class _HeadGroup(_Strict):
    rayStartParams: dict[str, str] = {}
    template: Pod
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"] | None = None
    headService: dict[str, Any] | None = None
    enableIngress: bool | None = None
    resources: dict[str, str] = {}
    labels: dict[str, str] = {}


class _WorkerGroup(_Strict):
    groupName: str
    replicas: Count = 0
    minReplicas: Count
    maxReplicas: Count
    numOfHosts: Annotated[int, Field(ge=1)] = 1
    idleTimeoutSeconds: Count | None = None
    suspend: bool | None = None
    rayStartParams: dict[str, str] = {}
    template: Pod
    scaleStrategy: dict[str, Any] | None = None
    resources: dict[str, str] = {}
    labels: dict[str, str] = {}


class _AutoscalerOptions(_Strict):
    version: Literal["v1", "v2"] | None = None
    idleTimeoutSeconds: Count | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    image: str | None = None
    imagePullPolicy: Literal["Always", "Never", "IfNotPresent"] | None = None
    resources: dict[str, Any] | None = None
    env: list[dict[str, Any]] = []
    envFrom: list[dict[str, Any]] = []
    volumeMounts: list[dict[str, Any]] = []
    securityContext: dict[str, Any] | None = None


class _AuthOptions(_Strict):
    mode: Literal["token", "disabled"]
    secretName: str | None = None


class _RayClusterSpec(_Strict):
    rayVersion: str
    headGroupSpec: _HeadGroup
    workerGroupSpecs: Annotated[list[_WorkerGroup], Field(min_length=1)]
    authOptions: _AuthOptions | None = None
    enableInTreeAutoscaling: bool = False
    autoscalerOptions: _AutoscalerOptions | None = None
    headServiceAnnotations: dict[str, str] = {}
    gcsFaultToleranceOptions: dict[str, Any] | None = None
    managedBy: str | None = None
    suspend: bool | None = None


class _SubmitterConfig(_Strict):
    backoffLimit: Count


class _RayJobSpec(_Strict):
    entrypoint: Annotated[str, Field(min_length=1)]
    rayClusterSpec: _RayClusterSpec
    activeDeadlineSeconds: Seconds | None = None
    preRunningDeadlineSeconds: Seconds | None = None
    backoffLimit: Count = 0
    submissionMode: Literal["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"] = "K8sJobMode"
    submitterConfig: _SubmitterConfig | None = None
    submitterPodTemplate: Pod | None = None
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: Count = 0
    deletionStrategy: dict[str, Any] | None = None
    runtimeEnvYAML: str | None = None
    jobId: str | None = None
    metadata: dict[str, str] = {}
    entrypointNumCpus: float = 0
    entrypointNumGpus: float = 0
    entrypointResources: str | None = None
    managedBy: str | None = None
    suspend: bool = False


class _Metadata(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=47)]  # longer ones KubeRay refuses
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _RayJob(_Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: _Metadata
    spec: _RayJobSpec


def manifest_faults(config: Mapping[str, Any]) -> list[str]:
    """The faults of a RayJob manifest, one line each."""
    try:
        job = _RayJob.model_validate(config)
    except ValidationError as error:
        return [_line(one) for one in error.errors()]
    spec = job.spec
    groups = {"headGroupSpec": spec.rayClusterSpec.headGroupSpec.template} | {
        f"workerGroupSpecs.{group.groupName}": group.template for group in spec.rayClusterSpec.workerGroupSpecs
    }
    faults = [fault for name, template in groups.items() for fault in _pod_faults(name, template)]
    if faults:
        return faults
    try:
        autoscaling_config(config)
    except Exception as error:
        return ["rayClusterSpec: " + " ".join(str(error).split())]
    faults += _image_faults(spec.rayClusterSpec.rayVersion, groups)
    faults += [fault for name, template in groups.items() for fault in _storage_faults(name, template)]
    if spec.activeDeadlineSeconds is None:
        faults.append("spec.activeDeadlineSeconds is missing: a job that cannot be scheduled would wait for ever")
    if not spec.rayClusterSpec.enableInTreeAutoscaling and not any(
        group.replicas for group in spec.rayClusterSpec.workerGroupSpecs
    ):
        faults.append("rayClusterSpec: no worker would ever come: replicas 0, and enableInTreeAutoscaling is not true")
    return faults


def autoscaling_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray's autoscaler makes of a manifest; it has the form of a file for `ray up`."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    metadata = {"namespace": "default"} | config["metadata"]
    return _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": config["spec"]["rayClusterSpec"]})


def _line(error: Any) -> str:
    """One fault of the strict models: where, and what is valid."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{'.'.join(str(part) for part in error['loc'][:-1]) or 'manifest'}: " + unknown(
            error["loc"][-1], _fields(error["loc"][:-1])
        )
    if error["type"] == "missing":
        return f"{where} is missing"
    return f"{where}={error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _fields(place: tuple[Any, ...]) -> list[str]:
    """The keys that are valid at a place of the manifest."""
    model: type[BaseModel] = _RayJob
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
            for candidate in candidates:  # Annotated[list[Model], …]
                for inner in getattr(candidate, "__args__", ()):
                    if isinstance(inner, type) and issubclass(inner, BaseModel):
                        model = inner
    return list(model.model_fields)


def _pod_faults(name: str, template: Mapping[str, Any]) -> list[str]:
    if not (template.get("spec") or {}).get("containers"):
        return [f"{name}: template.spec.containers is missing"]
    try:
        import kubernetes_validate as validator
    except ImportError:
        return []
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": dict(template)}
    try:
        validator.validate(pod, validator.latest_version(), strict=True)
    except validator.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        return [f"{name}: {where}: {error.message}".splitlines()[0]]
    return []


def _image_faults(ray_version: str, groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    containers = {name: template["spec"]["containers"][0] for name, template in groups.items()}
    images = {name: Image.parse(str(container.get("image"))) for name, container in containers.items()}
    faults = [fault for image in dict.fromkeys(images.values()) for fault in image.faults()]
    head = images["headGroupSpec"]
    faults += [
        f"{name} runs {image.name} and the head {head.name}: {image.difference(head)}"
        for name, image in images.items()
        if image.name != head.name
    ]
    if ray_version != ray.__version__:
        faults.append(f"rayVersion={ray_version!r}; here is Ray {ray.__version__}, and the two must agree")
    return faults


def _storage_faults(name: str, template: Mapping[str, Any]) -> list[str]:
    container = template["spec"]["containers"][0]
    variables = {one["name"]: one.get("value") for one in container.get("env", ())}
    storage = variables.get("SWEEP_STORAGE")
    if storage is None:
        return [f"no shared storage: {name} has no SWEEP_STORAGE in env"]
    if "://" in storage:
        return []
    shared = {
        volume["name"]
        for volume in template["spec"].get("volumes", ())
        if volume.keys() & {"persistentVolumeClaim", "nfs", "csi", "cephfs", "azureFile"}
    }
    mounts = [mount["mountPath"] for mount in container.get("volumeMounts", ()) if mount["name"] in shared]
    if any(PurePosixPath(storage).is_relative_to(mount) for mount in mounts):
        return []
    return [f"no shared storage: SWEEP_STORAGE={storage} is on no volume of {name} that other pods see"]
