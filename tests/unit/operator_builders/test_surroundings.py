"""What goes on around a target: scales, budgets, and room for more pods."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune_operator.observation import Budget
from tabletune_operator.surroundings import find_budgets, find_next_taker, find_room, find_scaling

GPU = "nvidia.com/gpu"


def workload(wanted: int = 2, generation: int = 3, **status: Any) -> dict[str, Any]:
    whole = {"observedGeneration": 3, "replicas": wanted, "updatedReplicas": wanted, **status}
    return {"kind": "Deployment", "metadata": {"name": "decode", "generation": generation}, "spec": {"replicas": wanted}, "status": whole}


def groups(wanted: int, present: int, **status: Any) -> dict[str, Any]:
    """A LeaderWorkerSet."""
    made = workload(wanted)
    return {**made, "kind": "LeaderWorkerSet", "status": {"replicas": present, "updatedReplicas": present, **status}}


def autoscaler(present: int, wanted: int, name: str = "decode") -> dict[str, Any]:
    return {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "hpa"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": name}},
        "status": {"currentReplicas": present, "desiredReplicas": wanted},
    }


@pytest.mark.parametrize(
    ("given", "scalers", "said"),
    [
        pytest.param(workload(), [], None, id="nothing"),
        pytest.param(workload(), [autoscaler(2, 2)], None, id="an autoscaler at rest"),
        pytest.param(workload(), [autoscaler(2, 4, name="other")], None, id="another's autoscaler"),
        pytest.param(workload(), [autoscaler(2, 4)], "HorizontalPodAutoscaler hpa scales it from 2 to 4 replicas", id="up"),
        pytest.param(workload(), [autoscaler(2, 0)], None, id="an autoscaler without metrics"),
        pytest.param(workload(0), [], None, id="scaled to none"),
        pytest.param(workload(3, replicas=2, updatedReplicas=2), [], "it is being scaled from 2 to 3 replicas", id="by hand"),
        pytest.param(workload(2, replicas=3, updatedReplicas=1), [], "an earlier roll-out", id="a roll-out of its own"),
        pytest.param(workload(2, generation=4, replicas=1), [], None, id="counts of what was wanted before"),
        pytest.param({**workload(2, updatedReplicas=0), "kind": "StatefulSet"}, [], None, id="kept by a partition"),
        pytest.param(groups(2, 2), [], None, id="groups at rest"),
        pytest.param(
            groups(3, 2), [], "it is being scaled from 2 to 3 replicas", id="groups scaled, by a controller that tells no generation"
        ),
        pytest.param(groups(3, 2, observedGeneration=2), [], None, id="groups, counted before"),
        pytest.param({**groups(2, 0), "status": {}}, [], None, id="groups that nobody has counted yet"),
    ],
)
def test_a_scale_under_way_is_found(given: dict[str, Any], scalers: list[dict[str, Any]], said: str | None) -> None:
    found = find_scaling(given, scalers)
    assert found is None if said is None else said in str(found)


def test_only_budgets_of_these_pods_count() -> None:
    def budget(name: str, role: str, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"role": role}}}, "status": status}

    budgets = [budget("own", "decode", disruptionsAllowed=1), budget("new", "decode"), budget("other", "prefill", disruptionsAllowed=0)]
    assert find_budgets({"role": "decode"}, budgets) == (Budget("new", 0), Budget("own", 1))


def test_the_gpus_of_one_pod_are_on_one_node() -> None:
    def node(name: str, gpus: int) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"allocatable": {GPU: str(gpus)}}}

    def pod(on: str, gpus: int) -> dict[str, Any]:
        return {"spec": {"nodeName": on, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}]}, "status": {"phase": "Running"}}

    nodes, pods = [node("a", 8), node("b", 8)], [pod("a", 6), pod("b", 5)]
    assert find_room(nodes, pods, GPU, 1) == 5
    assert find_room(nodes, pods, GPU, 2) == 2
    assert find_room(nodes, pods, GPU, 4) == 0
    assert find_room(nodes, pods, None, 0) is None, "without a GPU nothing is known"


GPU = "nvidia.com/gpu"


def pending(name: str, reason: str = "Unschedulable", resource: str = GPU, **metadata: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason}
    containers = [{"name": "c", "resources": {"limits": {resource: "1"}}}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}, "status": {"conditions": [condition]}}


def test_the_next_gpu_that_is_free_goes_to_who_waits_for_it() -> None:
    assert find_next_taker([pending("b"), pending("a"), pending("0-own")], {"0-own"}, GPU) == "a"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pending("a", reason="SchedulingGated"), id="not to be scheduled yet"),
        pytest.param(pending("a", resource="amd.com/gpu"), id="another resource"),
        pytest.param(pending("a", deletionTimestamp="2026-11-30T15:00:00Z"), id="on its way out"),
        pytest.param({**pending("a"), "status": {}}, id="nothing known"),
    ],
)
def test_who_does_not_wait_for_one_takes_none(pod: dict[str, Any]) -> None:
    assert find_next_taker([pod], set(), GPU) is None
