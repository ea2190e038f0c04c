"""Before a roll-out: room for its new replicas, disruption budgets, scales under way, one at a time. After it: worse than before."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from world import LABELS, Body, World, deployment, draft_table, node, rolled_out, serving
from world_files import sidecar_state

from tabletune.formats import digest_of

SURGE_0 = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
APPLY = "apply Deployment"


async def ready_to_roll(made: World, name: str = "chat") -> World:
    await made.turns(2, name)
    made.finish_profile(name)
    await made.turns(3, name)
    return made


def full(**rollout: Any) -> World:
    """Two replicas on two GPUs; a third was there for the Job and is gone."""
    made = World(deployment(), draft_table(rollout=rollout), nodes=(node(gpus=3),))
    made.roll()
    return made


def take_last_gpu(made: World) -> None:
    made.nodes[0] = node(gpus=2)


async def measured_on_full(**rollout: Any) -> World:
    made = full(**rollout)
    await made.turns(2)
    made.finish_profile()
    take_last_gpu(made)
    await made.turns(3)
    return made


async def test_a_roll_out_by_surge_waits_for_its_gpu_before_anything_is_touched() -> None:
    made = await measured_on_full()
    assert made.condition("RolledOut") == ("False", "RolloutNeedsGPU")
    assert made.condition("Reconciling")[0] == "True"
    assert "Nothing is changed" in made.message("RolledOut") and "maxSurge 0" in made.message("RolledOut")
    assert APPLY not in made.writes
    made.nodes[0] = node(gpus=3)
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_the_users_strategy_or_word_lets_it_go_without() -> None:
    made = await measured_on_full(guard={"freeGPUs": "Ignore"})
    assert made.writes.count(APPLY) == 1
    made = full()
    made.get("Deployment", "decode")["spec"]["strategy"] = SURGE_0
    await made.turns(2)
    made.finish_profile()
    take_last_gpu(made)
    await made.turns(3)
    assert made.writes.count(APPLY) == 1


@pytest.mark.parametrize(("allowed", "strategy", "waits"), [(0, SURGE_0, True), (1, SURGE_0, False), (0, {}, False)])
async def test_a_budget_is_honoured_where_the_strategy_stops_replicas_first(allowed: int, strategy: Body, *, waits: bool) -> None:
    made = serving()
    made.get("Deployment", "decode")["spec"]["strategy"] = strategy
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "keep"}, "spec": {"selector": {"matchLabels": LABELS}}}
    made.put({**budget, "status": {"disruptionsAllowed": allowed}})
    await ready_to_roll(made)
    assert (made.condition("RolledOut") == ("False", "DisruptionBudget")) == waits
    assert (APPLY in made.writes) == (not waits)
    if waits:
        assert "PodDisruptionBudget keep allows 0" in made.message("RolledOut")
        made.get("PodDisruptionBudget", "keep")["status"]["disruptionsAllowed"] = 1
        await made.turns(3)
        assert made.state() == "Tracking"


async def test_it_waits_while_an_autoscaler_scales() -> None:
    made = serving()
    scaler = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {"name": "decode"}}}
    made.put({**scaler, "status": {"currentReplicas": 2, "desiredReplicas": 4}})
    await ready_to_roll(made)
    assert made.condition("RolledOut") == ("False", "ScalingUnderWay")
    assert "hpa scales it from 2 to 4" in made.message("RolledOut")
    assert APPLY not in made.writes
    made.get("HorizontalPodAutoscaler", "hpa")["status"] = {"currentReplicas": 4, "desiredReplicas": 4}
    await made.turns(2)
    assert made.writes.count(APPLY) == 1


async def test_it_waits_for_a_roll_out_of_the_targets_own() -> None:
    made = serving()
    await made.turns(2)
    made.finish_profile()
    made.get("Deployment", "decode")["status"] |= {"replicas": 3, "updatedReplicas": 1}
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "ScalingUnderWay")
    assert "earlier roll-out" in made.message("RolledOut")
    assert APPLY not in made.writes


def three() -> World:
    """Three targets of one namespace, each with its DraftTable, of one fingerprint."""
    made = World(nodes=(node(gpus=16),))
    for at, name in enumerate(("first", "second", "third")):
        labels = {**LABELS, "app": name}
        target = deployment(f"{name}-target")
        target["spec"]["selector"] = {"matchLabels": labels}
        target["spec"]["template"]["metadata"] = {"labels": labels}
        made.put(target)
        made.put(draft_table(name, target=f"{name}-target", created=made.now + timedelta(seconds=at)))
        made.roll(f"{name}-target")
    return made


async def test_one_roll_out_at_a_time_in_a_namespace_the_oldest_first() -> None:
    made = three()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await ready_to_roll(made, "first")
    await made.turns(2, "first")
    assert made.condition("RolledOut", "first") == ("False", "RollingOut")
    for name in ("third", "second"):  # the third asks first
        await made.turns(3, name)
    assert made.condition("RolledOut", "third") == made.condition("RolledOut", "second") == ("False", "RolloutQueued")
    assert "roll-out of first; 1st of 1" in made.message("RolledOut", "third")
    assert "2nd of 2" in made.message("RolledOut", "second")
    for pod in made.pods("first-target", current=True):
        pod["status"]["conditions"][0]["status"] = "True"
    made.remove_old_pods("first-target")
    await made.turn("first")
    assert made.condition("RolledOut", "first") == ("True", "Proved")
    await made.turn("second")
    assert made.condition("RolledOut", "second") == ("False", "RolloutQueued")
    assert "third, which is first" in made.message("RolledOut", "second")
    await made.turn("third")
    assert made.condition("RolledOut", "third") == ("False", "RollingOut")
    await made.turn("second")
    assert "roll-out of third" in made.message("RolledOut", "second")
    assert made.writes.count(APPLY) == 2


async def test_who_is_silent_or_stuck_does_not_hold_the_others_up() -> None:
    made = three()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await ready_to_roll(made, "first")
    await made.turns(2, "first")
    await made.turns(3, "third")
    made.now += timedelta(minutes=4)  # the third is not looked at any more
    await made.turns(3, "second")
    assert "roll-out of first; 1st of 1" in made.message("RolledOut", "second")
    made.now += timedelta(hours=6)
    await made.turns(2, "second")
    assert made.condition("RolledOut", "second") == ("False", "RollingOut")


async def test_a_waiting_one_writes_its_status_now_and_then_only() -> None:
    made = three()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await ready_to_roll(made, "first")
    await made.turns(2, "first")
    await made.turns(3, "second")
    writes = made.status_writes
    for _ in range(4):
        await made.turn("second", seconds=10)
    assert made.status_writes == writes
    await made.turn("second", seconds=30)
    await made.turn("second", seconds=1)
    assert made.status_writes == writes + 1


async def test_scaled_to_zero_during_the_roll_out_it_waits_for_a_replica_and_holds_nobody_up() -> None:
    made = serving()
    await made.until_rolling_out()
    target = made.get("Deployment", "decode")
    target["spec"]["replicas"] = 0
    for pod in made.pods():
        del made.objects["Pod", pod["metadata"]["name"]]
    target["status"] |= {"replicas": 0, "updatedReplicas": 0}
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "Proving")
    assert "scaled to 0" in made.message("RolledOut")
    target["spec"]["replicas"] = 2
    made.roll()
    await made.turns(2)
    assert made.state() == "Tracking"


async def test_scaled_to_zero_before_the_roll_out_it_needs_no_gpu() -> None:
    made = full()
    await made.turns(2)
    made.finish_profile()
    take_last_gpu(made)
    await made.turn()
    target = made.get("Deployment", "decode")
    target["spec"]["replicas"] = 0
    for pod in made.pods():
        del made.objects["Pod", pod["metadata"]["name"]]
    target["status"] |= {"replicas": 0, "updatedReplicas": 0}
    await made.turns(3)
    assert made.condition("RolledOut") in {("False", "Proving"), ("Unknown", "NotVerified")}


async def test_the_target_deleted_during_the_roll_out_is_no_error_of_ours() -> None:
    made = serving()
    await made.until_rolling_out()
    for key in [key for key in made.objects if key[0] in {"Deployment", "ReplicaSet", "Pod"}]:
        del made.objects[key]
    await made.turns(2)
    assert made.condition("Accepted") == ("False", "TargetNotFound")
    assert made.condition("RolledOut") == ("Unknown", "NotVerified")
    writes = len(made.writes)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    plan = await made.turn()
    assert plan is not None
    assert len(made.writes) == writes
    assert plan.finished


@pytest.mark.parametrize("where", ["lastState", "state"])
async def test_a_replica_that_runs_out_of_memory_is_told_from_one_that_crashes(where: str) -> None:
    made = serving()
    engine = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    engine["resources"]["limits"]["memory"] = "64Gi"
    await made.turns(1)
    made.finish_profile()
    await made.turn()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await made.turn()
    for pod in made.pods(current=True):
        ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        pod["status"]["containerStatuses"][0] |= {where: ended, "restartCount": 2}
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert "container modelserver was killed for memory (limit 64Gi). Raise it" in made.message("RolledOut")


# After the roll-out.


def state(made: World, tokens: int, *, steps: int = 5000, common: float | None = 1.0, prompts: float | None = 40.0) -> Body:
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    return {
        **sidecar_state(),
        "goodput": {"steps": steps, "tokens": tokens, "expectedTokens": 100_000},
        "stepTimes": {"common": common},
        "requests": {"promptTokens": prompts},
        "files": {"digest": digest_of(data)},
    }


def all_say(made: World, said: Body) -> None:
    for address in made.states:
        made.states[address] = copy.deepcopy(said)


async def passes(made: World, minutes: int) -> None:
    for _ in range(minutes):
        await made.turn(seconds=60)


async def test_replicas_that_do_beyond_doubt_worse_bring_the_old_setting_back_once() -> None:
    made = await rolled_out()
    all_say(made, state(made, 80_000))
    await passes(made, 10)
    assert made.state() == "Tracking", "not before two windows agree"
    assert made.get("DraftTable", "chat")["status"]["rollout"]["worseSince"]
    await passes(made, 8)
    assert made.condition("RolledOut") == ("False", "RolledBack")
    message = made.message("RolledOut")
    assert "80.0 % of the predicted tokens (limit" in message
    assert "the setting before 95.2 %" in message
    assert made.get("Deployment", "decode")["metadata"].get("annotations", {}).get("tabletune.io/drafttable") is None
    writes = len(made.writes)
    await passes(made, 30)
    assert len(made.writes) == writes, "no second try until something changed"
    assert made.message("RolledOut") == message
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await made.turns(2)
    assert made.writes[writes:].count(APPLY) == 1


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"tokens": 93_000}, id="within the limit"),
        pytest.param({"tokens": 70_000, "common": 1.4}, id="all lengths slower alike: so would the old setting be"),
        pytest.param({"tokens": 70_000, "common": None}, id="how much all are slower is not known"),
        pytest.param({"tokens": 70_000, "prompts": 4000.0}, id="prompts far longer than profiled"),
        pytest.param({"tokens": 70_000, "prompts": None}, id="length of prompts not known"),
        pytest.param({"tokens": 70_000, "steps": 500}, id="few steps"),
    ],
)
async def test_nothing_is_rolled_back_on_doubt(said: dict[str, Any]) -> None:
    made = await rolled_out()
    all_say(made, state(made, **said))
    await passes(made, 40)
    assert made.state() == "Tracking"
    assert "worseSince" not in made.get("DraftTable", "chat")["status"]["rollout"]


async def test_one_replica_that_is_not_heard_leaves_it_undecided() -> None:
    made = await rolled_out()
    all_say(made, state(made, 70_000))
    made.states[min(made.states)] = None
    await passes(made, 40)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_a_worse_spell_that_ends_is_forgotten() -> None:
    made = await rolled_out()
    all_say(made, state(made, 70_000))
    await passes(made, 10)
    all_say(made, state(made, 100_000))
    await passes(made, 1)
    all_say(made, state(made, 70_000))
    await passes(made, 10)
    assert made.state() == "Tracking"


async def test_report_only_says_so() -> None:
    made = await rolled_out(rollout={"guard": {"afterRollout": "Report"}})
    all_say(made, state(made, 70_000))
    writes = len(made.writes)
    await passes(made, 20)
    assert made.condition("RolledOut") == ("False", "WorseThanBefore")
    assert "70.0 % of the predicted tokens" in made.message("RolledOut")
    assert [w for w in made.writes[writes:] if "Deployment" in w] == []
    all_say(made, state(made, 100_000))
    await passes(made, 1)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_replicas_that_crash_soon_after_their_proof_bring_the_old_setting_back() -> None:
    made = await rolled_out()
    for pod in made.pods():
        pod["status"]["conditions"][0]["status"] = "False"
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert "2 of 2 new replicas crash" in made.message("RolledOut")


async def test_one_of_three_that_crashes_is_its_nodes_trouble() -> None:
    made = World(deployment(replicas=3), draft_table())
    made.roll()
    await made.until_rolling_out()
    await made.turns(2)
    assert made.state() == "Tracking"
    (pod, *_) = made.pods()
    pod["status"]["conditions"][0]["status"] = "False"
    pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turns(3)
    assert "replace Deployment" not in made.writes
