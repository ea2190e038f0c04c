"""The fleet: its prior, the table that new replicas start from, and replicas with another traffic, in the small world."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from world import StoppedError, World, deployment, draft_table
from world_files import sidecar_state

from tabletune import formats
from tabletune.formats import FleetFile
from tabletune_operator.act import act
from tabletune_operator.cluster import ClusterError
from tabletune_operator.decide import decide

PROFILED, PROSE = (0.68, 0.39, 0.22), (0.36, 0.13, 0.05)
ROLLED_OUT, BETTER = [[1, 95, 3], [96, 128, 1]], [[1, 32, 3], [33, 128, 1]]
"""For prose one draft is worth more than three from a smaller batch size on."""
EXPECTED = 100_000


async def fleet_of(replicas: int = 2, **spec: Any) -> World:
    """Rolled out, and every sidecar tells of the traffic that was profiled."""
    made = World(deployment(replicas=replicas), draft_table(**spec))
    made.roll()
    await made.until_rolling_out()
    await made.turns(2)
    for at in range(replicas):
        tell(made, at)
    await made.turns(2)
    return made


def tell(
    made: World,
    at: int,
    rates: Sequence[float] = PROFILED,
    *,
    drafted: int = 20_000,
    ranges: list[list[int]] | None = None,
    gain: float = 0.0,
    steps: int = 5000,
    digest: str | None = None,
) -> None:
    """What the sidecar of one pod answers from now on. `gain` is its goodput over what is predicted for the rolled-out table."""
    state = sidecar_state(ranges=ranges)
    kept = [round(a * drafted) for a in rates]
    state["acceptance"]["evidence"] = {"requestSteps": drafted, "draftedSteps": drafted, "drafted": [drafted] * 3, "kept": kept}
    state["goodput"] = {"steps": steps, "tokens": round(EXPECTED * (1 + gain)), "expectedTokens": EXPECTED}
    state["files"] = {"digest": digest or formats.digest_of(data(made))}
    made.states[made.pods()[at]["status"]["podIP"]] = state


def data(made: World) -> dict[str, str]:
    found: dict[str, str] = made.get("ConfigMap", "chat-tabletune")["data"]
    return found


def written(made: World) -> FleetFile | None:
    return formats.parse_fleet(data(made)[formats.FLEET]) if formats.FLEET in data(made) else None


def status(made: World) -> dict[str, Any]:
    found: dict[str, Any] = made.get("DraftTable", "chat")["status"]["fleet"]
    return found


def writes(made: World) -> int:
    return made.writes.count("apply ConfigMap")


async def test_traffic_as_it_was_profiled_needs_no_file() -> None:
    made = await fleet_of()
    assert written(made) is None
    assert "prior" not in status(made)


async def test_counts_of_all_replicas_become_the_prior_and_nothing_else_changes() -> None:
    made = await fleet_of()
    before, target = dict(data(made)), json.dumps(made.get("Deployment", "decode"))
    tell(made, 0, PROSE, drafted=20_000)
    tell(made, 1, (0.46, 0.23, 0.15), drafted=10_000)
    await made.turns(3)

    fleet = written(made)
    assert fleet is not None
    # (2000 * profile + kept) / (2000 + drafted)
    assert fleet.estimate.acceptance == pytest.approx(((1360 + 11_800) / 32_000, (780 + 4900) / 32_000, (440 + 2500) / 32_000), abs=1e-6)
    assert (fleet.drafted, fleet.replicas, fleet.table) == ((30_000,) * 3, 2, None)
    assert fleet.files == formats.digest_of(before)
    assert {name: text for name, text in data(made).items() if name != formats.FLEET} == before
    assert json.dumps(made.get("Deployment", "decode")) == target
    assert status(made)["prior"] == "0.41/0.18/0.09 of 2 replicas"
    assert made.condition("Ready") == ("True", "Tracking")


async def test_is_written_rarely_and_only_when_it_moved() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE)
    await made.turns(3)
    assert writes(made) == 1
    for at in (0, 1):
        tell(made, at, (0.6, 0.3, 0.2))
    await made.turns(5)
    assert writes(made) == 1, "it moved, and it is too soon"
    await made.turn(seconds=300)
    await made.turns(3)
    assert writes(made) == 2
    for at in (0, 1):
        tell(made, at, (0.6, 0.3, 0.21))
    await made.turn(seconds=300)
    await made.turns(3)
    assert writes(made) == 2, "less than noise"


async def test_a_clock_that_was_ahead_does_not_stop_the_writing() -> None:
    made = await fleet_of()
    tell(made, 0, PROSE)
    await made.turns(2)
    assert writes(made) == 1
    file = json.loads(data(made)[formats.FLEET])
    data(made)[formats.FLEET] = json.dumps({**file, "updatedAt": "2036-01-01T00:00:00Z", "acceptancePpm": [680_000, 390_000, 220_000]})
    await made.turns(2)
    assert writes(made) == 2


async def test_what_pods_that_are_gone_counted_stays_in_the_prior() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE)
    await made.turns(2)
    before = written(made)
    assert before is not None
    made.roll()  # new pods, which counted nothing yet
    for at in (0, 1):
        tell(made, at, (0.0, 0.0, 0.0), drafted=0)
    await made.turn(seconds=400)
    await made.turns(2)
    assert written(made) == before
    for at in (0, 1):
        tell(made, at, (0.5, 0.3, 0.2), drafted=10_000)
    await made.turns(2)
    after = written(made)
    assert after is not None
    assert after.estimate.acceptance[0] == pytest.approx((2000 * before.estimate.acceptance[0] + 10_000) / 22_000, abs=1e-5)


async def test_counts_with_other_files_are_not_taken() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE, digest="before")
    await made.turns(3)
    assert written(made) is None


async def test_a_file_of_another_profile_is_no_prior() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE)
    await made.turns(2)
    assert written(made) is not None
    data(made)[formats.FLEET] = json.dumps({**json.loads(data(made)[formats.FLEET]), "files": "before", "acceptancePpm": [0, 0, 0]})
    await made.turns(2)
    after = written(made)
    assert after is not None
    assert after.files == formats.digest_of(data(made))
    assert after.estimate.acceptance[0] == pytest.approx((2000 * 0.68 + 40_000 * 0.36) / 42_000, abs=1e-6)


async def test_a_damaged_file_is_written_anew_and_stops_nothing() -> None:
    made = await fleet_of()
    data(made)[formats.FLEET] = '{"formatVersion": 1, "acceptancePpm": [3'
    await made.turns(2)
    assert written(made) is not None
    assert made.condition("Ready") == ("True", "Tracking")
    assert (made.condition("Profiled"), made.pods(current=False)) == (("True", "Measured"), [])


async def test_killed_at_any_write_it_goes_on_from_there() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE)
    made.fail_after = made.calls
    with pytest.raises(StoppedError):
        await made.turn()
    assert written(made) is None
    made.fail_after = None
    await made.turns(2)
    assert (written(made) is not None, writes(made)) == (True, 1)


async def test_never_makes_a_config_map_that_was_deleted_meanwhile() -> None:
    made = await fleet_of()
    tell(made, 0, PROSE)
    seen = await made.observe()
    assert seen is not None
    plan = decide(seen)
    del made.objects["ConfigMap", "chat-tabletune"]
    with pytest.raises(ClusterError):
        await act(plan, seen.draft, seen.now, made)  # type: ignore[arg-type]
    assert ("ConfigMap", "chat-tabletune") not in made.objects


async def test_a_copied_profile_comes_without_the_other_fleets_file() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE)
    await made.turns(2)
    made.put(deployment("decode2"))
    made.put(draft_table("second", target="decode2"))
    made.roll("decode2")
    await made.turns(4, "second")
    assert made.condition("Profiled", "second") == ("True", "Reused")
    assert sorted(made.get("ConfigMap", "second-tabletune")["data"]) == sorted(set(data(made)) - {formats.FLEET})


async def test_an_outlier_is_shown_and_left_out() -> None:
    made = await fleet_of(replicas=3)
    tell(made, 1, PROSE)
    await made.turns(3)
    name = made.pods()[1]["metadata"]["name"]
    assert status(made)["outliers"] == [name]
    assert written(made) is None, "the others have the profiled traffic"
    assert made.condition("Tracking") == ("True", "Tracking")
    assert f"{name} has another traffic mix than the others. It keeps its own table" in made.message("Tracking")
    tell(made, 1)
    await made.turns(2)
    assert "outliers" not in status(made)
    assert "traffic mix" not in made.message("Tracking")


@pytest.mark.parametrize(
    ("ranges", "gain", "steps", "spread", "words"),
    [
        pytest.param(BETTER, 0.03, 5000, BETTER, "+3.0 % against 1 with another table", id="does better: spread"),
        pytest.param(BETTER, -0.005, 5000, BETTER, "-0.5 % against", id="does not do worse beyond noise: spread"),
        pytest.param(BETTER, -0.04, 5000, None, "-4.0 % against 1 with another table, noise 0.8 %. Not spread.", id="does worse"),
        pytest.param(BETTER, 0.03, 500, None, "fewer than 1000 steps", id="too early to say"),
        pytest.param([[1, 128, 3]], 0.03, 5000, None, None, id="predicted to be worth less"),
        pytest.param([[1, 32, 3], [33, 128, 2]], 0.03, 5000, None, None, id="of lengths that others were not launched with"),
        pytest.param(ROLLED_OUT, 0.0, 5000, None, None, id="the rolled-out one"),
    ],
)
async def test_a_table_that_one_replica_runs_is_spread_when_it_does_no_worse(
    ranges: list[list[int]], gain: float, steps: int, spread: list[list[int]] | None, words: str | None
) -> None:
    made = await fleet_of()
    tell(made, 0, PROSE, ranges=ranges, gain=gain, steps=steps)
    tell(made, 1, PROSE)
    await made.turns(3)
    fleet = written(made)
    assert fleet is not None
    assert (fleet.table.to_vllm() if fleet.table is not None else None) == spread
    assert ("startTable" in status(made)) == (spread is not None)
    assert (words is None) == ("trial" not in status(made))
    assert words is None or words in status(made)["trial"]


async def test_a_spread_table_that_does_worse_is_taken_back() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE, ranges=BETTER, gain=0.02)
    await made.turns(2)
    assert written(made).table.to_vllm() == BETTER  # type: ignore[union-attr]
    tell(made, 1, PROSE, gain=0.0)
    tell(made, 0, PROSE, ranges=BETTER, gain=-0.05)
    await made.turn(seconds=400)
    await made.turns(2)
    assert written(made).table is None  # type: ignore[union-attr]
    assert "do not start from it any more" in status(made)["trial"]


async def test_a_spread_table_ends_when_traffic_turns_back() -> None:
    made = await fleet_of()
    for at in (0, 1):
        tell(made, at, PROSE, ranges=BETTER)
    await made.turns(2)
    assert written(made).table is not None  # type: ignore[union-attr]
    for at in (0, 1):
        tell(made, at, PROFILED)
    await made.turn(seconds=400)
    await made.turns(2)
    assert written(made).table is None  # type: ignore[union-attr]


@pytest.mark.parametrize(("gain", "spread"), [(0.0, True), (-0.05, False)])
async def test_without_a_neighbour_it_is_held_against_the_prediction(gain: float, spread: bool) -> None:
    made = await fleet_of(replicas=1)
    tell(made, 0, PROSE, ranges=BETTER, gain=gain)
    await made.turns(3)
    assert (written(made).table is not None) == spread  # type: ignore[union-attr]
    assert "the rolled-out table's prediction" in status(made)["trial"]
