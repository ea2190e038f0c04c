"""spec.state Suspended: nothing new is started, what runs stays, and everybody sees it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from world import World, deployment, draft_table, node, rolled_out, serving
from world_gpus import full

from tabletune_operator.times import to_time


def set_state(made: World, state: str) -> None:
    made.get("DraftTable", "chat")["spec"]["state"] = state


async def test_no_job_is_started_until_it_is_active_again() -> None:
    made = serving(state="Suspended")
    await made.turns(3)
    assert made.condition("Profiled") == made.condition("Ready") == ("False", "Suspended")
    assert made.state() == "Suspended"
    assert made.writes == []
    set_state(made, "Active")
    await made.turn()
    assert ("Job", "chat-profile") in made.objects
    assert made.get("DraftTable", "chat")["status"]["profile"]["attempts"] == 1


async def test_a_job_that_runs_ends_and_its_result_is_not_rolled_out() -> None:
    made = serving()
    await made.turns(2)
    set_state(made, "Suspended")
    made.progress()
    await made.turn()
    assert made.state() == "Profiling 37%"
    made.finish_profile()
    await made.turns(3)
    assert made.condition("Verified") == ("True", "TablePays")
    assert made.condition("RolledOut") == ("False", "Suspended")
    assert "apply Deployment" not in made.writes
    set_state(made, "Active")
    await made.turns(4)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_what_is_rolled_out_goes_on_and_is_shown_as_suspended() -> None:
    made = await rolled_out()
    set_state(made, "Suspended")
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("Ready") == ("True", "Tracking")
    assert made.state() == "Suspended"
    assert len(made.writes) == writes
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Recommend"}
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "Suspended")
    assert len(made.writes) == writes


async def test_a_roll_out_that_does_not_work_is_taken_back_all_the_same() -> None:
    made = serving()
    before = made.get("Deployment", "decode")["spec"]["template"]
    await made.turns(2)
    made.finish_profile()
    await made.turn()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await made.turn()
    set_state(made, "Suspended")
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert made.get("Deployment", "decode")["spec"]["template"] == before


async def test_no_replica_is_borrowed() -> None:
    made = full()
    await made.turn()
    set_state(made, "Suspended")
    made.now += timedelta(seconds=31)
    await made.turns(3)
    assert made.condition("Profiled") == ("False", "Suspended")
    assert made.get("Deployment", "decode")["spec"]["replicas"] == 3


async def test_nobody_waits_behind_one_that_is_suspended() -> None:
    made = World(nodes=(node(),))
    for name in ("chat", "other"):
        made.put(deployment(f"decode-{name}"))
        made.put(draft_table(name, target=f"decode-{name}", profile={"promptTokens": 32 if name == "chat" else 33}))
        made.roll(f"decode-{name}")
    asked: dict[str, Any] = {"pool": "NVIDIA-H200", "since": to_time(made.now), "seenAt": to_time(made.now), "place": "1st of 2"}
    made.get("DraftTable", "chat")["status"] = {"profile": {"queue": asked}}
    set_state(made, "Suspended")
    await made.turn("chat")
    assert "queue" not in made.get("DraftTable", "chat")["status"]["profile"]
    await made.turn("other")
    assert ("Job", "other-profile") in made.objects


@pytest.mark.parametrize("kind", ["Profiled", "RolledOut"])
async def test_the_message_says_how_to_go_on(kind: str) -> None:
    made = serving(state="Suspended") if kind == "Profiled" else serving()
    await made.turns(2)
    if kind == "RolledOut":
        made.finish_profile()
        set_state(made, "Suspended")
        await made.turns(2)
    assert made.message(kind).endswith("Set spec.state to Active to go on.")


async def test_a_deleted_one_is_given_back_whether_suspended_or_not() -> None:
    made = await rolled_out(state="Active")
    set_state(made, "Suspended")
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    assert made.get("Deployment", "decode")["spec"]["template"] == deployment()["spec"]["template"]
