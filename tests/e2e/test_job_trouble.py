"""What goes wrong while measuring and later: an engine that does not start or dies in a cell, damaged files, a table ignored."""

from __future__ import annotations

import json

from place import Place
from workloads import FAULTS, config_map, draft_table, service, stand_in


def test_engine_that_does_not_start_in_the_job(place: Place) -> None:
    place.create(config_map(FAULTS, {"REPLAY_FAIL_START": "0"}))
    place.create(stand_in(faults=["REPLAY_FAIL_START"]))
    place.wait_ready()
    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "1"}})
    place.create(draft_table())
    condition = place.wait("Profiled", "JobRetries", seconds=300, says="Serving is not touched. Attempt 2 of 3 starts at")
    assert "EngineDoesNotStart" in condition["message"]
    place.assert_untouched()

    # Nothing but the cause is changed.
    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_FAIL_START": "0"}})
    place.wait_proved()
    assert place.jobs_started() == 2
    place.delete_and_wait()
    place.assert_untouched()


def test_engine_that_dies_in_one_cell(place: Place) -> None:
    # The largest batch size, for smaller ones are passed on the way to others; nothing but the sweep drafts one token there.
    place.create(stand_in(environment={"REPLAY_CRASH_AT": "4:1"}))
    place.wait_ready()
    place.create(draft_table())
    condition = place.wait("Profiled", "Measured", seconds=300)
    assert ", 1 left out" in condition["message"]
    profile = json.loads(place.get("ConfigMap", "tuned-tabletune")["data"]["profile.json"])
    ((batch_size, draft_length, reason),) = ((c["batchSize"], c["draftLength"], c["reason"]) for c in profile["skipped"])
    assert (batch_size, draft_length) == (4, 1)
    assert "the engine failed here 2 times" in reason
    assert {(c["batchSize"], c["draftLength"]) for c in profile["cells"]} >= {(3, 1), (4, 3)}
    place.wait("RolledOut", "Proved", seconds=300)
    assert place.jobs_started() == 1


def test_files_damaged_by_hand(place: Place) -> None:
    place.create(service())
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table())
    place.wait_proved()
    deployment, pods = place.get("Deployment", "decode"), place.restarts()
    files = place.get("ConfigMap", "tuned-tabletune")["data"]

    place.edit("ConfigMap", "tuned-tabletune", {"data": {"table.json": files["table.json"].replace('"ranges"', '"rages"')}})
    condition = place.wait("Profiled", "ConfigMapDamaged", says="The table in force stays.")
    assert "ConfigMap tuned-tabletune, table.json: ranges" in condition["message"]
    assert place.conditions()["Ready"]["status"] == "False"

    # A table that engines were not started for.
    table = json.loads(files["table.json"])
    table["ranges"] = [[1, 4, 7]]
    place.edit("ConfigMap", "tuned-tabletune", {"data": {"table.json": json.dumps(table)}})
    place.until(lambda: "7" in place.conditions().get("Profiled", {}).get("message", ""), "the message names the length")
    assert place.conditions()["Profiled"]["reason"] == "ConfigMapDamaged"

    # Replicas served on, with the table that they had.
    assert place.get("Deployment", "decode")["spec"] == deployment["spec"]
    assert place.restarts() == pods
    assert place.complete("import os") == 32

    place.edit("ConfigMap", "tuned-tabletune", {"data": files})
    place.wait("Profiled", "Measured")
    place.wait("RolledOut", "Proved")
    assert place.jobs_started() == 1
    assert place.revision() == 2


def test_engine_that_ignores_its_table(place: Place) -> None:
    place.create(config_map(FAULTS, {"REPLAY_IGNORE_TABLE": "0"}))
    place.create(stand_in(faults=["REPLAY_IGNORE_TABLE"]))
    place.wait_ready()
    place.create(draft_table())
    place.wait("Profiled", "Profiling", seconds=300)
    # The profiling engine runs already; new replicas will read this.
    place.until(lambda: place.get("DraftTable", "tuned")["status"]["profile"].get("stage") not in {None, "preflight"}, "the sweep")
    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_IGNORE_TABLE": "1"}})
    place.wait("RolledOut", "NotHonoured", seconds=300, says="Serving is correct, not faster. Update vLLM, or delete this DraftTable")
    assert place.conditions()["Ready"]["status"] == "False"

    place.edit("ConfigMap", FAULTS, {"data": {"REPLAY_IGNORE_TABLE": "0"}})
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    place.edit("Deployment", "decode", {"spec": {"template": {"metadata": {"annotations": restarted}}}})
    place.wait("RolledOut", "Proved", seconds=300)
    assert place.jobs_started() == 1
