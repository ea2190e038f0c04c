"""A LeaderWorkerSet as target on the real API server, with the definition that its project ships."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api_server import Api, RefusedError
from foreign_kinds import installed
from lws_module import definition
from test_workloads import CONFIG, IMAGE, example, job_of

from tabletune_operator.crd import Controller
from tabletune_operator.kinds import template_of
from tabletune_operator.restore import is_intact, restore, restores_exactly
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import parse_target


@pytest.fixture(scope="module", autouse=True)
def kind(api: Api) -> Iterator[None]:
    with installed(api, definition()):
        yield


def path(namespace: str) -> str:
    return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets"


def groups(namespace: str, *, leader: bool = False) -> dict[str, Any]:
    """The pods of examples/ as groups of one."""
    made = example(namespace)
    template = made["spec"]["template"]
    spec: dict[str, Any] = {"size": 1, "restartPolicy": "None", "workerTemplate": template}
    if leader:
        spec |= {"leaderTemplate": template, "workerTemplate": {"spec": {"containers": [{"name": "other", "image": "i"}]}}}
    made |= {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**made, "spec": {"replicas": 2, "leaderWorkerTemplate": spec}}


@pytest.mark.parametrize("leader", [False, True], ids=["one template", "a leader's template"])
@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
def test_restore_is_byte_for_byte(api: Api, namespace: str, leader: bool, config: dict[str, Any] | None) -> None:
    before = api.create(path(namespace), groups(namespace, leader=leader))
    one = f"{path(namespace)}/{before['metadata']['name']}"
    rollout = build_rollout(RolloutRequest("chat", parse_target(before, None), config, Controller(), IMAGE, ""))
    rolled = api.apply(one, rollout.apply, manager="tabletune.io")
    assert is_intact(rolled)
    assert restores_exactly(rolled)
    engine = next(c for c in template_of(rolled)["spec"]["containers"] if c["name"] == "modelserver")
    assert {e["name"] for e in engine["env"]} >= {e["name"] for e in template_of(before)["spec"]["containers"][0]["env"]}
    after = api.update(one, restore(rolled))
    assert json.dumps(after["spec"], sort_keys=True) == json.dumps(before["spec"], sort_keys=True)
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")


def test_roll_out_never_makes_one_anew(api: Api, namespace: str) -> None:
    before = api.create(path(namespace), groups(namespace))
    one = f"{path(namespace)}/{before['metadata']['name']}"
    rollout = build_rollout(RolloutRequest("chat", parse_target(before, None), CONFIG, Controller(), IMAGE, ""))
    api.delete(one)
    with pytest.raises(RefusedError) as refused:
        api.apply(one, rollout.apply, manager="tabletune.io")
    assert refused.value.status in {409, 422}
    with pytest.raises(RefusedError):
        api.get(one)


def test_its_job_is_admitted(api: Api, namespace: str) -> None:
    job = job_of(api.create(path(namespace), groups(namespace)))
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, dry_run=True)


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ({"kind": "LeaderWorkerSet"}, "kind LeaderWorkerSet and apiVersion leaderworkerset.x-k8s.io/v1 go together"),
        ({"apiVersion": "leaderworkerset.x-k8s.io/v1"}, "kind LeaderWorkerSet and apiVersion leaderworkerset.x-k8s.io/v1 go together"),
        ({"kind": "DisaggregatedSet", "apiVersion": "disaggregatedset.x-k8s.io/v1"}, "DisaggregatedSet is refused: it replaces prefill"),
        ({"kind": "LeaderWorkerSet", "apiVersion": "leaderworkerset.x-k8s.io/v1"}, None),
    ],
)
def test_a_draft_table_names_kind_and_version_together(api: Api, namespace: str, ref: dict[str, str], said: str | None) -> None:
    tables = f"/apis/tabletune.io/v1alpha1/namespaces/{namespace}/drafttables"
    body = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "metadata": {"name": "chat"}}
    table = {**body, "spec": {"targetRef": {"name": "decode", **ref}}}
    if said is None:
        api.create(tables, table, dry_run=True)
        return
    with pytest.raises(RefusedError, match=said):
        api.create(tables, table, dry_run=True)
