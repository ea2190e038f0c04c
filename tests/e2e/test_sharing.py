"""Two DraftTables of one namespace: on one target, and on two targets that are alike."""

from __future__ import annotations

from place import Place
from workloads import draft_table, stand_in


def test_second_drafttable_on_a_target_waits_for_the_first_to_go(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table("first"))
    place.wait("Accepted", "TargetSupported", "first")
    place.create(draft_table("second"))
    place.wait("Accepted", "TargetTaken", "second", says="Delete one of the two; the other goes on by itself.")
    place.wait_proved("first")

    # The first is as it would be alone.
    assert place.conditions("second")["Accepted"]["reason"] == "TargetTaken"
    assert place.jobs_started() == 1
    assert place.revision() == 2
    assert place.get("Deployment", "decode")["metadata"]["annotations"]["tabletune.io/drafttable"] == "first"

    place.delete_and_wait("first")
    place.wait_proved("second")
    assert place.get("Deployment", "decode")["metadata"]["annotations"]["tabletune.io/drafttable"] == "second"
    assert place.jobs_started() == 2

    place.delete_and_wait("second")
    place.assert_untouched()
    assert place.leftovers() == []


def test_profile_is_used_again_for_an_equal_target(place: Place) -> None:
    for name in ("one", "two"):
        place.create(stand_in(name))
    for name in ("one", "two"):
        place.wait_ready(name)
    place.create(draft_table("one", "one"))
    place.wait("Profiled", "Profiling", "one", seconds=300)
    place.create(draft_table("two", "two"))
    place.wait("Profiled", "Queued", "two", says="this one starts by itself after it")
    place.wait_proved("one")
    place.wait("Profiled", "Reused", "two", seconds=300, says="Profile of DraftTable one reused")
    place.wait("RolledOut", "Proved", "two", seconds=300)

    assert place.jobs_started() == 1
    assert place.get("ConfigMap", "one-tabletune")["data"] == place.get("ConfigMap", "two-tabletune")["data"]
    # The copy is its own: it does not go with the one that was measured.
    place.delete_and_wait("one")
    place.assert_untouched("one")
    assert place.conditions("two")["Profiled"]["reason"] == "Reused"
    place.delete_and_wait("two")
    place.assert_untouched("two")
    assert place.leftovers() == []
