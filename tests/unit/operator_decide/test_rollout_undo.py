"""The user takes our roll-out back with `kubectl rollout undo`: it is respected, named, and ends when they undo that.

What kubectl writes is tried with the real one in tests/api/test_kubectl_undo.py: the revision's pod template, and its annotations in place
of the Deployment's own.
"""

from __future__ import annotations

import copy
from typing import Any

from world import World, rolled_out

from tabletune_operator.restore import restore

Revision = tuple[Any, Any]


def revision(made: World) -> Revision:
    """What the ReplicaSet of the present revision keeps."""
    live = made.get("Deployment", "decode")
    return copy.deepcopy(live["spec"]["template"]), copy.deepcopy(live["metadata"]["annotations"])


def undo(made: World, to: Revision) -> None:
    template, annotations = copy.deepcopy(to)
    live = made.get("Deployment", "decode")
    live["spec"]["template"] = template
    annotations["deployment.kubernetes.io/revision"] = live["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
    live["metadata"]["annotations"] = annotations
    live["metadata"]["generation"] += 1
    made.put(live)
    made.roll()


async def before_and_after() -> tuple[World, Revision]:
    """A world that is rolled out, and the revision before it."""
    made = await rolled_out()
    before = restore(made.get("Deployment", "decode"))
    return made, (before["spec"]["template"], dict(before["metadata"].get("annotations", {})))


async def test_an_undone_roll_out_stays_undone_and_the_message_names_the_undo() -> None:
    made, before = await before_and_after()
    undo(made, before)
    writes = len(made.writes)
    await made.turns(20)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert "kubectl rollout undo" in made.message("RolledOut")
    assert made.condition("Stalled") == ("True", "PutBack")
    assert made.get("Deployment", "decode")["spec"]["template"] == before[0]
    assert len(made.writes) == writes


async def test_undoing_the_undo_brings_the_table_back_without_a_write_of_ours() -> None:
    made, before = await before_and_after()
    ours = revision(made)
    undo(made, before)
    await made.turns(3)
    writes = len(made.writes)
    undo(made, ours)
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.condition("Ready")[0] == "True"
    assert len(made.writes) == writes


async def test_undoing_to_an_earlier_table_of_ours_is_respected_as_well() -> None:
    made = await rolled_out()
    first = revision(made)
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await made.turns(4)
    assert revision(made) != first
    assert made.condition("RolledOut") == ("True", "Proved")
    undo(made, first)
    writes = len(made.writes)
    await made.turns(20)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert "kubectl rollout undo" in made.message("RolledOut")
    assert revision(made)[0] == first[0]
    assert len(made.writes) == writes


async def test_an_undo_to_an_earlier_table_ends_with_a_restart() -> None:
    made = await rolled_out()
    first = revision(made)
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await made.turns(4)
    undo(made, first)
    await made.turns(2)
    template = made.get("Deployment", "decode")["spec"]["template"]
    template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "2026-11-30T15:00:00Z"
    made.roll()
    await made.turns(4)
    assert made.condition("RolledOut") == ("True", "Proved")
    sidecar = next(
        c for c in made.get("Deployment", "decode")["spec"]["template"]["spec"]["initContainers"] if c["name"].endswith("sidecar")
    )
    assert sidecar["args"][sidecar["args"].index("--hysteresis") + 1] == "2"


async def test_after_an_undo_a_deleted_drafttable_leaves_the_workload_as_the_undo_made_it() -> None:
    made, before = await before_and_after()
    undo(made, before)
    await made.turns(2)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    assert made.get("Deployment", "decode")["spec"]["template"] == before[0]


async def test_a_restart_asked_for_after_an_undo_is_another_try() -> None:
    made, before = await before_and_after()
    undo(made, before)
    await made.turns(2)
    template = made.get("Deployment", "decode")["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "2026-11-30T15:00:00Z"
    made.roll()
    await made.turns(4)
    assert made.condition("RolledOut") == ("True", "Proved")
