"""What a sidecar says is wrong, it says to people too: every code reaches the condition Tracking and has a line in docs/runbooks.md."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from world import World, rolled_out
from world_files import sidecar_state

from tabletune_operator.conditions import LONGEST_MESSAGE
from tabletune_sidecar import honour
from tabletune_sidecar.controller import State
from tabletune_sidecar.options import Mode
from tabletune_sidecar.problem import CODES, STOPS_TRACKING, Code, Problem
from tabletune_sidecar.view import View, to_json

RUNBOOKS = (Path(__file__).resolve().parents[3] / "docs" / "runbooks.md").read_text()
WORDS = "What is wrong, in so many words that no message could hold them all. " * 4

VIEW = View(
    mode=Mode.TRACK,
    state=State(),
    files=None,
    engine=None,
    reachable=True,
    in_force=None,
    generation=None,
    verdict=honour.UNKNOWN,
    cells=(),
    batch_shares={},
    batch_size_last=None,
    draft_length_last=None,
    problems=(),
    updated_at=datetime(2026, 11, 30, 15, 0, 0, 0, UTC),
)


async def told(*codes: Code, tracks: bool, **spec: object) -> World:
    """A rolled-out target one of whose sidecars has these problems, and no other trouble."""
    made = await rolled_out(**spec)
    problems = to_json(replace(VIEW, problems=tuple(Problem(code, WORDS) for code in codes)))["problems"]
    troubled, *_ = sorted(made.states)
    made.states[troubled] = {**sidecar_state(), "problems": problems, "tracks": tracks}
    await made.turn()
    return made


@pytest.mark.parametrize("code", CODES)
async def test_every_code_reaches_the_condition_whole(code: Code) -> None:
    stops = code in STOPS_TRACKING
    made = await told(code, tracks=not stops)
    drifts = code == "ProfileDrift"  # a reason of its own
    assert made.condition("Tracking") == (("False", "ReplicaProblem") if stops else ("True", code if drifts else "Tracking"))
    message = made.message("Tracking")
    assert (": What is wrong" if drifts else f"{code}: What is wrong") in message
    assert drifts or "kubectl logs" in message
    assert len(message) < LONGEST_MESSAGE
    assert made.condition("Ready")[0] == ("False" if stops else "True")
    assert made.condition("Stalled")[0] == "False"


async def test_a_sidecar_without_files_does_not_track() -> None:
    made = await told("FilesMissing", tracks=False)
    assert made.condition("Tracking") == ("False", "ReplicaProblem")


async def test_what_stops_the_tracking_is_named_before_what_does_not() -> None:
    made = await told("StateNotSaved", "EngineUnreachable", tracks=False)
    assert "EngineUnreachable" in made.message("Tracking")


async def test_it_ends_with_its_cause() -> None:
    made = await told("EngineUnreachable", tracks=False)
    for address in made.states:
        made.states[address] = sidecar_state()
    await made.turn()
    assert made.condition("Tracking") == ("True", "Tracking")
    assert made.message("Tracking").endswith("Nothing to do.")


async def test_mode_observe_names_problems_too() -> None:
    made = await told("StateNotSaved", tracks=True, controller={"mode": "Observe"})
    assert made.condition("Tracking") == ("True", "Observing")
    assert "StateNotSaved" in made.message("Tracking")


def test_every_code_has_a_line_that_says_what_to_do() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (stops|-) \| .{20,} \| .{8,}\. \|$", RUNBOOKS, re.MULTILINE)
    assert sorted(rows) == sorted((code, "stops" if code in STOPS_TRACKING else "-") for code in CODES)
