"""The chart's rights on the API server of the tests, without the rest of the chart."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from api_server import ROOT, Api, cluster_binaries

RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "Role": RBAC + "/namespaces/{namespace}/roles",
    "RoleBinding": RBAC + "/namespaces/{namespace}/rolebindings",
    "ClusterRole": RBAC + "/clusterroles",
    "ClusterRoleBinding": RBAC + "/clusterrolebindings",
}
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

Right = tuple[str, str, str, str]
"""API group, resource, subresource, verb."""


def path_of(body: dict[str, Any]) -> str:
    """Where an object of RBAC is created."""
    return PATHS[body["kind"]].format(namespace=body["metadata"].get("namespace"))


@contextmanager
def namespaces(api: Api, *names: str) -> Iterator[None]:
    for name in names:
        api.apply(f"/api/v1/namespaces/{name}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, manager="tests")
    yield
    for name in names:
        api.delete(f"/api/v1/namespaces/{name}")


def is_allowed(api: Api, right: Right, namespace: str, user: str, name: str = "") -> bool:
    """By a SubjectAccessReview; an empty namespace is the cluster, an empty name every object."""
    group, resource, subresource, verb = right
    attributes = {"group": group, "resource": resource, "subresource": subresource, "verb": verb, "namespace": namespace, "name": name}
    spec = {"user": user, "resourceAttributes": attributes}
    answer = api.create(REVIEWS, {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    allowed: bool = answer["status"]["allowed"]
    return allowed


@contextmanager
def chart_rights(api: Api, release: str, *values: str) -> Iterator[None]:
    """The rights of one rendering for a release in this namespace, hooks and all."""
    command = [_helm(), "template", "tt", ROOT / "charts" / "tabletune", "-n", release, "--kube-version", "1.34.0", *values]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bodies = [body for body in yaml.safe_load_all(rendered) if body and body["kind"] in PATHS]
    for body in bodies:
        api.apply(f"{path_of(body)}/{body['metadata']['name']}", body, manager="tests")
    wait_for_rights(api, release)
    yield
    for body in bodies:
        api.delete(f"{path_of(body)}/{body['metadata']['name']}")
    wait_for_rights(api, release)


def wait_for_rights(api: Api, namespace: str) -> None:
    """Until the API server's authorizer knows all that was written before this call.

    It learns of each kind's objects in their order, so it is enough that it knows one written now of each kind.
    """
    for kind in ("Role", "ClusterRole"):
        _wait_for_one(api, kind, namespace)


def _wait_for_one(api: Api, kind: str, namespace: str) -> None:
    name = f"last-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name} | ({"namespace": namespace} if kind == "Role" else {})
    rules = [{"apiGroups": ["tests.tabletune.io"], "resources": [name], "verbs": ["get"]}]
    group = {"apiGroup": RBAC.split("/")[2]}
    binding = {"roleRef": group | {"kind": kind, "name": name}, "subjects": [group | {"kind": "User", "name": name}]}
    bodies = ({"kind": kind, "rules": rules}, {"kind": f"{kind}Binding", **binding})
    written = [{"apiVersion": RBAC.removeprefix("/apis/"), "metadata": metadata, **body} for body in bodies]
    for body in written:
        api.apply(f"{path_of(body)}/{name}", body, manager="tests")
    deadline = time.monotonic() + 30
    while not is_allowed(api, ("tests.tabletune.io", name, "", "get"), namespace, name):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the API server does not honour {kind} {name} after 30 s")
        time.sleep(0.05)
    for body in written:
        api.delete(f"{path_of(body)}/{name}")


def _helm() -> str:
    return shutil.which("helm") or str(cluster_binaries() / "helm")
