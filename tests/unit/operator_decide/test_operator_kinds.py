"""Targets that cannot have a table as they are, or at all: refused with the reason, before anything is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from world import World, deployment, draft_table, leader_worker_set, llm_inference_service, serving

DRAFT = '{"method":"eagle3","model":"draft","num_speculative_tokens":3}'


def table(**spec: Any) -> dict[str, Any]:
    return draft_table(kind="LeaderWorkerSet", **spec)


async def test_a_leader_worker_set_is_measured_rolled_out_and_given_back() -> None:
    made = serving(target=leader_worker_set())
    before = json.dumps(made.get("LeaderWorkerSet", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(2)
    assert made.state() == "Tracking"
    assert made.get("DraftTable", "chat")["status"]["display"]["target"] == "lws/decode"
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert json.dumps(made.get("LeaderWorkerSet", "decode")["spec"]) == before


async def test_a_roll_out_that_its_controller_has_not_seen_yet_is_not_judged_by_the_old_replicas() -> None:
    made = serving(target=leader_worker_set())
    await made.turns(2)
    made.finish_profile()
    made.roll_leader_worker_set = lambda name="decode", ready=True: None  # type: ignore[method-assign]
    while "apply LeaderWorkerSet" not in made.writes:
        await made.turn()
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert "has the new setting; its replicas come next" in made.message("RolledOut")


@pytest.mark.parametrize(
    ("owner", "cure"),
    [
        ("LeaderWorkerSet", "Make a DraftTable whose spec.targetRef names LeaderWorkerSet wide."),
        ("DisaggregatedSet", "That kind cannot have a table yet"),
    ],
)
async def test_a_workload_that_another_object_made_is_refused_for_its_owner(owner: str, cure: str) -> None:
    owned = deployment()
    owned["metadata"]["ownerReferences"] = [{"kind": owner, "name": "wide", "uid": "u", "controller": True}]
    made = World(owned, draft_table())
    made.roll()
    await made.turn()
    assert made.condition("Accepted") == ("False", "TargetOwned")
    assert f"belongs to {owner} wide" in made.message("Accepted")
    assert cure in made.message("Accepted")
    assert made.writes == []


@pytest.mark.parametrize(("groups", "said"), [({"size": 2}, "groups of 2 pods"), ({"restartPolicy": "RecreateGroupAfterStart"}, "sidecar")])
async def test_groups_that_cannot_have_a_table_are_refused_with_the_reason(groups: dict[str, Any], said: str) -> None:
    made = World(leader_worker_set(**groups), table())
    await made.turn()
    assert made.condition("Accepted") == ("False", "TargetKindCannot")
    assert said in made.message("Accepted")
    assert not made.message("Accepted").endswith("…")
    assert made.writes == []


async def test_a_policy_that_only_a_sidecar_would_suffer_from_is_none_of_recommend() -> None:
    made = World(leader_worker_set(restartPolicy="RecreateGroupAfterStart"), table(rollout={"mode": "Recommend"}))
    await made.turn()
    assert made.condition("Accepted")[1] == "WaitingForTarget"


async def test_a_kind_that_the_cluster_lacks_is_asked_after() -> None:
    made = World(table())
    await made.turn()
    assert made.condition("Accepted") == ("False", "TargetNotFound")
    assert "There is no LeaderWorkerSet decode in namespace llm (is the CRD of LeaderWorkerSet installed?)." in made.message("Accepted")


SERVICE_SHAPES = [
    pytest.param({}, id="flags in the variable"),
    pytest.param(
        {"template": {"containers": [{"name": "main", "args": ["--speculative-config", f"'{DRAFT}'", "--max-num-seqs=128"]}]}},
        id="flags in args",
    ),
    pytest.param({"template": None, "speculation": True}, id="nothing of its own"),
    pytest.param({"annotations": {"team": "chat"}, "labels": {"team": "chat"}}, id="labels and annotations of its own"),
]


@pytest.mark.parametrize("shape", SERVICE_SHAPES)
async def test_an_llm_inference_service_is_written_itself_and_given_back(shape: dict[str, Any]) -> None:
    wanted = {**shape}
    speculation = {"speculation": {"method": "eagle3", "model": "draft", "maxDraftLength": 3}} if wanted.pop("speculation", False) else {}
    service = llm_inference_service(**wanted)
    service["spec"] = {key: value for key, value in service["spec"].items() if value is not None}
    made = serving(target=service, **speculation)
    before = json.dumps(made.get("LLMInferenceService", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(3)
    assert made.state() == "Tracking"
    assert made.get("DraftTable", "chat")["status"]["display"]["target"] == "llmisvc/decode"
    # The Deployment is KServe's: we wrote the resource, and nothing else.
    assert {write for write in made.writes if "Job" not in write and "Role" not in write} == {"replace LLMInferenceService"}
    template = made.get("Deployment", "decode-kserve")["spec"]["template"]
    assert template["metadata"]["annotations"]["tabletune.io/drafttable"] == "chat"
    running = template["spec"]
    assert [c["name"] for c in running["initContainers"]] == ["llm-d-routing-sidecar", "tabletune-plugin", "tabletune-sidecar"]
    assert running["containers"][0]["env"][0] == {"name": "HOME", "value": "/home"}
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    after = made.get("LLMInferenceService", "decode")
    assert json.dumps(after["spec"], sort_keys=True) == json.dumps(json.loads(before), sort_keys=True)
    assert after["metadata"].get("annotations", {}) == {}


async def test_an_llm_inference_service_without_its_deployment_is_waited_for() -> None:
    made = World(llm_inference_service(), draft_table(kind="LLMInferenceService"))
    await made.turn()
    assert made.condition("Accepted") == ("Unknown", "WaitingForTarget")
    assert "The controller of LLMInferenceService decode" in made.message("Accepted")


async def test_a_deployment_of_kserve_is_refused_for_its_resource() -> None:
    made = serving(draft_table("wrong", target="decode-kserve"), target=llm_inference_service())
    await made.turn("wrong")
    assert made.condition("Accepted", "wrong") == ("False", "TargetOwned")
    assert "names LLMInferenceService decode" in made.message("Accepted", "wrong")


async def test_a_service_that_kserve_has_not_taken_up_is_not_judged_by_what_runs() -> None:
    made = serving(target=llm_inference_service())
    await made.turns(2)
    made.finish_profile()
    made.roll_llm_inference_service = lambda name="decode", ready=True: None  # type: ignore[method-assign]
    while "replace LLMInferenceService" not in made.writes:
        await made.turn()
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert made.writes.count("replace LLMInferenceService") == 1
    assert made.message("RolledOut").endswith("its replicas come next. Nothing to do.")


async def test_what_kserve_has_against_the_new_setting_is_told() -> None:
    made = serving(target=llm_inference_service())
    await made.turns(2)
    made.finish_profile()
    refused = made.roll_llm_inference_service

    def with_a_label(name: str = "decode", *, ready: bool = True) -> None:
        made.get("LLMInferenceService", name)["spec"].setdefault("labels", {})["somebody"] = "else"
        refused(name, ready=ready)

    made.roll_llm_inference_service = with_a_label  # type: ignore[method-assign]
    while "replace LLMInferenceService" not in made.writes:
        await made.turn()
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert "its replicas do not: KServe: failed to reconcile main workload" in made.message("RolledOut")
    assert "They serve as before." in made.message("RolledOut")
    assert made.writes.count("replace LLMInferenceService") == 1


async def test_a_kserve_that_does_not_keep_annotations_is_known_by_its_containers() -> None:
    """KServe 0.16 knows no spec.annotations, so the API server drops them."""
    made = serving(target=llm_inference_service(version="v1alpha1"))
    before = made.get("LLMInferenceService", "decode")["spec"]
    await made.turns(2)
    made.finish_profile()
    kserve = made.roll_llm_inference_service

    def drop_annotations(name: str = "decode", *, ready: bool = True) -> None:
        made.get("LLMInferenceService", name)["spec"].pop("annotations", None)

    made.roll_llm_inference_service = drop_annotations  # type: ignore[method-assign]
    while "replace LLMInferenceService" not in made.writes:
        await made.turn()
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert "its replicas come next" in made.message("RolledOut")
    made.roll_llm_inference_service = kserve  # type: ignore[method-assign]
    made.roll_llm_inference_service()
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.writes.count("replace LLMInferenceService") == 1
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert made.get("LLMInferenceService", "decode")["spec"] == before


async def test_what_kserve_has_against_a_service_that_it_has_not_made_is_told() -> None:
    service = llm_inference_service()
    said = {"type": "PresetsCombined", "status": "False", "reason": "ConfigNotFound", "message": "no kserve-config-llm-template"}
    service["status"] = {"observedGeneration": 1, "conditions": [said]}
    made = World(service, draft_table(kind="LLMInferenceService"))
    await made.turn()
    assert made.condition("Accepted") == ("Unknown", "WaitingForTarget")
    assert "newest setting (KServe: no kserve-config-llm-template)." in made.message("Accepted")


@pytest.mark.parametrize(
    ("spec", "flags", "reason", "said"),
    [
        ({"worker": {"containers": []}}, "", "TargetKindCannot", "has spec.worker"),
        ({}, " --ssl-certfile /tls.crt", "EngineTLS", "serves TLS"),
        ({"labels": {"llm-d.ai/role": "prefill"}}, "", "WaitingForTarget", "has not made a workload"),
    ],
    ids=["several pods", "TLS", "prefill alone"],
)
async def test_services_that_cannot_have_a_table(spec: dict[str, Any], flags: str, reason: str, said: str) -> None:
    service = llm_inference_service(**spec)
    service["spec"]["template"]["containers"][0]["env"][0]["value"] += flags
    made = serving(target=service)
    await made.turn()
    assert made.condition("Accepted")[1] == reason
    assert said in made.message("Accepted")
    assert made.writes == []
