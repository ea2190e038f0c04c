"""A pod as the API server gives it, reduced to what decisions need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tabletune_operator.observation import Pod
from tabletune_operator.restore import DIGEST_ANNOTATION
from tabletune_operator.times import parse_time

_IMAGE_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})

Body = Mapping[str, Any]


def parse_pod(body: Body, engine: str, sidecar: str, *, current: bool = True) -> Pod:
    """`engine` and `sidecar` are names of containers."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    unschedulable = scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else None
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return Pod(
        name=metadata["name"],
        node=spec.get("nodeName"),
        created=parse_time(metadata["creationTimestamp"]),
        started=parse_time(status["startTime"]) if "startTime" in status else None,
        current=current,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata,
        finished=status.get("phase") in {"Succeeded", "Failed"},
        failure=_failure(status) if status.get("phase") == "Failed" else None,
        image_id=_image_id(containers, engine),
        waits_for_gpu=unschedulable is not None and "/gpu" in unschedulable,
        unschedulable=unschedulable,
        image_error=next(filter(None, map(_image_error, containers)), None),
        crash=next(filter(None, map(_crash, containers)), None),
        out_of_memory=next(filter(None, (_out_of_memory(container, spec) for container in containers)), None),
        restarts=sum(c.get("restartCount", 0) for c in containers),
        digest=(metadata.get("annotations") or {}).get(DIGEST_ANNOTATION),
        uid=metadata.get("uid", ""),
        has_sidecar=any(c["name"] == sidecar for c in spec.get("initContainers") or ()),
    )


def _image_id(containers: Iterable[Body], engine: str) -> str | None:
    for container in containers:
        if container["name"] == engine and container.get("imageID"):
            return str(container["imageID"]).rpartition("@")[2]
    return None


def _failure(status: Body) -> str:
    if status.get("reason"):  # the kubelet ended the whole pod: Evicted, DeadlineExceeded
        return f"pod {status['reason']}: {status.get('message', '')}"
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"container {container['name']} ended with exit code {ended['exitCode']} ({ended.get('reason', 'no reason')})"
    return "pod failed"


def _image_error(container: Body) -> str | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in _IMAGE_ERRORS:
        return None
    return f"container {container['name']}: {waiting['reason']} ({waiting.get('message', container.get('image', ''))})"


def _crash(container: Body) -> str | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") != "CrashLoopBackOff":
        return None
    ended = (container.get("lastState") or {}).get("terminated") or {}
    why = f", {ended['reason']}" if ended.get("reason") not in {None, "Error"} else ""
    return f"container {container['name']} ended {container.get('restartCount', 0)} times (exit code {ended.get('exitCode')}{why})"


def _out_of_memory(container: Body, spec: Body) -> str | None:
    """The kernel ended it: a cause of its own, for starting it again changes nothing. Memory of a GPU is the engine's own error."""
    ends = ((container.get(state) or {}).get("terminated") or {} for state in ("state", "lastState"))
    if not any(ended.get("reason") == "OOMKilled" for ended in ends):
        return None
    written: Body = next((c for c in (*(spec.get("initContainers") or ()), *spec["containers"]) if c["name"] == container["name"]), {})
    limit = ((written.get("resources") or {}).get("limits") or {}).get("memory")
    of = f"limit {limit}" if limit else "no limit of its own: its node has no more"
    return f"container {container['name']} was killed for memory ({of})"
