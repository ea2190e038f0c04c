"""The plan of docs/upgrade.md from v1alpha1 to v1beta1, on a definition of our schema under a name of its own: without a webhook."""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from api_server import Api, RefusedError

from tabletune_operator.schema import build_crd

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def definition(api: Api) -> Iterator[dict[str, Any]]:
    """As stored, with one version."""
    group = f"plan-{uuid.uuid4().hex[:8]}.tabletune.io"
    body = build_crd()
    body["metadata"]["name"] = f"drafttables.{group}"
    body["spec"]["group"] = group
    body["spec"]["names"] |= {"shortNames": [], "categories": []}
    api.create(DEFINITIONS, body)
    yield body
    api.delete(f"{DEFINITIONS}/{body['metadata']['name']}")


def change(api: Api, definition: dict[str, Any], **versions: tuple[bool, bool]) -> None:
    """The definition with these versions, each (served, stored), of one schema; until it is in use.

    Applied, for controllers write its status meanwhile. A column that only this change has tells when the API server works by it.
    """
    (schema,) = definition["spec"]["versions"]
    mark = {"name": f"Mark{uuid.uuid4().hex[:8]}", "type": "string", "jsonPath": ".metadata.name"}
    schema = {**schema, "additionalPrinterColumns": [*schema["additionalPrinterColumns"], mark]}
    wanted = [{**copy.deepcopy(schema), "name": name, "served": served, "storage": stored} for name, (served, stored) in versions.items()]
    body = {**definition, "spec": {**definition["spec"], "versions": wanted}}
    api.apply(f"{DEFINITIONS}/{definition['metadata']['name']}", body, manager="tests")
    for name in versions:
        path = f"/apis/{definition['spec']['group']}/{name}/drafttables"

        def shows_the_mark(path: str = path) -> None:
            shown = api.get(path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
            if mark["name"] not in [column["name"] for column in shown["columnDefinitions"]]:
                raise ValueError(path)

        eventually(shows_the_mark)


def objects(definition: dict[str, Any], namespace: str, version: str) -> str:
    return f"/apis/{definition['spec']['group']}/{version}/namespaces/{namespace}/drafttables"


def eventually(read: Any) -> Any:
    """A version is served a moment after the definition has it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return read()
        except (RefusedError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_the_whole_way_to_the_next_version(api: Api, namespace: str, definition: dict[str, Any]) -> None:
    group, path = definition["spec"]["group"], f"{DEFINITIONS}/{definition['metadata']['name']}"
    old, new = objects(definition, namespace, "v1alpha1"), objects(definition, namespace, "v1beta1")
    body = {"apiVersion": f"{group}/v1alpha1", "kind": "DraftTable", "metadata": {"name": "chat"}, "spec": {"targetRef": {"name": "chat"}}}
    stored = eventually(lambda: api.create(old, body))

    change(api, definition, v1alpha1=(True, True), v1beta1=(True, False))
    found = eventually(lambda: api.get(f"{new}/chat"))
    assert (found["apiVersion"], found["spec"], found["status"]) == (f"{group}/v1beta1", stored["spec"], stored["status"])

    change(api, definition, v1alpha1=(True, False), v1beta1=(True, True))
    assert api.get(path)["status"]["storedVersions"] == ["v1alpha1", "v1beta1"]
    with pytest.raises(RefusedError, match="storedVersions"):
        change(api, definition, v1beta1=(True, True))

    # What the operator's next status does to each object, without a change of what it says.
    found = api.get(f"{new}/chat")
    api.update(f"{new}/chat/status", {**found, "status": {"observedGeneration": 1}})

    def forget_the_old_version() -> dict[str, Any]:
        live = api.get(path)
        return api.update(f"{path}/status", {**live, "status": {**live["status"], "storedVersions": ["v1beta1"]}})

    assert eventually(forget_the_old_version)["status"]["storedVersions"] == ["v1beta1"]
    change(api, definition, v1beta1=(True, True))
    after = api.get(f"{new}/chat")
    assert (after["spec"], after["status"], after["metadata"]["uid"]) == (
        stored["spec"], {"observedGeneration": 1}, stored["metadata"]["uid"]
    )  # fmt: skip


def test_an_object_is_read_in_both_versions_while_both_are_served(api: Api, namespace: str, definition: dict[str, Any]) -> None:
    change(api, definition, v1alpha1=(True, True), v1beta1=(True, False))
    group = definition["spec"]["group"]
    body = {"apiVersion": f"{group}/v1beta1", "kind": "DraftTable", "metadata": {"name": "chat"}, "spec": {"targetRef": {"name": "chat"}}}
    made = eventually(lambda: api.create(objects(definition, namespace, "v1beta1"), body))
    assert eventually(lambda: api.get(f"{objects(definition, namespace, 'v1alpha1')}/chat"))["spec"] == made["spec"]
