"""fleet.json on the real API server: one key of a ConfigMap, beside files that others own."""

from __future__ import annotations

from typing import Any

import pytest
from api_server import Api, RefusedError

from tabletune_operator.act import FLEET_MANAGER
from tabletune_operator.loan import FIELD_MANAGER

NAME = "chat-tabletune"


def config_map(namespace: str, data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": namespace, **metadata}, "data": data}


def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"


def test_neither_writer_takes_the_others_files_away(api: Api, namespace: str) -> None:
    """The Job writes its files as the same manager as the operator writes a copy of them."""
    made = api.apply(path(namespace), config_map(namespace, {"profile.json": "1", "table.json": "1"}), manager=FIELD_MANAGER)
    uid = made["metadata"]["uid"]
    for text in ("a", "b"):
        both = api.apply(path(namespace), config_map(namespace, {"fleet.json": text}, uid=uid), manager=FLEET_MANAGER)
        assert both["data"] == {"profile.json": "1", "table.json": "1", "fleet.json": text}
    again = api.apply(path(namespace), config_map(namespace, {"profile.json": "2", "table.json": "2"}), manager=FIELD_MANAGER)
    assert again["data"] == {"profile.json": "2", "table.json": "2", "fleet.json": "b"}


def test_makes_no_config_map_and_writes_into_no_other_one(api: Api, namespace: str) -> None:
    fleet = config_map(namespace, {"fleet.json": "a"}, uid="00000000-0000-0000-0000-000000000001")
    with pytest.raises(RefusedError):
        api.apply(path(namespace), fleet, manager=FLEET_MANAGER)
    api.apply(path(namespace), config_map(namespace, {"profile.json": "1"}), manager=FIELD_MANAGER)
    with pytest.raises(RefusedError):
        api.apply(path(namespace), fleet, manager=FLEET_MANAGER)
    assert api.get(path(namespace))["data"] == {"profile.json": "1"}
