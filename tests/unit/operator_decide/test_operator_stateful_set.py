"""A StatefulSet as target: the same story, by its own update strategy, and nothing forced."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import pytest
from world import World, deployment, draft_table, serving, stateful_set

ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}


async def test_a_stateful_set_is_measured_rolled_out_and_given_back() -> None:
    made = serving(target=stateful_set())
    before = copy.deepcopy(made.get("StatefulSet", "decode"))
    await made.until_rolling_out()
    await made.turns(2)
    assert made.state() == "Tracking"
    assert made.get("DraftTable", "chat")["status"]["display"]["target"] == "sts/decode"
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    after = made.get("StatefulSet", "decode")
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    assert after["metadata"].get("annotations", {}) == before["metadata"].get("annotations", {})


@pytest.mark.parametrize(("replicas", "told"), [(1, "nothing serves until the new one is ready"), (3, "2 of 3 serve meanwhile")])
async def test_the_roll_out_says_beforehand_what_it_costs(replicas: int, told: str) -> None:
    made = serving(target=stateful_set(replicas=replicas))
    await made.turns(2)
    made.finish_profile()
    for _ in range(4):
        plan = await made.turn()
        assert plan is not None
        if "apply StatefulSet" in made.writes:
            break
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert told in made.message("RolledOut")


@pytest.mark.parametrize("spec", [ON_DELETE, {"updateStrategy": {"rollingUpdate": {"partition": 2}}}], ids=["OnDelete", "partition"])
async def test_replicas_that_its_strategy_keeps_are_named_and_left_alone(spec: dict[str, Any]) -> None:
    made = serving(target=stateful_set(**spec))
    await made.until_rolling_out()
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "HeldBack")
    assert made.condition("Stalled")[0] == "True"
    assert "decode-0 and decode-1 stay as before" in made.message("RolledOut")
    assert len(made.writes) == writes
    live = made.get("StatefulSet", "decode")
    live["spec"]["updateStrategy"] = {}
    made.roll_stateful_set()
    await made.turns(2)
    assert made.state() == "Tracking"


async def test_a_replica_deleted_by_its_user_is_one_that_has_the_table() -> None:
    made = serving(target=stateful_set(**ON_DELETE))
    await made.until_rolling_out()
    for name in ("decode-0", "decode-1"):
        del made.objects["Pod", name]
        made.roll_stateful_set()
        await made.turns(2)
    assert made.state() == "Tracking"


async def test_a_broken_replica_is_named_for_its_user_to_delete() -> None:
    made = serving(target=stateful_set())
    await made.turns(2)
    made.finish_profile()
    await made.turns(1)
    while "apply StatefulSet" not in made.writes:
        await made.turn()
    for pod in made.pods():
        pod["status"]["conditions"][0]["status"] = "False"
    made.now += timedelta(seconds=700)
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert "To have it replaced: kubectl delete pod decode-0" in made.message("RolledOut")


async def test_tables_for_one_name_and_two_kinds_are_no_rivals() -> None:
    made = World(deployment(), stateful_set(), draft_table("a"), draft_table("b", kind="StatefulSet"))
    made.roll()
    made.roll_stateful_set()
    await made.turns(2, "a")
    await made.turns(2, "b")
    assert (made.condition("Accepted", "a")[0], made.condition("Accepted", "b")[0]) == ("True", "True")


async def test_a_missing_one_is_named_by_its_kind() -> None:
    made = World(deployment(), draft_table(kind="StatefulSet"))
    await made.turn()
    assert made.condition("Accepted") == ("False", "TargetNotFound")
    assert made.message("Accepted").startswith("There is no StatefulSet decode in namespace llm.")


async def test_no_replica_of_it_is_borrowed() -> None:
    made = serving(target=stateful_set(), profile={"placement": "BorrowReplica"})
    await made.turns(2)
    (pod,) = (o for o in made.objects.values() if o["kind"] == "Pod" and o["metadata"]["name"].startswith("chat-profile"))
    pod["spec"].pop("nodeName")
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu."}
    pod["status"] = {"phase": "Pending", "conditions": [unschedulable]}
    made.now += timedelta(seconds=60)
    await made.turn()
    assert made.condition("Profiled") == ("False", "CannotBorrow")
    assert "only a Deployment's replicas are" in made.message("Profiled")
    assert not any(write.startswith("replace") for write in made.writes)
