"""The profiling Job's own memory: what it was asked to do, and on which GPU product it runs. Pure; written at creation, read later."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tabletune_operator.crd import GROUP, NodePool
from tabletune_operator.profiling import JobRequest, build_job

REQUEST_ANNOTATION = f"{GROUP}/request"
"""On the Job: digest of what was asked for. Another digest means that spec or target changed since, and the Job is of no use."""

POOL_ANNOTATION = f"{GROUP}/gpu-product"
"""On the Job: GPU product of its pool; one Job at a time on each."""


REPROFILE_ANNOTATION = f"{GROUP}/reprofile"
"""On a DraftTable, by its user: a value that is new asks for one measurement. On the Job: the value that it was made for."""

STOPPED_ANNOTATION = f"{GROUP}/stopped"
"""On a Job that we stopped: why, as sentences."""

_DECIDES_NOTHING = {"policy", "placement", "wait_timeout_seconds"}
"""Fields of spec.profile that say whether and where a Job runs, not what it does."""


def request_digest(request: JobRequest) -> str:
    """Of all that decides what the Job measures, but for what running replicas say (that is in the fingerprint).

    Our own image is no part of it: an operator that was upgraded lets a Job end that its predecessor started.
    """
    template = dict(request.target.template)
    # Annotations of a pod template come and go (kubectl rollout restart) without changing what an engine does.
    template["metadata"] = {"labels": dict(request.target.pod_labels)}
    asked = {
        "profile": request.spec.profile.model_dump(mode="json", exclude=_DECIDES_NOTHING),
        "nodePool": _asked_pool(request.spec.node_pool),
        "speculation": [
            request.speculation.method, request.speculation.model, request.speculation.max_draft_length, dict(request.speculation.options),
        ],
        "template": template,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def build_stop(namespace: str, name: str, uid: str, why: str) -> dict[str, Any]:
    """What to apply so that Kubernetes fails the Job and ends its pods, while the Job stays with the reason on it.

    With its uid this is refused, and makes no new object, when the Job is gone.
    """
    metadata = {"namespace": namespace, "name": name, "uid": uid, "annotations": {STOPPED_ANNOTATION: why}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"activeDeadlineSeconds": 1}}


def _asked_pool(pool: NodePool | None) -> object:
    if pool is None:
        return None
    return dict(pool.node_selector or {}), [toleration.model_dump(mode="json") for toleration in pool.tolerations or ()]


def build_marked_job(request: JobRequest, product: str, reprofile: str | None) -> dict[str, Any]:
    """The Job of profiling.py with our marks; `reprofile` is the annotation's value that it answers, if one asked for it."""
    job = build_job(request)
    job["metadata"]["annotations"] |= {REQUEST_ANNOTATION: request_digest(request), POOL_ANNOTATION: product}
    if reprofile is not None:
        job["metadata"]["annotations"][REPROFILE_ANNOTATION] = reprofile
    return job
