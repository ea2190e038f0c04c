"""Replicas that are replaced under load, by an engine that leaves as llm-d's guides let it: no request fails."""

from __future__ import annotations

from place import Place
from traffic import traffic
from workloads import draft_table, leaves_late, service, stand_in


def test_no_request_fails_while_a_table_is_rolled_out_and_taken_back(place: Place) -> None:
    place.create(service())
    place.create(leaves_late(stand_in(replicas=2)))
    place.wait_ready()
    with traffic(place) as asked:
        place.create(draft_table())
        place.wait_proved()
        asked.wait_answered(20)
        place.delete_and_wait()
        place.wait_ready()
        asked.wait_answered(20)
        seen = asked.tally()
    place.assert_untouched()
    assert place.revision() == 3
    assert seen.failed == {}
