"""Spec or target change meanwhile: while it is measured, and after the roll-out."""

from __future__ import annotations

import copy
import json

from place import Place
from workloads import draft_table, stand_in


def test_spec_and_target_changed_while_profiling(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table())
    place.wait("Profiled", "Profiling", seconds=300)
    first = _job(place)

    place.edit("DraftTable", "tuned", {"spec": {"profile": {"repeats": 2}}})
    place.wait("Profiled", "Profiling", seconds=300)
    second = place.until(lambda: _newer_job(place, first), "a Job for the new spec")
    assert _tuner_option(second, "--repeats") == "2"

    place.wait("Profiled", "Profiling", seconds=300)
    place.edit_engine(env=[{"name": "ADDED_MEANWHILE", "value": "yes"}])
    third = place.until(lambda: _newer_job(place, second), "a Job for the new pod template", seconds=300)
    (engine,) = (c for c in third["spec"]["template"]["spec"]["initContainers"] if c["name"] == "modelserver")
    assert {"name": "ADDED_MEANWHILE", "value": "yes"} in engine["env"]

    theirs = place.template()
    place.wait_proved()
    # What was measured meanwhile for the former spec and template was of no use, and was not used.
    assert place.jobs_started() == 3
    profile = json.loads(place.get("ConfigMap", "tuned-tabletune")["data"]["profile.json"])
    assert profile["measurement"]["repeats"] == 2
    assert place.revision() == 3
    place.delete_and_wait()
    place.assert_given_back("decode", theirs)


def test_target_changed_after_the_roll_out(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table())
    place.wait_proved()

    # A field that is not ours: an ordinary change of the target, which keeps the table.
    place.edit("Deployment", "decode", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}})
    place.wait_ready()
    place.until(lambda: _proves(place), "the new replica proves the table", seconds=300)
    assert place.revision() == 3
    assert place.jobs_started() == 1

    # The speculative config itself: somebody's decision, which is left as it is.
    (engine,) = place.template()["spec"]["containers"]
    theirs = [arg for arg in engine["args"] if "speculative" not in arg]
    place.edit_engine(args=[*theirs, "--speculative-config", '{"method":"eagle3","model":"replay/eagle3","num_speculative_tokens":1}'])
    place.wait("RolledOut", "Drifted", says="Left as it is. To keep it set spec.rollout.mode to Recommend")
    edited = place.template()
    place.wait_ready()
    assert place.conditions()["RolledOut"]["reason"] == "Drifted"
    assert place.template() == edited

    place.delete_and_wait()
    expected = copy.deepcopy(place.as_created())
    expected["spec"]["terminationGracePeriodSeconds"] = 7
    expected["spec"]["containers"][0]["args"] = edited["spec"]["containers"][0]["args"]
    place.assert_given_back("decode", expected)
    assert place.leftovers() == []


def _job(place: Place) -> dict:
    (job,) = place.list("Job")
    return job


def _newer_job(place: Place, former: dict) -> dict | None:
    """At no moment are there two."""
    jobs = place.list("Job")
    assert len(jobs) <= 1
    return jobs[0] if jobs and jobs[0]["metadata"]["uid"] != former["metadata"]["uid"] else None


def _tuner_option(job: dict, option: str) -> str:
    (tuner,) = job["spec"]["template"]["spec"]["containers"]
    return tuner["args"][tuner["args"].index(option) + 1]


def _proves(place: Place) -> bool:
    """By the replica that runs now, not by one before it."""
    pods = [pod["metadata"]["name"] for pod in place.list("Pod") if "deletionTimestamp" not in pod["metadata"]]
    heard = place.get("DraftTable", "tuned")["status"].get("fleet", {}).get("replicas", [])
    proved = [replica["pod"] for replica in heard if replica["honoured"] == "Proved"]
    return pods == proved and place.conditions().get("RolledOut", {}).get("reason") == "Proved"
