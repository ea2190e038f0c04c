"""The target is scaled to nothing, and then deleted, while its replicas are replaced."""

from __future__ import annotations

from place import WORK_SECONDS, Place
from workloads import draft_table, service, stand_in

SLOW = {"REPLAY_START_SECONDS": "10"}
"""So that the roll-out is under way for a while."""


def test_scaled_to_zero_and_deleted_in_the_middle_of_a_roll_out(place: Place) -> None:
    place.create(service())
    place.create(stand_in(environment=SLOW))
    place.wait_ready()
    place.create(draft_table())
    place.until(lambda: place.revision() == 2, "the roll-out has begun", 2 * WORK_SECONDS)

    place.scale("decode", 0)
    place.wait("RolledOut", "Proving", says="scaled to 0")
    place.until(lambda: not place.list("Pod", "llm-d.ai/guide=decode"), "no replica is there")
    assert place.get("Deployment", "decode")["spec"]["replicas"] == 0

    place.scale("decode", 1)
    place.wait("RolledOut", "Proved", seconds=WORK_SECONDS)
    assert place.complete("def add(a, b):\n    return a + b\n") == 32
    assert place.revision() == 2
    assert place.jobs_started() == 1

    # A change of its user's: the table stays, replicas are replaced, and in the middle of that the target goes.
    place.edit("Deployment", "decode", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}})
    place.until(lambda: place.revision() == 3, "replicas are replaced again")
    place.delete("Deployment", "decode")
    place.wait("Accepted", "TargetNotFound")
    place.until(lambda: place.conditions()["RolledOut"]["status"] == "Unknown", "nothing is claimed of a target that is gone")

    # The same name again, without anything of ours: measured already, so it is only rolled out.
    place.until(lambda: not place.list("Pod", "llm-d.ai/guide=decode"), "its last replica is gone")
    place.create(stand_in(environment=SLOW))
    place.wait_ready()
    place.wait_proved()
    assert place.jobs_started() == 1
    place.delete("Deployment", "decode")
    place.wait("Accepted", "TargetNotFound")
    place.delete_and_wait()
    assert place.leftovers() == []
