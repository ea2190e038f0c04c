"""What becomes of a roll-out: edited by others, put back, failing, proved, silent, swapped."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import pytest
from world import rolled_out, serving
from world_files import sidecar_state


async def test_somebody_elses_speculative_config_stays_and_is_not_measured() -> None:
    made = await rolled_out()
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    ours = list(container["args"])
    container["args"] = ["model", "--max-num-seqs=128", "--speculative-config", '{"method":"ngram","num_speculative_tokens":5}']
    theirs, writes = list(container["args"]), len(made.writes)
    made.roll()
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "Drifted")
    assert made.condition("Profiled")[0] == "True"
    assert container["args"] == theirs
    assert len(made.writes) == writes
    container["args"] = ours
    made.roll()
    await made.turns(2)
    assert made.state() == "Tracking"


async def test_keeping_somebody_elses_config_takes_only_our_parts_away() -> None:
    made = await rolled_out()
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    theirs = ["model", "--max-num-seqs=128", "--speculative-config", '{"method":"ngram","num_speculative_tokens":5}']
    container["args"] = list(theirs)
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Recommend"}
    await made.turns(2)
    template = made.get("Deployment", "decode")["spec"]["template"]["spec"]
    assert template["containers"][0]["args"] == theirs
    assert "initContainers" not in template


async def test_another_flag_edited_while_rolled_out_is_no_drift() -> None:
    made = await rolled_out()
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    container["args"].insert(1, "--uvicorn-log-level=warning")
    made.roll()
    await made.turns(3)
    assert made.state() == "Tracking"
    assert "--uvicorn-log-level=warning" in made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"]


async def test_a_removed_sidecar_is_drift_and_is_not_fought_over() -> None:
    made = await rolled_out()
    del made.get("Deployment", "decode")["spec"]["template"]["spec"]["initContainers"]
    made.roll()
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "Drifted")
    assert len(made.writes) == writes


async def test_a_target_put_back_by_another_writer_is_left_so() -> None:
    made = serving()
    manifest = copy.deepcopy(made.get("Deployment", "decode"))
    await made.until_rolling_out()
    live = made.get("Deployment", "decode")
    live["spec"], live["metadata"]["annotations"] = manifest["spec"], {"deployment.kubernetes.io/revision": "7"}
    made.roll()
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert len(made.writes) == writes


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}, "ended 3 times", id="crashes"),
        pytest.param({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}, "no such image", id="image"),
        pytest.param({}, "within 600 s", id="start deadline"),
    ],
)
async def test_replicas_that_do_not_come_up_bring_the_old_setting_back_once(damage: dict[str, Any], named: str) -> None:
    made = serving()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.turns(1)
    made.finish_profile()
    await made.turn()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await made.turn()
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= damage
    made.now += timedelta(seconds=90 if damage else 601)
    await made.turn()
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert named in made.message("RolledOut")
    message, writes = made.message("RolledOut"), len(made.writes)
    made.remove_old_pods()
    for pod in made.pods():
        pod["status"]["conditions"][0]["status"] = "True"
        pod["status"]["containerStatuses"][0] = {"name": "modelserver", "imageID": "vllm/vllm-openai@sha256:aa11", "restartCount": 0}
    await made.turns(5)
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert made.message("RolledOut") == message
    assert len(made.writes) == writes, "one try"
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 2}
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RollingOut"), "another request is another try"


async def test_replicas_that_crash_long_after_the_roll_out_are_not_our_doing() -> None:
    made = await rolled_out()
    made.now += timedelta(hours=3)
    (pod, *_) = made.pods()
    pod["status"]["conditions"][0]["status"] = "False"
    pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 9}
    await made.turn()
    assert made.get("Deployment", "decode")["metadata"]["annotations"]["tabletune.io/drafttable"] == "chat"
    assert made.condition("Ready")[0] == "False" or made.condition("RolledOut")[0] == "True"


async def test_a_roll_out_that_waits_for_a_gpu_says_so_and_ends_at_the_deadline() -> None:
    made = serving()
    await made.turns(1)
    made.finish_profile()
    await made.turn()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await made.turn()
    for pod in made.pods(current=True):
        pod["spec"].pop("nodeName")
        pod["status"]["conditions"][1] = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient nvidia.com/gpu.",
        }  # fmt: skip
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolloutNeedsGPU")
    made.now += timedelta(seconds=601)
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(sidecar_state("InForce"), ("False", "Proving"), id="in force is no proof yet"),
        pytest.param(sidecar_state("NotHonoured"), ("False", "NotHonoured"), id="drafts other lengths"),
        pytest.param(sidecar_state(active=False, inactiveReason="vLLM 9 has no scheduler"), ("False", "PluginInactive"), id="fell back"),
        pytest.param(None, ("False", "Proving"), id="silent from the start"),
    ],
)
async def test_only_proof_counts(state: dict[str, Any] | None, expected: tuple[str, str]) -> None:
    made = serving()
    await made.until_rolling_out()
    for address in made.states:
        made.states[address] = copy.deepcopy(state)
    await made.turns(2)
    assert made.condition("RolledOut") == expected
    assert made.condition("Ready")[0] == "False"


async def test_a_silent_sidecar_keeps_its_proof_and_is_named_after_a_minute() -> None:
    made = await rolled_out()
    silent, *_ = sorted(made.states)
    made.states[silent] = None
    await made.turn()
    assert made.condition("Tracking") == ("True", "Tracking")
    made.now += timedelta(seconds=61)
    await made.turn()
    assert made.condition("Tracking") == ("Unknown", "ReplicaSilent")
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_a_profile_that_drifts_is_told_and_touches_nothing() -> None:
    made = await rolled_out()
    drifting, *_ = sorted(made.states)
    figures = "Steps take 1.6 times the profiled time (limit 1.25), over 32,000 steps."
    problems = [{"code": "ProofFailed", "message": "No tokens."}, {"code": "ProfileDrift", "message": figures}]
    made.states[drifting] = {**sidecar_state(), "problems": problems}
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("Tracking") == made.condition("Ready") == ("True", "ProfileDrift")
    assert made.condition("Profiled")[0] == "True"
    assert made.state() == "Tracking"
    assert made.message("Tracking").endswith(figures)
    assert any(pod["metadata"]["name"] in made.message("Tracking") for pod in made.pods())
    assert [event["reason"] for event in made.events].count("ProfileDrift") == 1
    assert len(made.writes) == writes
    made.states[drifting] = sidecar_state()
    await made.turn()
    assert made.condition("Tracking") == ("True", "Tracking")


async def test_a_table_swap_is_one_event_in_ten_minutes() -> None:
    made = await rolled_out()
    count = len(made.events)
    for edge in (64, 80, 90):
        for address in made.states:
            made.states[address] = sidecar_state(ranges=[[1, edge - 1, 3], [edge, 128, 1]])
        made.now += timedelta(seconds=30)
        await made.turn()
    assert len(made.events) == count, "the roll-out itself was less than ten minutes ago"
    made.now += timedelta(minutes=10)
    for address in made.states:
        made.states[address] = sidecar_state(ranges=[[1, 50, 3], [51, 128, 1]])
    await made.turn()
    assert [event["reason"] for event in made.events[count:]] == ["TableChanged"]
    assert made.get("DraftTable", "chat")["status"]["display"]["table"] == "1-50:3 51-128:1"
