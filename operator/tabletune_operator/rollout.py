"""The roll-out: which fields of the target become ours. Pure; restore.py is the way back.

Server-side apply with only our fields, because `containers`, `env`, `volumes` are maps by name there: what others write beside us
stays theirs. `args` and `command` are lists that belong to one writer as a whole, hence the record of what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.argv import FLAG, ArgvError, with_speculative_config
from tabletune_operator.crd import Controller
from tabletune_operator.pods import (
    DRAFT_TABLE_LABEL,
    ENGINE_SOCKET,
    RUN_DIR,
    OwnImage,
    config_map_name,
    literal,
    own_container,
    plugin_container,
    shared_mounts,
    shared_volumes,
)
from tabletune_operator.restore import (
    DIGEST_ANNOTATION,
    MERGED,
    OWNER_ANNOTATION,
    PYTHON_PATH,
    RECORD_ANNOTATION,
    RECORD_VERSION,
    SOCKET_VARIABLE,
    WARM_UP_VARIABLE,
    canonical,
    container_of,
    template_digest,
)
from tabletune_operator.target import Target, TargetError

SIDECAR_CONTAINER = "tabletune-sidecar"
SIDECAR_PORT = 9478
MOST_WARM_UP_SECONDS, WARM_UP_SHARE = 10, 20

_FILES_VOLUME = "tabletune-files"
_FILES_PATH = "/tabletune/files"


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Everything that the roll-out depends on.

    `target` is the one that its user wrote (`parse_target(restore(workload), ...)`). `config` None rolls speculation off, and
    then needs neither plugin nor sidecar. `python_path` is PYTHONPATH in the engine's container as the profile saw it.
    """

    draft_table: str
    target: Target
    config: Mapping[str, Any] | None
    controller: Controller
    image: OwnImage
    python_path: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """`apply` goes to the API server as it is (server-side, forced: `args` have an owner already); it holds `record` and `digest`."""

    apply: Mapping[str, Any]
    record: str
    digest: str


def build_rollout(request: RolloutRequest) -> Rollout:
    """Our fields of the target.

    Raises:
        TargetError: `EnvironmentNotMergeable` when PYTHONPATH or VLLM_PLUGINS comes from elsewhere, so that ours cannot be added.
    """
    target, container = request.target, container_of(request.target.template, request.target.container)
    present = {variable.name: _entry(container.get("env"), variable.name) for variable in MERGED}
    template = _build_template(request, present)
    digest = hashlib.sha256(canonical(template).encode()).hexdigest()[:12]
    record = json.dumps(
        {
            "formatVersion": RECORD_VERSION,
            "draftTable": request.draft_table,
            "container": target.container,
            "command": container.get("command"),
            "args": container.get("args"),
            "environment": present,
            "templateDigest": template_digest(target.template),
            "applied": template,
        }
    )
    metadata: dict[str, Any] = {"annotations": {DIGEST_ANNOTATION: digest}}
    if request.config is not None:
        metadata["labels"] = {DRAFT_TABLE_LABEL: request.draft_table}  # whose sidecar it is, for Prometheus and for people
    annotated = {"metadata": metadata, **template}
    identity = {
        "apiVersion": target.kind.api_version,
        "kind": target.kind.name,
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "uid": target.uid,  # apply creates what is missing; an object with another uid is refused instead
            "annotations": {RECORD_ANNOTATION: record, OWNER_ANNOTATION: request.draft_table},
        },
    }
    # Never `replicas`: an autoscaler may own it.
    return Rollout(target.kind.with_template(identity, annotated), record, digest)


def _build_template(request: RolloutRequest, present: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    target = request.target
    container: dict[str, Any] = {"name": target.container, **_commands(target, request.config)}
    if request.config is None:
        # Named with their old values: an earlier roll-out of ours may own them, and what an owner stops applying is deleted.
        old = [dict(entry) for entry in present.values() if entry is not None]
        return {"spec": {"containers": [{**container, "env": old} if old else container]}}
    own = {SOCKET_VARIABLE: ENGINE_SOCKET, WARM_UP_VARIABLE: str(warm_up_seconds(target))}
    container["env"] = [*_merge_environment(request, present), *({"name": name, "value": value} for name, value in own.items())]
    container["volumeMounts"] = shared_mounts()
    return {
        "spec": {
            "initContainers": [plugin_container(request.image), _sidecar(request)],
            "containers": [container],
            "volumes": [
                *shared_volumes(),
                # Optional: a replica must start even when somebody deleted the ConfigMap.
                {"name": _FILES_VOLUME, "configMap": {"name": config_map_name(request.draft_table), "optional": True}},
            ],
        }
    }


def warm_up_seconds(target: Target) -> int:
    """What a replica may take to run its draft lengths before it is ready: a twentieth of the time that it may take to start."""
    return max(1, min(MOST_WARM_UP_SECONDS, target.start_deadline_seconds // WARM_UP_SHARE))


def _merge_environment(request: RolloutRequest, present: Mapping[str, Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    merged = []
    for variable in MERGED:
        entry = present[variable.name]
        if entry is not None and "valueFrom" in entry:
            raise TargetError(
                "EnvironmentNotMergeable",
                f"{variable.name} of container {request.target.container} in {request.target.called} comes from a reference, so "
                f"{variable.ours} cannot be added. Nothing was changed. Give it a literal value, or set spec.rollout.mode to Recommend.",
            )
        if entry is not None:
            merged.append({"name": variable.name, "value": variable.with_ours(entry.get("value", ""))})
        elif variable is PYTHON_PATH:
            merged.append({"name": variable.name, "value": variable.with_ours(literal(request.python_path))})
    return merged


def _commands(target: Target, config: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """`args`, or `command` where the flags live there; both when the user wrote speculative flags into both."""
    try:
        if target.flags_in_command:
            return {"command": _written(target.command, config)}
        command = with_speculative_config(target.command, None)
        changed = {} if command == target.command else {"command": list(command)}
        return {**changed, "args": _written(target.args, config)}
    except ArgvError as error:
        raise TargetError(
            "ArgumentNotUnderstood", f"{target.called}, container {target.container}: {error} Nothing was changed."
        ) from error


def _written(args: Sequence[str], config: Mapping[str, Any] | None) -> list[str]:
    written = with_speculative_config(args, config)
    return [literal(arg) if at and written[at - 1] == FLAG else arg for at, arg in enumerate(written)]


def _sidecar(request: RolloutRequest) -> dict[str, Any]:
    controller, target = request.controller, request.target
    options = {
        "--socket": ENGINE_SOCKET,
        "--files": _FILES_PATH,
        "--state-file": f"{RUN_DIR}/sidecar.json",
        "--engine-url": f"http://127.0.0.1:{target.port}",
        "--mode": controller.mode,
        "--prior-weight": controller.prior_weight,
        "--rebuild-every-steps": controller.rebuild_every_steps,
        "--explore-every-steps": controller.explore_every_steps,
        "--prior-decay": controller.prior_decay,
        "--hysteresis": controller.hysteresis,
        "--port": SIDECAR_PORT,
    }
    # Liveness only: a pod is in the pool while all its containers are ready, so a readiness probe here could stop serving.
    return own_container(
        SIDECAR_CONTAINER,
        request.image,
        ["tabletune-sidecar"],
        cpu="20m",
        memory="64Mi",
        memory_limit="256Mi",
        restartPolicy="Always",
        args=[str(item) for pair in options.items() for item in pair],
        ports=[{"name": "tabletune", "containerPort": SIDECAR_PORT, "protocol": "TCP"}],
        livenessProbe={
            "httpGet": {"path": "/healthz", "port": SIDECAR_PORT},
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "timeoutSeconds": 5,
            "failureThreshold": 4,
        },
        volumeMounts=[
            *shared_mounts(),
            {"name": _FILES_VOLUME, "mountPath": _FILES_PATH, "readOnly": True},
        ],
    )


def _entry(entries: Sequence[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any] | None:
    return next((entry for entry in entries or () if entry["name"] == name), None)
