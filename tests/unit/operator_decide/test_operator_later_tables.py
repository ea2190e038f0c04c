"""A table that comes after the roll-out reaches the replicas through their files; they restart only for what engines are launched with."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from world import World, rolled_out
from world_files import files, sidecar_state

from tabletune.formats import SPECULATIVE_CONFIG, TABLE, digest_of
from tabletune.profile import Fingerprint
from tabletune.verdict import VerdictKind


def change_files(made: World, ranges: list[list[int]], lengths: list[int], **config: Any) -> None:
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    table, before = json.loads(data[TABLE]), json.loads(data[SPECULATIVE_CONFIG])
    data[TABLE] = json.dumps({**table, "ranges": ranges, "launchLengths": lengths})
    data[SPECULATIVE_CONFIG] = json.dumps({**before, "num_speculative_tokens_per_batch_size": ranges, **config})


async def test_another_table_of_the_same_lengths_restarts_nothing() -> None:
    made = await rolled_out(rollout={"approval": "Auto"})
    template = copy.deepcopy(made.get("Deployment", "decode")["spec"]["template"])
    writes, digest = len(made.writes), made.get("DraftTable", "chat")["status"]["table"]["digest"]
    change_files(made, [[1, 63, 3], [64, 128, 1]], [1, 3])
    await made.turns(4)
    assert [w for w in made.writes[writes:] if "Deployment" in w] == []
    assert made.get("Deployment", "decode")["spec"]["template"] == template
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.get("DraftTable", "chat")["status"]["table"]["digest"] != digest, "the newer table is shown"


async def test_it_is_said_which_replicas_have_not_read_it_yet() -> None:
    made = await rolled_out(rollout={"approval": "Auto"})
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    for address in made.states:
        made.states[address] = {**sidecar_state(), "files": {"digest": digest_of(data)}}
    await made.turn()
    assert "newer table" not in made.message("RolledOut")
    change_files(made, [[1, 63, 3], [64, 128, 1]], [1, 3])
    await made.turn()
    assert made.condition("RolledOut") == ("True", "Proved")
    assert "reaches 2 of them within minutes: no restart, so no approval" in made.message("RolledOut")
    for address in made.states:
        made.states[address] = {**sidecar_state(), "files": {"digest": digest_of(data)}}
    await made.turn()
    assert "newer table" not in made.message("RolledOut")


async def test_a_replica_that_starts_later_gets_what_the_others_were_launched_with() -> None:
    made = await rolled_out()
    change_files(made, [[1, 63, 3], [64, 128, 1]], [1, 3])
    await made.turns(2)
    made.get("Deployment", "decode")["spec"]["replicas"] = 3
    made.roll()
    await made.turns(3)
    assert made.state() == "Tracking"
    args = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "[[1,95,3],[96,128,1]]" in args[-1]


@pytest.mark.parametrize(
    ("ranges", "lengths", "config", "why"),
    [
        pytest.param([[1, 95, 3], [96, 128, 2]], [2, 3], {}, "draft length 1 must no longer be used", id="launch set"),
        pytest.param([[1, 95, 2], [96, 128, 1]], [1, 2], {"num_speculative_tokens": 2}, "longest draft length 3 becomes 2", id="K"),
        pytest.param([[1, 95, 3], [96, 128, 1]], [1, 3], {"method": "mtp"}, "method eagle3 becomes mtp", id="method"),
    ],
)
async def test_what_engines_are_launched_with_restarts_them_once_and_says_why(
    ranges: list[list[int]], lengths: list[int], config: dict[str, Any], why: str
) -> None:
    made = await rolled_out()
    writes = len(made.writes)
    change_files(made, ranges, lengths, **config)
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert why in made.message("RolledOut")
    await made.turns(4)
    assert made.writes[writes:].count("apply Deployment") == 1
    assert made.state() == "Tracking"


async def test_why_it_will_restart_is_said_while_the_job_ends() -> None:
    made = await rolled_out()
    made.get("DraftTable", "chat")["metadata"].setdefault("annotations", {})["tabletune.io/reprofile"] = "1"
    await made.turns(2)
    made.finish_profile()
    change_files(made, [[1, 95, 2], [96, 128, 1]], [1, 2], num_speculative_tokens=2)
    await made.turn()
    assert made.condition("RolledOut") == ("False", "WaitingForJobPod")
    assert "Then Deployment decode restarts: longest draft length 3 becomes 2" in made.message("RolledOut")


async def test_from_off_to_a_table_is_a_roll_out() -> None:
    made = await rolled_out(VerdictKind.OFF)
    fingerprint = json.loads(made.get("ConfigMap", "chat-tabletune")["data"]["profile.json"])["fingerprint"]["fields"]
    made.get("ConfigMap", "chat-tabletune")["data"] = files(Fingerprint.of(fingerprint), VerdictKind.TABLE)
    writes = len(made.writes)
    await made.turns(4)
    assert made.writes[writes:].count("apply Deployment") == 1
    assert made.state() == "Tracking"
