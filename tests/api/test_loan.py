"""A replica lent and given back, on the real API server: one write each, never over somebody's change, and no field of ours after."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from api_server import Api, RefusedError
from test_workloads import CONFIG, example, give_back, path, roll

from tabletune_operator.loan import BORROWED_ANNOTATION, FIELD_MANAGER, close_loan, read_loan, return_replica, take_replica

NOW = datetime(2026, 11, 30, 14, 36, tzinfo=UTC)
REPLICAS = 3


def create(api: Api, namespace: str, manager: str) -> dict[str, Any]:
    """As `kubectl create` does, or applied as GitOps does."""
    wanted = example(namespace)
    wanted["spec"]["replicas"] = REPLICAS
    if manager == "create":
        return api.create(path(namespace), wanted)
    return api.apply(f"{path(namespace)}/{wanted['metadata']['name']}", wanted, manager="gitops")


def put(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    return api.update(f"{path(body['metadata']['namespace'])}/{body['metadata']['name']}", body, manager=FIELD_MANAGER)


def owners(body: dict[str, Any]) -> set[str]:
    return {e["manager"] for e in body["metadata"]["managedFields"] if "f:replicas" in e["fieldsV1"].get("f:spec", {})}


def lend(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    lent = put(api, take_replica(body, "chat", NOW))
    assert lent["spec"]["replicas"] == REPLICAS - 1
    assert owners(lent) == {FIELD_MANAGER}
    return lent


def take_back(api: Api, lent: dict[str, Any]) -> dict[str, Any]:
    loan = read_loan(lent)
    assert loan is not None
    return put(api, close_loan(put(api, return_replica(lent, loan))))


@pytest.mark.parametrize("manager", ["create", "apply"])
def test_everything_is_as_before_and_the_field_is_not_ours(api: Api, namespace: str, manager: str) -> None:
    before = create(api, namespace, manager)
    after = take_back(api, lend(api, before))
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert FIELD_MANAGER not in {e["manager"] for e in after["metadata"]["managedFields"]}


def test_gitops_applies_without_a_conflict_afterwards_and_owns_the_field_again(api: Api, namespace: str) -> None:
    after = take_back(api, lend(api, create(api, namespace, "apply")))
    wanted = example(namespace)
    wanted["spec"]["replicas"] = 5
    parameters = {"fieldManager": "gitops", "fieldValidation": "Strict"}
    name = after["metadata"]["name"]
    headers = {"Content-Type": "application/apply-patch+yaml"}
    applied = api._send("PATCH", f"{path(namespace)}/{name}", json=wanted, params=parameters, headers=headers)
    assert applied["spec"]["replicas"] == 5
    assert owners(applied) == {"gitops"}


def test_an_apply_without_replicas_afterwards_leaves_them_alone(api: Api, namespace: str) -> None:
    take_back(api, lend(api, create(api, namespace, "apply")))
    wanted = example(namespace)
    wanted["spec"].pop("replicas", None)
    applied = api.apply(f"{path(namespace)}/{wanted['metadata']['name']}", wanted, manager="gitops")
    assert applied["spec"]["replicas"] == REPLICAS


@pytest.mark.parametrize("step", ["lend", "return", "close"])
def test_a_change_in_between_is_a_conflict_and_not_a_loss(api: Api, namespace: str, step: str) -> None:
    before = create(api, namespace, "create")
    seen = before if step == "lend" else lend(api, before)
    loan = read_loan(seen)
    if step == "close":
        assert loan is not None
        seen = put(api, return_replica(seen, loan))
    api.update(f"{path(namespace)}/{before['metadata']['name']}", {**seen, "spec": {**seen["spec"], "replicas": 7}})
    if step == "lend":
        stale = take_replica(seen, "chat", NOW)
    else:
        assert loan is not None
        stale = return_replica(seen, loan) if step == "return" else close_loan(seen)
    with pytest.raises(RefusedError) as refused:
        put(api, stale)
    assert refused.value.status == 409
    assert api.get(f"{path(namespace)}/{before['metadata']['name']}")["spec"]["replicas"] == 7


def test_a_roll_out_and_its_restore_keep_the_loan(api: Api, namespace: str) -> None:
    """What a crash may leave: the template and the loan are given back by two writes, in either order."""
    before = create(api, namespace, "apply")
    lent = lend(api, roll(api, before, CONFIG))
    restored = give_back(api, lent)
    assert read_loan(restored) == read_loan(lent)
    assert restored["spec"]["replicas"] == REPLICAS - 1
    after = take_back(api, restored)
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    assert BORROWED_ANNOTATION not in after["metadata"].get("annotations", {})
