"""N-1 to N: an operator meets everything that the version before left in a cluster, in every state, and restarts and loses nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from older import FIXTURES, load
from world import World, deployment

from tabletune_operator.conditions import STAGES
from tabletune_operator.pods import OwnImage
from tabletune_operator.recommendation import OWN_FILES
from tabletune_sidecar.state import load_state

NEWER = OwnImage("tabletune.test/tabletune:next", "Always")
OLDER = "0.1.0"
NAMES = sorted(path.stem for path in (FIXTURES / OLDER).glob("*.json"))
ROLLED_OUT = ("drifted", "edited_since", "fixed", "not_honoured", "off", "rolling_out", "tracking")


def met(name: str) -> World:
    """The world as the older operator left it, under an operator of this version with another image."""
    made = load(OLDER, name)
    made.image = NEWER
    return made


def reasons(made: World) -> dict[str, tuple[str, str]]:
    return {kind: made.condition(kind) for kind in STAGES}


def template(made: World) -> dict[str, Any]:
    return dict(copy.deepcopy(made.get("Deployment", "decode")["spec"]["template"]))


def test_every_state_is_kept() -> None:
    assert {"tracking", "measuring", "rolled_back", "borrowing", "off", "failed"} <= set(NAMES)


def measured(config_map: dict[str, Any] | None) -> dict[str, str]:
    """The files that are not the recommendation's."""
    data = {} if config_map is None else config_map["data"]
    return {name: text for name, text in data.items() if name not in OWN_FILES}


@pytest.mark.parametrize("name", NAMES)
async def test_nothing_is_written_that_stops_a_job_or_restarts_a_replica_and_the_state_is_the_same(name: str) -> None:
    made = met(name)
    before, was = template(made), reasons(made)
    files = made.objects.get(("ConfigMap", "chat-tabletune"))
    kept = measured(files)
    await made.turns(20)
    # A recommended overlay names the operator's own image.
    assert made.writes == (["apply ConfigMap"] if name == "recommended" else [])
    assert template(made) == before
    assert measured(files) == kept
    assert reasons(made) == was
    assert [event for event in made.events if event["type"] == "Warning"] == []


@pytest.mark.parametrize("name", ROLLED_OUT)
async def test_the_way_back_is_known(name: str) -> None:
    made = met(name)
    live = template(made)["spec"]["containers"][0]["args"]
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    expected = deployment()["spec"]["template"]
    if name == "edited_since":
        expected["spec"]["containers"][0]["args"].insert(1, "--uvicorn-log-level=warning")
    if name == "drifted":
        expected["spec"]["containers"][0]["args"] = live  # somebody else's decision
    assert json.dumps(template(made), sort_keys=True) == json.dumps(expected, sort_keys=True)


async def test_a_job_that_measures_ends_and_its_result_is_used() -> None:
    made = met("measuring")
    made.finish_profile()
    await made.turns(5)
    assert [write for write in made.writes if "Job" in write and not write.startswith("delete Role")] == ["delete Job"], "once it has ended"
    assert made.condition("RolledOut") == ("True", "Proved")
    sidecar = template(made)["spec"]["initContainers"][1]
    assert sidecar["image"] == NEWER.name


async def test_a_roll_out_that_was_under_way_is_watched_to_its_end() -> None:
    made = met("rolling_out")
    for pod in made.pods(current=True):
        pod["status"]["conditions"][0]["status"] = "True"
    made.remove_old_pods()
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.writes == []


async def test_a_lent_replica_comes_back() -> None:
    made = met("borrowing")
    before = made.get("Deployment", "decode")["spec"]["replicas"]
    made.progress(outcome="Failed", reason="EngineDied", message="The engine died.")
    made.end_job(failed=True)
    await made.turns(4)
    assert made.get("Deployment", "decode")["spec"]["replicas"] == before + 1


@pytest.mark.parametrize("change", [{"controller": {"hysteresis": 2}}, {"controller": {"mode": "Observe"}}])
async def test_what_is_asked_for_anew_is_rolled_out_with_the_new_image(change: dict[str, Any]) -> None:
    made = met("tracking")
    made.get("DraftTable", "chat")["spec"] |= change
    await made.turns(4)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert {c["image"] for c in template(made)["spec"]["initContainers"]} == {NEWER.name}


async def test_a_removed_sidecar_is_drift_for_the_newer_operator_too() -> None:
    made = met("tracking")
    del made.get("Deployment", "decode")["spec"]["template"]["spec"]["initContainers"]
    made.roll()
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "Drifted")
    assert made.writes == []


async def test_replicas_that_are_heard_are_told_as_before() -> None:
    made = met("tracking")
    was = made.get("DraftTable", "chat")["status"]
    await made.turns(3)
    now = made.get("DraftTable", "chat")["status"]
    assert [(r["pod"], r["table"], r["honoured"]) for r in now["fleet"]["replicas"]] == [
        (r["pod"], r["table"], r["honoured"]) for r in was["fleet"]["replicas"]
    ]
    assert (now["verdict"], now["table"], now["profile"]["fingerprint"]) == (was["verdict"], was["table"], was["profile"]["fingerprint"])


def test_the_sidecar_goes_on_from_an_older_ones_state() -> None:
    state = load_state(FIXTURES / OLDER / "sidecar.state")
    assert state.belief is not None
    assert state.total.tokens == 900
    assert state.total.drafted == (480, 400, 400)
