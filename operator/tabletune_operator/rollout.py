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

from tabletune_operator.command import CommandError, Written
from tabletune_operator.crd import GROUP, Controller
from tabletune_operator.kinds import put
from tabletune_operator.overlaying import lay_over
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
    INPUTS,
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
from tabletune_operator.target import Target, TargetError, refusal

APPROVE_ANNOTATION = f"{GROUP}/approve"
"""On a DraftTable, by its user: digest of the table (status.table.digest) that may be rolled out. Any other text approves nothing."""

SIDECAR_CONTAINER = "tabletune-sidecar"
SIDECAR_PORT = 9478
MOST_WARM_UP_SECONDS, WARM_UP_SHARE = 10, 20

OWN_IMAGE_FIELDS = ("image", "imagePullPolicy")

FILES_VOLUME = "tabletune-files"
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
    """`apply` goes to the API server as it is (server-side, forced: `args` have an owner already); it holds `record` and `digest`.

    With a resource version it is a whole object, for a kind that is written whole.
    `digest` is of what is written, our own image apart. `inputs` is of what is asked for, however this version writes it.
    """

    apply: Mapping[str, Any]
    record: str
    digest: str
    inputs: str


def build_rollout(request: RolloutRequest) -> Rollout:
    """Our fields of the target.

    Raises:
        TargetError: `EnvironmentNotMergeable` when PYTHONPATH or VLLM_PLUGINS comes from elsewhere, so that ours cannot be added.
    """
    target, container = request.target, container_of(request.target.template, request.target.container)
    written = _written(target, request.config)
    present = {variable.name: _entry(container.get("env"), variable.name) for variable in MERGED}
    template = _build_template(request, present, written)
    digest, inputs = _digest(_without_own_image(template)), _digest(_inputs(request))
    metadata: dict[str, Any] = {"annotations": {DIGEST_ANNOTATION: digest}}
    if request.config is not None and target.kind.takes_labels:
        metadata["labels"] = {DRAFT_TABLE_LABEL: request.draft_table}  # whose sidecar it is, for Prometheus and for people
    elif request.config is not None:
        metadata["annotations"][OWNER_ANNOTATION] = request.draft_table
    annotated = {"metadata": metadata, **template}
    # Never `replicas`: an autoscaler may own it.
    ours = target.kind.with_template({}, annotated) if target.base is not None else put({}, target.template_path, annotated)
    record = json.dumps(
        {
            "formatVersion": RECORD_VERSION,
            "draftTable": request.draft_table,
            "container": target.container,
            "command": container.get("command"),
            "args": container.get("args"),
            "environment": {**present, **{name: _entry(container.get("env"), name) for name in written.environment}},
            "templateDigest": template_digest(target.template),
            "applied": template,
            **({"own": _part(target.base["spec"], ours["spec"]), "ours": ours["spec"]} if target.base is not None else {}),
            INPUTS: inputs,
        }
    )
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
    apply = {**identity, **ours}
    if target.base is not None:
        apply = {**lay_over(target.base, apply), "apiVersion": target.base["apiVersion"]}
    return Rollout(apply, record, digest, inputs)


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:12]


def _inputs(request: RolloutRequest) -> dict[str, Any]:
    """A field that a later version adds changes nothing while it has its default."""
    target = request.target
    return {
        "draftTable": request.draft_table,
        "container": target.container,
        "config": request.config,
        "controller": request.controller.model_dump(mode="json", exclude_defaults=True),
        "port": target.port,
        "warmUpSeconds": warm_up_seconds(target),
        "pythonPath": request.python_path,
    }


def _without_own_image(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = dict(template["spec"])
    if "initContainers" in spec:
        spec["initContainers"] = [{k: v for k, v in c.items() if k not in OWN_IMAGE_FIELDS} for c in spec["initContainers"]]
    return {"spec": spec}


def _part(spec: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the spec that we write into."""
    return {field: spec[field] for field in ours if field in spec}


def _build_template(request: RolloutRequest, present: Mapping[str, Mapping[str, Any] | None], written: Written) -> dict[str, Any]:
    target = request.target
    fields = {"command": written.command, "args": written.args}
    container: dict[str, Any] = {"name": target.container, **{name: value for name, value in fields.items() if value is not None}}
    flags = [{"name": name, "value": value} for name, value in written.environment.items()]
    if request.config is None:
        # Named with their old values: an earlier roll-out of ours may own them, and what an owner stops applying is deleted.
        old = _in_order(target, [*(dict(entry) for entry in present.values() if entry is not None), *flags])
        return {"spec": {"containers": [{**container, "env": old} if old else container]}}
    own = {SOCKET_VARIABLE: ENGINE_SOCKET}
    if _entry(container_of(target.template, target.container).get("env"), WARM_UP_VARIABLE) is None:  # who set it knows better
        own[WARM_UP_VARIABLE] = str(warm_up_seconds(target))
    added = [*_merge_environment(request, present), *flags, *({"name": name, "value": value} for name, value in own.items())]
    container["env"] = _in_order(target, added)
    container["volumeMounts"] = shared_mounts()
    return {
        "spec": {
            "initContainers": [plugin_container(request.image), _sidecar(request)],
            "containers": [container],
            "volumes": [
                *shared_volumes(),
                # Optional: a replica must start even when somebody deleted the ConfigMap.
                {"name": FILES_VOLUME, "configMap": {"name": config_map_name(request.draft_table), "optional": True}},
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


def _in_order(target: Target, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As they stand in the target, new ones last: an apply puts the list in the order of what it sends, and that would stay."""
    there = [entry["name"] for entry in container_of(target.template, target.container).get("env") or ()]
    return sorted(entries, key=lambda entry: there.index(entry["name"]) if entry["name"] in there else len(there))


def _written(target: Target, config: Mapping[str, Any] | None) -> Written:
    try:
        return target.start.write(config, explicit_off=target.explicit_off)
    except CommandError as error:
        raise refusal(target.called, target.container, error) from error


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
            {"name": FILES_VOLUME, "mountPath": _FILES_PATH, "readOnly": True},
        ],
    )


def _entry(entries: Sequence[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any] | None:
    return next((entry for entry in entries or () if entry["name"] == name), None)
