"""Workloads for the builders' tests: the example of llm-d, and small ones that differ from it in one thing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tabletune_operator.crd import DraftTableSpec

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "llm-d-optimized-baseline"


def llm_d() -> dict[str, Any]:
    """The example's Deployment, as the API server would give it back."""
    objects = yaml.safe_load_all((EXAMPLE / "modelserver.yaml").read_text())
    (deployment,) = (o for o in objects if o["kind"] == "Deployment")
    deployment["metadata"] |= {"uid": "d-1", "generation": 4, "resourceVersion": "17"}
    return deployment


def with_container(**fields: Any) -> dict[str, Any]:
    """The example with fields of its engine's container replaced; None removes one."""
    deployment = copy.deepcopy(llm_d())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for name, value in fields.items():
        container.pop(name, None)
        if value is not None:
            container[name] = value
    return deployment


def stateful(*, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The example as a StatefulSet; fields of its spec that are None are left out."""
    made = {**llm_d(), "kind": "StatefulSet", "status": status or {}}
    made["spec"] |= {"serviceName": "chat", **{name: value for name, value in spec.items() if value is not None}}
    return made


def leader_worker_set(*, size: int | None = 1, leader: bool = False, policy: str = "None", **spec: Any) -> dict[str, Any]:
    """The example's pods as groups of one, in the shape of llm-d's guide for several hosts."""
    made = llm_d()
    template, replicas = made["spec"]["template"], made["spec"]["replicas"]
    groups: dict[str, Any] = {"workerTemplate": template, "restartPolicy": policy}
    if leader:
        groups |= {"leaderTemplate": template, "workerTemplate": {"spec": {"containers": [{"name": "other", "image": "i"}]}}}
    if size is not None:
        groups["size"] = size
    made |= {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**made, "spec": {"replicas": replicas, "leaderWorkerTemplate": groups, **spec}}


def spec(**fields: Any) -> DraftTableSpec:
    return DraftTableSpec.model_validate({"targetRef": {"name": "optimized-baseline-nvidia-gpu-vllm-decode"}, **fields})
