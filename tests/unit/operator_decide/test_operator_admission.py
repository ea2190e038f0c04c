"""Mode Admission: the target is not touched, its new pods get the setting, and running replicas are replaced as the user asked."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from world_admission import AdmissionWorld, measured
from world_files import sidecar_state

from tabletune.argv import fold_speculative_config
from tabletune.verdict import VerdictKind


def workload(made: AdmissionWorld) -> dict[str, Any]:
    return copy.deepcopy(made.get("Deployment", "decode"))


def deployment_writes(made: AdmissionWorld) -> list[str]:
    return [write for write in made.writes if "Deployment" in write]


async def restarted(made: AdmissionWorld) -> AdmissionWorld:
    """kubectl rollout restart: the user's, or a release's."""
    made.get("Deployment", "decode")["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": str(made.now)}
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    return made


async def test_nothing_of_the_workload_is_written_and_new_pods_get_the_setting() -> None:
    made = await measured()
    before = workload(made)
    assert made.condition("RolledOut") == ("False", "WaitingForRestart")
    assert "0 of 2 replicas run the setting" in made.message("RolledOut")
    assert "kubectl rollout restart deploy/decode" in made.message("RolledOut")
    assert made.settings() == [False, False]
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    assert made.settings() == [True, True]
    assert made.state() == "Tracking"
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.condition("Ready")[0] == "True"
    assert deployment_writes(made) == []
    assert workload(made)["spec"] == before["spec"]
    assert fold_speculative_config(made.pods()[0]["spec"]["containers"][0]["args"]).config is not None


async def test_a_new_replica_of_a_scaled_target_has_it_at_once() -> None:
    made = await restarted(await measured())
    made.get("Deployment", "decode")["spec"]["replicas"] = 3
    template = made.get("Deployment", "decode")["spec"]["template"]
    made.add_pod("decode-2-2", template, made.pods()[0]["metadata"]["ownerReferences"][0]["uid"], ready=True)
    await made.turns(2)
    assert made.settings() == [True, True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_without_a_webhook_nothing_is_done() -> None:
    made = await measured(serves=False)
    assert made.condition("RolledOut") == ("False", "AdmissionOff")
    assert "admission.enabled=true" in made.message("RolledOut")
    assert (await restarted(made)).settings() == [False, False]


async def test_speculation_that_loses_is_taken_off_new_pods() -> None:
    made = await restarted(await measured(kind=VerdictKind.OFF))
    assert made.condition("RolledOut") == ("True", "SpeculationRemoved")
    assert all("--speculative-config" not in pod["spec"]["containers"][0]["args"] for pod in made.pods())
    assert deployment_writes(made) == []


async def test_a_present_setting_that_pays_is_left_alone() -> None:
    made = await restarted(await measured(kind=VerdictKind.PRESENT))
    assert made.condition("RolledOut") == ("True", "PresentKept")
    assert made.settings() == [False, False]


async def test_evict_replaces_one_replica_after_the_other() -> None:
    made = await measured(replicas=3, replace="Evict")
    first = list(made.evicted)
    assert len(first) == 1
    assert made.condition("RolledOut") == ("False", "RollingOut")
    await made.turns(8)
    assert len(made.evicted) == 3
    assert len(set(made.evicted)) == 3
    assert made.settings() == [True, True, True]
    assert made.condition("RolledOut") == ("True", "Proved")
    await made.turns(5)
    assert len(made.evicted) == 3
    assert deployment_writes(made) == []


async def test_the_next_is_evicted_only_when_the_one_before_proved_it() -> None:
    made = await measured(replicas=3, replace="Evict")
    (new,) = (pod for pod in made.pods() if "initContainers" in pod["spec"])
    made.states[new["status"]["podIP"]] = sidecar_state(honoured={"state": "InForce", "steps": 3, "violations": 0})
    await made.turns(5)
    assert len(made.evicted) == 1
    assert "once the replicas that have it proved it" in made.message("RolledOut")
    made.states[new["status"]["podIP"]] = sidecar_state()
    await made.turns(5)
    assert len(made.evicted) == 3


@pytest.mark.parametrize("trouble", ["not ready", "terminating", "missing"])
async def test_nothing_is_evicted_unless_all_replicas_serve(trouble: str) -> None:
    made = await measured(replicas=3)
    pod = made.pods()[0]
    if trouble == "not ready":
        pod["status"]["conditions"][0]["status"] = "False"
    elif trouble == "terminating":
        pod["metadata"]["deletionTimestamp"] = "2026-11-30T14:30:00Z"
    else:
        del made.objects["Pod", pod["metadata"]["name"]]
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    await made.turns(5)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "RollingOut")


async def test_nothing_is_evicted_while_the_target_rolls_out_by_itself() -> None:
    made = await measured(replicas=3)
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    made.roll(ready=False)
    await made.turns(3)
    assert made.evicted == []


async def test_the_only_replica_is_never_evicted() -> None:
    made = await measured(replicas=1, replace="Evict")
    await made.turns(5)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "WaitingForRestart")
    assert "the last ready replica is never evicted" in made.message("RolledOut")


async def test_a_disruption_budget_holds_evictions_and_nothing_else() -> None:
    made = await measured(replicas=3)
    made.budget = False
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    await made.turns(3)
    assert made.evicted == []
    assert "PodDisruptionBudgets" in made.message("RolledOut")
    made.budget = True
    await made.turns(8)
    assert len(made.evicted) == 3


async def test_a_webhook_that_is_down_lets_pods_start_and_is_told() -> None:
    made = await restarted(await measured())
    made.reachable = False
    made.now += timedelta(minutes=5)
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    await made.turns(2)
    assert sorted(made.settings()) == [False, True]
    assert made.condition("RolledOut") == ("False", "NotAdmitted")
    assert "1 of 2 replicas got the setting" in made.message("RolledOut")
    assert "kubectl delete pod" in made.message("RolledOut")
    assert made.condition("Tracking") == ("True", "Tracking")
    made.reachable = True
    (without,) = (pod for pod in made.pods() if "initContainers" not in pod["spec"])
    made.replace_pod(without["metadata"]["name"])
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_evictions_are_no_storm_while_the_webhook_is_down() -> None:
    made = await measured(replicas=3)
    made.reachable = False
    made.now += timedelta(minutes=5)
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    await made.turns(20)
    assert len(made.evicted) == 1
    assert made.condition("RolledOut") == ("False", "NotAdmitted")
    made.reachable = True
    made.now += timedelta(minutes=31)
    await made.turns(10)
    assert made.settings() == [True, True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_a_pod_of_a_newer_template_is_left_alone_and_the_reason_is_told() -> None:
    made = await restarted(await measured())
    template = copy.deepcopy(made.get("Deployment", "decode")["spec"]["template"])
    template["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v9"
    made.now += timedelta(minutes=5)
    gone = made.objects.pop(("Pod", made.pods()[0]["metadata"]["name"]))
    made.add_pod("decode-9-0", template, gone["metadata"]["ownerReferences"][0]["uid"], ready=True)
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "NotAdmitted")
    assert "image vllm-openai:v9" in made.message("RolledOut")


async def test_a_setting_that_keeps_a_replica_from_starting_is_taken_back_and_only_the_broken_pod_goes() -> None:
    made = await measured(replicas=3)
    made.now += timedelta(minutes=1)
    broken = made.replace_pod(made.pods()[0]["metadata"]["name"], ready=False)
    broken["status"]["containerStatuses"][0] |= {
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
    }
    await made.turns(3)
    assert made.evicted == [broken["metadata"]["name"]]
    assert made.settings() == [False, False, False]
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert "new pods get the old setting" in made.message("RolledOut")
    made.now += timedelta(minutes=1)
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    await made.turns(2)
    assert made.settings() == [False, False, False]
    assert len(made.evicted) == 1


async def test_what_failed_is_tried_again_when_the_target_changes() -> None:
    made = await measured(replicas=2)
    made.now += timedelta(minutes=1)
    broken = made.replace_pod(made.pods()[0]["metadata"]["name"], ready=False)
    broken["status"]["containerStatuses"][0] |= {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "RolledBack")
    made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"].insert(1, "--seed=1")
    await made.turns(1)
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(3)
    assert made.settings() == [True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_from_patch_to_admission_replicas_restart_once() -> None:
    made = await measured()
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Patch"}
    before = workload(made)["spec"]
    await made.turns(4)
    assert made.state() == "Tracking"
    assert workload(made)["spec"] != before
    writes = len(deployment_writes(made))
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Admission"}
    made.now += timedelta(minutes=1)
    await made.turns(4)
    assert workload(made)["spec"] == before
    assert deployment_writes(made)[writes:] == ["replace Deployment"]
    assert made.settings() == [True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_from_admission_to_recommend_new_pods_get_nothing_and_running_ones_stay() -> None:
    made = await restarted(await measured())
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Recommend"}
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "Recommended")
    assert "2 replicas of mode Admission keep the setting until recreated" in made.message("RolledOut")
    assert made.settings() == [True, True]
    assert (await restarted(made)).settings() == [False, False]
    assert "keep the setting" not in made.message("RolledOut")


async def test_a_deleted_drafttable_goes_at_once_and_new_pods_get_nothing() -> None:
    made = await restarted(await measured())
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:30:00Z"
    for _ in range(3):
        if ("DraftTable", "chat") in made.objects:
            await made.turn()
    assert ("DraftTable", "chat") not in made.objects
    assert [event["reason"] for event in made.events][-1] == "ReplicasKeepSetting"
    assert made.evicted == []
    assert made.settings() == [True, True]
    made.roll()
    assert made.settings() == [False, False]
    assert deployment_writes(made) == []


async def test_an_operator_that_starts_again_goes_on() -> None:
    made = await restarted(await measured())
    made.restart_operator()
    await made.turn()
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    assert made.settings() == [True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_scaled_to_zero_and_up_again() -> None:
    made = await restarted(await measured())
    made.get("Deployment", "decode")["spec"]["replicas"] = 0
    for pod in made.pods():
        del made.objects["Pod", pod["metadata"]["name"]]
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "Proved")
    made.get("Deployment", "decode")["spec"]["replicas"] = 2
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    assert made.settings() == [True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_a_webhook_that_cannot_be_served_is_told_and_holds_evictions() -> None:
    made = await measured(replicas=3)
    made.problem = "Secret tabletune-admission is missing. Install the chart again with admission.enabled=true."
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    await made.turns(3)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "NotAdmitted")
    assert "Secret tabletune-admission is missing" in made.message("RolledOut")
    made.problem = None
    await made.turns(8)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_what_was_taken_back_is_not_tried_again_after_a_while_without_a_profile() -> None:
    made = await measured(replicas=3)
    made.now += timedelta(minutes=1)
    broken = made.replace_pod(made.pods()[0]["metadata"]["name"], ready=False)
    broken["status"]["containerStatuses"][0] |= {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RolledBack")
    files = made.get("ConfigMap", "chat-tabletune")
    kept = dict(files["data"])
    files["data"] = {**kept, "table.json": "damaged"}
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "ConfigMapDamaged")
    files["data"] = kept
    await made.turns(2)
    made.now += timedelta(minutes=1)
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert made.settings() == [False, False, False]


async def test_a_damaged_file_changes_nothing_for_new_pods() -> None:
    made = await restarted(await measured())
    made.get("ConfigMap", "chat-tabletune")["data"]["table.json"] = "damaged"
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "Proved")
    made.now += timedelta(minutes=1)
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    await made.turns(2)
    assert made.settings() == [True, True]
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_from_patch_to_recommend_nothing_is_said_of_mode_admission() -> None:
    made = await measured()
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Patch"}
    await made.turns(4)
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Recommend"}
    for _ in range(4):
        await made.turn()
        assert "mode Admission" not in made.message("RolledOut")
    assert made.condition("RolledOut") == ("False", "Recommended")


async def test_a_long_cause_leaves_room_for_the_cure() -> None:
    made = await restarted(await measured())
    made.reachable = False
    made.now += timedelta(minutes=5)
    pod = made.replace_pod(made.pods()[0]["metadata"]["name"])
    made.problem = "something that takes many words " * 10
    await made.turns(2)
    message = made.message("RolledOut")
    assert len(message) <= 300
    assert message.endswith(f"Then restart it: kubectl delete pod {pod['metadata']['name']}")


async def test_replicas_of_a_stateful_set_are_evicted_one_at_a_time() -> None:
    made = await measured(replicas=3, stateful=True, replace="Evict")
    before = copy.deepcopy(made.get("StatefulSet", "decode")["spec"])
    await made.turns(8)
    assert sorted(made.evicted) == ["decode-0", "decode-1", "decode-2"]
    assert made.settings() == [True, True, True]
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.get("StatefulSet", "decode")["spec"] == before
    assert [write for write in made.writes if "StatefulSet" in write] == []


async def test_suspended_nothing_is_evicted_and_new_pods_get_what_they_got() -> None:
    made = await measured(replicas=3)
    made.get("DraftTable", "chat")["spec"] |= {"state": "Suspended", "rollout": {"mode": "Admission", "replace": "Evict"}}
    await made.turns(4)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "Suspended")
    made.now += timedelta(minutes=1)
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    assert sorted(made.settings()) == [False, False, True]
    made.get("DraftTable", "chat")["spec"]["state"] = "Active"
    await made.turns(8)
    assert made.settings() == [True, True, True]


async def test_suspended_no_other_setting_is_begun() -> None:
    made = await measured()
    made.get("DraftTable", "chat")["spec"] |= {"state": "Suspended", "controller": {"hysteresis": 3}}
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "Suspended")
    (given,) = made.table.by_workload.values()
    assert given.controller.hysteresis == 0


async def test_a_setting_waits_for_its_approval() -> None:
    made = await measured(approval="Manual")
    assert made.condition("RolledOut") == ("False", "AwaitingApproval")
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    assert made.settings() == [False, False]
    table = made.get("DraftTable", "chat")
    table["metadata"]["annotations"] = {"tabletune.io/approve": table["status"]["table"]["digest"]}
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "WaitingForRestart")
    made.now += timedelta(minutes=1)
    made.roll()
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "Proved")
