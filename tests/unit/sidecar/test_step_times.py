"""Live step times against the profile's: what is corrected, what is tried, what is told, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
from live_engine import LiveEngine, Times
from sidecar_cases import CODE_TABLE, ENGINE, files, profile, settings

from tabletune.goodput import predict_goodput
from tabletune.regimes import PrefillCell, Prefills, Requests
from tabletune.table import Table
from tabletune_sidecar.controller import State, decide, took
from tabletune_sidecar.counters import Counters, StepCell
from tabletune_sidecar.live import Costs, Live, absorb, costs_of
from tabletune_sidecar.options import Mode
from tabletune_sidecar.step_times import (
    MEDIAN_STEPS,
    MIN_WINDOWS,
    StepTimes,
    correct,
    drift,
    profiled_time,
    ratios_by_length,
)
from tabletune_sidecar.step_times import absorb as absorb_times
from tabletune_sidecar.trial import Trial, with_trial

TIMES = profile().step_times()
FLAT = {B: {k: 4000.0 + 500.0 * k for k in range(4)} for B in (1, 2, 4, 8, 16, 32, 64)}


PREFILLS = Prefills.of([PrefillCell(32, k, 40, 6_000 + 500 * k, 0, 64) for k in (1, 3)], FLAT, Requests(40, 64), None)


def profiled(batch_size: int, draft_length: int) -> float:
    found = profiled_time(TIMES, batch_size, draft_length)
    assert found is not None
    return found


def slower(**factors: float) -> Times:
    """The profile's times, each length by a factor: `k3=1.6`."""
    return lambda B, k: profiled(B, k) * factors.get(f"k{k}", 1.0)


class Replica:
    """The controller beside an engine, a turn a second."""

    def __init__(self, engine: LiveEngine, **changes: object) -> None:
        self.engine, self._settings = engine, settings(rebuild_every_steps=500, **changes)
        self.state, self.in_force, self.tried, self.seconds = State(), CODE_TABLE, 0, 0.0

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.seconds += 1
            counters, cells = self.engine.counters(), self.engine.cells()
            decision = decide(self.state, files(), ENGINE, counters, self._settings, uptime_seconds=self.seconds, cells=cells)
            self.state = decision.state
            if decision.push is not None:
                self.in_force = decision.push.table
                self.state = took(self.state, decision.push)
            self.tried += self.state.live.trials.running is not None
            self.engine.run(self.in_force)

    @property
    def wanted(self) -> Table:
        assert self.state.belief is not None
        assert self.state.belief.wanted is not None
        return self.state.belief.wanted

    @property
    def times(self) -> StepTimes:
        return self.state.live.step_times


def best_length(times: Times, batch_size: int) -> int:
    goodput = predict_goodput({batch_size: {k: times(batch_size, k) for k in (1, 3)}}, files().acceptance)[batch_size]
    return max(goodput, key=goodput.__getitem__)


def seen(steps: int, ratio: dict[int, float], windows: int = 16, sizes: tuple[int, ...] = tuple(FLAT)) -> StepTimes:
    """So many windows of each length in `ratio` at each batch size, without noise."""
    times = StepTimes()
    for _ in range(windows):
        cells = [StepCell(B, k, "decode", steps, round(steps * FLAT[B][k] * r)) for B in sizes for k, r in ratio.items()]
        times = absorb_times(times, cells, FLAT, None)
    return times


@pytest.mark.parametrize("batch_sizes", [(6, 7, 8), (30, 31, 32), (60, 62, 64), (1, 8, 20, 40, 64, 90)])
def test_the_table_moves_to_the_right_length_where_one_length_alone_is_slower(batch_sizes: tuple[int, ...]) -> None:
    truth = slower(k3=1.6)
    replica = Replica(LiveEngine(1, truth, batch_sizes))
    assert {CODE_TABLE.length_at(B) for B in batch_sizes} == {3}
    replica.turns(60 if len(batch_sizes) < 4 else 120)
    assert [replica.wanted.length_at(B) for B in batch_sizes] == [best_length(truth, B) for B in batch_sizes]
    moved = replica.wanted
    replica.turns(200)
    assert [replica.wanted.length_at(B) for B in batch_sizes] == [moved.length_at(B) for B in batch_sizes]
    assert drift(replica.times) is None, "with the right length in force, the profile describes the engine"


@pytest.mark.parametrize("factor", [1.6, 0.7])
def test_the_table_stays_where_all_lengths_are_slower_and_drift_is_told(factor: float) -> None:
    replica = Replica(LiveEngine(2, slower(k1=factor, k3=factor), (6, 7, 8)))
    replica.turns(100)
    assert drift(replica.times) is None, "not for long yet"
    replica.turns(160)
    assert replica.wanted == CODE_TABLE
    assert replica.tried <= 5
    told = drift(replica.times)
    assert told is not None
    assert told.code == "ProfileDrift"
    assert f"{factor:.1f} times the profiled time (limit 1.25), over 32,000 steps." in told.message
    assert "tabletune.io/reprofile" in told.message
    assert len(told.message) < 256


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("batch_sizes", [(8,), (32, 64, 90), (100, 127, 128)])
def test_noise_alone_corrects_nothing(seed: int, batch_sizes: tuple[int, ...]) -> None:
    replica = Replica(LiveEngine(seed, slower(), batch_sizes, noise=0.2))
    for _ in range(60):
        replica.turns(1)
        assert correct(replica.times, TIMES, 0.005).relative == {}
    assert (replica.wanted, replica.tried, drift(replica.times)) == (CODE_TABLE, 0, None)


def test_small_differences_between_lengths_do_not_move_the_table() -> None:
    """Live means are above the profile's medians, and not by the same for each length."""
    replica = Replica(LiveEngine(3, slower(k1=1.01, k3=1.025), (100, 127, 128)))
    replica.turns(100)
    assert replica.wanted == CODE_TABLE


def test_only_observing_tries_nothing() -> None:
    replica = Replica(LiveEngine(1, slower(k3=1.6), (6, 7, 8)), mode=Mode.OBSERVE)
    replica.turns(60)
    assert (replica.tried, replica.in_force) == (0, CODE_TABLE)


@pytest.mark.parametrize(
    ("windows", "steps"),
    [pytest.param(MIN_WINDOWS - 1, 500, id="too few windows"), pytest.param(16, 1, id="too few steps")],
)
def test_too_little_evidence_corrects_nothing(windows: int, steps: int) -> None:
    little = seen(steps, {1: 1.0, 3: 1.6}, windows, (8,))
    assert correct(little, FLAT, 0.005).relative == {}
    assert ratios_by_length(little) == {}


def test_one_stall_moves_nothing() -> None:
    calm = seen(100, {1: 1.0, 3: 1.0}, 9, (8,))
    stalled = absorb_times(calm, [StepCell(8, 3, "decode", 100, 5_000_000)], FLAT, None)
    assert correct(stalled, FLAT, 0.005).relative == {}


def test_lengths_are_compared_at_the_same_batch_sizes() -> None:
    """Longer contexts cost more the more requests there are, at every length: k=1 is not slower for being used where it is."""
    times = StepTimes()
    for _ in range(16):
        cells = [(B, 3, 1.0) for B in (1, 2, 4)] + [(B, 1, 1.3) for B in (64,)]
        times = absorb_times(times, [StepCell(B, k, "decode", 100, round(100 * FLAT[B][k] * r)) for B, k, r in cells], FLAT, None)
    assert correct(times, FLAT, 0.005).relative == {}


def test_a_length_without_live_times_has_the_ratio_of_the_nearest() -> None:
    relative = correct(seen(100, {1: 1.0, 3: 1.6}), FLAT, 0.005).relative
    for factors in relative.values():
        assert factors[0] == factors[1]
        assert log(factors[2] / factors[1]) == pytest.approx(log(factors[3] / factors[1]) / 2)
        assert 1.45 < factors[3] / factors[1] < 1.6, "the part beyond noise"
    assert relative.keys() == FLAT.keys()


def test_a_correction_is_limited_to_a_factor_of_2() -> None:
    relative = correct(seen(100, {1: 1.0, 3: 5.0}), FLAT, 0.005).relative
    assert [factors[3] / factors[1] for factors in relative.values()] == [pytest.approx(2.0)] * len(FLAT)


def test_an_old_comparison_fades() -> None:
    """k=3 has not been used for a million steps: what it took then says less now."""
    times = seen(100, {1: 1.0, 3: 1.3}, sizes=(8,))
    fresh = correct(times, FLAT, 0.005).relative[8]
    for _ in range(100):
        times = absorb_times(times, [StepCell(8, 1, "decode", 10_000, round(10_000 * FLAT[8][1]))], FLAT, None)
    assert 1.2 < fresh[3] / fresh[1] < 1.3
    assert correct(times, FLAT, 0.005).relative == {}


def test_uneven_cells_are_told_as_drift() -> None:
    """One ratio for each length fails to describe an engine that is as profiled with few requests, and 1.8 times slower with many."""
    times = StepTimes()
    for _ in range(20):
        slow = [(B, 1.8 if B >= 32 else 1.0) for B in (1, 2, 4, 8, 32, 64)]
        times = absorb_times(times, [StepCell(B, 3, "decode", 500, round(500 * FLAT[B][3] * ratio)) for B, ratio in slow], FLAT, None)
    told = drift(times)
    assert told is not None
    assert "Steps of k=3 take 1.0 to 1.8 times the profiled time, by batch size" in told.message


def test_drift_ends_when_the_profile_fits_again() -> None:
    times = StepTimes()
    for ratio in (1.6,) * 16 + (1.0,) * 12:
        times = absorb_times(times, [StepCell(8, 3, "decode", MEDIAN_STEPS, round(MEDIAN_STEPS * FLAT[8][3] * ratio))], FLAT, None)
        if ratio == 1.0 and len(times.medians) < 16:
            assert drift(times) is not None
    assert drift(times) is None


def test_another_engine_start_counts_from_0() -> None:
    cells = (StepCell(8, 3, "decode", 1_000, 4_820_000),)
    live = absorb(Live(), "boot-1", cells, Counters(), profile())
    again = absorb(live, "boot-1", cells, Counters(), profile())
    other = absorb(again, "boot-2", (StepCell(8, 3, "decode", 400, 400 * 4820),), Counters(), profile())
    assert [x.step_times.compared for x in (live, again, other)] == [1_000, 1_000, 1_400]


def test_counters_that_went_back_add_nothing_until_they_grow() -> None:
    def read(live: Live, count: int) -> Live:
        return absorb(live, "boot-1", (StepCell(8, 3, "decode", count, count * 4820),), Counters(), profile())

    reset = read(read(Live(), 1_000), 10)
    assert (reset.step_times.compared, read(reset, 60).step_times.compared) == (1_000, 1_050)


def test_a_restarted_sidecar_counts_from_its_first_reading() -> None:
    cells = (StepCell(8, 3, "decode", 1_000, 4_820_000),)
    restarted = replace(absorb(Live(), "boot-1", cells, Counters(), profile()), read=None)
    assert absorb(restarted, "boot-1", (replace(cells[0], count=1_500),), Counters(), profile()).step_times.compared == 1_000


def test_another_profile_begins_afresh() -> None:
    live = absorb(Live(), "boot-1", (StepCell(8, 3, "decode", 1_000, 4_820_000),), Counters(), profile())
    measured_again = replace(profile(), measurement=replace(profile().measurement, measured_at="2026-12-01T00:00:00Z"))
    assert absorb(live, "boot-1", (), Counters(), measured_again).step_times == StepTimes()


def test_steps_beside_a_prefill_and_unmeasured_batch_sizes_are_not_compared() -> None:
    cells = [StepCell(8, 3, "beside", 100, 10**6), StepCell(8, 3, "prefill", 100, 10**6), StepCell(500, 3, "decode", 100, 10**6)]
    seen_none = absorb_times(StepTimes(), cells, FLAT, None)
    assert (seen_none.windows, seen_none.unfinished, seen_none.compared) == ({}, {}, 200)


def test_with_many_requests_all_steps_are_compared_less_what_prefills_add() -> None:
    """Every other step carries a prefill of 40 tokens, the rest is beside one. What these add is 1.3 times what the profile says."""
    times = StepTimes()
    for _ in range(16):
        cells = []
        for k, ratio in ((1, 1.0), (3, 1.6)):
            decode = FLAT[32][k] * ratio
            cells.append(StepCell(32, k, "beside", 50, round(50 * decode)))
            cells.append(StepCell(32, k, "prefill", 50, round(50 * (decode + 1.3 * 2_000)), 50 * 40))
        times = absorb_times(times, cells, FLAT, PREFILLS)
    factors = correct(times, FLAT, 0.005).relative[32]
    assert 1.4 < factors[3] / factors[1] < 1.6
    assert ratios_by_length(times) == {}, "no decode-only step was seen"


def test_prefills_that_cost_more_than_profiled_hardly_favour_a_length() -> None:
    """What is missing in the profile is the same time for each length, so a longer step is off by a little less of itself."""
    times = StepTimes()
    for _ in range(16):
        cells = [StepCell(32, k, "prefill", 50, round(50 * (FLAT[32][k] + 1.3 * 2_000)), 50 * 40) for k in (1, 3)]
        times = absorb_times(times, cells, FLAT, PREFILLS)
    assert all(0.98 < factor <= 1.0 for factor in correct(times, FLAT, 0.005).relative.get(32, {}).values())


def test_without_live_times_costs_are_those_of_the_profile() -> None:
    assert costs_of(Live(), profile()) == Costs(profile().step_times(), profile().prefills())


def test_times_between_measured_batch_sizes_are_linear_and_never_extrapolated() -> None:
    assert profiled_time({8: {1: 100.0}, 16: {1: 200.0, 3: 300.0}}, 12, 1) == 150.0
    assert profiled_time({8: {1: 100.0}, 16: {1: 200.0, 3: 300.0}}, 16, 3) == 300.0
    assert [profiled_time({8: {1: 100.0}, 16: {1: 200.0, 3: 300.0}}, B, k) for B, k in ((12, 3), (7, 1), (17, 1))] == [None] * 3


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (None, [[1, 95, 3], [96, 128, 1]]),
        (Trial(8, 6, 11, 1), [[1, 5, 3], [6, 11, 1], [12, 95, 3], [96, 128, 1]]),
        (Trial(9, 1, 95, 1), [[1, 128, 1]]),
        (Trial(100, 90, 128, 3), [[1, 128, 3], [129, 129, 1]]),
    ],
)
def test_a_trial_is_laid_over_the_table(trial: Trial | None, expected: list[list[int]]) -> None:
    table = Table.parse([[1, 95, 3], [96, 128, 1]])
    assert with_trial(table, trial).to_vllm() == expected


def test_expected_numbers() -> None:
    """The share of a difference that is applied: beyond 3 standard errors of two medians of 16 equal windows, and 2 %."""
    relative = correct(seen(100, {1: 1.0, 3: 1.6}, sizes=(8,)), FLAT, 0.005).relative[8]
    error = 1.2533 * 0.01 / 4 * 1.25 * 2**0.5
    assert relative[3] / relative[1] == pytest.approx(1.6 / exp(max(3 * error, 0.02)), rel=1e-3)
