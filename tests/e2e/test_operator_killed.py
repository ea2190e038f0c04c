"""The operator is killed at five moments of one object's life, and nothing is lost, doubled or left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from place import Place
from workloads import draft_table, service, stand_in


@pytest.mark.own_operator
def test_operator_killed_at_five_moments(place: Place) -> None:
    place.create(service())
    place.create(stand_in())
    place.wait_ready()
    place.create(draft_table(profile={"outputTokens": 16}))

    place.until(lambda: place.list("Job"), "the Job is created")
    place.operator.kill()

    place.until(lambda: _stage(place) == "sweep", "the sweep", seconds=300)
    place.operator.kill()

    # The result is there, and the roll-out comes next.
    place.until(lambda: place.api.get("ConfigMap", place.namespace, "tuned-tabletune"), "the ConfigMap", seconds=300)
    assert place.revision() == 1
    place.operator.kill()

    place.until(lambda: place.revision() == 2, "the roll-out has begun", seconds=300)
    place.operator.kill()

    place.wait_proved()
    assert place.jobs_started() == 1
    assert place.revision() == 2

    place.delete("DraftTable", "tuned")
    place.operator.kill()
    place.wait_gone()
    place.assert_untouched()
    assert place.revision() == 3
    assert place.leftovers() == []


def _stage(place: Place) -> Any:
    jobs = place.list("Job")
    annotation = jobs[0]["metadata"]["annotations"].get("tabletune.io/progress") if jobs else None
    return json.loads(annotation)["stage"] if annotation is not None else None
