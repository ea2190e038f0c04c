"""Who keeps a target, and who wrote it last, as their tools mark it (documentation of Argo CD 3, Flux 2, Helm 3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tabletune_operator.owners import Writer, find_owner, find_writer

KS = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
HR = {"helm.toolkit.fluxcd.io/name": "chat", "helm.toolkit.fluxcd.io/namespace": "llm"}
TRACKED = {"argocd.argoproj.io/tracking-id": "serving:apps/Deployment:llm/decode"}
HELM = {"meta.helm.sh/release-name": "chat", "meta.helm.sh/release-namespace": "llm"}
BY_HELM = {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "chat"}


def entry(
    manager: str, at: str = "2026-11-30T14:00:00Z", *, container: str | None = None, field: str = "args", **more: Any
) -> dict[str, Any]:
    """One of managedFields; `container`: whose args (or other field) it owns."""
    pod: dict[str, Any] = {"f:replicas": {}}
    if container is not None:
        owned = {f'k:{{"name":"{container}"}}': {".": {}, f"f:{field}": {}, "f:name": {}}}
        pod = {"f:template": {"f:spec": {"f:containers": owned}}}
    return {"manager": manager, "operation": "Apply", "time": at, "fieldsV1": {"f:spec": pod}, **more}


def body(labels: Any = None, annotations: Any = None, *managed: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {
            "namespace": "llm",
            "name": "decode",
            "labels": labels or {},
            "annotations": annotations or {},
            "managedFields": list(managed),
            **metadata,
        },
    }


def controlled_by(kind: str) -> dict[str, Any]:
    return body({}, {}, ownerReferences=[{"kind": kind, "name": "chat", "uid": "1", "controller": True}])


@pytest.mark.parametrize(
    ("given", "name", "fights"),
    [
        pytest.param(body({}, TRACKED), "Argo CD application serving", True, id="Argo CD by annotation"),
        pytest.param(
            body({}, {"argocd.argoproj.io/tracking-id": "apps_serving:apps/Deployment:llm/decode"}),
            "Argo CD application apps/serving",
            True,
            id="Argo CD application of another namespace",
        ),
        pytest.param(
            body({"app.kubernetes.io/instance": "serving"}, {}, entry("argocd-controller")),
            "Argo CD application serving",
            True,
            id="Argo CD by label and field manager",
        ),
        pytest.param(body(KS), "Flux Kustomization flux-system/apps", True, id="Flux Kustomization"),
        pytest.param(
            body(KS, {"kustomize.toolkit.fluxcd.io/ssa": "Merge"}), "Flux Kustomization flux-system/apps", True, id="Merge keeps no args"
        ),
        pytest.param(
            body(KS, {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}), "Flux Kustomization flux-system/apps", False, id="switched off"
        ),
        pytest.param(
            body({**KS, "kustomize.toolkit.fluxcd.io/reconcile": "disabled"}), "Flux Kustomization flux-system/apps", False, id="by label"
        ),
        pytest.param(body(KS, {"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}), "Flux Kustomization flux-system/apps", False, id="Ignore"),
        pytest.param(
            body(KS, {"kustomize.toolkit.fluxcd.io/ssa": "IfNotPresent"}), "Flux Kustomization flux-system/apps", False, id="IfNotPresent"
        ),
        pytest.param(body({**HR, **BY_HELM}, HELM), "Flux HelmRelease llm/chat", True, id="a HelmRelease is Flux before it is Helm"),
        pytest.param(
            body(HR, {"helm.toolkit.fluxcd.io/driftDetection": "disabled"}), "Flux HelmRelease llm/chat", False, id="no drift detection"
        ),
        pytest.param(body({}, {}, entry("kustomize-controller")), "Flux (kustomize-controller)", True, id="Flux without its labels"),
        pytest.param(body(BY_HELM, HELM), "Helm release llm/chat", False, id="Helm applies when somebody asks it to"),
        pytest.param(controlled_by("LLMInferenceService"), "LLMInferenceService chat", True, id="KServe"),
    ],
)
def test_the_owner_is_known_by_its_marks(given: dict[str, Any], name: str, fights: bool) -> None:
    found = find_owner(given)
    assert found is not None
    assert (found.name, found.fights) == (name, fights)
    assert found.cure or not fights


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"kind": "Deployment", "metadata": {"namespace": "llm", "name": "decode"}}, id="no marks at all"),
        pytest.param(body({}, {}, entry("kubectl-client-side-apply")), id="kubectl"),
        pytest.param(body({"app.kubernetes.io/instance": "chat"}, {}, entry("kubectl")), id="the label alone is any chart's"),
        pytest.param(body({"app.kubernetes.io/managed-by": "Helm"}), id="no release is named"),
        pytest.param(body({}, {"argocd.argoproj.io/tracking-id": "serving:apps/Deployment:llm/other"}), id="a copy of another's mark"),
        pytest.param(body({}, {"argocd.argoproj.io/tracking-id": "serving"}), id="not a mark of Argo CD's form"),
        pytest.param(body({}, {}, ownerReferences=[{"kind": "X", "name": "y", "uid": "1"}]), id="an owner that is no controller"),
        pytest.param(body({}, {}, entry("argocd-controller", subresource="status")), id="only the status"),
    ],
)
def test_nothing_is_made_up_without_marks(given: dict[str, Any]) -> None:
    assert find_owner(given) is None


def test_the_writer_is_who_owns_the_arguments_now() -> None:
    given = body(
        {},
        {},
        entry("tabletune.io", "2026-11-30T14:10:00Z"),
        entry("helm", "2026-11-30T14:20:00Z"),
        entry("argocd-controller", "2026-11-30T14:15:00Z", container="modelserver"),
        entry("kube-controller-manager", "2026-11-30T14:30:00Z", subresource="status"),
    )
    assert find_writer(given, "modelserver") == Writer("argocd-controller", datetime(2026, 11, 30, 14, 15, tzinfo=UTC))


def test_the_writer_is_the_last_one_when_nobody_owns_the_arguments() -> None:
    given = body({}, {}, entry("helm", "2026-11-30T14:20:00Z"), entry("kubectl-edit", "2026-11-30T14:25:00Z", container="proxy"))
    found = find_writer(given, "modelserver")
    assert found is not None
    assert found.manager == "kubectl-edit"


def test_each_field_has_an_owner_of_its_own() -> None:
    """An apply that has both keeps `command` where we took `args` alone."""
    both = entry("argocd-controller", "2026-11-30T14:00:00Z", container="modelserver", field="command")
    given = body({}, {}, both, entry("kubectl-edit", "2026-11-30T14:20:00Z", container="modelserver"))
    for fields in (("args",), ("args", "command")):
        found = find_writer(given, "modelserver", fields)
        assert found is not None
        assert found.manager == "kubectl-edit"
    found = find_writer(given, "modelserver", ("command",))
    assert found is not None
    assert found.manager == "argocd-controller"


def test_what_we_gave_back_ourselves_is_nobodys() -> None:
    restored = entry("tabletune.io", "2026-11-30T14:40:00Z", container="modelserver", operation="Update")
    given = body({}, {}, entry("helm", "2026-11-30T14:20:00Z"), restored)
    assert find_writer(given, "modelserver") is None


def test_our_own_writes_are_nobody_elses() -> None:
    assert find_writer(body({}, {}, entry("tabletune.io", container="modelserver")), "modelserver") is None
    assert find_writer({"kind": "Deployment", "metadata": {"name": "decode"}}, "modelserver") is None
