"""What two replicas learned of their traffic is where a third one starts from."""

from __future__ import annotations

from kube_api import Body
from place import Place
from workloads import draft_table, service, stand_in

from tabletune import formats
from tabletune.formats import FleetFile

PROSE = "The old harbour lay quiet under the morning fog, and nobody came down to the boats. "
"""Other traffic than was profiled (code), which the stand-in guesses badly."""


def test_new_replica_starts_from_what_the_others_know(place: Place) -> None:
    place.create(service())
    place.create(stand_in(replicas=2))
    place.wait_ready()
    # A light prior, and no rebuild meanwhile: what a replica uses is then what it started from.
    place.create(draft_table(controller={"priorWeight": 200, "rebuildEverySteps": 1_000_000}))
    place.wait_proved()
    profiled = formats.parse_acceptance(_files(place)[formats.ACCEPTANCE]).estimate.acceptance
    assert formats.FLEET not in _files(place)

    fleet = place.until(lambda: _fleet_with_traffic(place), "the fleet's prior is in the ConfigMap", seconds=300)
    assert fleet.estimate.acceptance[0] < profiled[0] - 0.1
    assert fleet.files == formats.digest_of(_files(place))
    assert place.revision() == 2
    place.until(lambda: " of 2 replicas" in _status(place).get("prior", ""), "the status shows the prior")

    before = {replica["pod"] for replica in _status(place)["replicas"]}
    place.scale("decode", 3)
    place.wait_ready()
    place.until(lambda: len(_status(place)["replicas"]) == 3 and _acceptance(place, before), "the third replica is heard")
    known = [_text(fleet), _text(formats.parse_fleet(_files(place)[formats.FLEET]))]  # written anew meanwhile, perhaps
    assert _acceptance(place, before) in known
    assert "/".join(f"{a:.2f}" for a in profiled) not in known
    place.wait("RolledOut", "Proved", seconds=300)
    place.delete_and_wait()
    assert place.leftovers() == []


def _files(place: Place) -> dict[str, str]:
    found: dict[str, str] = place.get("ConfigMap", "tuned-tabletune")["data"]
    return found


def _status(place: Place) -> Body:
    found: Body = place.get("DraftTable", "tuned")["status"]["fleet"]
    return found


def _fleet_with_traffic(place: Place) -> FleetFile | None:
    for _ in range(4):
        assert place.complete(PROSE, max_tokens=128) == 128
    files = _files(place)
    return formats.parse_fleet(files[formats.FLEET]) if formats.FLEET in files else None


def _acceptance(place: Place, before: set[str]) -> str | None:
    """In use at the replica that was not there before, once it is heard."""
    return next((r.get("acceptance") for r in _status(place)["replicas"] if r["pod"] not in before), None)


def _text(fleet: FleetFile) -> str:
    return "/".join(f"{a:.2f}" for a in fleet.estimate.acceptance)
