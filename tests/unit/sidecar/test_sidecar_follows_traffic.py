"""The controller against sampled traffic: it follows another traffic within a minute, and is not moved by noise. Seeds are fixed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from answers import Answers
from sidecar_cases import CODE, ENGINE, PROSE, files, settings

from tabletune.table import Table
from tabletune_sidecar.controller import State, decide, took
from tabletune_sidecar.files import Files
from tabletune_sidecar.options import PriorDecay

MATHEMATICS = (0.58, 0.33, 0.18)
MINUTE = 60


def follow(answers: Answers, steps_per_second: int, rolled_out: Files | None = None, **changes: object) -> Iterator[State]:
    """The state after each second of an engine and a controller that begin with the files' table."""
    state, uptime, asked = State(), 0.0, settings(**{"rebuild_every_steps": 500, **changes})
    rolled_out = rolled_out or files()
    while True:
        decision = decide(state, rolled_out, ENGINE, answers.counters, asked, uptime_seconds=uptime)
        state = took(decision.state, decision.push) if decision.push else decision.state
        yield state
        assert state.pushed is not None
        answers.run(steps_per_second, state.pushed)
        uptime += 1.0


def run(seconds: Iterator[State], number: int) -> State:
    return list(islice(seconds, number))[-1]


def table(state: State) -> Table:
    assert state.pushed is not None
    return state.pushed.table


@pytest.mark.parametrize("decay", list(PriorDecay))
@pytest.mark.parametrize("steps_per_second", [20, 200])
@pytest.mark.parametrize(
    ("after", "lengths"),
    [
        pytest.param(MATHEMATICS, {8: 3, 96: 1}, id="mathematics"),  # at 96 requests one guess is better than three by 7 %
        pytest.param(PROSE, {64: 1, 96: 1}, id="prose"),  # at 64 by 7 %
    ],
)
@pytest.mark.parametrize("seed", [5, 6])
def test_another_traffic_is_in_the_table_within_a_minute(
    seed: int, after: tuple[float, ...], lengths: dict[int, int], steps_per_second: int, decay: PriorDecay
) -> None:
    """At 8 requests, with a prior of 2000 drafts and much that was counted before. Code drafts three everywhere but at 128 requests."""
    answers = Answers(seed, CODE, batch_size=8)
    seconds = follow(answers, steps_per_second, prior_decay=decay)
    before = run(seconds, 10 * MINUTE if steps_per_second == 20 else MINUTE)
    assert {B: table(before).length_at(B) for B in (8, 64, 96)} == {8: 3, 64: 3, 96: 3}
    answers.rates = after
    switched = run(seconds, MINUTE)
    assert switched.traffic_switches > before.traffic_switches
    assert {B: table(switched).length_at(B) for B in lengths} == lengths


@pytest.mark.parametrize("batch_size", [2, 8, 32])
@pytest.mark.parametrize("answer_steps", [30, 100, 300])
def test_steady_traffic_is_not_taken_for_another_one(answer_steps: int, batch_size: int) -> None:
    """Half an hour in which answers differ from each other as chat, code and mathematics do, from a prior that was of the same mix."""
    answers = Answers(11, CODE, batch_size, answer_steps=answer_steps)
    assert run(follow(answers, 20), 30 * MINUTE).traffic_switches == 0


@pytest.mark.parametrize("seed", range(4))
def test_does_not_flap_between_lengths_that_are_nearly_as_good(seed: int) -> None:
    """At these rates one guess and three are worth the same at 8 requests, and only noise moves the estimate; the prior is far off."""
    answers = Answers(seed, (0.38, 0.165, 0.075), batch_size=8)
    seconds = follow(answers, 20)
    changes = [state.rebuilds_changed for state in islice(seconds, 20 * MINUTE)]
    assert changes[-1] - changes[5 * MINUTE] <= 2


@pytest.mark.parametrize(("every_steps", "found"), [(50, 3), (0, 1)])
def test_exploring_finds_that_longer_drafts_would_pay(every_steps: int, found: int) -> None:
    """The first guess is kept as often as the prior says, and the next ones far more often: short drafts alone can never tell."""
    short = files((0.5, 0.2, 0.08), Table.fixed(1, 128))
    answers = Answers(7, (0.5, 0.42, 0.36), batch_size=8)
    last = run(follow(answers, 40, short, explore_every_steps=every_steps), 8 * MINUTE)
    assert table(last).length_at(8) == found
    assert (answers.counters.exploring_steps > 0) == (every_steps > 0)
