"""Input that cannot work: a stable reason, a message that says what to do, an untouched target, and recovery of the same object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from place import Place
from workloads import A100, ALL_A100, DRAFT, GPU, H200, PRODUCT, draft_table, gpus_of, stand_in, with_container


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that is wrong before anything runs. `cure` changes the engine's container, `spec_cure` the DraftTable."""

    name: str
    reason: str
    says: str
    deployment: Mapping[str, Any]
    spec: Mapping[str, Any] = field(default_factory=dict)
    cure: Mapping[str, Any] | None = None
    spec_cure: Mapping[str, Any] | None = None


SERVE = "vllm serve replay/qwen3-4b --port 8000"
PLAIN = stand_in()["spec"]["template"]["spec"]["containers"][0]


def _two_engines(name: str) -> dict[str, Any]:
    deployment = stand_in(name, replicas=0)
    pod = deployment["spec"]["template"]["spec"]
    pod["containers"].append({**pod["containers"][0], "name": "second", "ports": []})
    return deployment


WRONG = (
    Wrong(
        "shell",
        "TargetShellString",
        "Write command [vllm, serve] and args as a list.",
        with_container(stand_in("shell", replicas=0), command=["sh", "-c"], args=[f"{SERVE} || {SERVE}"]),  # which one is it?
        cure={"command": ["vllm", "serve"], "args": PLAIN["args"]},
    ),
    Wrong(
        "two-engines",
        "TwoEngines",
        "spec.targetRef.container",
        _two_engines("two-engines"),
        cure={"name": "second", "command": ["sleep", "infinity"], "args": []},
    ),
    Wrong(
        "no-engine",
        "NoEngine",
        "Start it with command [vllm, serve].",
        with_container(stand_in("no-engine", replicas=0), image="registry.example/web:1", command=["nginx"], args=None),
        cure={"command": ["vllm", "serve"], "args": PLAIN["args"]},
    ),
    Wrong(
        "no-speculation",
        "NoSpeculativeConfig",
        "Set spec.speculation: method and maxDraftLength",
        stand_in("no-speculation", replicas=0, args=()),
        spec_cure={"speculation": {"method": "eagle3", "model": "replay/eagle3", "maxDraftLength": 3}},
    ),
    Wrong(
        "too-long",
        "DraftLengthTooLarge",
        "Set 3 or less, or raise num_speculative_tokens in the target.",
        stand_in("too-long", replicas=0),
        spec={"speculation": {"maxDraftLength": 9}},
        spec_cure={"speculation": {"maxDraftLength": 3}},
    ),
    Wrong(
        "data-parallel",
        "DataParallel",
        "or run replicas of size 1",
        stand_in("data-parallel", replicas=0, args=("--data-parallel-size=2", "--speculative-config", DRAFT)),
        cure={"args": PLAIN["args"]},
    ),
    Wrong(
        "method",
        "MethodCannot",
        "use one of",
        stand_in("method", replicas=0, args=("--speculative-config", '{"method":"suffix","num_speculative_tokens":3}')),
        spec_cure={"speculation": {"method": "eagle3", "model": "replay/eagle3", "maxDraftLength": 3}},
    ),
    Wrong(
        "broken-json",
        "ArgumentNotUnderstood",
        "--speculative-config",
        stand_in("broken-json", replicas=0, args=("--speculative-config", '{"method":"eagle3",')),
        cure={"args": PLAIN["args"]},
    ),
    Wrong(
        "prefill",
        "PrefillRole",
        "Name the decode workload.",
        {
            **stand_in("prefill", replicas=0),
            "spec": json.loads(json.dumps(stand_in("prefill", replicas=0)["spec"]).replace('"decode"', '"prefill"')),
        },
    ),
    Wrong(
        "prompts",
        "PromptsNotFound",
        "Create it as UTF-8 text, or remove spec.profile.prompts to use the sample.",
        stand_in("prompts", replicas=0),
        spec={"profile": {"prompts": {"configMapRef": {"name": "ours"}}}},
        spec_cure={"profile": {"prompts": None}},
    ),
)


def test_wrong_before_anything_runs(place: Place) -> None:
    """Without any replica, so that they cost nothing; the cause gone, each says that it waits for one."""
    for wrong in WRONG:
        place.create(wrong.deployment)
        table = draft_table(wrong.name, wrong.name)
        table["spec"] |= {key: {**table["spec"].get(key, {}), **value} for key, value in wrong.spec.items()}
        place.create(table)
    for wrong in WRONG:
        condition = place.wait("Accepted", wrong.reason, wrong.name, says=wrong.says)
        assert "Nothing was changed" in condition["message"]
        assert place.conditions(wrong.name)["Stalled"]["reason"] == wrong.reason
        place.assert_untouched(wrong.name)
    assert place.list("Job") == []
    for wrong in WRONG:
        if wrong.cure is not None:
            place.edit_engine(wrong.name, **wrong.cure)
        if wrong.spec_cure is not None:
            place.edit("DraftTable", wrong.name, {"spec": wrong.spec_cure})
    for wrong in WRONG:
        if wrong.cure is not None or wrong.spec_cure is not None:
            place.wait("Accepted", "WaitingForTarget", wrong.name)


def test_engine_without_tables(place: Place) -> None:
    versions = {"too-old": ("0.23.0", "EngineTooOld", "Upgrade to 0.32.0 or later"), "ignores": ("0.30.0", "TableIgnored", "0.32.0")}
    for name, (version, _, _) in versions.items():
        place.create(stand_in(name, environment={"REPLAY_VERSION": version, "VLLM_USE_V2_MODEL_RUNNER": "1"}))
    for name in versions:
        place.wait_ready(name)
        place.create(draft_table(name, name, rollout={"mode": "Recommend"}))
    for name, (version, reason, says) in versions.items():
        condition = place.wait("Accepted", reason, name, says=says)
        assert version in condition["message"]
        assert "no GPU used" in condition["message"]
        place.assert_untouched(name)
    assert place.jobs_started() == 0

    place.edit_engine("too-old", env=[{"name": "REPLAY_VERSION", "value": "0.32.0"}])
    place.wait("Accepted", "TargetSupported", "too-old")


def test_target_that_comes_later(place: Place) -> None:
    place.create(draft_table())
    place.wait("Accepted", "TargetNotFound", says="work starts by itself once it is there")
    assert place.conditions()["Ready"]["status"] == "False"
    place.create(stand_in())
    place.wait("Accepted", "TargetSupported")
    # Others measure on that product too, and it takes its turn.
    place.until(lambda: place.list("Job"), "the Job is created", seconds=600)


def test_service_that_would_send_traffic_to_the_job(place: Place) -> None:
    selects_ours = {"selector": {"app.kubernetes.io/managed-by": "tabletune"}, "ports": [{"port": 8000}]}
    place.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "greedy"}, "spec": selects_ours})
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table())
    place.wait("Accepted", "SelectorWouldMatch", says="Service greedy would send traffic to the profiling pod")
    assert place.jobs_started() == 0
    place.delete("Service", "greedy")
    place.wait("Accepted", "TargetSupported")


@pytest.mark.whole_pool
def test_no_free_gpu(place: Place) -> None:
    with ALL_A100:
        place.create(stand_in(gpu_product=A100))
        place.wait_ready()
        # Another workload has all the others.
        hog = with_container(
            stand_in("hog", gpu_product=A100), command=["sleep", "infinity"], args=[], startupProbe=None, readinessProbe=None
        )
        free = gpus_of(place.api, A100) - 1
        hog["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: free}}
        place.create(hog)
        place.wait_ready("hog")
        place.create(draft_table())
        condition = place.wait("Profiled", "WaitingForGPU", says="profiling then starts by itself")
        assert "Serving is not touched" in condition["message"]
        place.assert_untouched()

        place.scale("hog", 0)
        place.wait("Profiled", "Profiling")
        assert place.jobs_started() == 1


def test_no_node_of_that_gpu(place: Place) -> None:
    place.create(stand_in(gpu_product=H200))
    place.wait_ready()
    place.create(draft_table(nodePool={"nodeSelector": {PRODUCT: "NVIDIA-H200", "pool": "that-is-not-there"}}))
    condition = place.wait("Profiled", "NoMatchingNode", says="Correct the selector, or label a node")
    assert "pool=that-is-not-there" in condition["message"]
    assert place.list("Job") == []
    place.assert_untouched()

    place.edit("DraftTable", "tuned", {"spec": {"nodePool": {"nodeSelector": {"pool": None}}}})
    # Others measure on that product too, and it takes its turn.
    place.until(lambda: place.list("Job"), "the Job is created", seconds=600)
