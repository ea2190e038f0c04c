"""The operator's whole way on a small world: given a cluster, when reconciled, then these conditions and these objects."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from world import LABELS, NOW, World, deployment, draft_table, node, rolled_out, serving

from tabletune import formats
from tabletune.verdict import NOTHING_GAINED, VerdictKind


async def test_goes_from_a_new_object_to_tracking_and_then_writes_nothing_more() -> None:
    made = serving()
    template = copy.deepcopy(made.get("Deployment", "decode")["spec"]["template"])

    await made.turn()
    assert made.condition("Accepted") == ("True", "TargetSupported")
    assert made.condition("Profiled") == ("False", "Starting")
    assert made.condition("Ready")[0] == "False"
    made.progress()
    await made.turn()
    assert made.state() == "Profiling 37%"
    made.finish_profile()
    await made.turn()
    assert made.condition("Verified") == ("True", "TablePays")
    assert made.condition("RolledOut") == ("False", "WaitingForJobPod"), "the Job's GPU must be free first"
    assert made.get("Deployment", "decode")["spec"]["template"] == template
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RollingOut")
    await made.turn()
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.state() == "Tracking"
    assert made.condition("Ready") == ("True", "Tracking")
    assert ("Job", "chat-profile") not in made.objects
    assert ("Role", "chat-profile") not in made.objects

    writes, status_writes, events = len(made.writes), made.status_writes, len(made.events)
    await made.turns(5)
    assert (len(made.writes), made.status_writes, len(made.events)) == (writes, status_writes, events)


async def test_events_are_the_transitions_and_nothing_else() -> None:
    made = await rolled_out()
    assert [event["reason"] for event in made.events] == [
        "TargetSupported", "Starting", "Measured", "TablePays", "WaitingForJobPod", "RollingOut", "Proved", "Tracking",
    ]  # fmt: skip


async def test_deleting_gives_the_template_back_byte_for_byte_and_leaves_nothing() -> None:
    made = serving()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(2)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) != before

    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)

    target = made.get("Deployment", "decode")
    assert json.dumps(target["spec"]) == before
    assert not any("tabletune" in key for key in target["metadata"]["annotations"])
    assert {kind for kind, _ in made.objects} == {"Deployment", "ReplicaSet", "Pod", "ConfigMap"}
    assert ("DraftTable", "chat") not in made.objects


async def test_a_shell_script_is_rolled_out_at_its_flag_and_given_back_byte_for_byte() -> None:
    flag = """-sc '{"method":"eagle3","model":"draft","num_speculative_tokens":3}'"""
    script = f"# serves\nexec vllm serve model \\\n  --max-num-seqs 128 \\\n  {flag}\n"
    made = serving(target=deployment(command=["/bin/bash", "-c"], args=[script]))
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(2)
    (rolled,) = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert rolled.startswith(script.partition("-sc")[0] + "--speculative-config '{")
    assert made.condition("RolledOut") == ("True", "Proved")

    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before


async def test_deleting_does_not_hang_when_the_target_is_gone() -> None:
    made = await rolled_out()
    del made.objects["Deployment", "decode"]
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turn()
    assert ("DraftTable", "chat") not in made.objects


async def test_deleting_does_not_hang_on_a_record_that_somebody_destroyed() -> None:
    made = await rolled_out()
    made.get("Deployment", "decode")["metadata"]["annotations"]["tabletune.io/record"] = "{"
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turn()
    assert ("DraftTable", "chat") not in made.objects
    assert made.events[-1]["reason"] == "RecordDamaged"


async def test_nothing_is_changed_before_the_finalizer_is_there() -> None:
    made = serving()
    made.get("DraftTable", "chat")["metadata"]["finalizers"] = []
    await made.turns(3)
    assert made.writes == []


async def test_verdict_off_removes_the_flag_and_adds_nothing() -> None:
    made = await rolled_out(VerdictKind.OFF)
    template = made.get("Deployment", "decode")["spec"]["template"]
    assert template["spec"]["containers"][0]["args"] == ["model", "--max-num-seqs=128"]
    assert "initContainers" not in template["spec"]
    assert made.condition("RolledOut") == ("True", "SpeculationRemoved")
    assert made.condition("Tracking") == ("False", "NothingToTrack")
    assert made.condition("Ready") == ("True", "SpeculationRemoved")
    assert made.state() == "Off"


async def test_verdict_present_touches_nothing_and_is_ready() -> None:
    made = serving()
    before = json.dumps(made.get("Deployment", "decode"))
    await made.until_rolling_out(VerdictKind.PRESENT)
    await made.turns(2)
    assert json.dumps(made.get("Deployment", "decode")) == before
    assert made.condition("Verified") == ("True", "PresentPays")
    assert made.condition("RolledOut") == ("True", "PresentKept")
    assert made.condition("Tracking") == ("False", "NothingToTrack")
    assert made.condition("Ready") == ("True", "PresentKept")
    assert made.state() == "Kept"
    status = made.get("DraftTable", "chat")["status"]
    assert (status["verdict"]["kind"], status["table"]["ranges"], status["display"]["gain"]) == ("Present", "unchanged", "+0.0%")


async def test_a_new_profile_that_finds_the_old_setting_best_gives_it_back() -> None:
    made = serving()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(2)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) != before
    del made.objects["ConfigMap", "chat-tabletune"]
    await made.turns(2)
    made.finish_profile(kind=VerdictKind.PRESENT)
    await made.turns(4)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert made.condition("Ready") == ("True", "PresentKept")


async def test_another_present_setting_was_not_measured_so_it_is_measured_again() -> None:
    made = serving(speculation={"maxDraftLength": 3})
    await made.until_rolling_out(VerdictKind.PRESENT)
    await made.turns(2)
    args = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    args[args.index("--speculative-config") + 1] = json.dumps(
        {
            "method": "eagle3",
            "model": "draft",
            "num_speculative_tokens": 3,
            "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
        }
    )
    made.roll()
    await made.turn()
    assert made.condition("Profiled") == ("False", "Stale")
    assert "presentSpeculativeConfig" in made.message("Profiled")
    made.finish_profile()
    await made.turns(4)
    assert made.state() == "Tracking"


async def test_recommend_touches_nothing_and_is_ready() -> None:
    made = serving(rollout={"mode": "Recommend"})
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.until_rolling_out()
    await made.turns(2)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert made.condition("Ready") == ("True", "Recommended")
    assert made.condition("RolledOut") == ("False", "Recommended")


async def test_changing_to_recommend_gives_back_and_changing_again_rolls_out_again() -> None:
    made = serving()
    before = json.dumps(made.get("Deployment", "decode")["spec"])
    await made.until_rolling_out()
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Recommend"}
    await made.turns(3)
    assert json.dumps(made.get("Deployment", "decode")["spec"]) == before
    assert made.state() == "Recommended"
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Patch"}
    await made.turns(4)
    assert made.state() == "Tracking"


async def test_second_draft_table_is_refused_by_name_and_goes_on_when_the_first_is_gone() -> None:
    made = serving(draft_table("late", created=NOW + timedelta(minutes=1)))
    await made.turn("late")
    await made.turn("chat")
    assert made.condition("Accepted", "late") == ("False", "TargetTaken")
    assert "chat" in made.message("Accepted", "late")
    assert made.condition("Accepted", "chat") == ("True", "TargetSupported")
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3, "chat")
    await made.turn("late")
    assert made.condition("Accepted", "late") == ("True", "TargetSupported")


async def test_a_profile_of_equal_fingerprint_is_used_again() -> None:
    made = await rolled_out()
    made.put(deployment("decode2"))
    made.put(draft_table("second", target="decode2"))
    made.roll("decode2")
    await made.turns(4, "second")
    assert made.condition("Profiled", "second") == ("True", "Reused")
    assert made.state("second") == "Tracking"
    copied = made.get("ConfigMap", "second-tabletune")
    assert copied["data"] == made.get("ConfigMap", "chat-tabletune")["data"]
    assert copied["metadata"]["ownerReferences"][0]["name"] == "second"
    assert ("Job", "second-profile") not in made.objects


async def test_policy_always_measures_although_a_profile_could_be_used_again() -> None:
    made = await rolled_out()
    made.put(deployment("decode2"))
    made.put(draft_table("second", target="decode2", profile={"policy": "Always"}))
    made.roll("decode2")
    await made.turn("second")
    assert ("Job", "second-profile") in made.objects


async def test_one_profiling_job_at_a_time_on_one_gpu_product() -> None:
    made = serving(deployment("decode2"), draft_table("second", target="decode2", speculation={"maxDraftLength": 2}))
    made.roll("decode2")
    await made.turn("chat")
    await made.turn("second")
    assert made.condition("Profiled", "second") == ("False", "Queued")
    assert "chat" in made.message("Profiled", "second")
    made.finish_profile("chat")
    await made.turns(2, "chat")
    await made.turn("second")
    assert ("Job", "second-profile") in made.objects


async def test_spec_changed_while_profiling_stops_the_job_and_starts_another() -> None:
    made = serving()
    await made.turn()
    first = made.get("Job", "chat-profile")["metadata"]["annotations"]["tabletune.io/request"]
    made.get("DraftTable", "chat")["spec"]["profile"] = {"repeats": 5}
    await made.turn()
    assert made.condition("Profiled") == ("False", "SpecChanged")
    await made.turn()
    assert made.get("Job", "chat-profile")["metadata"]["annotations"]["tabletune.io/request"] != first


async def test_a_pod_template_that_was_only_restarted_is_the_same_request() -> None:
    made = serving()
    await made.turn()
    made.get("Deployment", "decode")["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    made.roll()
    await made.turn()
    assert made.condition("Profiled")[1] in {"Starting", "Profiling"}


async def test_replicas_that_restart_do_not_stop_a_running_job() -> None:
    made = serving()
    await made.turn()
    for pod in made.pods():
        pod["status"]["conditions"][0]["status"] = "False"
    await made.turn()
    assert ("Job", "chat-profile") in made.objects
    assert made.condition("Accepted")[0] == "True"


async def test_a_failed_job_is_tried_three_times_and_then_needs_a_person() -> None:
    made = serving()
    for attempt in (1, 2, 3):
        await made.turn()
        assert made.get("DraftTable", "chat")["status"]["profile"]["attempts"] == attempt
        made.progress(outcome="Failed", reason="EngineKeepsDying", message="The engine died 3 times at B=96 k=3.")
        made.end_job(failed=True)
        await made.turn()
        made.now += timedelta(minutes=10)
        await made.turn()
    assert made.condition("Profiled") == ("False", "JobFailed")
    assert "EngineKeepsDying" in made.message("Profiled")
    assert made.condition("Stalled") == ("True", "JobFailed")
    made.now += timedelta(days=1)
    await made.turns(3)
    assert made.condition("Profiled") == ("False", "JobFailed")
    made.get("DraftTable", "chat")["spec"]["profile"] = {"maxBatchSize": 64}
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "Starting")
    assert made.get("DraftTable", "chat")["status"]["profile"]["attempts"] == 1


async def test_blocked_says_why_and_starts_again_when_the_target_changes() -> None:
    made = serving()
    await made.turn()
    made.progress(outcome="Blocked", reason="TableIgnored", message="The engine drafts 3 tokens whatever the table says.")
    made.end_job()
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "Blocked")
    assert "TableIgnored" in made.message("Profiled")
    assert made.state() == "Blocked"
    made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}
    ]
    made.roll()
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "Starting")


async def test_another_image_makes_the_profile_stale_and_the_present_table_stays() -> None:
    made = await rolled_out()
    made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.34.0"
    made.roll()
    for pod in made.pods():
        pod["status"]["containerStatuses"][0]["imageID"] = "vllm/vllm-openai@sha256:cc33"
        made.versions[pod["status"]["podIP"]] = "0.34.0"
    await made.turn()
    assert made.condition("Profiled") == ("False", "Stale")
    assert "engineVersion (0.33.0, now 0.34.0), image (sha256:aa11, now sha256:cc33)" in made.message("Profiled")
    assert made.condition("RolledOut") == ("True", "Proved"), "what runs stays"
    await made.turn()
    made.finish_profile()
    await made.turns(3)
    assert made.state() == "Tracking"


def edited(path: str, value: Any) -> Callable[[str], str]:
    """The file with one value changed: `cells.0.stepTimeMicros`."""

    def edit(text: str) -> str:
        root = node = json.loads(text)
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in way:
            node = node[step]
        node[last] = value
        return json.dumps(root)

    return edit


@pytest.mark.parametrize(
    ("file", "edit", "named"),
    [
        pytest.param("profile.json", edited("formatVersion", 2), "formatVersion is 2", id="from the future"),
        pytest.param("profile.json", lambda text: text[: len(text) // 2], "the whole file is not JSON", id="truncated"),
        pytest.param("profile.json", lambda _: "", "the whole file is not JSON", id="empty"),
        pytest.param("profile.json", edited("cells.0.stepTimeMicros", 0), "cells[0].stepTimeMicros", id="a time of zero"),
        pytest.param("profile.json", edited("cells.3.stepTimeMicros", -4000), "cells[3].stepTimeMicros", id="a negative time"),
        pytest.param("profile.json", edited("cells.1.batchSize", 2), "cells has a hole", id="a hole"),
        pytest.param("acceptance.json", edited("kept.0", 101), "drafted and kept", id="more kept than drafted"),
        pytest.param("table.json", edited("ranges.1.0", 97), "ranges has a hole", id="a gap between ranges"),
    ],
)
async def test_a_damaged_measurement_is_refused_by_name_and_the_table_stays(file: str, edit: Callable[[str], str], named: str) -> None:
    made = await rolled_out()
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    template = copy.deepcopy(made.get("Deployment", "decode")["spec"])
    data[file] = edit(data[file])
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "ConfigMapDamaged")
    assert f"{file}: " in made.message("Profiled")
    assert named in made.message("Profiled")
    assert made.get("Deployment", "decode")["spec"] == template
    assert made.get("DraftTable", "chat")["status"]["table"]["ranges"] == "1-95:3 96-128:1"
    assert ("Job", "chat-profile") not in made.objects


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        pytest.param("table.json", "{", "table.json", id="no JSON"),
        pytest.param("profile.json", '{"formatVersion": 9}', "formatVersion", id="another version"),
        pytest.param("speculative-config.json", '{"num_speculative_tokens": 0}', "num_speculative_tokens", id="a length of 0"),
    ],
)
async def test_a_damaged_file_keeps_the_last_good_table_and_heals(file: str, text: str, named: str) -> None:
    made = await rolled_out()
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    good, template = data[file], copy.deepcopy(made.get("Deployment", "decode")["spec"])
    data[file] = text
    await made.turns(2)
    assert made.condition("Profiled") == ("False", "ConfigMapDamaged")
    assert named in made.message("Profiled")
    assert made.get("Deployment", "decode")["spec"] == template
    assert made.get("DraftTable", "chat")["status"]["table"]["ranges"] == "1-95:3 96-128:1"
    assert ("Job", "chat-profile") not in made.objects
    data[file] = good
    await made.turn()
    assert made.state() == "Tracking"
    del data[file]
    await made.turn()
    assert ("Job", "chat-profile") in made.objects, "deleting a file asks for its measurement again"


async def test_a_table_outside_the_launch_set_is_damage() -> None:
    made = await rolled_out()
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    data["table.json"] = json.dumps({**json.loads(data["table.json"]), "ranges": [[1, 128, 2]]})
    await made.turn()
    assert made.condition("Profiled") == ("False", "ConfigMapDamaged")
    assert "launchLengths [1, 3]" in made.message("Profiled")


async def test_a_service_that_would_send_traffic_stops_a_running_job() -> None:
    made = serving()
    await made.turn()
    labels = made.get("Job", "chat-profile")["spec"]["template"]["metadata"]["labels"]
    made.put({"kind": "Service", "metadata": {"name": "catch-all"}, "spec": {"selector": {"app.kubernetes.io/managed-by": "tabletune"}}})
    assert labels["app.kubernetes.io/managed-by"] == "tabletune"
    await made.turn()
    assert made.condition("Accepted") == ("False", "SelectorWouldMatch")
    assert "Service catch-all" in made.message("Accepted")
    assert ("Job", "chat-profile") not in made.objects
    del made.objects["Service", "catch-all"]
    await made.turns(2)
    assert ("Job", "chat-profile") in made.objects


async def test_no_node_of_the_pool_is_waited_for() -> None:
    made = serving(nodePool={"nodeSelector": {"pool": "spare"}})
    await made.turn()
    assert made.condition("Profiled") == ("False", "NoMatchingNode")
    assert ("Job", "chat-profile") not in made.objects
    spare = node("node2")
    spare["metadata"]["labels"]["pool"] = "spare"
    made.nodes.append(spare)
    await made.turn()
    assert ("Job", "chat-profile") in made.objects


async def test_mixed_gpus_are_refused_by_name() -> None:
    made = World(deployment(), draft_table(), nodes=(node(), node("node2", product="NVIDIA-L4")))
    made.roll()
    made.pods()[0]["spec"]["nodeName"] = "node2"
    await made.turn()
    assert made.condition("Accepted") == ("False", "MixedGPUs")
    assert "NVIDIA-H200, NVIDIA-L4" in made.message("Accepted")


async def test_waits_for_a_target_that_is_not_ready_yet() -> None:
    made = World(deployment(), draft_table())
    made.roll(ready=False)
    await made.turn()
    assert made.condition("Accepted") == ("Unknown", "WaitingForTarget")
    made.roll()
    await made.turn()
    assert made.condition("Accepted") == ("True", "TargetSupported")


async def test_labels_of_production_never_reach_the_profiling_pod() -> None:
    made = serving()
    await made.turn()
    assert not LABELS.items() <= made.get("Job", "chat-profile")["spec"]["template"]["metadata"]["labels"].items()


async def test_a_present_setting_that_is_only_as_good_has_a_reason_of_its_own() -> None:
    made = serving()
    await made.until_rolling_out(VerdictKind.PRESENT)
    data = made.get("ConfigMap", "chat-tabletune")["data"]
    data[formats.TABLE] = data[formats.TABLE].replace('"PresentPays"', f'"{NOTHING_GAINED}"')
    await made.turns(2)
    assert made.condition("Verified") == ("True", "NothingGained")
    assert made.condition("RolledOut") == ("True", "PresentKept")
