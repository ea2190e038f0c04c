"""The API server over HTTP with plain dictionaries: many watchers of one cluster must not each start a kubectl for every look."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from kubernetes import client, config

Body = dict[str, Any]

PREFIXES = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "LeaderWorkerSet": ("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    "LLMInferenceService": ("/apis/serving.kserve.io/v1alpha2", "llminferenceservices"),
    "DraftTable": ("/apis/tabletune.io/v1alpha1", "drafttables"),
}
MANAGER = "tests"


class ApiError(AssertionError):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Api:
    """Used from many threads."""

    http: httpx.Client

    def get(self, kind: str, namespace: str | None, name: str) -> Body | None:
        """None when there is no such object."""
        try:
            return self._send("GET", _path(kind, namespace, name))
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str | None, labels: str = "") -> list[Body]:
        items: list[Body] = self._send("GET", _path(kind, namespace), params={"labelSelector": labels})["items"]
        return items

    def create(self, body: Mapping[str, Any]) -> Body:
        """Strict: a field that the API server does not know is refused, not dropped."""
        path = _path(body["kind"], body["metadata"].get("namespace"))
        return self._send("POST", path, json=body, params={"fieldValidation": "Strict", "fieldManager": MANAGER})

    def patch(self, kind: str, namespace: str | None, name: str, change: Mapping[str, Any], *, strategic: bool = False) -> Body:
        """A merge patch; strategic: lists of named things are merged by name, as kubectl edits do."""
        content = "application/strategic-merge-patch+json" if strategic else "application/merge-patch+json"
        return self._send(
            "PATCH",
            _path(kind, namespace, name),
            content=json.dumps(change),
            headers={"Content-Type": content},
            params={"fieldManager": MANAGER, "fieldValidation": "Strict"},
        )

    def delete(self, kind: str, namespace: str | None, name: str, **options: Any) -> None:
        """Nothing happens when there is no such object. `options` are DeleteOptions."""
        try:
            self._send("DELETE", _path(kind, namespace, name), json={"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ApiError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise

    def post_to_service(self, namespace: str, service: str, path: str, body: Mapping[str, Any], timeout_seconds: float = 60) -> Body:
        """Through the API server, so that it works wherever the cluster is."""
        return self._send("POST", f"{_path('Service', namespace, service)}/proxy/{path}", json=body, timeout=timeout_seconds)

    def get_from_pod(self, namespace: str, pod: str, port: int, path: str) -> Body:
        return self._send("GET", f"{_path('Pod', namespace, f'{pod}:{port}')}/proxy/{path}")

    def watch(self, kind: str, namespace: str, stop: threading.Event) -> Iterator[Body]:
        """Every object of the kind, and every change of one, until `stop` is set."""
        while not stop.is_set():
            with (
                contextlib.suppress(httpx.ReadTimeout),
                self.http.stream("GET", _path(kind, namespace), params={"watch": "true"}, timeout=httpx.Timeout(30, read=1)) as answer,
            ):
                for line in answer.iter_lines():
                    yield json.loads(line)["object"]
                    if stop.is_set():
                        return

    def _send(self, method: str, path: str, **more: Any) -> Body:
        answer = self.http.request(method, path, **more)
        if answer.is_error:
            raise ApiError(answer.status_code, f"{method} {path}: {answer.text[:1000]}")
        body: Body = answer.json()
        return body


@contextlib.contextmanager
def connect(kubeconfig: str) -> Iterator[Api]:
    """The cluster of a kubeconfig's current context."""
    settings = client.Configuration()
    config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    headers = {"Authorization": settings.api_key["authorization"]} if settings.api_key else {}
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=settings.host, verify=context, headers=headers, timeout=30, limits=limits, trust_env=False) as http:
        yield Api(http)


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    prefix, plural = PREFIXES[kind]
    place = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{prefix}{place}/{plural}" + (f"/{name}" if name is not None else "")
