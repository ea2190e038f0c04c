"""A roll-out that waits for its user's leave, by the digest of the table."""

from __future__ import annotations

import json

import pytest
from world import World, draft_table, rolled_out, serving
from world_files import files

from tabletune.formats import SPECULATIVE_CONFIG, TABLE
from tabletune.profile import Fingerprint
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import LONGEST_MESSAGE

APPROVE = "tabletune.io/approve"
MANUAL = {"approval": "Manual"}


async def measured(kind: VerdictKind = VerdictKind.TABLE) -> World:
    made = serving(rollout=MANUAL)
    await made.turns(2)
    made.finish_profile(kind=kind)
    await made.turns(3)
    return made


def digest(made: World) -> str:
    return str(made.get("DraftTable", "chat")["status"]["table"]["digest"])


def annotate(made: World, value: str) -> None:
    made.get("DraftTable", "chat")["metadata"].setdefault("annotations", {})[APPROVE] = value


@pytest.mark.parametrize("kind", [VerdictKind.TABLE, VerdictKind.FIXED, VerdictKind.OFF])
async def test_nothing_is_written_to_the_target_before_the_approval(kind: VerdictKind) -> None:
    made = await measured(kind)
    assert made.condition("RolledOut") == ("False", "AwaitingApproval")
    assert made.condition("Reconciling") == ("True", "AwaitingApproval"), "it waits; it is not stuck"
    assert made.condition("Stalled")[0] == "False"
    assert made.state() == "AwaitingApproval"
    assert "apply Deployment" not in made.writes
    message = made.message("RolledOut")
    assert message.endswith(f"kubectl annotate --overwrite dt chat -n llm {APPROVE}={digest(made)}")
    assert "tokens/s (noise 0.8 %), 1 restart for each of 2 replicas" in message
    annotate(made, digest(made))
    await made.turns(3)
    assert made.writes.count("apply Deployment") == 1
    assert made.condition("RolledOut")[0] == "True"
    assert made.get("DraftTable", "chat")["status"]["rollout"]["approved"] == digest(made)


async def test_an_approval_of_another_table_is_named_and_not_used() -> None:
    made = await measured()
    annotate(made, "0123456789ab")
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "AwaitingApproval")
    assert "approves 0123456789ab, another one" in made.message("RolledOut")
    assert "apply Deployment" not in made.writes
    annotate(made, digest(made).upper())
    await made.turn()
    assert made.condition("RolledOut") == ("False", "AwaitingApproval"), "as it is written, or not at all"


async def test_approving_again_and_taking_it_back_changes_nothing_any_more() -> None:
    made = await measured()
    annotate(made, digest(made))
    await made.turns(3)
    writes = len(made.writes)
    annotate(made, digest(made))
    await made.turns(2)
    del made.get("DraftTable", "chat")["metadata"]["annotations"][APPROVE]
    await made.turns(2)
    assert made.state() == "Tracking"
    assert len(made.writes) == writes


async def test_a_later_table_of_other_lengths_needs_an_approval_of_its_own() -> None:
    made = await measured()
    first = digest(made)
    annotate(made, first)
    await made.turns(3)
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    table, config = json.loads(data[TABLE]), json.loads(data[SPECULATIVE_CONFIG])
    data[TABLE] = json.dumps({**table, "ranges": [[1, 128, 3]], "launchLengths": [3]})
    data[SPECULATIVE_CONFIG] = json.dumps({**config, "num_speculative_tokens_per_batch_size": [[1, 128, 3]]})
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "AwaitingApproval")
    assert "draft length 1 must no longer be used" in made.message("RolledOut"), "why it restarts"
    assert f"approves {first}, another one" in made.message("RolledOut")
    assert len(made.writes) == writes
    annotate(made, digest(made))
    await made.turns(3)
    assert made.writes[writes:].count("apply Deployment") == 1
    assert made.state() == "Tracking"


async def test_giving_the_old_setting_back_by_verdict_needs_one_too() -> None:
    made = await measured()
    annotate(made, digest(made))
    await made.turns(3)
    fingerprint = json.loads(made.get("ConfigMap", "chat-tabletune")["data"]["profile.json"])["fingerprint"]["fields"]
    made.get("ConfigMap", "chat-tabletune")["data"] = files(Fingerprint.of(fingerprint), VerdictKind.PRESENT)
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "AwaitingApproval")
    assert "replace Deployment" not in made.writes
    annotate(made, digest(made))
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "PresentKept")


async def test_auto_asks_nobody() -> None:
    made = await rolled_out()
    assert made.state() == "Tracking"
    assert "approved" not in made.get("DraftTable", "chat")["status"]["rollout"]


async def test_the_command_is_whole_however_long_the_names_are() -> None:
    name = "a" * 63
    made = serving()
    del made.objects["DraftTable", "chat"]
    made.put(draft_table(name, rollout=MANUAL))
    await made.turns(2, name)
    made.finish_profile(name)
    await made.turns(3, name)
    message = made.message("RolledOut", name)
    assert message.endswith(f"{APPROVE}={made.get('DraftTable', name)['status']['table']['digest']}")
    assert f"dt {name} -n llm" in message
    assert len(message) <= LONGEST_MESSAGE
