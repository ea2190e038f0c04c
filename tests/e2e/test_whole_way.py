"""From `kubectl apply` to replicas that serve with a measured table, and back, with two replicas on GPUs of one product."""

from __future__ import annotations

import json

from place import Place, to_bytes
from workloads import H200, draft_table, service, stand_in

from tabletune import formats
from tabletune.argv import fold_speculative_config

SENTENCES = ("def add(a, b):\n    return a + b\n", "It was a bright cold day in April. ", "for i in range(10): print(i)\n")


def test_whole_way_and_back(place: Place) -> None:
    with place.watched_endpoints() as served:
        place.create(service())
        place.create(stand_in(replicas=2, gpu_product=H200))
        place.wait_ready()
        place.create(draft_table())
        place.wait_proved()
        place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")

    # The profiling pod never got traffic, and its Job is gone when its work is done.
    assert served
    assert {name for name in served if not name.startswith("decode-")} == set()
    assert place.jobs_started() == 1
    assert place.list("Job") == []
    assert place.revision() == 2

    files = place.get("ConfigMap", "tuned-tabletune")["data"]
    profile = formats.parse_profile(files[formats.PROFILE])
    table = formats.parse_table(files[formats.TABLE])
    formats.parse_acceptance(files[formats.ACCEPTANCE])
    assert dict(profile.fingerprint.fields)["gpuProduct"] == H200
    assert {cell.batch_size for cell in profile.cells} == {1, 2, 3, 4}
    assert len(profile.baseline) == 4
    (engine,) = place.template()["spec"]["containers"]
    assert fold_speculative_config(engine["args"]).config == json.loads(files[formats.SPECULATIVE_CONFIG])
    assert table.verdict.message in place.conditions()["Verified"]["message"]

    answers = [place.complete(SENTENCES[number % 3]) for number in range(12)]
    assert answers == [32] * 12
    status = place.get("DraftTable", "tuned")["status"]
    assert status["fleet"]["honoured"] == status["fleet"]["heard"] == 2
    assert status["display"]["replicas"] == "2/2"

    place.delete_and_wait()
    assert to_bytes(place.template()) == to_bytes(place.as_created())
    place.assert_untouched()
    assert place.leftovers() == []


def test_recommend_leaves_the_target_alone(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table(rollout={"mode": "Recommend"}))
    place.wait("RolledOut", "Recommended", seconds=300, says="apply kustomization.yaml of ConfigMap tuned-tabletune over your own")
    place.wait("Tracking", "NothingToTrack")
    place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")
    place.assert_untouched()
    assert place.revision() == 1

    # Now rolled out, and given back, by the same object and with the same profile.
    place.edit("DraftTable", "tuned", {"spec": {"rollout": {"mode": "Patch"}}})
    place.wait_proved()
    place.edit("DraftTable", "tuned", {"spec": {"rollout": {"mode": "Recommend"}}})
    place.wait("RolledOut", "Recommended")
    place.assert_untouched()
    assert place.jobs_started() == 1
