"""A DraftTable is deleted before it is done: at every stage the target is as it was, and nothing is left."""

from __future__ import annotations

from place import Place
from workloads import draft_table, stand_in


def test_deleted_at_every_stage(place: Place) -> None:
    place.create(stand_in(replicas=0))
    place.create(draft_table())
    place.wait("Accepted", "WaitingForTarget", says="profiling starts when one is ready")
    _delete(place, revision=1)

    place.scale("decode", 1)
    place.wait_ready()
    place.create(draft_table())
    place.until(lambda: place.list("Job"), "the Job is created")
    _delete(place, revision=1)

    place.create(draft_table())
    place.wait("Profiled", "Profiling", seconds=300)
    _delete(place, revision=1)

    place.create(draft_table())
    place.until(lambda: place.revision() == 2, "the roll-out has begun", seconds=300)
    _delete(place, revision=3)
    # The former replica served all the time.
    place.wait_ready()


def _delete(place: Place, revision: int) -> None:
    place.delete_and_wait()
    place.assert_untouched()
    place.until(lambda: place.revision() == revision, f"revision {revision} of the target")
    assert place.leftovers() == []
