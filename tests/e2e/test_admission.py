"""Mode Admission on a real cluster: the workload object is never written, its pods get the table, and leave it when they are made anew."""

from __future__ import annotations

from typing import Any

from place import WORK_SECONDS, Place
from workloads import draft_table, service, stand_in

SIDECAR = "tabletune-sidecar"


def test_evictions_bring_the_table_and_the_deployment_stays_as_it_is(place: Place) -> None:
    place.create(service())
    place.create(stand_in(replicas=2))
    place.wait_ready()
    before = place.get("Deployment", "decode")
    place.create(draft_table(rollout={"mode": "Admission"}))
    place.wait("RolledOut", "WaitingForRestart", seconds=2 * WORK_SECONDS, says="kubectl rollout restart deploy/decode")
    assert _with_sidecar(place) == []

    place.edit("DraftTable", "tuned", {"spec": {"rollout": {"replace": "Evict"}}})
    place.wait_proved()
    assert len(_with_sidecar(place)) == 2
    place.assert_untouched()
    assert place.revision() == 1
    assert place.get("Deployment", "decode")["metadata"]["generation"] == before["metadata"]["generation"]
    assert [place.complete("def add(a, b):\n") for _ in range(4)] == [32] * 4

    place.delete("DraftTable", "tuned")
    place.until(lambda: place.api.get("DraftTable", place.namespace, "tuned") is None, "DraftTable tuned is gone")
    assert len(_with_sidecar(place)) == 2
    place.edit("Deployment", "decode", {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}})
    place.wait_ready()
    place.until(lambda: _with_sidecar(place) == [], "pods as their template says")


def _with_sidecar(place: Place) -> list[str]:
    return [pod["metadata"]["name"] for pod in place.list("Pod", "llm-d.ai/guide=decode") if _has(pod, SIDECAR)]


def _has(pod: dict[str, Any], container: str) -> bool:
    return any(each["name"] == container for each in pod["spec"].get("initContainers", ()))
