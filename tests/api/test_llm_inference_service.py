"""KServe's LLMInferenceService as target on the real API server, with small definitions of that kind (foreign_kinds.py).

No KServe runs here: the Deployment that it would make is made by the test, from the resource laid over a template (test_kserve.py has it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from api_server import Api, RefusedError
from foreign_kinds import LLM_INFERENCE_SERVICES, SMALL_LLM_INFERENCE_SERVICES, installed
from test_workloads import CONFIG, IMAGE, example, job_of

from tabletune_operator.command import read_command
from tabletune_operator.crd import Controller
from tabletune_operator.kinds import LLM_INFERENCE_SERVICE
from tabletune_operator.overlaying import lay_over
from tabletune_operator.restore import is_intact, restore
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import Target, parse_target

FLAGS = '--max-num-seqs 128 --speculative-config \'{"method":"eagle3","model":"d","num_speculative_tokens":3}\''
SCRIPT = 'eval "exec vllm serve /mnt/models --port 8000 ${VLLM_ADDITIONAL_ARGS} $@"\n'


@pytest.fixture(scope="module", params=[LLM_INFERENCE_SERVICES, SMALL_LLM_INFERENCE_SERVICES], ids=["full", "small"], autouse=True)
def kind(api: Api, request: pytest.FixtureRequest) -> Iterator[None]:
    with installed(api, request.param):
        yield


def path(namespace: str, version: str = "v1alpha2") -> str:
    return f"/apis/serving.kserve.io/{version}/namespaces/{namespace}/llminferenceservices"


def service(namespace: str, version: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"serving.kserve.io/{version}",
        "kind": "LLMInferenceService",
        "metadata": {"name": "chat", "namespace": namespace, "annotations": {"team": "chat"}},
        "spec": {"model": {"uri": "hf://m", "name": "m"}, "replicas": 2, **spec},
    }


def running(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """With the Deployment that KServe would make of it, as the API server stores one."""
    made = example(body["metadata"]["namespace"])
    pod = made["spec"]["template"]["spec"]
    pod["containers"][0] |= {"name": "main", "command": ["/bin/bash", "-c", SCRIPT, "--"], "args": []}
    made["spec"]["template"]["spec"] = lay_over(pod, body["spec"].get("template") or {})
    made["spec"]["template"]["metadata"]["annotations"] = dict(body["spec"].get("annotations") or {})
    owner = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": "chat", "uid": body["metadata"]["uid"], "controller": True}
    made["metadata"] = {**made["metadata"], "name": "chat-kserve", "ownerReferences": [owner]}
    deployments = f"/apis/apps/v1/namespaces/{body['metadata']['namespace']}/deployments"
    stored = api.create(deployments, made, dry_run=True)
    composed = LLM_INFERENCE_SERVICE.running(body, [stored])
    assert composed is not None
    return dict(composed)


def target_of(api: Api, body: dict[str, Any]) -> Target:
    return replace(parse_target(restore(running(api, body)), None), base=restore(body))


def pods(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"template": {"containers": [*containers], **more}}


IN_VARIABLE = pods({"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": FLAGS}]})
OWN: list[Any] = [
    pytest.param(IN_VARIABLE, id="variable"),
    pytest.param(pods({"name": "main", "args": ["--max-num-seqs=128"]}), id="arguments"),
    pytest.param({}, id="no template"),
    pytest.param(pods({"name": "logs", "image": "l"}, volumes=[{"name": "v", "emptyDir": {}}]), id="another container"),
    pytest.param({"annotations": {"a": "b"}, "labels": {"c": "d"}}, id="labels and annotations"),
]


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_restore_is_byte_for_byte(api: Api, namespace: str, version: str, own: dict[str, Any]) -> None:
    before = api.create(path(namespace, version), service(namespace, version, **own))
    rolled = before
    for config in (CONFIG, {"method": "ngram", "num_speculative_tokens": 2}, None, CONFIG):
        target = target_of(api, rolled)
        rollout = build_rollout(RolloutRequest("chat", target, config, Controller(), IMAGE, ""))
        rolled = api.update(f"{path(namespace, version)}/chat", rollout.apply, manager="tabletune.io")
        assert is_intact(rolled)
        assert [rolled["spec"].get(field) for field in ("model", "labels")] == [before["spec"].get(field) for field in ("model", "labels")]
        composed = running(api, rolled)["spec"]["template"]
        (engine,) = (c for c in composed["containers"] if c["name"] == "main")
        assert read_command(engine).speculation == config
    after = api.update(f"{path(namespace, version)}/chat", restore(rolled))
    assert json.dumps(after["spec"], sort_keys=True) == json.dumps(before["spec"], sort_keys=True)
    assert after["metadata"]["annotations"] == {"team": "chat"}


def test_a_change_in_between_is_not_overwritten(api: Api, namespace: str) -> None:
    before = api.create(path(namespace), service(namespace, "v1alpha2"))
    rollout = build_rollout(RolloutRequest("chat", target_of(api, before), CONFIG, Controller(), IMAGE, ""))
    api.update(f"{path(namespace)}/chat", {**before, "spec": {**before["spec"], "replicas": 3}})
    with pytest.raises(RefusedError) as refused:
        api.update(f"{path(namespace)}/chat", rollout.apply, manager="tabletune.io")
    assert refused.value.status == 409


def test_its_job_starts_the_same_script(api: Api, namespace: str) -> None:
    composed = running(api, api.create(path(namespace), service(namespace, "v1alpha2", **IN_VARIABLE)))
    job = job_of(composed)
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, dry_run=True)
    (tuner,) = job["spec"]["template"]["spec"]["containers"]
    assert "vllm serve /mnt/models" in " ".join(tuner["args"])


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_a_draft_table_names_its_version(api: Api, namespace: str, version: str) -> None:
    tables = f"/apis/tabletune.io/v1alpha1/namespaces/{namespace}/drafttables"
    ref = {"apiVersion": f"serving.kserve.io/{version}", "kind": "LLMInferenceService", "name": "chat"}
    body = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "metadata": {"name": "chat"}}
    api.create(tables, {**body, "spec": {"targetRef": ref}}, dry_run=True)
    with pytest.raises(RefusedError, match="kind LLMInferenceService and apiVersion serving"):
        api.create(tables, {**body, "spec": {"targetRef": {**ref, "kind": "Deployment"}}}, dry_run=True)
