"""Where and how often an engine explores: seldom enough, where it has drafted short for long, and never what is known to be bad."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_cases import CODE, CODE_TABLE, ENGINE, PROSE, files, profile, settings

from tabletune.acceptance import Counts, Estimate
from tabletune.goodput import predict_steps
from tabletune.graphs import GraphCells
from tabletune.profile import Transition
from tabletune.table import Table
from tabletune_sidecar.controller import EngineFacts, Push, State, decide, took
from tabletune_sidecar.counters import Counters
from tabletune_sidecar.exploration import (
    EXPLORE_BUDGET,
    SHORT_REBUILDS,
    Explore,
    Forbidden,
    exploring_loss,
    parse_message,
    plan_exploring,
    to_message,
)
from tabletune_sidecar.files import Files
from tabletune_sidecar.options import Mode

SHORT = Table.fixed(1, 128)
SHORT_THEN_LONG = Table.parse([[1, 63, 1], [64, 128, 3]])
NOTHING = Forbidden(frozenset(), frozenset())
ONE_DRAFT = Counts(800, 800, (800, 0, 0), (300, 0, 0))
STEPS = predict_steps(profile().step_times(), Estimate(PROSE, 1.0))


def plan(
    tables: tuple[Table, ...] = (SHORT,) * SHORT_REBUILDS,
    fresh: Counts = ONE_DRAFT,
    batch_sizes: dict[int, int] | None = None,
    forbidden: Forbidden = NOTHING,
    least_every_steps: int = 50,
) -> Explore | None:
    return plan_exploring(tables, STEPS, fresh, batch_sizes or {8: 100}, forbidden, least_every_steps=least_every_steps)


def test_explores_with_the_longest_length_where_the_table_has_been_short_for_long() -> None:
    assert plan() == Explore(50, 3, ((1, 128),))
    assert plan((SHORT_THEN_LONG, *(SHORT,) * (SHORT_REBUILDS - 1))) == Explore(50, 3, ((1, 63),))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"tables": (SHORT,) * (SHORT_REBUILDS - 1)}, id="not yet for long"),
        pytest.param({"tables": (Table.fixed(3, 128),) * SHORT_REBUILDS}, id="not short"),
        pytest.param({"fresh": Counts(800, 800, (800, 80, 80), (300, 20, 9))}, id="longer drafts are seen at other batch sizes"),
        pytest.param({"least_every_steps": 0}, id="asked never to"),
        pytest.param({"forbidden": Forbidden(frozenset(), frozenset({frozenset({1, 3})}))}, id="a bad change"),
    ],
)
def test_does_not_explore(change: dict[str, object]) -> None:
    assert plan(**change) is None  # type: ignore[arg-type]


def test_leaves_out_mismatched_cells_and_keeps_to_what_was_asked() -> None:
    forbidden = Forbidden(frozenset({(6, 3), (7, 1)}), frozenset({frozenset({2, 3})}))
    assert plan(forbidden=forbidden, least_every_steps=400) == Explore(400, 3, ((1, 5), (7, 128)))


def test_explores_less_often_where_it_costs_more() -> None:
    """Prose at 128 requests: a step of three guesses makes 1.54 tokens a request in the time in which one guess makes 2.17."""
    assert plan(batch_sizes={128: 100}) == Explore(100, 3, ((1, 128),))
    assert plan(batch_sizes={128: 10, 1: 9000}) == Explore(50, 3, ((1, 128),))


shares = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda a: tuple(sorted(a, reverse=True)))
loads = st.dictionaries(st.integers(1, 200), st.integers(1, 10_000), min_size=1)


tables = st.sampled_from([SHORT, SHORT_THEN_LONG, Table.parse([[1, 8, 3], [9, 128, 1]])])


@given(shares, st.floats(0, 1), loads, tables, st.integers(1, 200))
def test_costs_at_most_half_a_percent_of_goodput(
    a: tuple[float, ...], coverage: float, load: dict[int, int], table: Table, least: int
) -> None:
    steps = predict_steps(profile().step_times(), Estimate(a, coverage))
    explore = plan_exploring((table,) * SHORT_REBUILDS, steps, ONE_DRAFT, load, NOTHING, least_every_steps=least)
    assert explore is not None
    assert explore.every_steps >= least
    rows = {B: steps[max(b for b in steps if b <= B)] for B in load}
    made = sum(n * rows[B][table.length_at(B)].tokens for B, n in load.items())
    lost = sum(
        n / explore.every_steps * exploring_loss(table.length_at(B), explore.draft_length, rows[B])
        for B, n in load.items()
        if any(first <= B <= last for first, last in explore.ranges)
    )
    assert lost <= EXPLORE_BUDGET * made * (1 + 1e-9)


def test_the_socket_and_the_state_file_have_it_in_one_form() -> None:
    explore = Explore(50, 3, ((1, 5), (7, 128)))
    assert to_message(explore) == {"everySteps": 50, "draftLength": 3, "ranges": [[1, 5], [7, 128]]}
    assert parse_message(to_message(explore)) == explore


def settled(rolled: Files, engine: EngineFacts = ENGINE, **changes: object) -> Push:
    """What is pushed after prose with one guess a step for as long as it takes to explore."""
    state, asked = State(), settings(**changes)
    for turn in range(SHORT_REBUILDS + 2):
        steps, n = turn * 100, turn * 800
        counters = Counters(steps, n, n, n, (n, 0, 0), (round(n * 0.36), 0, 0), {(8, 1): steps})
        decision = decide(state, rolled, engine, counters, asked, uptime_seconds=turn * 60.0)
        state = took(decision.state, decision.push) if decision.push else decision.state
    assert state.pushed is not None
    return state.pushed


SHORT_FILES = files(PROSE, SHORT)


def test_the_engine_is_told_to_explore() -> None:
    assert settled(SHORT_FILES) == Push(SHORT, 0, Explore(50, 3, ((1, 128),)))
    assert settled(SHORT_FILES, replace(ENGINE, max_num_seqs=40)).explore == Explore(50, 3, ((1, 32),))


@pytest.mark.parametrize(
    ("rolled", "changes"),
    [
        pytest.param(files(PROSE, SHORT, lengths=(1,)), {}, id="a length that the tuner left out"),
        pytest.param(SHORT_FILES, {"mode": Mode.OBSERVE}, id="it only observes"),
        pytest.param(files(CODE, CODE_TABLE), {"explore_every_steps": 0}, id="asked never to"),
    ],
)
def test_the_engine_is_told_not_to_explore(rolled: Files, changes: dict[str, object]) -> None:
    assert settled(rolled, **changes).explore is None


@pytest.mark.parametrize(
    ("pause_micros", "failures", "explores"),
    [
        pytest.param(400_000, 0, True, id="a change that was tried and is safe"),
        pytest.param(600_000, 0, False, id="a pause"),
        pytest.param(5_000, 1, False, id="an engine died"),
    ],
)
def test_never_explores_through_a_change_that_was_bad(pause_micros: int, failures: int, explores: bool) -> None:
    tried = (Transition(1, 3, 96, 5, pause_micros, failures),)
    rolled = replace(SHORT_FILES, profile=replace(SHORT_FILES.profile, transitions=tried))
    assert (settled(rolled).explore is not None) == explores


@pytest.mark.parametrize(
    ("says", "profiled"),
    [
        pytest.param(frozenset({(6, 3)}), None, id="the engine says so; cured, it still takes longer"),
        pytest.param(None, [[6, 3]], id="the engine cannot tell, the profiled one could"),
    ],
)
def test_never_explores_in_a_mismatched_cell(says: frozenset[tuple[int, int]] | None, profiled: list[list[int]] | None) -> None:
    facts = {**SHORT_FILES.profile.engine, "graphCells": {"mismatched": profiled, "cured": True}}
    rolled = replace(SHORT_FILES, profile=replace(SHORT_FILES.profile, engine=facts))
    explore = settled(rolled, replace(ENGINE, graphs=GraphCells(says, cured=True))).explore
    assert explore == Explore(50, 3, ((1, 5), (7, 128)))
