"""A StatefulSet as target on the real API server: rolled out, given back byte for byte, and measured with claims of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_server import Api, RefusedError
from test_workloads import CONFIG, IMAGE, example, job_of

from tabletune_operator.crd import Controller
from tabletune_operator.restore import is_intact, restore, restores_exactly
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import parse_target

CLAIM = {
    "metadata": {"name": "model-cache", "labels": {"of": "chat"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
}


def path(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/statefulsets"


def stateful(namespace: str, *, claims: bool = False) -> dict[str, Any]:
    """The Deployment of examples/ as a StatefulSet."""
    made = {**example(namespace), "kind": "StatefulSet"}
    made["spec"] = {**made["spec"], "serviceName": "chat"}
    if claims:
        made["spec"]["volumeClaimTemplates"] = [CLAIM]
        (engine,) = made["spec"]["template"]["spec"]["containers"]
        engine["volumeMounts"] = [*engine["volumeMounts"], {"name": "model-cache", "mountPath": "/model-cache"}]
    return made


@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
def test_restore_is_byte_for_byte(api: Api, namespace: str, config: dict[str, Any] | None) -> None:
    before = api.create(path(namespace), stateful(namespace, claims=True))
    one = f"{path(namespace)}/{before['metadata']['name']}"
    rollout = build_rollout(RolloutRequest("chat", parse_target(before, None), config, Controller(), IMAGE, ""))
    rolled = api.apply(one, rollout.apply, manager="tabletune.io")
    assert is_intact(rolled)
    assert restores_exactly(rolled)
    assert rolled["spec"]["replicas"] == before["spec"]["replicas"]
    after = api.update(one, restore(rolled))
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")


def test_its_job_gets_claims_of_its_own(api: Api, namespace: str) -> None:
    job = job_of(api.create(path(namespace), stateful(namespace, claims=True)))
    volumes = {v["name"]: v for v in job["spec"]["template"]["spec"]["volumes"]}
    claim = volumes["model-cache"]["ephemeral"]["volumeClaimTemplate"]
    assert claim["metadata"] == {"labels": {"of": "chat"}}
    assert claim["spec"]["resources"] == {"requests": {"storage": "100Gi"}}
    admitted = api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, dry_run=True)
    assert {v["name"] for v in admitted["spec"]["template"]["spec"]["volumes"]} == set(volumes)


def test_a_draft_table_names_a_kind_that_is_known(api: Api, namespace: str) -> None:
    tables = f"/apis/tabletune.io/v1alpha1/namespaces/{namespace}/drafttables"

    def table(**ref: str) -> dict[str, Any]:
        body = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "metadata": {"name": "chat"}}
        return {**body, "spec": {"targetRef": {"name": "decode", **ref}}}

    assert api.create(tables, table(), dry_run=True)["spec"]["targetRef"]["kind"] == "Deployment"
    api.create(tables, table(kind="StatefulSet"), dry_run=True)
    for wrong in ({"kind": "DaemonSet"}, {"apiVersion": "apps/v1beta1"}):
        with pytest.raises(RefusedError) as refused:
            api.create(tables, table(**wrong), dry_run=True)
        assert refused.value.status == 422
