"""When a profile is measured again, and when not: policies, the annotation that asks for it, and what a changed fingerprint says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from world import StoppedError, World, deployment, draft_table, rolled_out, serving

REPROFILE = "tabletune.io/reprofile"


def annotate(made: World, value: str | None, name: str = "chat") -> None:
    annotations = made.get("DraftTable", name)["metadata"].setdefault("annotations", {})
    if value is None:
        annotations.pop(REPROFILE, None)
    else:
        annotations[REPROFILE] = value


def profile_status(made: World, name: str = "chat") -> Any:
    return made.get("DraftTable", name)["status"]["profile"]


def use_image(made: World, digest: str) -> None:
    for pod in made.pods():
        pod["status"]["containerStatuses"][0]["imageID"] = f"vllm/vllm-openai@sha256:{digest}"


async def test_policy_never_starts_no_job_and_says_how_to_measure_once() -> None:
    made = serving(profile={"policy": "Never"})
    await made.turns(3)
    assert ("Job", "chat-profile") not in made.objects
    assert made.condition("Profiled") == ("False", "PolicyNever")
    assert made.condition("Stalled") == ("True", "PolicyNever")
    assert f"kubectl annotate --overwrite dt chat {REPROFILE}=$(date +%s)" in made.message("Profiled")


async def test_policy_never_uses_a_profile_of_equal_fingerprint() -> None:
    made = await rolled_out()
    made.put(deployment("decode2"))
    made.put(draft_table("second", target="decode2", profile={"policy": "Never"}))
    made.roll("decode2")
    await made.turns(4, "second")
    assert made.condition("Profiled", "second") == ("True", "Reused")
    assert made.state("second") == "Tracking"


async def test_policy_never_keeps_a_table_whose_profile_went_stale_and_names_the_change() -> None:
    made = await rolled_out()
    made.get("DraftTable", "chat")["spec"]["profile"] = {"policy": "Never"}
    use_image(made, "cc33")
    rolled = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.turns(3)
    assert made.condition("Profiled") == ("False", "PolicyNever")
    assert "image (sha256:aa11, now sha256:cc33)" in made.message("Profiled")
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == rolled
    assert ("Job", "chat-profile") not in made.objects
    use_image(made, "aa11")
    await made.turn()
    assert made.condition("Profiled") == ("True", "Measured")


async def test_policy_never_set_while_a_job_runs_stops_it() -> None:
    made = serving()
    await made.turn()
    made.get("DraftTable", "chat")["spec"]["profile"] = {"policy": "Never"}
    await made.turns(2)
    assert ("Job", "chat-profile") not in made.objects
    assert made.condition("Profiled") == ("False", "PolicyNever")


async def test_policy_set_to_always_while_its_own_job_runs_does_not_start_it_anew() -> None:
    made = serving()
    await made.turn()
    uid = made.get("Job", "chat-profile")["metadata"]["resourceVersion"]
    made.get("DraftTable", "chat")["spec"]["profile"] = {"policy": "Always"}
    await made.turns(2)
    assert made.get("Job", "chat-profile")["metadata"]["resourceVersion"] == uid


@pytest.mark.parametrize("policy", ["IfMissing", "Always", "Never"])
async def test_the_annotation_asks_for_exactly_one_measurement_whatever_the_policy(policy: str) -> None:
    made = await rolled_out()
    made.get("DraftTable", "chat")["spec"]["profile"] = {"policy": policy}
    await made.turns(2)
    rolled = json.dumps(made.get("Deployment", "decode")["spec"])
    annotate(made, "after the driver update")
    await made.turn()
    assert made.condition("Profiled") == ("False", "ReprofileAsked")
    assert "after the driver update" in made.message("Profiled")
    assert made.get("Job", "chat-profile")["metadata"]["annotations"][REPROFILE] == "after the driver update"
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == rolled, "what replicas run stays"
    made.finish_profile()
    await made.turns(4)
    assert made.state() == "Tracking"
    assert profile_status(made)["reprofile"] == "after the driver update"
    assert ("Job", "chat-profile") not in made.objects

    # The same text again (GitOps applies it every few minutes) asks for nothing; removing it and setting it again neither.
    writes = len(made.writes)
    await made.turns(3)
    annotate(made, None)
    await made.turns(2)
    annotate(made, "after the driver update")
    await made.turns(3)
    assert len(made.writes) == writes
    annotate(made, "once more")
    await made.turn()
    assert ("Job", "chat-profile") in made.objects


async def test_the_annotation_on_a_new_object_is_answered_by_its_first_measurement_and_takes_no_other_profile() -> None:
    made = await rolled_out()
    made.put(deployment("decode2"))
    made.put(draft_table("second", target="decode2"))
    annotate(made, "1", "second")
    made.roll("decode2")
    await made.turn("second")
    assert ("Job", "second-profile") in made.objects
    made.finish_profile("second")
    await made.turns(4, "second")
    assert made.condition("Profiled", "second") == ("True", "Measured")
    assert profile_status(made, "second")["reprofile"] == "1"
    assert ("Job", "second-profile") not in made.objects


async def test_the_annotation_set_while_a_job_runs_makes_it_start_anew_and_its_removal_takes_the_wish_back() -> None:
    made = await rolled_out()
    annotate(made, "1")
    await made.turn()
    annotate(made, "2")
    await made.turn()
    assert made.condition("Profiled") == ("False", "SpecChanged")
    await made.turn()
    assert made.get("Job", "chat-profile")["metadata"]["annotations"][REPROFILE] == "2"
    annotate(made, None)
    await made.turns(3)
    assert ("Job", "chat-profile") not in made.objects
    assert made.state() == "Tracking"


@pytest.mark.parametrize("calls", range(20))
async def test_stopped_at_any_call_one_annotation_makes_one_measurement(calls: int) -> None:
    made = await rolled_out()
    annotate(made, "1")
    made.writes.clear()
    made.fail_after = made.calls + calls
    for _ in range(12):
        try:
            await made.turn()
        except StoppedError:
            made.fail_after = None
        if ("Job", "chat-profile") in made.objects and "status" not in made.get("Job", "chat-profile"):
            made.finish_profile()
    assert profile_status(made)["reprofile"] == "1"
    assert made.writes.count("create Job") == 1
    assert made.state() == "Tracking"


async def test_a_measurement_asked_for_has_three_attempts_and_a_new_text_three_more() -> None:
    made = await rolled_out()
    annotate(made, "1")
    for attempt in (1, 2, 3):
        await made.turn()
        assert profile_status(made)["attempts"] == attempt
        made.progress(outcome="Failed", reason="EngineKeepsDying", message="The engine died 3 times at B=96 k=3.")
        made.end_job(failed=True)
        await made.turn()
        made.now = made.now.replace(hour=made.now.hour + 1)
        await made.turn()
    assert made.condition("Profiled") == ("False", "JobFailed")
    assert made.condition("RolledOut") == ("True", "Proved"), "what runs stays"
    annotate(made, "2")
    await made.turns(2)
    assert profile_status(made)["attempts"] == 1
    made.finish_profile()
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_damaged_files_are_measured_again_when_asked_for() -> None:
    made = await rolled_out()
    made.get("ConfigMap", "chat-tabletune")["data"]["table.json"] = "{"
    await made.turn()
    assert made.condition("Profiled") == ("False", "ConfigMapDamaged")
    annotate(made, "1")
    await made.turn()
    made.finish_profile()
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_what_changed_stays_in_the_status_until_the_new_profile_is_there() -> None:
    made = await rolled_out()
    use_image(made, "cc33")
    await made.turns(2)
    assert made.condition("Profiled")[1] in {"Starting", "Profiling"}
    assert profile_status(made)["changed"] == "image (sha256:aa11, now sha256:cc33)"
    made.finish_profile()
    await made.turns(2)
    assert "changed" not in profile_status(made)


async def test_fields_for_the_next_measurement_keep_the_profile_and_say_so() -> None:
    made = await rolled_out()
    made.get("DraftTable", "chat")["spec"]["profile"] = {"repeats": 5, "temperatureMilli": 0}
    await made.turn()
    assert made.condition("Profiled") == ("True", "Measured")
    message = made.message("Profiled")
    assert "spec.profile.repeats 5 (measured with 3), temperatureMilli 0 (measured with 700) take effect at the next measurement" in message
    assert REPROFILE in message
