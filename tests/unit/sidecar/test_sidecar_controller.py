"""The controller's decisions, without engine, clock or file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_cases import CODE, CODE_TABLE, ENGINE, PROSE, counted, files, profile, settings

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.graphs import UNKNOWN, GraphCells
from tabletune.table import Table, build_choices, table_of
from tabletune_sidecar.controller import Decision, Push, State, decide, took, usable_times
from tabletune_sidecar.counters import Counters
from tabletune_sidecar.options import Mode, PriorDecay

PROSE_TABLE = Table.fixed(1, 128)


def after_first_push(**changes: object) -> State:
    first = decide(State(), files(), ENGINE, Counters(), settings(**changes), uptime_seconds=1.0)
    assert first.push is not None
    return took(first.state, first.push)


def test_puts_the_files_table_in_force_first() -> None:
    decision = decide(State(), files(), ENGINE, Counters(), settings(hysteresis=2, explore_every_steps=0), uptime_seconds=1.0)
    assert decision.push == Push(CODE_TABLE, hysteresis=2, explore=None)
    assert decision.problem is None


def test_pushes_nothing_that_the_engine_has_already() -> None:
    assert decide(after_first_push(), files(), ENGINE, counted(99, CODE), settings(), uptime_seconds=1.0).push is None


def test_follows_traffic_from_code_to_prose_and_back() -> None:
    state, counters = after_first_push(), Counters()
    in_force = []
    for turn, rates in enumerate((PROSE,) * 4 + (CODE,) * 8):
        counters = counters.plus(counted(500, rates))
        decision = decide(state, files(), ENGINE, counters, settings(), uptime_seconds=turn * 25.0)
        state = took(decision.state, decision.push) if decision.push else decision.state
        in_force.append(state.pushed.table if state.pushed else None)
    assert in_force[3] == PROSE_TABLE
    assert in_force[-1] == CODE_TABLE
    assert state.rebuilds_changed + state.rebuilds_unchanged == 12


def test_keeps_the_rolled_out_table_when_it_only_observes() -> None:
    observing = {"mode": Mode.OBSERVE, "prior_weight": 0.0}
    state = after_first_push(**observing)
    decision = decide(state, files(), ENGINE, counted(500, PROSE), settings(**observing), uptime_seconds=1.0)
    assert decision.push is None
    assert decision.state.belief is not None
    assert decision.state.belief.wanted == PROSE_TABLE


@pytest.mark.parametrize(("decay", "weight"), [(PriorDecay.HALVE, 1000.0), (PriorDecay.KEEP, 2000.0)])
def test_lets_evidence_fade_with_each_rebuild(decay: PriorDecay, weight: float) -> None:
    decision = decide(after_first_push(), files(), ENGINE, counted(4000, CODE), settings(prior_decay=decay), uptime_seconds=1.0)
    belief = decision.state.belief
    assert belief is not None
    assert (belief.prior_weight, belief.live.drafted, belief.fresh.drafted) == (weight, (16_000, 16_000, 16_000), (0, 0, 0))


def test_counts_that_weigh_less_than_the_prior_are_not_halved() -> None:
    """Or positions that are seen in few steps would never be known any better. Drafts of one answer are alike, and weigh less."""
    decision = decide(after_first_push(), files(), ENGINE, counted(1000, CODE), settings(), uptime_seconds=1.0)
    assert decision.state.belief is not None
    assert decision.state.belief.live.drafted == (8000, 8000, 8000)


def rebuilds(state: State) -> int:
    return state.rebuilds_changed + state.rebuilds_unchanged


@pytest.mark.parametrize(
    ("steps", "rates", "rebuilt"),
    [
        pytest.param(499, CODE, 0, id="what was believed: at the most steps"),
        pytest.param(500, CODE, 1, id="the most steps"),
        pytest.param(99, PROSE, 0, id="too few steps to say anything"),
        pytest.param(100, PROSE, 1, id="another traffic"),
    ],
)
def test_rebuilds_sooner_when_the_evidence_says_something_else(steps: int, rates: tuple[float, ...], rebuilt: int) -> None:
    decision = decide(after_first_push(), files(), ENGINE, counted(steps, rates), settings(rebuild_every_steps=500), uptime_seconds=1.0)
    assert rebuilds(decision.state) == rebuilt


def test_rebuilds_sooner_when_evidence_comes_in_faster() -> None:
    """The same steps bring sixteen times the evidence with sixteen times the requests."""
    asked = settings(rebuild_every_steps=500)
    mathematics = (0.62, 0.38, 0.22)
    few = decide(after_first_push(), files(), ENGINE, counted(100, mathematics), asked, uptime_seconds=1.0)
    many = decide(after_first_push(), files(), ENGINE, counted(100, mathematics, batch_size=128), asked, uptime_seconds=1.0)
    assert (rebuilds(few.state), rebuilds(many.state)) == (0, 1)


def test_another_traffic_drops_what_was_counted_before_and_most_of_the_prior() -> None:
    asked = settings(rebuild_every_steps=500, prior_decay=PriorDecay.KEEP)
    state, counters = after_first_push(), Counters()
    for turn in range(20):
        counters = counters.plus(counted(500, CODE))
        state = decide(state, files(), ENGINE, counters, asked, uptime_seconds=turn * 25.0).state
    assert state.traffic_switches == 0
    after = decide(state, files(), ENGINE, counters.plus(counted(100, PROSE)), asked, uptime_seconds=505.0).state
    assert after.traffic_switches == 1
    assert after.belief is not None
    assert (after.belief.prior_weight, after.belief.live.drafted) == (125.0, (0, 0, 0))  # the last ones were of both
    assert after.belief.used.acceptance[0] == pytest.approx((125 * 0.78 + 800 * 0.36) / 925)


@given(st.lists(st.tuples(st.sampled_from([CODE, PROSE]), st.integers(50, 600), st.floats(0, 30)), max_size=30), st.integers(1, 6))
def test_never_swaps_more_often_than_asked(turns: list[tuple[tuple[float, ...], int, float]], limit: int) -> None:
    """Whatever the traffic does."""
    state, counters, uptime, swaps = after_first_push(), Counters(), 0.0, []
    for rates, steps, seconds in turns:
        counters, uptime = counters.plus(counted(steps, rates)), uptime + seconds
        before = state.pushed
        decision = decide(state, files(), ENGINE, counters, settings(prior_weight=0.0, max_swaps_per_minute=limit), uptime_seconds=uptime)
        state = took(decision.state, decision.push) if decision.push else decision.state
        assert before is not None
        assert state.pushed is not None
        swaps += [uptime] if before.table != state.pushed.table else []
    assert all(sum(at <= later < at + 60 for later in swaps) <= limit for at in swaps)


def test_a_table_that_had_to_wait_comes_when_the_minute_is_over() -> None:
    asked = settings(prior_weight=0.0, max_swaps_per_minute=1)
    state, counters, in_force = after_first_push(), Counters(), []
    for rates, uptime in ((PROSE, 10.0), (CODE, 20.0), (CODE, 69.0), (CODE, 70.0)):
        counters = counters.plus(counted(2000, rates))
        decision = decide(state, files(), ENGINE, counters, asked, uptime_seconds=uptime)
        state = took(decision.state, decision.push) if decision.push else decision.state
        in_force.append(state.pushed.table if state.pushed else None)
    assert in_force == [PROSE_TABLE, PROSE_TABLE, PROSE_TABLE, CODE_TABLE]


def test_a_clock_that_goes_back_stops_no_swap_for_longer_than_a_minute() -> None:
    asked = settings(prior_weight=0.0, max_swaps_per_minute=1)
    state, counters = after_first_push(), Counters()
    for rates, uptime in ((PROSE, 1e6), (CODE, 5.0), (CODE, 65.0)):
        counters = counters.plus(counted(500, rates))
        decision = decide(state, files(), ENGINE, counters, asked, uptime_seconds=uptime)
        state = took(decision.state, decision.push) if decision.push else decision.state
    assert state.pushed is not None
    assert state.pushed.table == CODE_TABLE


def test_pushes_again_to_another_engine_start_and_keeps_what_was_counted() -> None:
    state = decide(after_first_push(), files(), ENGINE, counted(50, CODE), settings(), uptime_seconds=1.0).state
    decision = decide(state, files(), replace(ENGINE, boot_id="boot-2"), counted(7, CODE), settings(), uptime_seconds=1.0)
    assert decision.push == Push(CODE_TABLE, 0, None)
    assert decision.state.total.steps == 57
    assert decision.state.first_push is None


def test_new_files_replace_prior_and_table() -> None:
    state = decide(after_first_push(), files(), ENGINE, counted(50, PROSE), settings(), uptime_seconds=1.0).state
    decision = decide(state, files(PROSE, PROSE_TABLE), ENGINE, counted(50, PROSE), settings(), uptime_seconds=1.0)
    assert decision.push == Push(PROSE_TABLE, 0, None)
    assert decision.state.belief is not None
    assert decision.state.belief.prior.acceptance == PROSE
    assert decision.state.belief.live.request_steps == 0


def refused(decision: Decision) -> str | None:
    assert decision.push is None
    return decision.problem.code if decision.problem else None


@pytest.mark.parametrize(
    ("profiled", "says", "code"),
    [
        pytest.param(None, GraphCells(frozenset({(6, 1)}), cured=False), "GraphsNotCured", id="it says so"),
        pytest.param([[6, 1]], UNKNOWN, "GraphsNotCured", id="the profiled one needed the cure, this one cannot tell"),
        pytest.param([[6, 1]], GraphCells(frozenset({(6, 1)}), cured=True), None, id="cured"),
        pytest.param([[6, 1]], GraphCells(frozenset(), cured=False), None, id="this one has no such cell"),
        pytest.param([], UNKNOWN, None, id="nothing to cure"),
    ],
)
def test_leaves_the_launch_table_to_an_engine_that_only_the_cure_makes_safe(
    profiled: list[list[int]] | None, says: GraphCells, code: str | None
) -> None:
    rolled = files()
    engine = {**rolled.profile.engine, "graphCells": {"mismatched": profiled, "cured": bool(profiled)}}
    rolled = replace(rolled, profile=replace(rolled.profile, engine=engine))
    decision = decide(State(), rolled, replace(ENGINE, graphs=says), Counters(), settings(), uptime_seconds=1.0)
    assert (decision.problem.code if decision.problem else None) == code
    assert (decision.push is None) == (code is not None)


def test_refuses_a_table_that_the_engine_was_not_launched_for() -> None:
    engine = replace(ENGINE, launch_lengths=(1,))
    decision = decide(State(), files(), engine, Counters(), settings(), uptime_seconds=1.0)
    assert refused(decision) == "LengthNotInLaunchSet"


def test_a_length_that_the_tuner_left_out_is_neither_chosen_nor_explored() -> None:
    left_out = files(CODE, Table.fixed(1, 256), lengths=(1,))
    first = decide(State(), left_out, ENGINE, Counters(), settings(), uptime_seconds=1.0)  # an engine of runner V1 may use 3 all the same
    assert first.push == Push(Table.fixed(1, 256), 0, explore=None)
    later = decide(took(first.state, first.push), left_out, ENGINE, counted(100, CODE), settings(), uptime_seconds=1.0)
    assert later.state.rebuilds_changed + later.state.rebuilds_unchanged == 1
    assert later.state.belief is not None
    assert later.state.belief.wanted is not None
    assert later.state.belief.wanted.lengths == (1,)


def test_leaves_an_inactive_plugin_alone() -> None:
    engine = replace(ENGINE, active=False, inactive_reason="No table.")
    assert refused(decide(State(), files(), engine, Counters(), settings(), uptime_seconds=1.0)) == "PluginInactive"


def test_pushes_nothing_without_files_or_without_a_table() -> None:
    assert refused(decide(State(), None, ENGINE, Counters(), settings(), uptime_seconds=1.0)) is None
    assert refused(decide(State(), files(table=None), ENGINE, Counters(), settings(), uptime_seconds=1.0)) is None


def test_positions_that_were_not_drafted_follow_those_that_were() -> None:
    # The table gave 1 all the time: positions 2 and 3 were never drafted. What is known of them is their share of the one before.
    state = decide(after_first_push(), files(), ENGINE, counted(100, PROSE, draft_length=1), settings(), uptime_seconds=1.0).state
    assert state.belief is not None
    used = state.belief.used.acceptance
    assert used[0] == pytest.approx((125 * 0.78 + 800 * 0.36) / 925)
    assert used[2] == pytest.approx(used[0] * 0.43 / 0.78)


rates = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda a: tuple(sorted(a, reverse=True)))


@given(rates, st.floats(0, 1), st.sampled_from([(1, 3), (1,), (3,), (0, 1, 2, 3)]), st.sampled_from([None, 1, 16, 64, 100, 128]))
def test_never_builds_a_length_outside_the_launch_set(
    a: tuple[float, ...], coverage: float, lengths: tuple[int, ...], max_num_seqs: int | None
) -> None:
    times = usable_times(profile().step_times(), lengths, max_num_seqs)
    table = table_of(build_choices(predict_goodput(times, Estimate(a, coverage)), 0.008))
    assert set(table.lengths) <= set(lengths) & {1, 3}
    assert table.ranges[-1].last <= (max_num_seqs or 128)


counts = st.builds(
    lambda steps, B, k, kept: replace(counted(steps, CODE, B, k), kept=tuple(kept)),
    st.integers(0, 2000),
    st.integers(1, 128),
    st.sampled_from([1, 3]),
    st.lists(st.integers(0, 10**6), min_size=3, max_size=3),
)


@given(st.lists(st.tuples(counts, st.booleans()), max_size=12))
def test_takes_any_counters_and_any_restarts(readings: list[tuple[Counters, bool]]) -> None:
    """Also impossible ones: an answer read in the middle of a step, or a counter that went back."""
    state, boot = State(), 1
    for turn, (counters, restarted) in enumerate(readings):
        boot += restarted
        decision = decide(state, files(), replace(ENGINE, boot_id=f"boot-{boot}"), counters, settings(), uptime_seconds=60.0 * turn)
        state = took(decision.state, decision.push) if decision.push else decision.state
        assert state.belief is not None
        assert all(0 <= a <= 1 for a in state.belief.used.acceptance)
        assert state.pushed is not None
        assert state.pushed.table == state.belief.wanted


@given(counts, counts)
def test_counters_add_and_subtract(a: Counters, b: Counters) -> None:
    assert a.plus(b).since(a) == replace(b, chosen={c: n for c, n in b.chosen.items() if n})
