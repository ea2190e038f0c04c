"""Mode Recommend: an overlay is written, and what its user does with it is noticed, proved, and never undone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from world import Body, World, _merged, serving
from world_files import sidecar_state

from tabletune import formats
from tabletune.verdict import VerdictKind
from tabletune_operator.overlay import KUSTOMIZATION, OVERLAY_FILES, PATCH

RECOMMEND = {"mode": "Recommend"}


async def recommended(kind: VerdictKind = VerdictKind.TABLE, **spec: Any) -> World:
    made = serving(rollout=RECOMMEND, **spec)
    await made.turns(2)
    made.finish_profile(kind=kind)
    await made.turns(3)
    return made


def data(made: World) -> dict[str, str]:
    return dict(made.get("ConfigMap", "chat-tabletune")["data"])


def apply_overlay(made: World, patch: Body | None = None, *, ready: bool = True) -> None:
    """As its user does, with Kustomize and `kubectl apply`."""
    target = made.get("Deployment", "decode")
    target["spec"] = _merged(target["spec"], (patch or yaml.safe_load(data(made)[PATCH]))["spec"])
    target["metadata"]["generation"] += 1
    made.roll(ready=ready)


def engine(made: World) -> Body:
    containers: list[Body] = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"]
    return containers[0]


async def test_writes_an_overlay_once_and_leaves_the_target_alone() -> None:
    made = await recommended()
    assert made.condition("RolledOut") == ("False", "Recommended")
    assert f"apply {KUSTOMIZATION} of ConfigMap chat-tabletune" in made.message("RolledOut")
    assert made.condition("Ready")[0] == "True"
    assert data(made).keys() >= set(OVERLAY_FILES)
    writes = len(made.writes)
    await made.turns(3)
    assert len(made.writes) == writes
    assert "apply Deployment" not in made.writes


async def test_applied_overlay_is_proved_and_tracked_and_nothing_is_measured_again() -> None:
    made = await recommended()
    before = data(made)
    apply_overlay(made)
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "Applied")
    assert made.condition("Tracking") == ("True", "Tracking")
    assert made.condition("Profiled") == ("True", "Measured")
    assert made.state() == "Tracking"
    assert "2 of 2 replicas proved" in made.message("RolledOut")
    assert ("Job", "chat-profile") not in made.objects
    assert data(made) == before, "the overlay for a target that has it is the same overlay"


async def test_applied_overlay_is_not_done_before_each_replica_proved_it() -> None:
    made = await recommended()
    apply_overlay(made)
    for pod in made.pods():
        made.states[pod["status"]["podIP"]] = sidecar_state("Unknown")
    await made.turn()
    assert made.condition("RolledOut") == ("False", "Proving")
    assert made.condition("Ready")[0] == "False"


async def test_applied_overlay_with_which_replicas_do_not_start_is_left_to_git() -> None:
    made = await recommended()
    apply_overlay(made, ready=False)
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "RollingOut")
    assert "not ours to put back" in made.message("RolledOut")
    assert "apply Deployment" not in made.writes
    assert "replace Deployment" not in made.writes


async def test_the_table_alone_is_applied_but_not_provable() -> None:
    made = serving(rollout=RECOMMEND)
    await made.turns(2)
    made.finish_profile()
    bare = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 128, 3]]}
    made.get("ConfigMap", "chat-tabletune")["data"][formats.VLLM_YAML] = yaml.safe_dump({"speculative-config": bare})
    await made.turns(3)
    engine(made)["args"] = ["model", "--max-num-seqs=128", "--speculative-config", json.dumps(bare)]
    made.roll()
    await made.turns(2)
    assert made.condition("RolledOut") == ("Unknown", "NotProvable")
    assert made.condition("Tracking") == ("False", "NothingToTrack")
    assert made.condition("Ready")[0] == "True"


async def test_a_newer_recommendation_than_the_applied_one_is_told() -> None:
    made = await recommended()
    apply_overlay(made)
    await made.turns(2)
    old = data(made)[PATCH]
    shorter = json.loads(data(made)[formats.SPECULATIVE_CONFIG]) | {"num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 1]]}
    made.get("ConfigMap", "chat-tabletune")["data"][formats.SPECULATIVE_CONFIG] = json.dumps(shorter)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "RecommendationOutdated")
    assert "take its files anew" in made.message("RolledOut")
    assert made.condition("Tracking")[0] == "True"
    assert made.condition("Profiled") == ("True", "Measured"), "K and the old setting are those of before"
    assert data(made)[PATCH] != old
    apply_overlay(made)
    await made.turns(2)
    assert made.condition("RolledOut") == ("True", "Applied")


async def test_other_parts_than_the_recommended_ones_are_told_and_in_force() -> None:
    made = await recommended()
    apply_overlay(made)
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "Applied")
    assert "take its files anew" in made.message("RolledOut")


async def test_the_overlay_follows_the_targets_arguments() -> None:
    made = await recommended()
    engine(made)["args"].insert(1, "--uvicorn-log-level=warning")
    made.roll()
    await made.turns(3)
    (patched,) = yaml.safe_load(data(made)[PATCH])["spec"]["template"]["spec"]["containers"]
    assert patched["args"][1] == "--uvicorn-log-level=warning"


async def test_off_that_was_followed_is_off_and_does_not_ask_what_to_measure() -> None:
    made = await recommended(VerdictKind.OFF)
    assert "remove --speculative-config" in made.message("RolledOut")
    apply_overlay(made)
    await made.turns(3)
    assert made.condition("Accepted")[0] == "True"
    assert made.condition("RolledOut") == ("True", "SpeculationRemoved")
    assert made.condition("Ready")[0] == "True"


async def test_a_setting_of_its_users_own_is_not_taken_for_ours() -> None:
    made = await recommended()
    engine(made)["args"] = ["model", "--max-num-seqs=128", "--speculative-config", '{"method":"ngram","num_speculative_tokens":2}']
    made.roll()
    await made.turns(2)
    assert made.condition("Profiled")[1] in {"Stale", "Starting"}, "another method is another profile"


async def test_present_setting_that_pays_needs_no_overlay() -> None:
    made = await recommended(VerdictKind.PRESENT)
    assert made.condition("RolledOut") == ("True", "PresentKept")
    assert not data(made).keys() & set(OVERLAY_FILES)


async def test_mode_patch_does_not_roll_out_over_an_overlay() -> None:
    made = await recommended()
    apply_overlay(made)
    await made.turns(2)
    before = copy.deepcopy(made.get("Deployment", "decode")["spec"])
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Patch"}
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "CannotRollOut")
    assert "remove the overlay from the manifest" in made.message("RolledOut")
    assert made.get("Deployment", "decode")["spec"] == before


async def test_deletion_leaves_what_its_user_applied() -> None:
    made = await recommended()
    apply_overlay(made)
    await made.turns(2)
    before = copy.deepcopy(made.get("Deployment", "decode")["spec"])
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:40:00Z"
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    assert made.get("Deployment", "decode")["spec"] == before


@pytest.mark.parametrize("text", ["", "{", '{"formatVersion": 9}', '{"formatVersion": 1, "before": 3, "settings": []}'])
async def test_a_note_that_cannot_be_read_is_written_anew(text: str) -> None:
    made = await recommended()
    good = data(made)["recommendation.json"]
    made.get("ConfigMap", "chat-tabletune")["data"]["recommendation.json"] = text
    await made.turns(2)
    assert data(made)["recommendation.json"] == good
    assert json.loads(good)["before"]["num_speculative_tokens"] == 3
