"""Files for people who keep manifests in Git: the roll-out as a Kustomize overlay and as Helm values; what Argo CD and Flux need. Pure.

The overlay holds exactly what mode Patch would apply. `args` is one list to Kubernetes and to Kustomize, so the overlay holds all of it,
made from the target's arguments as they are now.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tabletune_operator.target import Target

KUSTOMIZATION, PATCH, HELM_VALUES = "kustomization.yaml", "tabletune-patch.yaml", "modelservice-values.yaml"
ARGO_CD, FLUX = "argo-cd.yaml", "flux.yaml"
OVERLAY_FILES = (KUSTOMIZATION, PATCH, HELM_VALUES, ARGO_CD, FLUX)

MOST_BYTES = 128 * 1024
"""Of all these files together: they share a ConfigMap of at most 1 MiB with what was measured."""

MERGED_API_VERSION = "apps/v1"
"""Kustomize merges lists of containers by their names in kinds that it knows; in any other it would replace them."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OverlayRequest:
    """`body` names the target, as what would be applied to it does (rollout.py); `template` is what the overlay brings."""

    draft_table: str
    source: str  # the ConfigMap that holds the files
    target: Target
    body: Body
    template: Body  # its pod template


def build_overlay(request: OverlayRequest) -> Mapping[str, str]:
    """The files by name; none where they would be too large, or where Kustomize would not merge the patch."""
    if request.body["apiVersion"] != MERGED_API_VERSION:
        return {}
    files = {
        KUSTOMIZATION: _kustomization(request),
        PATCH: _patch(request),
        HELM_VALUES: _helm_values(request),
        ARGO_CD: _argo_cd(request),
        FLUX: _flux(request),
    }
    size = sum(len(name) + len(text.encode()) for name, text in files.items())
    return files if size <= MOST_BYTES else {}


def _kustomization(request: OverlayRequest) -> str:
    group, _, version = request.body["apiVersion"].rpartition("/")
    selected = {"group": group, "version": version, "kind": request.body["kind"], "name": request.target.name}
    return _file(
        f"Outer overlay for {_called(request)}, made by TableTune for DraftTable {request.draft_table}. Put it beside {PATCH}, "
        "and name your own kustomization in resources. It must be the outermost: a patch of args that comes after it would undo it.",
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["../base"],
            "patches": [{"path": PATCH, "target": selected}],
        },
    )


def _patch(request: OverlayRequest) -> str:
    body = {
        "apiVersion": request.body["apiVersion"],
        "kind": request.body["kind"],
        # No namespace: a base that leaves it to `kubectl -n` would not match.
        "metadata": {"name": request.target.name},
        "spec": {"template": request.template},
    }
    return _file(
        f"Container {request.target.container} of {_called(request)}. args is one list, so this patch replaces all of it: "
        f"when you change args in your manifest, take this file anew from ConfigMap {request.source}: "
        "it is made again there from what runs.",
        body,
    )


def _helm_values(request: OverlayRequest) -> str:
    pod = request.template["spec"]
    (container,) = pod["containers"]
    decode = {
        **({"initContainers": pod["initContainers"]} if "initContainers" in pod else {}),
        "containers": [container],
        **({"volumes": pod["volumes"]} if "volumes" in pod else {}),
    }
    return _file(
        f"Values of the llm-d modelservice chart for {_called(request)}. Merge them into your own by hand: Helm replaces lists. "
        "args stands here as it runs; what the chart adds by modelCommand (model, port, sizes) stays out of your values.",
        {"decode": decode},
    )


def _argo_cd(request: OverlayRequest) -> str:
    group, _, _ = request.body["apiVersion"].rpartition("/")
    ignored = {
        "group": group,
        "kind": request.body["kind"],
        "name": request.target.name,
        "namespace": request.target.namespace,
        "jqPathExpressions": [
            f'.spec.template.spec.containers[] | select(.name == "{request.target.container}") | {path}' for path in _written_over(request)
        ],
    }
    return _file(
        "For spec.rollout.mode Patch under Argo CD: merge this into your Application. Without it self-heal puts the old args back, and the "
        "DraftTable says ManagedElsewhere. Some versions do not keep fields of list items at sync (argo-cd#17694): try yours, or use mode "
        "ConfigFile or Recommend, which need none of this.",
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "spec": {"ignoreDifferences": [ignored], "syncPolicy": {"syncOptions": ["RespectIgnoreDifferences=true"]}},
        },
    )


def _flux(request: OverlayRequest) -> str:
    names = [c["name"] for c in request.target.template["spec"]["containers"]]
    at = names.index(request.target.container)
    fields = [path.lstrip(".").split("[")[0] for path in _written_over(request)]
    paths = [f"/spec/template/spec/containers/{at}/{field}" for field in dict.fromkeys(fields)]
    rule = {"paths": paths, "target": {"kind": request.body["kind"], "name": request.target.name}}
    kustomization = {
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
        "kind": "Kustomization",
        "spec": {"ignore": [rule]},
    }
    release = {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "spec": {"driftDetection": {"mode": "enabled", "ignore": [rule]}},
    }
    return _file(
        "For spec.rollout.mode Patch under Flux: merge one of these into yours. "
        f"The paths count containers: {at} is {request.target.container} now. A Flux whose Kustomizations "
        "have no spec.ignore (before August 2026) puts args back at every interval; use mode ConfigFile or Recommend there, "
        "which need none of this.",
        kustomization,
        release,
    )


def _written_over(request: OverlayRequest) -> Iterable[str]:
    """Fields that stand in the user's manifest too, so that whoever applies it would put them back; all else of ours is only added."""
    (container,) = request.template["spec"]["containers"]
    yield from (f".{field}" for field in ("command", "args") if field in container)
    theirs = next(c for c in request.target.template["spec"]["containers"] if c["name"] == request.target.container)
    present = {entry["name"] for entry in theirs.get("env") or ()}
    written = [entry["name"] for entry in container.get("env") or () if entry["name"] in present]
    yield from (f'.env[] | select(.name == "{name}") | .value' for name in written)


def _called(request: OverlayRequest) -> str:
    return f"{request.body['kind']} {request.target.name}"


def _file(comment: str, *documents: Body) -> str:
    said = "".join(f"# {line}\n" for line in textwrap.wrap(comment, 118, break_long_words=False, break_on_hyphens=False))
    return said + "---\n".join(yaml.safe_dump(_plain(each), sort_keys=False, width=10**6) for each in documents)


def _plain(value: Any) -> Any:
    """Copies of dictionaries and lists only: the YAML writer knows no others, and makes an anchor of what is there twice."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def overlay_template(template: Body) -> dict[str, Any]:
    """A roll-out's pod template as a manifest may hold it: without the mark of a roll-out, which is the operator's to write."""
    labels = template.get("metadata", {}).get("labels")
    return {**({"metadata": {"labels": labels}} if labels else {}), "spec": template["spec"]}
