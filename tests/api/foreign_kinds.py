"""Small definitions of kinds that others ship: the same group, version and kind, and of the schema only what roll-outs depend on.

They are no copies. Which lists are maps by a key decides what server-side apply leaves to others, so that much is as in the real
ones; every other field is taken as it comes (x-kubernetes-preserve-unknown-fields).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from api_server import Api, RefusedError

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANY = {"x-kubernetes-preserve-unknown-fields": True}
READY_SECONDS = 60


def by_key(*keys: str, **properties: Any) -> dict[str, Any]:
    """A list that is a map by these keys."""
    item = {"type": "object", "required": [*keys], "properties": {key: {"type": "string"} for key in keys} | properties, **ANY}
    return {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*keys], "items": item}


CONTAINERS = by_key(
    "name",
    args={"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
    command={"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
    env=by_key("name"),
    volumeMounts=by_key("mountPath"),
)
POD = {
    "type": "object",
    "required": ["containers"],
    "properties": {"containers": CONTAINERS, "initContainers": CONTAINERS, "volumes": by_key("name")},
    **ANY,
}


def definition(group: str, kind: str, plural: str, versions: tuple[str, ...], spec: dict[str, Any]) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object", **ANY}}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": name, "served": True, "storage": at == 0, "schema": schema, "subresources": {"status": {}}}
                for at, name in enumerate(versions)
            ],
        },
    }


_SERVICE = {"type": "object", "properties": {"template": POD, "worker": POD}, **ANY}
LLM_INFERENCE_SERVICES = definition("serving.kserve.io", "LLMInferenceService", "llminferenceservices", ("v1alpha2", "v1alpha1"), _SERVICE)
SMALL_LLM_INFERENCE_SERVICES = definition(
    "serving.kserve.io",
    "LLMInferenceService",
    "llminferenceservices",
    ("v1alpha2", "v1alpha1"),
    {"type": "object", "x-kubernetes-map-type": "atomic", **ANY},
)
"""KServe ships a second definition, whose `spec` is one atomic value."""


@contextmanager
def installed(api: Api, body: dict[str, Any]) -> Iterator[None]:
    """The definition, from when the API server serves it to when it is gone."""
    name, group, plural = body["metadata"]["name"], body["spec"]["group"], body["spec"]["names"]["plural"]
    api.create(DEFINITIONS, body)
    paths = [f"/apis/{group}/{version['name']}/{plural}" for version in body["spec"]["versions"]]
    _until(lambda: all(_is_served(api, path) for path in paths), f"{name} is served")
    yield
    api.delete(f"{DEFINITIONS}/{name}")
    _until(lambda: not any(_is_served(api, path) for path in paths), f"{name} is gone")


def _is_served(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except RefusedError:
        return False
    return True


def _until(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {READY_SECONDS} s: {what}")
        time.sleep(0.05)
