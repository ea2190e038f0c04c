"""Measured again only when asked for, and with a GPU that a replica lends while the pool is full."""

from __future__ import annotations

import pytest
from place import Place
from workloads import A100, ALL_A100, REPROFILE, draft_table, gpus_of, stand_in

BORROWED = "tabletune.io/borrowed"
RECOMMEND = {"mode": "Recommend"}


def test_measured_once_when_asked_and_never_else(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table(profile={"policy": "Never"}, rollout=RECOMMEND))
    place.wait("Profiled", "PolicyNever", says=f"kubectl annotate --overwrite dt tuned {REPROFILE}=$(date +%s)")
    assert place.list("Job") == []

    _ask(place, "1")
    place.wait("Profiled", "Measured", seconds=300)
    place.until(lambda: place.get("DraftTable", "tuned")["status"]["profile"].get("reprofile") == "1", "the status remembers")
    _ask(place, "1")
    place.until(lambda: not place.list("Job"), "the Job is gone")
    assert place.jobs_started() == 1

    # Another engine than was measured: it is said, and nothing is measured.
    place.edit_engine(env=[{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}])
    condition = place.wait("Profiled", "PolicyNever", seconds=300)
    assert "environment (none, now VLLM_LOGGING_LEVEL=INFO)" in condition["message"]
    assert place.jobs_started() == 1
    place.delete_and_wait()
    assert place.leftovers() == []


@pytest.mark.own_operator
@pytest.mark.whole_pool
def test_borrowed_replica_comes_back_though_the_operator_is_killed(place: Place) -> None:
    with ALL_A100:
        replicas = gpus_of(place.api, A100)
        place.create(stand_in(replicas=replicas, gpu_product=A100))
        place.wait_ready()
        place.create(draft_table(profile={"placement": "BorrowReplica"}, rollout=RECOMMEND))
        place.until(lambda: _is_lent(place), "a replica is lent")
        assert place.get("Deployment", "decode")["spec"]["replicas"] == replicas - 1
        place.operator.kill()
        place.wait("Profiled", "Profiling", seconds=300, says=f"{replicas - 1} of {replicas} replicas serve until the Job ends")
        place.operator.kill()
        place.wait("Profiled", "Measured", seconds=300)
        _wait_given_back(place, replicas)

        # Deleted in the middle.
        _ask(place, "1")
        place.until(lambda: _is_lent(place), "a replica is lent again")
        place.delete("DraftTable", "tuned")
        place.operator.kill()
        place.wait_gone()
        _wait_given_back(place, replicas)
        place.wait_ready()
        assert place.revision() == 1
        assert place.leftovers() == []


def _ask(place: Place, text: str) -> None:
    place.edit("DraftTable", "tuned", {"metadata": {"annotations": {REPROFILE: text}}})


def _is_lent(place: Place) -> bool:
    return BORROWED in place.get("Deployment", "decode")["metadata"].get("annotations", {})


def _wait_given_back(place: Place, replicas: int) -> None:
    """As many as before, and no field of the workload is ours."""
    place.until(lambda: not _is_lent(place), "the replica is given back")
    deployment = place.get("Deployment", "decode")
    assert deployment["spec"]["replicas"] == replicas
    assert "tabletune.io" not in {entry["manager"] for entry in deployment["metadata"]["managedFields"]}
    place.assert_untouched()
