"""Our parts in a pod template that its user wrote: plugin, sidecar, their volumes and variables, once an overlay of ours is in Git. Pure.

A roll-out of ours has a record of what was there before (restore.py). A manifest has none, so what is ours is told by its names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from tabletune_operator.pods import DRAFT_TABLE_LABEL, PLUGIN_CONTAINER, RUN_VOLUME, VOLUME
from tabletune_operator.restore import DIGEST_ANNOTATION, MERGED, OWN_VARIABLES
from tabletune_operator.rollout import FILES_VOLUME, SIDECAR_CONTAINER

CONTAINERS = frozenset({PLUGIN_CONTAINER, SIDECAR_CONTAINER})
VOLUMES = frozenset({VOLUME, RUN_VOLUME, FILES_VOLUME})

Template = Mapping[str, Any]


def has_parts(template: Template) -> bool:
    """Do plugin and sidecar stand in it?"""
    return {c["name"] for c in template["spec"].get("initContainers") or ()} >= CONTAINERS


def table_digest(template: Template) -> str | None:
    """Which of our settings its replicas were started for, by the annotation that an overlay or the operator put there."""
    digest: str | None = (template.get("metadata", {}).get("annotations") or {}).get(DIGEST_ANNOTATION)
    return digest


def without_parts(template: Template, container: str | None = None) -> dict[str, Any]:
    """The template as it would be without our parts, arguments apart. `container` is the engine's; None: any may hold our variables."""
    plain = copy.deepcopy(dict(template))
    pod, metadata = plain["spec"], plain.get("metadata", {})
    _keep(pod, "initContainers", lambda item: item["name"] not in CONTAINERS)
    _keep(pod, "volumes", lambda item: item["name"] not in VOLUMES)
    for each in pod["containers"]:
        if container is None or each["name"] == container:
            _keep(each, "volumeMounts", lambda item: item["name"] not in VOLUMES)
            _set(each, "env", _others(each.get("env") or ()))
    _drop(metadata, "annotations", DIGEST_ANNOTATION)
    _drop(metadata, "labels", DRAFT_TABLE_LABEL)
    return plain


def _others(environment: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    merged = {variable.name: variable for variable in MERGED}
    kept = []
    for entry in environment:
        if entry["name"] in OWN_VARIABLES:
            continue
        variable = merged.get(entry["name"])
        if variable is None or variable.ours not in entry.get("value", "").split(variable.separator):
            kept.append(dict(entry))
            continue
        value = variable.without_ours(entry["value"])
        if value:
            kept.append({**entry, "value": value})
    return kept


def _keep(parent: dict[str, Any], field: str, is_kept: Any) -> None:
    if field in parent:
        _set(parent, field, [item for item in parent[field] or () if is_kept(item)])


def _set(parent: dict[str, Any], field: str, items: list[Any]) -> None:
    """An empty list is an absent one: the API server stores none."""
    if items:
        parent[field] = items
    else:
        parent.pop(field, None)


def _drop(metadata: dict[str, Any], field: str, name: str) -> None:
    kept = {key: value for key, value in (metadata.get(field) or {}).items() if key != name}
    if kept:
        metadata[field] = kept
    else:
        metadata.pop(field, None)
