"""Pods as the webhook is asked about them, and what their target's new pods are to get."""

from __future__ import annotations

import copy
from typing import Any

from deployments import llm_d

from tabletune_operator.crd import Controller
from tabletune_operator.injection import Injection, WorkloadKey
from tabletune_operator.observation import ObjectRef
from tabletune_operator.pods import OwnImage
from tabletune_operator.restore import restore
from tabletune_operator.target import parse_target

CONFIG = {
    "method": "eagle3",
    "model": "d",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}
IMAGE = OwnImage("tabletune.local/tabletune:dev", "IfNotPresent")
HASH = "7d9c5b8f6"

Body = dict[str, Any]


def pod_of(deployment: Body, **metadata: Any) -> Body:
    """What the Deployment's ReplicaSet creates, as the API server shows it to webhooks."""
    template = copy.deepcopy(deployment["spec"]["template"])
    name = f"{deployment['metadata']['name']}-{HASH}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "rs-1", "controller": True, "blockOwnerDeletion": True}
    labels = {**template["metadata"].get("labels", {}), "pod-template-hash": HASH}
    about = {**template["metadata"], "generateName": f"{name}-", "labels": labels, "ownerReferences": [owner], **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


def injection(deployment: Body | None = None, **fields: Any) -> Injection:
    """For the pods of the Deployment, which was measured as it is; with fields of the injection replaced."""
    target = parse_target(restore(deployment if deployment is not None else llm_d()), None)
    own: Body = {
        "draft_table": ObjectRef(target.namespace, "chat"),
        "workload": WorkloadKey(target.namespace, "Deployment", target.name),
        "selector": target.selector,
        "container": target.container,
        "image": target.image,
        "speculation": target.speculation,
        "config": CONFIG,
        "controller": Controller(),
        "own_image": IMAGE,
        "python_path": "",
    }
    return Injection(**(own | fields))


def review_of(pod: Body, namespace: str = "llm-d-optimized-baseline", **request: Any) -> Body:
    asked = {
        "uid": "r-1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": namespace,
        "object": pod,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
