"""A StatefulSet as target: the whole way and back, one replica at a time, and a replica that does not start."""

from __future__ import annotations

import json
from typing import Any

from following import QUICK, assert_follows
from kube_api import Body
from place import WORK_SECONDS, Place, to_bytes
from workloads import FAULTS, config_map, draft_table, service, stand_in

from tabletune import formats
from tabletune.argv import fold_speculative_config


def stateful(**options: Any) -> Body:
    """The stand-in, with names of its own for replicas."""
    made = stand_in(**options)
    return {**made, "kind": "StatefulSet", "spec": {**made["spec"], "serviceName": "decode"}}


def table() -> Body:
    made = draft_table(controller=QUICK)
    made["spec"]["targetRef"] = {"kind": "StatefulSet", "name": "decode"}
    return made


def wait_ready(place: Place) -> None:
    """All replicas have its present template, and are ready."""
    place.until(lambda: is_settled(place.get("StatefulSet", "decode")), "StatefulSet decode is ready", WORK_SECONDS)


def is_settled(workload: Body) -> bool:
    status, wanted = workload.get("status", {}), workload["spec"]["replicas"]
    counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas")]
    seen = status.get("observedGeneration") == workload["metadata"]["generation"]
    return seen and counts == [wanted] * 3 and status.get("currentRevision") == status.get("updateRevision")


def template(place: Place) -> Body:
    found: Body = place.get("StatefulSet", "decode")["spec"]["template"]
    return found


def test_a_stateful_set_whole_way_and_back(place: Place) -> None:
    with place.watched_endpoints() as served:
        place.create(service())
        place.create(stateful(replicas=2))
        before = template(place)
        wait_ready(place)
        place.create(table())
        place.wait_proved()
        place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")
    assert served == {"decode-0", "decode-1"}  # names stay, and the profiling pod got no traffic
    assert place.jobs_started() == 1

    files = place.get("ConfigMap", "tuned-tabletune")["data"]
    (engine,) = template(place)["spec"]["containers"]
    assert fold_speculative_config(engine["args"]).config == json.loads(files[formats.SPECULATIVE_CONFIG])
    assert [place.complete("def add(a, b):\n    return a + b\n") for _ in range(4)] == [32] * 4
    rolled = place.get("StatefulSet", "decode")["metadata"]["generation"]
    status = place.get("DraftTable", "tuned")["status"]
    assert status["fleet"]["honoured"] == status["fleet"]["heard"] == 2
    assert (status["display"]["target"], status["display"]["replicas"]) == ("sts/decode", "2/2")

    assert list(place.restarts().values()) == [0, 0]

    assert_follows(place)
    assert place.get("StatefulSet", "decode")["metadata"]["generation"] == rolled

    place.delete_and_wait()
    assert to_bytes(template(place)) == to_bytes(before)
    ours = [key for key in place.get("StatefulSet", "decode")["metadata"].get("annotations", {}) if key.startswith("tabletune.io/")]
    assert ours == []
    assert place.leftovers() == []
    wait_ready(place)


def test_replica_that_does_not_start_is_named_and_comes_back_when_it_is_deleted(place: Place) -> None:
    place.create(config_map(FAULTS, {"REPLAY_FAIL_START": "0"}))
    place.create(stateful(replicas=2, faults=["REPLAY_FAIL_START"]))
    before = template(place)
    wait_ready(place)
    place.create(table())
    place.wait("Profiled", "Profiling", seconds=WORK_SECONDS)
    # The profiling engine runs already; new replicas will read this.
    place.until(lambda: place.get("DraftTable", "tuned")["status"]["profile"].get("stage") not in {None, "preflight"}, "the sweep")
    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "1"}})
    place.wait("RolledOut", "RolledBack", seconds=WORK_SECONDS, says="To have it replaced: kubectl delete pod decode-1")
    assert to_bytes(template(place)) == to_bytes(before)

    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "0"}})
    place.delete("Pod", "decode-1")
    wait_ready(place)
    assert place.jobs_started() == 1
    place.delete_and_wait()
