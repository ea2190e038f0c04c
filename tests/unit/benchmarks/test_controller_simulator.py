"""The simulator's own arithmetic: what it counts, what its truth is, and how it judges."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.controller.engine import Draws, Requests, Second, Step, Traffic, Truth, simulate
from benchmarks.controller.grids import RECORDED_REQUESTS, Grid, h200, read_prefills, read_traces
from benchmarks.controller.measure import judge, judge_static, time_to_recover, worst_window
from benchmarks.controller.ours import TableTune, tuned_table
from benchmarks.controller.rivals import Bandit, LinearModel, Tiers, documented
from benchmarks.controller.scenarios import Run, scenarios

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput, tau
from tabletune.regimes import Prefills, prefills_per_step, share_with_prefill
from tabletune.table import Table

TIMES = {1: {1: 1000.0, 3: 1500.0}, 8: {1: 1400.0, 3: 3500.0}}
GRID = Grid("small", "made up", TIMES)
GOOD = Traffic("good", (0.9, 0.8, 0.7))
BAD = Traffic("bad", (0.2, 0.05, 0.01))


class Fixed:
    """A chooser of one length that keeps what it saw."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps: list[tuple[int, int, int, int, float]] = []
        self.ticks: list[float] = []

    def choose(self, batch_size: int) -> int:
        return self.length

    def saw(self, step: Step) -> None:
        self.steps.append((step.batch_size, step.draft_length, step.decoding, step.tokens, step.micros))

    def tick(self, now: float) -> None:
        self.ticks.append(now)


def run_of(seconds: int, load: int = 8, events: tuple[float, ...] = (0.0,), settle: float = 1.0) -> Run:
    return Run("run", seconds, lambda _: lambda _: load, lambda _: GOOD, events, settle)


def test_draws_have_the_given_rates_and_never_keep_a_later_guess_without_an_earlier_one() -> None:
    draws = Draws(np.random.default_rng(1))
    rows = [draws.kept(GOOD.acceptance, 3, 50) for _ in range(2000)]
    assert all(a >= b >= c for a, b, c in rows)
    for at, rate in enumerate(GOOD.acceptance):
        assert sum(row[at] for row in rows) / (2000 * 50) == pytest.approx(rate, abs=0.005)
    assert draws.kept(GOOD.acceptance, 0, 50) == []


def test_requests_keep_what_the_traffic_says_and_are_alike_while_they_live() -> None:
    requests = Requests(8, np.random.default_rng(1))
    shares = []
    for _ in range(3000):
        requests.begin(1, 8)
        kept = sum(requests.verify(GOOD.acceptance, 3, 8, [])[0] for _ in range(20))
        shares.append(kept / (20 * 8))
    assert sum(shares) / len(shares) == pytest.approx(GOOD.acceptance[0], abs=0.01)
    alike = np.corrcoef(shares[:-1], shares[1:])[0, 1]
    assert alike > 0.5


def test_requests_that_have_only_begun_verify_nothing() -> None:
    requests = Requests(8, np.random.default_rng(1))
    begun = requests.begin(3, 8)
    certain = (1.0, 1.0, 1.0)
    assert requests.verify(certain, 3, 8, begun) == [5, 5, 5]
    assert requests.verify(certain, 0, 8, begun) == []
    assert requests.verify(certain, 1, 8, requests.begin(8, 8)) == [0]


def test_truth_without_error_is_the_grid_and_linear_between() -> None:
    row = Truth(GRID, seed=1, error=0.0).rows(GOOD)
    assert row[8][3].decode == 3500.0
    assert row[1][1].decode == 1000.0
    assert row[2][3].decode == pytest.approx(1500 + 2000 / 7)
    assert row[8][1].tokens == pytest.approx(8 * 1.9)


def test_truth_scales_a_length_and_errs_by_seed() -> None:
    scaled = Truth(GRID, seed=1, error=0.0, scale={3: 1.6}).rows(GOOD)
    assert (scaled[8][3].decode, scaled[8][1].decode) == (pytest.approx(5600), 1400)
    first, again, other = (Truth(GRID, seed, error=0.01).rows(GOOD)[8][3].decode for seed in (1, 1, 2))
    assert first == again != other


def test_truth_with_prefills_has_the_cores_share_and_about_its_goodput() -> None:
    grid = h200()
    prefills = Prefills.of(read_prefills(), grid.times, RECORDED_REQUESTS, 512)
    predicted = predict_goodput(grid.times, Estimate(GOOD.acceptance, 1.0), prefills)
    row = Truth(grid, seed=1, error=0.0).rows(GOOD)
    for B in (8, 64, 96):
        for k in grid.lengths:
            cell = row[B][k]
            gained = tau(GOOD.acceptance, k)
            assert cell.share == pytest.approx(share_with_prefill(prefills_per_step(B, gained, 200)))
            assert cell.goodput * 1e6 == pytest.approx(predicted[B][k], rel=0.15)  # which goes by the mean number of prompt tokens


def test_more_prefills_in_a_step_add_more_and_most_where_they_pass_the_largest_graph() -> None:
    row = Truth(h200(), seed=1, error=0.0).rows(GOOD)
    one, two = row[128][1].added[:2]
    assert 0 < one < two < row[128][3].added[0]
    assert row[128][3].up_to[-1] == pytest.approx(1.0, abs=1e-4)


def test_a_long_run_yields_the_goodput_that_is_true() -> None:
    truth, chooser = Truth(h200(), seed=1, error=0.0), Fixed(3)
    simulate(truth, chooser, 60, load=lambda _: 64, traffic=lambda _: GOOD, seed=3)
    tokens, micros = (sum(step[at] for step in chooser.steps) for at in (3, 4))
    assert tokens / micros == pytest.approx(truth.rows(GOOD)[64][3].goodput, rel=0.01)
    assert chooser.ticks[:3] == pytest.approx([0, 1, 2], abs=0.05)


def test_a_length_is_verified_in_the_step_after_the_one_that_chose_it() -> None:
    class Alternating(Fixed):
        def choose(self, batch_size: int) -> int:
            self.length = 4 - self.length  # 3, 1, 3, ...
            return self.length

    chooser = Alternating(1)
    simulate(Truth(GRID, 1, 0.0), chooser, 1, load=lambda _: 8, traffic=lambda _: GOOD, seed=1)
    assert [step[1] for step in chooser.steps[:4]] == [3, 1, 3, 1]


def test_the_controllers_counters_are_those_of_the_steps() -> None:
    ours = TableTune(GRID, Estimate(GOOD.acceptance, 1.0), Table.parse([[1, 8, 3]]))
    ours.saw(Step(8, 3, 7, [6, 5, 4], 3500.0, prefill=True))
    ours.saw(Step(8, 1, 8, [4], 1400.0))
    counters = ours._counters()
    assert (counters.steps, counters.tokens, counters.request_steps) == (2, 8 + 15 + 8 + 4, 15)
    assert (counters.drafted, counters.kept) == ((15, 7, 7), (10, 5, 4))


def test_the_controller_mends_a_wrong_table_in_the_simulated_engine() -> None:
    ours = TableTune(GRID, Estimate(BAD.acceptance, 1.0), Table.parse([[1, 8, 3]]))
    truth = Truth(GRID, 1, 0.0)
    run = Run("bad", 40, lambda _: lambda _: 8, lambda _: BAD, settle=20.0)
    log = simulate(truth, ours, 40, load=run.held(1), traffic=run.traffic, seed=1)
    marks = judge(run, truth, Table.parse([[1, 8, 3]]), log)
    assert marks.worst_load_loss < 0.05
    assert marks.worst_minute > 0.3
    assert ours.policy.swaps >= 1


def log_of(lengths: list[int], truth: Truth) -> list[Second]:
    """A second for each length, one step at B = 8 in it."""
    cells = [truth.rows(GOOD)[8][k] for k in lengths]
    return [Second({(GOOD, 8): 1e6}, {(GOOD, 8): 1e6 * cell.goodput}, changes=0, steps=1) for cell in cells]


def test_losses_are_against_the_best_length_and_the_launch_table() -> None:
    truth = Truth(GRID, 1, 0.0)
    good, bad = 8 * 1.9 / 1400, 8 * 3.4 / 3500
    log = log_of([3] * 10 + [1] * 10, truth)
    marks = judge(run_of(20, settle=15.0), truth, Table.parse([[1, 8, 3]]), log)
    assert marks.worst_load_loss == pytest.approx(0.0)
    assert marks.mean_loss == pytest.approx(1 - (good + bad) / 2 / good)
    assert marks.recover_seconds == 10
    assert marks.worst_minute == pytest.approx((good + bad) / 2 / bad - 1)
    static = judge_static(run_of(20, settle=15.0), truth, Table.parse([[1, 8, 3]]), log, Table.parse([[1, 8, 3]]))
    assert static.worst_load_loss == pytest.approx(1 - bad / good)
    assert static.recover_seconds is None
    assert static.worst_minute == pytest.approx(0.0)


def test_recovery_must_last_and_come_before_the_next_event() -> None:
    losses = [0.3, 0.0, 0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3]
    assert time_to_recover(losses, 0, 10) == 4
    assert time_to_recover(losses, 0, 8) is None
    assert time_to_recover(losses, 2, 10) == 2


def test_the_worst_window_is_the_worst_and_a_short_run_is_one_window() -> None:
    assert worst_window([1, 1, 3, 3], [2, 2, 2, 2], 2) == pytest.approx(-0.5)
    assert worst_window([1, 3], [2, 2], 60) == pytest.approx(0.0)


def test_the_documented_table_fits_any_engine() -> None:
    assert documented((0, 1, 3), 128).to_vllm() == [[1, 64, 3], [65, 128, 1]]
    assert documented((0, 1, 3), 128, shrink=4).to_vllm() == [[1, 16, 3], [17, 32, 1], [33, 128, 0]]
    assert documented((0, 1, 3, 5), 256).to_vllm() == [[1, 16, 5], [17, 32, 3], [33, 64, 3], [65, 128, 1], [129, 256, 0]]
    assert documented((1, 3), 96).to_vllm() == [[1, 64, 3], [65, 96, 1]]


def test_the_linear_model_finds_a_linear_grid() -> None:
    times = {B: {k: 3000.0 + 400 * k + 10 * B + 8 * B * k for k in (0, 1, 3)} for B in (1, 8, 64)}
    assert LinearModel(times, (0, 1, 3), 0.7).coefficients == pytest.approx((3000, 400, 10, 8))


def test_the_linear_model_follows_acceptance_and_probes_when_it_drafts_nothing() -> None:
    times = {B: {0: 1000.0, 1: 1300.0, 3: 1900.0} for B in (1, 8, 64)}
    model = LinearModel(times, (0, 1, 3), 0.9)
    assert model.choose(8) == 3
    for _ in range(1000):
        model.saw(Step(8, 3, 8, [0, 0, 0], 1900.0))
    chosen = [model.choose(8) for _ in range(250)]
    assert chosen.count(0) == 248
    assert chosen.count(1) == 2


def test_the_bandit_settles_on_the_best_length() -> None:
    bandit = Bandit([8], (1, 3), seed=1)
    chosen = []
    for _ in range(5000):
        k = bandit.choose(8)
        chosen.append(k)
        bandit.saw(Step(8, k, 8, [4] * k, {1: 1000.0, 3: 4000.0}[k]))
    assert chosen[2500:].count(1) > 0.85 * 2500


def test_tiers_fall_and_rise_with_what_is_kept() -> None:
    tiers = Tiers((1, 3))
    for kept, expected in ((0, 1), (3, 3), (0, 1)):
        for _ in range(100):
            k = tiers.choose(4)
            tiers.saw(Step(4, k, 4, [4 if i < kept else 0 for i in range(k)], 1000.0))
        assert tiers.choose(4) == expected


def test_scenarios_hold_only_what_their_grids_know() -> None:
    for scenario in scenarios():
        assert set(scenario.launch.lengths) <= set(scenario.grid.lengths)
        for run in scenario.runs:
            held = run.held(1)
            assert all(1 <= held(float(t)) <= scenario.grid.largest for t in range(run.seconds)), (scenario.name, run.name)


def test_recorded_batch_sizes_are_those_of_seven_engines() -> None:
    traces = read_traces()
    assert len(traces) == 7
    for points in traces.values():
        times = [t for t, _ in points]
        assert times == sorted(times)
        assert {B for _, B in points} <= set(range(1, 129))


def test_the_tuned_table_is_the_best_of_its_grid() -> None:
    assert tuned_table(GRID, Estimate(GOOD.acceptance, 1.0)).to_vllm() == [[1, 7, 3], [8, 8, 1]]
