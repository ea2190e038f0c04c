"""Who else writes a target, and who wrote the engine's arguments last. Pure; reads an object as the API server gives it.

`args` and `command` are lists that belong to one writer as a whole (server-side apply calls them atomic), so a tool that applies the
user's manifest again and again puts ours back, however it merges. Such an owner is known before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tabletune_operator.loan import FIELD_MANAGER
from tabletune_operator.times import parse_time

Body = Mapping[str, Any]

ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
"""`<application>:<group>/<kind>:<namespace>/<name>`; one that names another object was copied, and Argo CD ignores it too."""
INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Argo CD's older tracking, and a label that Helm charts set by themselves: it needs Argo CD among the field managers."""
FLUX_NAME, FLUX_NAMESPACE = "kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace"
FLUX_RECONCILE, FLUX_APPLY = "kustomize.toolkit.fluxcd.io/reconcile", "kustomize.toolkit.fluxcd.io/ssa"
FLUX_HELM_NAME, FLUX_HELM_NAMESPACE = "helm.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/namespace"
FLUX_HELM_DRIFT = "helm.toolkit.fluxcd.io/driftDetection"
HELM_RELEASE, HELM_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"

ARGUMENTS = ("args", "command")
"""Fields of a container that hold the engine's arguments."""

_LEAVES_ALONE = frozenset({"ignore", "ifnotpresent"})
"""Policies of Flux that never write an object that is there. Not Merge: it keeps fields that the manifest lacks, and `args` is in it."""

_ARGO_MANAGER, _FLUX_MANAGERS = "argocd", frozenset({"kustomize-controller", "helm-controller"})
"""Not `helm` itself: an upgrade is told from a `helm rollback`, by which somebody wants the old setting, by nothing."""


@dataclass(frozen=True, slots=True)
class Owner:
    """`name` is for messages. `fights`: it puts our fields back by itself. `cure`: what to do so that it does not, as an imperative."""

    name: str
    fights: bool
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Writer:
    """A field manager, and when it last wrote."""

    manager: str
    at: datetime | None


def is_loop(manager: str) -> bool:
    """Whether this field manager applies manifests again and again by itself. Any other name may be a person's word."""
    return manager.startswith(_ARGO_MANAGER) or manager in _FLUX_MANAGERS


def find_owner(body: Body) -> Owner | None:
    """The tool that keeps this object as it is written elsewhere; None: nobody is known to. A controller comes before its deployer."""
    metadata = body["metadata"]
    controller = next((r for r in metadata.get("ownerReferences") or () if r.get("controller")), None)
    if controller is not None:
        named = f"{controller['kind']} {controller['name']}"
        return Owner(named, fights=True, cure=f"have {named} written with the setting")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return _argo(body, labels, annotations) or _flux(body, labels, annotations) or _helm(labels, annotations)


def _argo(body: Body, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Owner | None:
    application = _tracked_by(body, annotations.get(ARGO_TRACKING, ""))
    if application is None and INSTANCE_LABEL in labels and any(manager.startswith(_ARGO_MANAGER) for manager in _managers(body)):
        application = labels[INSTANCE_LABEL]
    if application is None:
        return None
    cure = "let it ignore them (ignoreDifferences, RespectIgnoreDifferences=true) and set spec.rollout.ownership to Override"
    return Owner(f"Argo CD application {application}", fights=True, cure=cure)


def _tracked_by(body: Body, tracking: str) -> str | None:
    application, _, what = tracking.partition(":")
    kind, _, where = what.partition(":")
    metadata = body["metadata"]
    if where != f"{metadata.get('namespace')}/{metadata['name']}" or kind.rpartition("/")[2] != body.get("kind"):
        return None
    return application.replace("_", "/", 1)  # of another namespace than Argo CD's: `<namespace>_<application>`


def _flux(body: Body, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Owner | None:
    told = {**labels, **annotations}  # Flux reads its switches in both
    if FLUX_NAME in labels:
        name = f"Flux Kustomization {_path(labels, FLUX_NAMESPACE, FLUX_NAME)}"
        left = told.get(FLUX_RECONCILE, "").lower() == "disabled" or told.get(FLUX_APPLY, "").lower() in _LEAVES_ALONE
        return Owner(name, fights=not left, cure=f"annotate the target with {FLUX_RECONCILE}: disabled")
    if FLUX_HELM_NAME in labels:
        name = f"Flux HelmRelease {_path(labels, FLUX_HELM_NAMESPACE, FLUX_HELM_NAME)}"
        left = told.get(FLUX_HELM_DRIFT, "").lower() == "disabled"
        return Owner(name, fights=not left, cure=f"annotate the target with {FLUX_HELM_DRIFT}: disabled")
    manager = next((manager for manager in _managers(body) if manager in _FLUX_MANAGERS), None)
    return Owner(f"Flux ({manager})", fights=True, cure=f"annotate the target with {FLUX_RECONCILE}: disabled") if manager else None


def _helm(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Owner | None:
    if labels.get("app.kubernetes.io/managed-by") != "Helm" or HELM_RELEASE not in annotations:
        return None
    return Owner(f"Helm release {_path(annotations, HELM_NAMESPACE, HELM_RELEASE)}", fights=False)


def _path(values: Mapping[str, str], namespace: str, name: str) -> str:
    return f"{values[namespace]}/{values[name]}" if namespace in values else values[name]


def find_writer(body: Body, container: str, fields: Sequence[str] = ARGUMENTS) -> Writer | None:
    """Who else owns the arguments of this container, a person before a tool that came later. Where they are as we applied them: who
    else wrote the spec last.

    None: nobody but us, which is also so where we gave the old ones back ourselves (by an update of the whole object).

    Args:
        fields: those of `ARGUMENTS` that we write in this target; each has an owner of its own.
    """
    entries = tuple(_entries(body))
    others = [entry for entry in entries if entry.get("manager") != FIELD_MANAGER]
    for field in fields:
        owning = [entry for entry in entries if _owns(entry.get("fieldsV1") or {}, container, field)]
        theirs = [entry for entry in owning if entry.get("manager") != FIELD_MANAGER]
        if theirs:
            return _last([entry for entry in theirs if not is_loop(entry.get("manager") or "")]) or _last(theirs)
        if any(entry.get("operation") == "Update" for entry in owning):
            return None
        if owning:
            break
    return _last([entry for entry in others if "f:spec" in (entry.get("fieldsV1") or {})])


def _last(entries: Sequence[Body]) -> Writer | None:
    if not entries:
        return None
    last = max(entries, key=lambda entry: str(entry.get("time", "")))
    return Writer(last.get("manager") or "an unnamed writer", parse_time(last["time"]) if "time" in last else None)


def _owns(fields: Body, container: str, field: str) -> bool:
    """Wherever the pod template lies in this kind of object."""
    for key, value in fields.items():
        if not isinstance(value, Mapping):
            continue
        if key == f'k:{{"name":"{container}"}}' and f"f:{field}" in value:
            return True
        if _owns(value, container, field):
            return True
    return False


def _managers(body: Body) -> Iterator[str]:
    return (str(entry.get("manager", "")) for entry in _entries(body))


def _entries(body: Body) -> Iterator[Body]:
    """Those of the object itself: a controller that reports in `status` owns nothing of it."""
    return (entry for entry in body["metadata"].get("managedFields") or () if not entry.get("subresource"))
