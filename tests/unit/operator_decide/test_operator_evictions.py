"""Mode Admission with evictions: the guard before each of them, and the look after the roll-out, as in mode Patch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from test_operator_guard import all_say, passes, state
from test_operator_served import BAD, FINE, every, rollout, serves
from world import Body, deployment, draft_table
from world_admission import AdmissionWorld, measured

from tabletune_operator.times import to_time

HPA = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {"name": "decode"}}}


async def waiting(**options: Any) -> AdmissionWorld:
    """Measured, and its replicas would be evicted next."""
    made = await measured(replicas=3, **options)
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Evict"
    return made


def other(made: AdmissionWorld, reason: str, **status: Any) -> Body:
    """Another DraftTable of the namespace, by its own status."""
    table = draft_table("other", target="another")
    condition = {"type": "RolledOut", "status": "False", "reason": reason, "message": "m", "observedGeneration": 1}
    table["status"] = {"rollout": status, "conditions": [{**condition, "lastTransitionTime": to_time(made.now)}]}
    made.put(deployment("another"))
    return made.put(table)


async def test_evictions_wait_for_the_roll_out_of_another_one_of_the_namespace() -> None:
    made = await waiting()
    table = other(made, "RollingOut", digest="d", startedAt=to_time(made.now))
    await made.turns(4)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "RolloutQueued")
    assert "evicted once other, whose roll-out comes before, is done (1st of 1 that wait)" in made.message("RolledOut")
    assert rollout(made)["queue"]["place"] == "1st of 1"
    table["status"]["rollout"]["completedAt"] = to_time(made.now)
    await made.turns(10)
    assert len(made.evicted) == 3
    assert made.condition("RolledOut") == ("True", "Proved")
    assert "queue" not in rollout(made)


async def test_who_waited_before_comes_first_and_evictions_that_go_on_count_as_a_roll_out() -> None:
    made = await waiting()
    since, seen = to_time(made.now - timedelta(minutes=1)), to_time(made.now)
    table = other(made, "RolloutQueued", queue={"since": since, "seenAt": seen, "place": "1st of 1"})
    await made.turns(3)
    assert made.evicted == []
    assert "2nd of 2" in made.message("RolledOut")
    del made.objects["DraftTable", table["metadata"]["name"]]
    await made.turn()
    assert len(made.evicted) == 1
    made.put(table)
    seen_by_other = await made.observe("other")
    assert seen_by_other is not None
    assert seen_by_other.rollouts.running is not None
    assert seen_by_other.rollouts.running.name == "chat"


async def test_nothing_is_evicted_while_an_autoscaler_scales() -> None:
    made = await waiting()
    made.put({**HPA, "status": {"currentReplicas": 3, "desiredReplicas": 4}})
    await made.turns(4)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "ScalingUnderWay")
    assert "hpa scales it from 3 to 4 replicas" in made.message("RolledOut")
    made.get("HorizontalPodAutoscaler", "hpa")["status"] = {"currentReplicas": 3, "desiredReplicas": 3}
    await made.turns(10)
    assert len(made.evicted) == 3


async def test_no_gpu_is_freed_for_a_pod_of_somebody_else() -> None:
    made = await waiting()
    template = deployment("batch")["spec"]["template"]
    made.put(
        {
            "kind": "Pod",
            "metadata": {"name": "batch-0", "labels": {}},
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        }
    )
    await made.turns(4)
    assert made.evicted == []
    assert made.condition("RolledOut") == ("False", "WaitingForRestart")
    assert "no other pod waits for its GPU (batch-0 does, and would take it). Free one, or set spec.rollout.guard.freeGPUs" in made.message(
        "RolledOut"
    )
    made.get("DraftTable", "chat")["spec"]["rollout"]["guard"] = {"freeGPUs": "Ignore"}
    await made.turns(10)
    assert len(made.evicted) == 3


async def evicted_and_proved(replicas: int = 3, **options: Any) -> AdmissionWorld:
    made = AdmissionWorld(deployment(replicas=replicas), draft_table(rollout={"mode": "Admission", "replace": "Evict", **options}))
    made.roll()
    every(made, **FINE)
    await made.turns(2)
    made.finish_profile()
    await made.turns(12)
    assert made.condition("RolledOut") == ("True", "Proved")
    return made


@pytest.mark.parametrize("worse", ["goodput", "errors", "stalls"])
async def test_replicas_that_do_worse_leave_the_setting_one_by_one(worse: str) -> None:
    made = await evicted_and_proved()
    assert len(made.evicted) == 3
    assert rollout(made)["before"]["finishedRequests"] == 3 * FINE["requests"]
    counted = FINE | {worse: FINE["requests"]} if worse != "goodput" else FINE
    if worse == "goodput":
        all_say(made, state(made, 70_000))
    counted = await serves(made, 10, counted, **BAD.get(worse, {}))
    assert made.condition("RolledOut") == ("True", "Proved")
    await serves(made, 6, counted, **BAD.get(worse, {}))
    assert made.condition("RolledOut") == ("False", "RolledBack")
    message = made.message("RolledOut")
    assert "new pods get the old setting, others are evicted one at a time. Not tried again" in message
    assert len(message) <= 300
    await made.turns(1)
    assert len(made.evicted) == 4
    (new,) = (pod for pod in made.pods() if "initContainers" not in pod["spec"])
    new["status"]["conditions"][0]["status"] = "False"
    await made.turns(5)
    assert len(made.evicted) == 4, "one at a time"
    new["status"]["conditions"][0]["status"] = "True"
    await passes(made, 10)
    assert len(made.evicted) == 6
    assert made.settings() == [False, False, False]
    assert made.message("RolledOut") == message
    await passes(made, 20)
    assert len(made.evicted) == 6
    assert made.condition("RolledOut") == ("False", "RolledBack"), "no second try until something changed"
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await passes(made, 12)
    assert made.settings() == [True, True, True]


async def test_without_evictions_replicas_leave_it_when_they_are_restarted_and_that_is_no_wish_for_another_try() -> None:
    made = await evicted_and_proved()
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Wait"
    await serves(made, 17, FINE | {"errors": 1000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert "others once restarted: kubectl rollout restart deploy/decode" in made.message("RolledOut")
    assert len(made.evicted) == 3
    assert made.settings() == [True, True, True]
    made.get("Deployment", "decode")["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    made.roll()
    await passes(made, 3)
    assert made.settings() == [False, False, False]
    assert made.condition("RolledOut") == ("False", "RolledBack")


async def test_report_only_says_so() -> None:
    made = await evicted_and_proved(guard={"afterRollout": "Report"})
    await serves(made, 20, FINE | {"errors": 1000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("False", "WorseThanBefore")
    assert made.settings() == [True, True, True]
    made.replace_pod(made.pods()[0]["metadata"]["name"])
    assert made.settings() == [True, True, True], "new pods go on to get it"


async def test_replicas_that_serve_as_before_keep_it() -> None:
    made = await evicted_and_proved()
    await serves(made, 40, FINE)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert len(made.evicted) == 3


async def test_what_was_taken_back_stays_so_while_the_files_cannot_be_read() -> None:
    made = await evicted_and_proved()
    made.get("DraftTable", "chat")["spec"]["rollout"]["replace"] = "Wait"
    await serves(made, 17, FINE | {"errors": 1000}, **BAD["errors"])
    made.get("ConfigMap", "chat-tabletune")["data"]["table.json"] = "damaged"
    await passes(made, 3)
    assert made.condition("RolledOut") == ("False", "RolledBack")
