"""placement BorrowReplica: a replica is stopped for the Job when no GPU is free, and always comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import StoppedError, World, draft_table
from world_gpus import BORROWED, REPLICAS, GpuWorld, full, is_lent, job_pod, replicas

from tabletune.verdict import VerdictKind

HPA = {
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "chat"},
    "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "decode"}},
}
SCALED = {"kind": "ScaledObject", "metadata": {"name": "keda"}, "spec": {"scaleTargetRef": {"name": "decode"}}}
BUDGET = {
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "all"},
    "spec": {"selector": {"matchLabels": {"llm-d.ai/role": "decode"}}},
    "status": {"disruptionsAllowed": 0},
}


async def borrowing(**profile: Any) -> GpuWorld:
    """The Job's pod has got the GPU of a replica."""
    made = full(**profile)
    await made.turn()
    made.now += timedelta(seconds=31)
    await made.turn()
    assert (replicas(made), is_lent(made)) == (REPLICAS - 1, True)
    return made


async def test_borrows_when_no_gpu_is_free_and_gives_back_when_the_job_is_done() -> None:
    made = full()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "WaitingForGPU")
    assert "one of 3 replicas of Deployment decode is stopped for the Job" in made.message("Profiled")
    assert replicas(made) == REPLICAS, "a GPU may be free in a moment"
    made.now += timedelta(seconds=31)
    await made.turn()
    assert made.condition("Profiled") == ("False", "BorrowingReplica")
    assert replicas(made) == REPLICAS - 1
    await made.turn()
    assert job_pod(made)["spec"]["nodeName"] is not None
    assert "2 of 3 replicas serve until the Job ends" in made.message("Profiled")
    made.progress()
    await made.turn()
    assert "2 of 3 replicas serve until the Job ends" in made.message("Profiled")

    made.finish_profile(kind=VerdictKind.PRESENT)
    await made.turns(3)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert not is_lent(made)
    assert made.state() == "Kept"
    reasons = [event["reason"] for event in made.events]
    assert ("BorrowingReplica" in reasons, reasons.count("ReplicaReturned")) == (True, 1)
    writes = len(made.writes)
    await made.turns(5)
    assert len(made.writes) == writes


async def test_nothing_is_borrowed_while_a_gpu_is_free() -> None:
    made = full()
    made.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = str(REPLICAS + 1)
    await made.turn()
    made.now += timedelta(minutes=5)
    await made.turns(2)
    assert "scale Deployment" not in made.writes
    assert replicas(made) == REPLICAS


async def test_placement_spare_waits_and_names_the_choice() -> None:
    made = full(placement="Spare")
    await made.turn()
    made.now += timedelta(minutes=5)
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "WaitingForGPU")
    assert "3 of 3 in use" in made.message("Profiled")
    assert "spec.profile.placement to BorrowReplica" in made.message("Profiled")
    assert "scale Deployment" not in made.writes


def not_ready(made: GpuWorld) -> None:
    made.pods()[0]["status"]["conditions"][0]["status"] = "False"


def elsewhere(made: GpuWorld) -> None:
    made.nodes[0]["metadata"]["labels"]["pool"] = "serving"
    made.nodes.append(json.loads(json.dumps(made.nodes[0])))
    made.nodes[1]["metadata"] |= {"name": "node2", "labels": {**made.nodes[0]["metadata"]["labels"], "pool": "spare"}}
    made.nodes[1]["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    made.get("DraftTable", "chat")["spec"]["nodePool"] = {"nodeSelector": {"pool": "spare"}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda m: m.scale(1), "it has 1, and the last one is never stopped", id="one replica"),
        pytest.param(lambda m: m.put(dict(HPA)), "HorizontalPodAutoscaler chat sets its replicas", id="HPA"),
        pytest.param(lambda m: m.put(dict(SCALED)), "ScaledObject keda sets its replicas", id="KEDA"),
        pytest.param(lambda m: m.put(dict(BUDGET)), "PodDisruptionBudget all allows no replica to stop", id="PDB"),
        pytest.param(not_ready, "2 of 3 are ready", id="a replica is not ready"),
        pytest.param(elsewhere, "not all of them run on nodes that the Job may use", id="the Job runs elsewhere"),
    ],
)
async def test_refuses_and_says_why(change: Callable[[GpuWorld], Any], why: str) -> None:
    made = full()
    change(made)
    made.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = str(len(made.pods()))
    await made.turn()
    made.now += timedelta(minutes=5)
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "CannotBorrow")
    assert why in made.message("Profiled")
    assert "scale Deployment" not in made.writes


async def test_somebody_who_puts_the_replica_back_is_not_fought() -> None:
    made = await borrowing()
    made.take_gpu_of_job()
    made.scale(REPLICAS)
    made.writes.clear()
    for _ in range(6):
        await made.turn(seconds=60)
    assert made.condition("Profiled") == ("False", "CannotBorrow")
    assert "not a second time" in made.message("Profiled")
    assert replicas(made) == REPLICAS
    assert made.writes.count("scale Deployment") <= 1, "at most the record is taken away"


@pytest.mark.parametrize("theirs", [1, 2 + 3])
async def test_replicas_that_somebody_set_meanwhile_stay(theirs: int) -> None:
    made = await borrowing()
    made.scale(theirs)
    made.finish_profile(kind=VerdictKind.PRESENT)
    await made.turns(4)
    assert replicas(made) == theirs
    assert not is_lent(made)
    (event,) = (e for e in made.events if e["reason"] == "ReplicasLeftAsIs")
    assert f"was set to {theirs} while 1 of 3 was lent" in event["message"]


async def test_a_gpu_that_went_to_somebody_else_gives_the_replica_back_once() -> None:
    made = full()
    await made.turn()
    made.now += timedelta(seconds=31)
    made.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = str(REPLICAS - 1)  # another pod will have it
    await made.turn()
    assert replicas(made) == REPLICAS - 1
    for _ in range(15):
        await made.turn(seconds=60)
    assert (replicas(made), is_lent(made)) == (REPLICAS, False)
    assert made.condition("Profiled") == ("False", "CannotBorrow")
    assert made.writes.count("scale Deployment") == 3  # lent, returned, closed


ENDS: dict[str, Callable[[GpuWorld], Any]] = {
    "the Job fails": lambda m: m.end_job(failed=True),
    "the Job is deleted": lambda m: [m.objects.pop(key) for key in list(m.objects) if key[1].startswith("chat-profile")],
    "the Job is blocked": lambda m: (m.progress(outcome="Blocked", reason="TableIgnored", message="No."), m.end_job()),
    "the DraftTable is deleted": lambda m: m.get("DraftTable", "chat")["metadata"].update(deletionTimestamp="2026-11-30T15:00:00Z"),
    "the spec changes": lambda m: m.get("DraftTable", "chat")["spec"]["profile"].update(maxBatchSize=8),
    "the policy is Never": lambda m: m.get("DraftTable", "chat")["spec"]["profile"].update(policy="Never"),
    "it succeeds": lambda m: m.finish_profile(),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_replica_comes_back_however_it_ends(end: str) -> None:
    made = await borrowing()
    ENDS[end](made)
    for _ in range(4):
        await made.turn()
    assert (replicas(made), is_lent(made)) == (REPLICAS, False)


async def test_a_draft_table_that_is_gone_without_its_finalizer_is_no_loss_when_another_takes_the_target() -> None:
    made = await borrowing()
    for key in [key for key in made.objects if key[1].startswith("chat")]:
        del made.objects[key]
    made.put(draft_table("next"))
    await made.turns(3, "next")
    assert (replicas(made), is_lent(made)) == (REPLICAS, False)


async def test_a_record_that_somebody_destroyed_is_taken_away_and_said() -> None:
    made = await borrowing()
    made.get("Deployment", "decode")["metadata"]["annotations"][BORROWED] = "{"
    await made.turns(2)
    assert (replicas(made), is_lent(made)) == (REPLICAS - 1, False)
    (event,) = (e for e in made.events if e["reason"] == "ReplicasLeftAsIs")
    assert "replicas stays 2. Set it" in event["message"]


async def test_a_roll_out_waits_for_the_replica_and_deleting_gives_both_back() -> None:
    made = full()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.turn()
    made.now += timedelta(seconds=31)
    await made.turns(2)
    made.finish_profile()
    await made.turns(6)
    assert made.state() == "Tracking"
    made.get("DraftTable", "chat")["metadata"].setdefault("annotations", {})["tabletune.io/reprofile"] = "1"
    await made.turn()
    made.now += timedelta(seconds=31)
    await made.turn()
    assert (replicas(made), is_lent(made)) == (REPLICAS - 1, True)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(4)
    assert ("DraftTable", "chat") not in made.objects
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert not is_lent(made)


async def walk(made: World, kind: VerdictKind) -> None:
    """One turn, as a fresh operator; then the world moves on as far as it can."""
    try:
        await made.turn(seconds=20)
    except StoppedError:
        made.fail_after = None
    if ("Job", "chat-profile") in made.objects and "status" not in made.get("Job", "chat-profile") and job_pod(made)["spec"]["nodeName"]:
        made.finish_profile(kind=kind)


@pytest.mark.parametrize("kind", [VerdictKind.TABLE, VerdictKind.PRESENT])
@pytest.mark.parametrize("calls", range(30))
async def test_stopped_at_any_call_the_replica_comes_back(calls: int, kind: VerdictKind) -> None:
    made = full()
    made.fail_after = calls
    lent = False
    for _ in range(14):
        await walk(made, kind)
        lent |= is_lent(made)
        assert replicas(made) in {REPLICAS, REPLICAS - 1}
        assert is_lent(made) or replicas(made) == REPLICAS, "never less without the record of it"
    assert lent
    assert (replicas(made), is_lent(made)) == (REPLICAS, False)
    assert made.state() == ("Tracking" if kind is VerdictKind.TABLE else "Kept")


@pytest.mark.parametrize("turns", range(9))
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4])
async def test_deleted_at_every_stage_and_stopped_then_the_replica_comes_back(turns: int, calls: int) -> None:
    made = full()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    for _ in range(turns):
        await walk(made, VerdictKind.TABLE)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    made.fail_after = made.calls + calls
    for _ in range(6):
        try:
            await made.turn()
        except StoppedError:
            made.fail_after = None
    assert ("DraftTable", "chat") not in made.objects
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert not is_lent(made)


def kill(made: GpuWorld, calls: int) -> None:
    made.fail_after = made.calls + calls


def finish(made: GpuWorld) -> None:
    job = made.objects.get(("Job", "chat-profile"))
    if job is not None and "status" not in job and job_pod(made)["spec"]["nodeName"] is not None:
        made.finish_profile(kind=VerdictKind.PRESENT)


def fail(made: GpuWorld) -> None:
    job = made.objects.get(("Job", "chat-profile"))
    if job is not None and "status" not in job:
        made.end_job(failed=True)


def ask(made: GpuWorld, text: str) -> None:
    made.get("DraftTable", "chat")["metadata"].setdefault("annotations", {})["tabletune.io/reprofile"] = text


def gpus(made: GpuWorld, count: int) -> None:
    made.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = str(count)
    made.settle()


# Never what a loan of 3, 5 or 7 replicas leaves: nobody can tell that from our own value.
STEPS = st.one_of(
    st.tuples(st.just("turn"), st.sampled_from([1, 40, 700])),
    st.tuples(st.just("scale"), st.sampled_from([1, 3, 5, 7])),
    st.tuples(st.just("kill"), st.integers(0, 5)),
    st.tuples(st.just("finish"), st.just(0)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("ask"), st.integers(1, 9)),
    st.tuples(st.just("gpus"), st.sampled_from([2, 3, 8])),
)


@settings(max_examples=50)
@given(st.lists(STEPS, min_size=2, max_size=20))
def test_whatever_happens_the_target_ends_with_the_replicas_that_its_user_wants(steps: list[tuple[str, int]]) -> None:
    asyncio.run(live(steps))


async def live(steps: list[tuple[str, int]]) -> None:
    made, wanted = await borrowing(), REPLICAS
    for step, number in steps:
        match step:
            case "scale":
                made.scale(number)
                wanted = number
            case "turn":
                await turn(made, number)
            case "kill":
                kill(made, number)
            case "finish":
                finish(made)
            case "fail":
                fail(made)
            case "ask":
                ask(made, str(number))
            case _:
                gpus(made, number)
        lent = is_lent(made)
        assert replicas(made) == wanted or (lent and replicas(made) == wanted - 1), "one less, with its record, or as many as wanted"
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    for _ in range(6):
        await turn(made, 1)
    assert ("DraftTable", "chat") not in made.objects
    assert (replicas(made), is_lent(made)) == (wanted, False)


async def turn(made: GpuWorld, seconds: int) -> None:
    try:
        await made.turn(seconds=seconds)
    except StoppedError:
        made.fail_after = None
