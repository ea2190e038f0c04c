"""What the operator reads: the Job's progress, replicas' answers, nodes and pods, its own flags. Each accepted form has a refused twin."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from world import node
from world_files import sidecar_state

from tabletune_operator.nodes import gpu_pool, gpu_request, matching_nodes, product_of
from tabletune_operator.observation import Product
from tabletune_operator.podstate import parse_pod
from tabletune_operator.progress import Outcome, ProgressError, parse_progress
from tabletune_operator.settings import parse_settings
from tabletune_operator.sidecars import Silence, read_engine_version, read_sidecar
from tabletune_operator.times import clock, parse_time, spoken, to_time

PROGRESS = {
    "formatVersion": 1, "stage": "Sweeping", "cellsDone": 27, "cellsTotal": 72, "percent": 37, "message": "B=32 k=3",
    "finishAt": "2026-11-30T14:36:00Z", "updatedAt": "2026-11-30T14:30:00Z", "gpuSeconds": 300, "outcome": None, "reason": None,
}  # fmt: skip


def test_progress_is_read() -> None:
    progress = parse_progress(json.dumps(PROGRESS | {"outcome": "Failed", "aFieldOfALaterTuner": 1}))
    assert (progress.cells_done, progress.cells_total, progress.outcome) == (27, 72, Outcome.FAILED)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"formatVersion": 2}, "formatVersion 2", id="another version"),
        pytest.param({"cellsDone": "27"}, "cellsDone", id="a count that is text"),
        pytest.param({"cellsDone": -1}, "cellsDone", id="below nothing"),
        pytest.param({"updatedAt": "now"}, "now", id="no time"),
        pytest.param({"updatedAt": "2026-11-30T14:30:00"}, "no offset", id="a time of no zone"),
        pytest.param({"outcome": "Perhaps"}, "Perhaps", id="an outcome that nobody knows"),
    ],
)
def test_damaged_progress_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ProgressError, match=named):
        parse_progress(json.dumps(PROGRESS | change))


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_progress_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ProgressError):
        parse_progress(text)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(httpx.Response(500), "HTTP 500", id="an error"),
        pytest.param(httpx.Response(200, text="hello"), "JSON", id="no JSON"),
        pytest.param(httpx.Response(200, json=[1]), "object", id="no object"),
        pytest.param(httpx.Response(200, json=sidecar_state() | {"formatVersion": 2}), "formatVersion 2", id="another version"),
        pytest.param(httpx.Response(200, json=sidecar_state(ranges=[[2, 1, 1]])), "cannot be read", id="a table that is none"),
        pytest.param(httpx.ConnectTimeout("late"), "in time", id="too late"),
        pytest.param(httpx.ConnectError("no"), "reached", id="nobody there"),
    ],
)
async def test_a_sidecar_that_does_not_answer_well_is_silent_with_a_reason(answer: httpx.Response | Exception, why: str) -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), trust_env=False) as http:
        silence = await read_sidecar(http, "10.0.0.1")
        assert isinstance(silence, Silence)
        assert why in silence.why
        assert await read_engine_version(http, "fd00::1", 8000) is None


def test_gpus_in_use_are_counted_as_the_scheduler_does() -> None:
    def wanting(count: int, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(count)}}, **more}

    spec = {"containers": [wanting(1)], "initContainers": [wanting(2, restartPolicy="Always"), wanting(4)]}
    assert gpu_request(spec, "nvidia.com/gpu") == 4
    assert gpu_request({"containers": [wanting(1)], "initContainers": [wanting(2, restartPolicy="Always")]}, "nvidia.com/gpu") == 3
    pods = [
        {"spec": {"nodeName": "node1", "containers": [wanting(3)]}, "status": {"phase": "Running"}},
        {"spec": {"nodeName": "node1", "containers": [wanting(3)]}, "status": {"phase": "Succeeded"}},
        {"spec": {"nodeName": "elsewhere", "containers": [wanting(3)]}, "status": {"phase": "Running"}},
    ]
    pool = gpu_pool([node(gpus=4), node("node2", gpus=2)], pods, Product("NVIDIA-H200", None), "nvidia.com/gpu", {"node2"})
    assert pool is not None
    assert (pool.nodes, pool.total, pool.free, pool.holds_target) == (2, 6, 3, True)
    assert gpu_pool([], pods, Product("", None), "nvidia.com/gpu", set()) is None


def test_nodes_are_matched_by_labels_and_only_while_they_take_pods() -> None:
    cordoned = node("node2")
    cordoned["spec"]["unschedulable"] = True
    assert [n["metadata"]["name"] for n in matching_nodes([node(), cordoned], {})] == ["node1"]
    assert matching_nodes([node()], {"kubernetes.io/hostname": "node9"}) == ()
    assert product_of(node()) == Product("NVIDIA-H200", "nvidia.com/gpu.product")
    assert product_of({"metadata": {"name": "bare"}}) == Product("", None)


def test_a_failed_pod_says_which_container_ended_it() -> None:
    body = {
        "metadata": {"name": "p", "creationTimestamp": "2026-11-30T14:30:00Z"},
        "spec": {"containers": [{"name": "tuner"}]},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "tuner", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
        },
    }
    assert parse_pod(body, "engine", "sidecar").failure == "container tuner ended with exit code 137 (OOMKilled)"
    body["status"] = {"phase": "Failed", "reason": "Evicted", "message": "no disk"}
    assert parse_pod(body, "engine", "sidecar").failure == "pod Evicted: no disk"


def test_settings_come_from_flags_before_the_environment() -> None:
    environment = {"TABLETUNE_IMAGE": "image:1", "TABLETUNE_NAMESPACES": "b, a", "TABLETUNE_IMAGE_PULL_POLICY": "Never"}
    settings = parse_settings([], environment)
    assert (settings.namespaces, settings.image.name, settings.image.pull_policy) == (("a", "b"), "image:1", "Never")
    assert parse_settings(["--namespace", "c", "--image", "image:2"], environment).namespaces == ("c",)
    assert parse_settings([], {"TABLETUNE_IMAGE": "image:1"}).namespaces == ()


def test_the_webhook_is_off_unless_its_configuration_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"TABLETUNE_IMAGE": "image:1", "TABLETUNE_NAMESPACE": "tt"}
    assert parse_settings([], environment).admission is None
    admission = parse_settings([], environment | {"TABLETUNE_ADMISSION": "tabletune.tt"}).admission
    assert admission is not None
    assert (admission.port, admission.configuration, admission.folder) == (9443, "tabletune.tt", None)
    assert admission.names[0] == "tabletune-admission.tt.svc"
    mounted = parse_settings(["--admission=c", "--admission-folder=/certificates"], environment).admission
    assert mounted is not None
    assert str(mounted.folder) == "/certificates"
    with pytest.raises(SystemExit):
        parse_settings(["--admission=c"], {"TABLETUNE_IMAGE": "image:1"})
    assert "TABLETUNE_NAMESPACE" in capsys.readouterr().err


def test_settings_without_an_image_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([], {})
    assert "TABLETUNE_IMAGE" in capsys.readouterr().err


def test_times_are_utc_and_spoken_with_their_unit() -> None:
    moment = parse_time("2026-11-30T15:36:00+01:00")
    assert (to_time(moment), clock(moment)) == ("2026-11-30T14:36:00Z", "14:36Z")
    assert [spoken(s) for s in (50, 119.6, 240, 7500)] == ["50 s", "2 min", "4 min", "2 h 5 min"]
