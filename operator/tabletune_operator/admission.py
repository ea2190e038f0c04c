"""Answers an AdmissionReview of a new pod: what the roll-out would write into the pod template, as a JSON patch of the pod. Pure.

A pod is never refused, and whatever is not certain leaves it as it is, with a warning: it then serves as its user wrote it. The patch
is computed from the pod's own container, for its template may be newer than the one that was read. Asked again about a pod that has
everything (another webhook changed it in between), it adds nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune_operator.injection import Injection, WorkloadKey
from tabletune_operator.kinds import KINDS
from tabletune_operator.label_selector import selects
from tabletune_operator.restore import DIGEST_ANNOTATION
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import Target, TargetError, parse_target

API_VERSION = "admission.k8s.io/v1"
LONGEST_WARNING = 250
"""Kubernetes may cut a warning after 256 characters."""

KINDS_TOLD = frozenset({"Deployment", "StatefulSet"})
"""Kinds that mode Admission serves: their pods are known by their controller, and are made from the template that is read."""

_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/name"

Body = Mapping[str, Any]
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`review` goes back as it is. `refusal` says why a pod of `injection`'s target was left as it is; None: it was not."""

    review: Body
    injection: Injection | None
    refusal: str | None


class ReviewError(ValueError):
    """The request is no AdmissionReview, so there is nothing to answer."""


def answer(review: Body, injections: Mapping[WorkloadKey, Injection]) -> Answer:
    """Total for every AdmissionReview: the pod is allowed, with our patch or without.

    Raises:
        ReviewError: it has no request with a uid.
    """
    request = review.get("request")
    uid = request.get("uid") if isinstance(request, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(uid, str):
        raise ReviewError("The body is no AdmissionReview: request.uid is missing.")
    injection: Injection | None = None
    try:
        injection = _injection_for(request, injections)
        operations = [] if injection is None else build_patch(request["object"], injection)
    except TargetError as error:
        return _left(uid, injection, error.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return _left(uid, injection, f"The pod cannot be read ({error!r:.80}).")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}
    return Answer(_review(response), injection, None)


def workload_of(pod: Body, namespace: str) -> WorkloadKey | None:
    """The workload that a new pod belongs to, by its controller; None for any other pod.

    A ReplicaSet's name is its Deployment's with the hash that the pod has as a label. That the Deployment exists is not asked: a
    request to the API server would take longer than the answer may.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    owner = next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), None)
    if owner is None:
        return None
    match owner["apiVersion"], owner["kind"]:
        case "apps/v1", "ReplicaSet":
            suffix = f"-{labels.get('pod-template-hash', '')}"
            name = owner["name"]
            return WorkloadKey(namespace, "Deployment", name.removesuffix(suffix)) if suffix != "-" and name.endswith(suffix) else None
        case "apps/v1", "StatefulSet":
            group = labels.get(_GROUP_LABEL)
            return WorkloadKey(namespace, "StatefulSet" if group is None else "LeaderWorkerSet", group or owner["name"])
    return None


def build_patch(pod: Body, injection: Injection) -> list[Operation]:
    """The JSON patch that gives the pod what the roll-out gives a pod template; empty when it has everything.

    Raises:
        TargetError: the pod is not what the table was measured for, or cannot be changed safely.
    """
    target = _parse(pod, injection)
    if not _has_ours(pod, injection):
        _check_measured(target, injection)
    rollout = build_rollout(request_of(injection, target))
    template = target.kind.template_of(rollout.apply)
    annotations = {**template["metadata"].get("annotations", {}), DIGEST_ANNOTATION: injection.digest}
    operations: list[Operation] = []
    for part, wanted in {**template, "metadata": {**template["metadata"], "annotations": annotations}}.items():
        _merge(f"/{part}", pod.get(part), wanted, operations)
    return operations


def selects_pod(selector: Body, labels: Mapping[str, str]) -> bool:
    """Does a LabelSelector select these labels? An empty one selects nothing here: it is no target's."""
    return bool(selector.get("matchLabels") or selector.get("matchExpressions")) and selects(selector, labels)


def request_of(injection: Injection, target: Target) -> RolloutRequest:
    """The roll-out that mode Patch would make of this target."""
    return RolloutRequest(
        draft_table=injection.draft_table.name,
        target=target,
        config=injection.config,
        controller=injection.controller,
        image=injection.own_image,
        python_path=injection.python_path,
    )


def _injection_for(request: Body, injections: Mapping[WorkloadKey, Injection]) -> Injection | None:
    if request.get("operation") != "CREATE" or (request.get("resource") or {}).get("resource") != "pods" or request.get("subResource"):
        return None
    pod = request["object"]
    key = workload_of(pod, request["namespace"])
    injection = injections.get(key) if key is not None else None
    if injection is None or not selects_pod(injection.selector, pod["metadata"].get("labels") or {}):
        return None
    return injection


def _parse(pod: Body, injection: Injection) -> Target:
    """The pod read as the pod template of its workload."""
    kind, name = KINDS[injection.workload.kind], injection.workload.name
    metadata = {"namespace": injection.workload.namespace, "name": name, "uid": ""}
    workload = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": {"selector": injection.selector}}
    return parse_target(kind.with_template(workload, {"metadata": pod["metadata"], "spec": pod["spec"]}), injection.container)


def _has_ours(pod: Body, injection: Injection) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION) == injection.digest)


def _check_measured(target: Target, injection: Injection) -> None:
    if _image_name(target.image) != _image_name(injection.image):
        raise TargetError(
            "PodDiffers", f"It runs image {_image_name(target.image)}; the table was measured with {_image_name(injection.image)}."
        )
    if target.speculation != injection.speculation:
        raise TargetError("PodDiffers", "Its --speculative-config is another one than that of the target that was measured.")


def _image_name(image: str) -> str:
    """Without registry and folders, which a mirror replaces."""
    return image.rpartition("/")[2]


def _left(uid: str, injection: Injection | None, why: str) -> Answer:
    name = f"DraftTable {injection.draft_table.name}: " if injection is not None else ""
    warning = f"TableTune left this pod as it is. {name}{why}"
    return Answer(_review({"uid": uid, "allowed": True, "warnings": [warning[:LONGEST_WARNING]]}), injection, why)


def _review(response: Body) -> Body:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _merge(path: str, live: Any, wanted: Any, operations: list[Operation]) -> None:
    """What server-side apply does with fields of ours, as operations: maps and lists of named things are merged, others are values."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for name, value in wanted.items():
            _merge(f"{path}/{_escaped(name)}", live.get(name), value, operations)
    elif live and isinstance(live, Sequence) and _key(wanted) is not None:
        key = _key(wanted)
        places = {item.get(key): at for at, item in enumerate(live)}
        for item in wanted:
            at = places.get(item[key])
            if at is None:
                operations.append({"op": "add", "path": f"{path}/-", "value": item})
            else:
                _merge(f"{path}/{at}", live[at], item, operations)
    elif live is None:
        operations.append({"op": "add", "path": path, "value": wanted})
    elif live != wanted:
        operations.append({"op": "replace", "path": path, "value": wanted})


def _key(items: Any) -> str | None:
    """What the items of a list are told apart by; None: the list is one value."""
    if not isinstance(items, list) or not items or not isinstance(items[0], Mapping):
        return None
    return "mountPath" if "mountPath" in items[0] else "name"


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
