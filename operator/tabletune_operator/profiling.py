"""The profiling Job: the target's own pod with the engine under our supervisor and the tuner beside it. Pure builders.

The pod stays as near to the target's as it can, for a step time belongs to image, arguments, volumes, environment and node. It must
differ in one way: nothing may send it traffic. InferencePools and Services select by label, and a pod that is Ready is served to.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.profile import Fingerprint
from tabletune_operator.crd import GROUP, DraftTableSpec, NodePool, Toleration
from tabletune_operator.pods import (
    DRAFT_TABLE_LABEL,
    MANAGED_BY,
    PLUGIN_PATH,
    RUN_DIR,
    OwnImage,
    config_map_name,
    job_name,
    literal,
    own_container,
    owner_reference,
    plugin_container,
    shared_mounts,
    shared_volumes,
)
from tabletune_operator.target import Speculation, Target

FINGERPRINT_ANNOTATION = f"{GROUP}/fingerprint"
TUNER_CONTAINER = "tuner"
APP = {"app.kubernetes.io/name": "tabletune-profile"}

GRACE_SECONDS = 300
"""The tuner keeps its own time and writes what it has; the kubelet only ends one that does not."""

_TMP_VOLUME = "tabletune-tmp"
_TOKEN_VOLUME = "tabletune-token"  # noqa: S105 - a volume's name
_PROMPTS_VOLUME = "tabletune-prompts"
_PROMPTS_PATH = "/etc/tabletune/prompts"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where clients look; admission then mounts none of its own
_TOKEN_SECONDS = 3600

# Fields of a pod that place a replica among its fellows, or end it: none of them is about the engine.
_DROPPED_POD_FIELDS = ("topologySpreadConstraints", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "restartPolicy", "nodeName")
_DROPPED_ENGINE_FIELDS = ("args", "ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_DROPPED_PREFIXES = ("llm-d.ai/", f"{GROUP}/", "app.kubernetes.io/", "kubectl.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything that the Job depends on.

    `target` is the one that its user wrote (`parse_target(restore(workload), ...)`). `services` and `pools` are those of the
    namespace, whose labels the pod must not carry. `node_label` is the GPU product label of the nodes to run on; None: any node.
    """

    draft_table: str
    uid: str  # of the DraftTable
    spec: DraftTableSpec
    target: Target
    speculation: Speculation
    fingerprint: Fingerprint
    image: OwnImage
    node_label: tuple[str, str] | None
    services: tuple[Mapping[str, Any], ...]
    pools: tuple[Mapping[str, Any], ...]

    @property
    def own_labels(self) -> dict[str, str]:
        return {**APP, **MANAGED_BY, DRAFT_TABLE_LABEL: self.draft_table}


def build_job(request: JobRequest) -> dict[str, Any]:
    """The Job that measures the target. Before it is created, `find_matching_selectors` must find nothing for its pod's labels."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(request.draft_table),
            "namespace": request.target.namespace,
            "labels": request.own_labels,
            "annotations": {FINGERPRINT_ANNOTATION: request.fingerprint.digest},
            "ownerReferences": [owner_reference(request.draft_table, request.uid)],
        },
        "spec": {
            "backoffLimit": 0,  # a second run costs GPU hours: the operator decides on it, with the reason at hand
            "template": {"metadata": _pod_metadata(request), "spec": _pod_spec(request)},
        },
    }


def find_matching_selectors(
    labels: Mapping[str, str], services: Sequence[Mapping[str, Any]], pools: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Services and InferencePools that would send traffic to a pod with these labels: `Service chat`, `InferencePool chat`."""
    found = [f"Service {s['metadata']['name']}" for s in services if _selects(_service_selector(s), labels)]
    found += [f"InferencePool {p['metadata']['name']}" for p in pools if _selects(_pool_selector(p), labels)]
    return tuple(sorted(found))


def build_job_access(draft_table: str, uid: str, target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    """Role and RoleBinding for the pod's own service account: its Job's progress and its ConfigMap, nothing else."""
    name = job_name(draft_table)
    metadata = {
        "name": name,
        "namespace": target.namespace,
        "labels": {**MANAGED_BY, DRAFT_TABLE_LABEL: draft_table},
        "ownerReferences": [owner_reference(draft_table, uid)],
    }
    files = [config_map_name(draft_table)]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [
            {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [name], "verbs": ["get", "patch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": files, "verbs": ["get", "patch"]},
            # The name of an object that is not there yet cannot be part of a rule.
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": copy.deepcopy(metadata),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": target.service_account, "namespace": target.namespace}],
    }
    return role, binding


def _service_selector(service: Mapping[str, Any]) -> Mapping[str, str] | None:
    return service.get("spec", {}).get("selector") or None  # a Service without a selector selects nothing


def _pool_selector(pool: Mapping[str, Any]) -> Mapping[str, str]:
    selector = pool.get("spec", {}).get("selector") or {}
    # v1 has matchLabels, v1alpha2 the labels themselves. An empty selector would take every pod.
    labels: Mapping[str, str] = selector.get("matchLabels", selector)
    return labels


def _selects(selector: Mapping[str, str] | None, labels: Mapping[str, str]) -> bool:
    return selector is not None and selector.items() <= labels.items()


def _pod_metadata(request: JobRequest) -> dict[str, Any]:
    target = request.target
    selectors = [s for s in map(_service_selector, request.services) if s is not None] + [_pool_selector(p) for p in request.pools]
    selected = {pair for selector in selectors for pair in selector.items()}
    expressions = target.selector.get("matchExpressions") or ()
    own_selector = {*(target.selector.get("matchLabels") or {}), *(e["key"] for e in expressions)}
    kept = {
        key: value
        for key, value in target.pod_labels.items()
        if not key.startswith(_DROPPED_PREFIXES) and key not in own_selector and (key, value) not in selected
    }
    annotations = target.template.get("metadata", {}).get("annotations") or {}
    return {
        "labels": {**kept, **request.own_labels},
        "annotations": {key: value for key, value in annotations.items() if not key.startswith(_DROPPED_PREFIXES)},
    }


def _pod_spec(request: JobRequest) -> dict[str, Any]:
    target, spec = request.target, request.spec
    users = copy.deepcopy(dict(target.template["spec"]))
    pod = {key: value for key, value in users.items() if key not in _DROPPED_POD_FIELDS}
    own_init = [c for c in users.get("initContainers") or [] if c.get("restartPolicy") != "Always"]  # native sidecars route traffic
    (engine,) = (c for c in users["containers"] if c["name"] == target.container)
    given = target.kind.with_given  # this pod is not one of its controller's
    pod["initContainers"] = [*map(given, own_init), plugin_container(request.image), _supervised(given(engine))]
    pod["containers"] = [_tuner(request)]
    claimed = tuple(_claimed(target))
    hidden = {volume["name"] for volume in claimed}  # a claim takes the place of a volume of its name
    pod["volumes"] = [*(v for v in users.get("volumes") or [] if v["name"] not in hidden), *claimed, *_volumes(spec)]
    pod["restartPolicy"] = "Never"
    # On the pod, not on the Job: a Job's clock also runs while the pod waits for a GPU.
    pod["activeDeadlineSeconds"] = spec.profile.timeout_seconds + GRACE_SECONDS
    _place(pod, spec.node_pool, request.node_label)
    if spec.profile.pod_template is not None and spec.profile.pod_template.priority_class_name is not None:
        pod["priorityClassName"] = spec.profile.pod_template.priority_class_name
        for resolved_from_class in ("priority", "preemptionPolicy"):
            pod.pop(resolved_from_class, None)
    return pod


def _supervised(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The user's container as a native sidecar: it stays, and goes when the tuner is done; our supervisor starts the engine in it."""
    kept = {key: value for key, value in engine.items() if key not in _DROPPED_ENGINE_FIELDS}
    return {
        **kept,
        "restartPolicy": "Always",
        "command": ["python3", f"{PLUGIN_PATH}/tabletune_engine/supervise.py", "--run-dir", RUN_DIR],
        "volumeMounts": [*(kept.get("volumeMounts") or []), *shared_mounts()],
    }


def _tuner(request: JobRequest) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        *shared_mounts(),
        {"name": _TMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 - in the container
        {"name": _TOKEN_VOLUME, "mountPath": _TOKEN_PATH, "readOnly": True},
    ]
    if request.spec.profile.prompts is not None:
        mounts.append({"name": _PROMPTS_VOLUME, "mountPath": _PROMPTS_PATH, "readOnly": True})
    return own_container(
        TUNER_CONTAINER,
        request.image,
        ["tabletune-tuner"],
        cpu="100m",
        memory="128Mi",
        memory_limit="1Gi",
        args=[literal(arg) for arg in _tuner_args(request)],
        volumeMounts=mounts,
    )


def _tuner_args(request: JobRequest) -> Iterator[str]:
    profile, target, speculation = request.spec.profile, request.target, request.speculation
    owner = {key: value for key, value in owner_reference(request.draft_table, request.uid).items() if key != "controller"}
    values: dict[str, object] = {
        "--namespace": target.namespace,
        "--config-map": config_map_name(request.draft_table),
        "--job": job_name(request.draft_table),
        "--owner-json": json.dumps(owner),
        "--fingerprint-json": json.dumps(dict(request.fingerprint.fields)),
        "--max-draft-length": speculation.max_draft_length,
        "--method": speculation.method,
        "--drafter": speculation.model,
        "--present-json": json.dumps(target.speculation),
        "--max-batch-size": profile.max_batch_size or target.max_num_seqs,
        "--repeats": profile.repeats,
        "--prompt-tokens": profile.prompt_tokens,
        "--output-tokens": profile.output_tokens,
        "--prompt-count": profile.prompt_count,
        "--prompts-file": f"{_PROMPTS_PATH}/prompts.txt" if profile.prompts is not None else None,
        "--temperature-milli": profile.temperature_milli,
        "--window-seconds": profile.window_seconds,
        "--timeout-seconds": profile.timeout_seconds,
        "--run-dir": RUN_DIR,
        "--engine-url": f"http://127.0.0.1:{target.port}",
    }
    for option, value in values.items():
        if value is not None:
            yield from (option, str(value))
    for tokens in profile.context_tokens or ():
        yield from ("--context-tokens", str(tokens))
    if target.argv != target.start.run:
        yield from ("--engine-args-json", json.dumps(target.argv))
    if target.explicit_off:
        yield "--explicit-off"
    yield from ("--", *target.start.run)


def _volumes(spec: DraftTableSpec) -> Iterator[dict[str, Any]]:
    yield from shared_volumes()
    yield {"name": _TMP_VOLUME, "emptyDir": {}}
    # Only the tuner gets this token: whether the engine has one is the user's own setting.
    yield {
        "name": _TOKEN_VOLUME,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }
    if spec.profile.prompts is not None:
        ref = spec.profile.prompts.config_map_ref
        yield {"name": _PROMPTS_VOLUME, "configMap": {"name": ref.name, "items": [{"key": ref.key, "path": "prompts.txt"}]}}


def _claimed(target: Target) -> Iterator[dict[str, Any]]:
    """A volume of its own for each claim that every replica has one of: theirs are in use, and this one goes with the pod."""
    for claim in target.claims:
        metadata = {field: claim["metadata"][field] for field in ("labels", "annotations") if claim["metadata"].get(field)}
        template = {**({"metadata": metadata} if metadata else {}), "spec": claim["spec"]}
        yield {"name": claim["metadata"]["name"], "ephemeral": {"volumeClaimTemplate": template}}


def _place(pod: dict[str, Any], node_pool: NodePool | None, node_label: tuple[str, str] | None) -> None:
    """Send the pod to the nodes of `node_pool`, or else to those with the target's GPU product."""
    if node_pool is not None and node_pool.tolerations is not None:
        pod["tolerations"] = [*(pod.get("tolerations") or []), *map(_toleration, node_pool.tolerations)]
    if node_pool is not None and node_pool.node_selector is not None:
        pod["nodeSelector"] = dict(node_pool.node_selector)
        pod.get("affinity", {}).pop("nodeAffinity", None)
    elif node_label is not None:
        key, value = node_label
        requirement = {"key": key, "operator": "In", "values": [value]}
        affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
        for term in required["nodeSelectorTerms"]:  # one of the terms must hold, so each gets the product
            term["matchExpressions"] = [*term.get("matchExpressions", []), requirement]


def _toleration(toleration: Toleration) -> dict[str, Any]:
    return toleration.model_dump(by_alias=True, exclude_none=True)
