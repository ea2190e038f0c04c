"""The operator is killed before each of its calls, on its whole way: what it left is never half done, and the way ends the same."""

from __future__ import annotations

import copy
import json

import pytest
from world import StoppedError, World, deployment, draft_table

from tabletune_operator.cluster import ClusterError

LONGEST_WAY = 40
"""Calls of the whole way, with room: a way that ends before a kill is the last case."""


async def walk(made: World) -> None:
    """One turn, as a fresh operator; then the world moves on as far as it can."""
    try:
        await made.turn()
    except StoppedError:
        made.fail_after = None
    if ("Job", "chat-profile") in made.objects and ("ConfigMap", "chat-tabletune") not in made.objects:
        made.finish_profile()


@pytest.mark.parametrize("calls", range(LONGEST_WAY))
async def test_stopped_at_any_call_it_ends_in_the_same_place(calls: int) -> None:
    made = World(deployment(), draft_table())
    made.roll()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    made.fail_after = calls
    for _ in range(10):
        await walk(made)
        spec = made.get("Deployment", "decode")["spec"]
        ours = "tabletune.io/record" in (made.get("Deployment", "decode")["metadata"].get("annotations") or {})
        assert (json.dumps(spec) == before) != ours, "a target is either as its user wrote it, or rolled out with its record"
    assert made.state() == "Tracking"
    assert made.condition("Ready") == ("True", "Tracking")

    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    made.fail_after = made.calls + calls % 4
    for _ in range(5):
        await walk(made)
    assert ("DraftTable", "chat") not in made.objects
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before


@pytest.mark.parametrize("turns", range(7))
async def test_deleted_at_every_stage_it_leaves_the_target_as_it_was(turns: int) -> None:
    made = World(deployment(), draft_table())
    made.roll()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    for at in range(turns):
        await made.turn()
        if at == 1 and ("Job", "chat-profile") in made.objects:
            made.finish_profile()
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    for _ in range(4):
        await made.turn()
    assert ("DraftTable", "chat") not in made.objects
    assert ("Job", "chat-profile") not in made.objects
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before


async def test_a_target_edited_between_look_and_restore_is_a_conflict_and_not_a_loss() -> None:
    made = World(deployment(), draft_table())
    made.roll()
    await made.until_rolling_out()
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    replace = made.replace

    async def edited_meanwhile(body: dict[str, object]) -> None:
        edited = copy.deepcopy(made.get("Deployment", "decode"))
        edited["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "MINE", "value": "1"})
        made.put(edited)
        made.replace = replace  # type: ignore[method-assign]
        await replace(body)

    made.replace = edited_meanwhile  # type: ignore[method-assign, assignment]
    with pytest.raises(ClusterError):
        await made.turn()
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    assert made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "MINE", "value": "1"}]
