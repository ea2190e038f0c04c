"""LeaderWorkerSets and their own controller (lws.py): groups of one pod go the whole way and back, larger ones are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from following import QUICK, assert_follows
from kube_api import ApiError, Body
from place import WORK_SECONDS, Place, to_bytes
from workloads import DRAFT, FAULTS, REPROFILE, config_map, draft_table, service, stand_in, with_container

from tabletune import formats
from tabletune_operator.command import read_command

pytestmark = pytest.mark.leader_worker_sets

KIND = "LeaderWorkerSet"
SCRIPT = f"""\
set -eu
START_RANK=$(( $LWS_WORKER_INDEX * 1 ))
echo "rank $START_RANK of $LWS_GROUP_SIZE, led by $LWS_LEADER_ADDRESS"

exec vllm serve \\
  replay/qwen3-4b \\
  --served-model-name=replay \\
  --max-num-seqs 16 \\
  --speculative-config '{DRAFT}' \\
  --pipeline-parallel-size $LWS_GROUP_SIZE \\
  --max-model-len 2048
"""
"""As in llm-d's wide-EP guide, for one pod a group. It ends where a variable is not set that the controller gives to every replica."""


def groups(size: int, faults: Sequence[str] = ()) -> Body:
    """Two replicas of the stand-in."""
    made = with_container(stand_in(faults=faults), command=["/bin/bash", "-c"], args=[SCRIPT])
    template = {"size": size, "restartPolicy": "None", "workerTemplate": made["spec"]["template"]}
    head = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": KIND, "metadata": made["metadata"]}
    return {**head, "spec": {"replicas": 2, "leaderWorkerTemplate": template}}


def table(name: str = "tuned") -> Body:
    made = draft_table(name, controller=QUICK)
    made["spec"]["targetRef"] = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": KIND, "name": "decode"}
    return made


def create(place: Place, body: Body) -> None:
    """As soon as its webhooks answer."""

    def is_created() -> bool:
        try:
            place.create(body)
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return False
        return True

    place.until(is_created, f"the webhooks of {KIND}s answer", WORK_SECONDS)


def wait_ready(place: Place) -> None:
    """All replicas have its present template, and are ready, in the eyes of its controller and of the StatefulSet that it made."""
    place.until(lambda: is_settled(place), f"{KIND} decode is ready", WORK_SECONDS)


def is_settled(place: Place) -> bool:
    ours, made = place.get(KIND, "decode"), place.api.get("StatefulSet", place.namespace, "decode")
    if made is None or made["status"].get("observedGeneration") != made["metadata"]["generation"]:
        return False
    wanted = ours["spec"]["replicas"]
    counts = [body.get("status", {}).get(field, 0) for body in (ours, made) for field in ("replicas", "updatedReplicas", "readyReplicas")]
    return counts == [wanted] * 6 and container(made["spec"]["template"])["args"] == container(template(place))["args"]


def template(place: Place) -> Body:
    found: Body = place.get(KIND, "decode")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return found


def container(pod_template: Body) -> dict[str, Any]:
    (found,) = pod_template["spec"]["containers"]
    return found


def test_groups_of_one_pod_whole_way_and_back(place: Place) -> None:
    with place.watched_endpoints() as served:
        place.create(service())
        create(place, groups(1))
        wait_ready(place)
        before = place.get(KIND, "decode")
        place.create(table())
        place.wait_proved()
        place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")
    assert served == {"decode-0", "decode-1"}  # names stay, and the profiling pod got no traffic
    assert place.jobs_started() == 1
    wait_ready(place)

    files = place.get("ConfigMap", "tuned-tabletune")["data"]
    rolled, was = container(template(place)), container(before["spec"]["leaderWorkerTemplate"]["workerTemplate"])
    assert read_command(rolled).speculation == json.loads(files[formats.SPECULATIVE_CONFIG])
    assert read_command(rolled).argv == read_command(was).argv
    assert [place.complete("def add(a, b):\n    return a + b\n") for _ in range(4)] == [32] * 4
    status = place.get("DraftTable", "tuned")["status"]
    assert status["fleet"]["honoured"] == status["fleet"]["heard"] == 2
    assert (status["display"]["target"], status["display"]["replicas"]) == ("lws/decode", "2/2")
    assert list(place.restarts().values()) == [0, 0]

    # Neither other traffic nor what is measured later needs other engines.
    running, generation = place.restarts(), place.get(KIND, "decode")["metadata"]["generation"]
    assert_follows(place)
    place.edit("DraftTable", "tuned", {"metadata": {"annotations": {REPROFILE: "1"}}})
    place.until(lambda: place.get("DraftTable", "tuned")["status"]["profile"].get("reprofile") == "1", "it is measured again", WORK_SECONDS)
    place.wait_proved()
    assert place.jobs_started() == 2
    assert place.restarts() == running
    assert place.get(KIND, "decode")["metadata"]["generation"] == generation

    place.delete_and_wait()
    after = place.get(KIND, "decode")
    assert to_bytes(after["spec"]) == to_bytes(before["spec"])
    assert [key for key in after["metadata"].get("annotations", {}) if key.startswith("tabletune.io/")] == []
    assert place.leftovers() == []
    wait_ready(place)
    place.delete(KIND, "decode")


def test_replica_that_does_not_start_is_replaced_and_the_others_run_on(place: Place) -> None:
    place.create(config_map(FAULTS, {"REPLAY_FAIL_START": "0"}))
    create(place, groups(1, faults=["REPLAY_FAIL_START"]))
    before = place.get(KIND, "decode")
    wait_ready(place)
    first = place.get("Pod", "decode-0")["metadata"]["uid"]
    place.create(table())
    place.wait("Profiled", "Profiling", seconds=WORK_SECONDS)
    # The profiling engine runs already; new replicas will read this.
    place.until(lambda: place.get("DraftTable", "tuned")["status"]["profile"].get("stage") not in {None, "preflight"}, "the sweep")
    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "1"}})
    place.wait("RolledOut", "RolledBack", seconds=WORK_SECONDS)
    assert to_bytes(place.get(KIND, "decode")["spec"]) == to_bytes(before["spec"])

    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "0"}})
    wait_ready(place)
    assert place.get("Pod", "decode-0")["metadata"]["uid"] == first
    assert place.jobs_started() == 1
    place.delete_and_wait()
    place.delete(KIND, "decode")


def test_groups_of_two_pods_are_refused(place: Place) -> None:
    create(place, groups(2))
    before = place.get(KIND, "decode")
    place.create(table())
    place.wait("Accepted", "TargetKindCannot", says="Set one num_speculative_tokens in its --speculative-config, or groups of size 1.")
    place.wait("Ready", "TargetKindCannot")
    # What its controller made is no way round.
    made = table("made")
    made["spec"]["targetRef"] = {"kind": "StatefulSet", "name": "decode"}
    place.create(made)
    place.wait("Accepted", "TargetOwned", "made", says="LeaderWorkerSet decode")
    assert place.jobs_started() == 0
    assert place.get(KIND, "decode")["spec"] == before["spec"]
    place.delete_and_wait("made")
    place.delete_and_wait()
    assert place.leftovers() == []
    place.delete(KIND, "decode")
