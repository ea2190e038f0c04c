"""Calls to the API server, as plain JSON: a typed client would drop fields that it does not know, and a target is to be given
back byte for byte.

Reads give None when the object is not there; everything else that goes wrong is a ClusterError.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPMethod, HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.rest import RESTResponse

from tabletune_operator.crd import GROUP, PLURAL, VERSION
from tabletune_operator.loan import FIELD_MANAGER

REQUEST_TIMEOUT_SECONDS = 20.0
LIST_LIMIT = 500

JSON = "application/json"
APPLY = "application/apply-patch+yaml"

Body = Mapping[str, Any]

_ROOTS = {
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    "LLMInferenceService": "/apis/{group_version}/namespaces/{namespace}/llminferenceservices",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ReplicaSet": "/apis/apps/v1/namespaces/{namespace}/replicasets",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",  # without a namespace
    "DraftTable": f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}",
}
_INFERENCE_POOLS = (
    "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools",
    "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{namespace}/inferencepools",
)

_SCALED_OBJECTS = "/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"


class ClusterError(Exception):
    """The API server refused or did not answer; `status` is the HTTP status, None without an answer."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class Cluster:
    """One connection to the API server. Close it when the operator ends."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls) -> Cluster:
        """With the pod's service account, else with the kubeconfig of the environment."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def read(self, kind: str, namespace: str, name: str, group_version: str = "") -> Body | None:
        """`group_version` is needed for a kind that is served in several. Also None: the cluster does not have the kind."""
        return await self._find(f"{_ROOTS[kind].format(namespace=namespace, group_version=group_version)}/{name}")

    async def list(self, kind: str, namespace: str, selector: str = "") -> tuple[Body, ...]:
        return await self._list(_ROOTS[kind].format(namespace=namespace), selector) or ()

    async def list_all(self, kind: str, namespaces: Sequence[str], selector: str = "") -> tuple[Body, ...]:
        """Of these namespaces; of every one when none is named."""
        if not namespaces:
            return await self._list(_ROOTS[kind].replace("/namespaces/{namespace}", ""), selector) or ()
        found = await asyncio.gather(*(self.list(kind, namespace, selector) for namespace in namespaces))
        return tuple(body for each in found for body in each)

    async def list_inference_pools(self, namespace: str) -> tuple[Body, ...]:
        """Of every version that the cluster serves; none where the definition is not installed or not readable for us."""
        found: list[Body] = []
        for root in _INFERENCE_POOLS:
            found += await self._list(root.format(namespace=namespace), "", optional=True) or ()
        return tuple(found)

    async def list_scaled_objects(self, namespace: str) -> tuple[Body, ...]:
        """KEDA's; none where it is not installed."""
        return await self._list(_SCALED_OBJECTS.format(namespace=namespace), "", optional=True) or ()

    async def list_nodes(self) -> tuple[Body, ...]:
        return await self._list("/api/v1/nodes", "") or ()

    async def list_scheduled_pods(self) -> tuple[Body, ...] | None:
        """Pods of all namespaces that hold a node; None where we serve single namespaces and may not see the rest."""
        return await self._list("/api/v1/pods", "", optional=True, fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")

    async def create(self, body: Body) -> None:
        """One that exists stays as it is."""
        root = _ROOTS[body["kind"]].format(namespace=body["metadata"]["namespace"])
        try:
            await self._request(HTTPMethod.POST, root, {"fieldManager": FIELD_MANAGER}, body=body)
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    async def apply(self, body: Body, subresource: str = "", manager: str = FIELD_MANAGER) -> None:
        """Server-side apply. Our fields are ours: what a human wrote there before is in the record, so force is right."""
        root = _ROOTS[body["kind"]].format(namespace=body["metadata"].get("namespace"))
        path = f"{root}/{body['metadata']['name']}{subresource}"
        await self._request(HTTPMethod.PATCH, path, {"fieldManager": manager, "force": "true"}, body=body, content_type=APPLY)

    async def replace(self, body: Body) -> None:
        """Write a whole object. Its resource version makes a change by somebody else a conflict (409) instead of a loss."""
        root = _ROOTS[body["kind"]].format(namespace=body["metadata"]["namespace"], group_version=body["apiVersion"])
        await self._request(HTTPMethod.PUT, f"{root}/{body['metadata']['name']}", {"fieldManager": FIELD_MANAGER}, body=body)

    async def delete(self, kind: str, namespace: str, name: str, propagation: str = "Background") -> None:
        """One that is not there is deleted already."""
        path = f"{_ROOTS[kind].format(namespace=namespace)}/{name}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        try:
            await self._request(HTTPMethod.DELETE, path, body=options)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """False: a PodDisruptionBudget does not allow it now. One that is gone, or that another pod follows, is evicted already."""
        path = f"{_ROOTS['Pod'].format(namespace=namespace)}/{pod}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": pod},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._request(HTTPMethod.POST, path, body=body)
        except ClusterError as error:
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                return False
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise
        return True

    async def _find(self, path: str) -> Body | None:
        try:
            return await self._request(HTTPMethod.GET, path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _list(self, path: str, selector: str, *, optional: bool = False, fields: str = "") -> tuple[Body, ...] | None:
        items: list[Body] = []
        following = ""
        while True:
            query = {"limit": str(LIST_LIMIT), "labelSelector": selector, "fieldSelector": fields, "continue": following}
            try:
                page = await self._request(HTTPMethod.GET, path, {name: value for name, value in query.items() if value})
            except ClusterError as error:
                if optional and error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                    return None
                raise
            # Items of a list carry no kind of their own.
            kind, version = page["kind"].removesuffix("List"), page["apiVersion"]
            items += ({"apiVersion": version, "kind": kind, **item} for item in page["items"])
            following = page["metadata"].get("continue", "")
            if not following:
                return tuple(items)

    async def _request(
        self, method: HTTPMethod, path: str, query: Mapping[str, str] | None = None, *, body: Body | None = None, content_type: str = JSON
    ) -> dict[str, Any]:
        call = await self._api.param_serialize(
            method.value,
            path,
            query_params=list((query or {}).items()),
            header_params={"Content-Type": content_type, "Accept": JSON},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response: RESTResponse = await self._api.call_api(*call, _request_timeout=REQUEST_TIMEOUT_SECONDS)
            text = (await response.read()).decode()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ClusterError(None, f"The API server does not answer ({type(error).__name__}) to {method.value} {path}.") from error
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise ClusterError(response.status, f"{method.value} {path}: {_message(text)}")
        answer: dict[str, Any] = json.loads(text)
        return answer


def _message(text: str) -> str:
    """The server's own sentence, out of its Status object if it sent one."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
