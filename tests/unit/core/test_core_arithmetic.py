"""Goodput, acceptance, regret, grid and verdict: the small formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.acceptance import Counts, Estimate, Part, by_context, estimate
from tabletune.goodput import expected_step_time, goodput, predict_goodput, tau
from tabletune.profile import Fingerprint, batch_sizes
from tabletune.regret import regret
from tabletune.table import Table

POSITIONS = 3
COUNTS = st.lists(st.integers(0, 10_000), min_size=2 * POSITIONS + 2, max_size=2 * POSITIONS + 2).map(
    lambda n: Counts(
        max(n[0], n[1]),
        min(n[0], n[1]),
        tuple(max(a, b) for a, b in zip(n[2::2], n[3::2], strict=True)),
        tuple(min(a, b) for a, b in zip(n[2::2], n[3::2], strict=True)),
    )
)
RATES = st.lists(st.floats(0, 1), min_size=POSITIONS, max_size=POSITIONS).map(lambda r: tuple(sorted(r, reverse=True)))
PRIORS = st.builds(Estimate, RATES, st.floats(0, 1))


def test_tau_sums_what_is_kept() -> None:
    assert tau((0.68, 0.39, 0.22), 3) == pytest.approx(2.29)
    assert tau((0.68, 0.39, 0.22), 0) == 1.0
    assert tau((0.5,), 1, coverage=0.4) == pytest.approx(1.2)


def test_tau_refuses_a_length_without_acceptance() -> None:
    with pytest.raises(ValueError, match="draft length 4 needs acceptance of 4 positions; 3 are known"):
        tau((0.6, 0.3, 0.1), 4)


def test_goodput_is_tokens_a_second() -> None:
    # 128 requests, 1.68 tokens each, every 6.5 ms
    assert goodput(128, 1, 6500, (0.68,)) == pytest.approx(33_083, abs=1)


@pytest.mark.parametrize("micros", [0, -1])
def test_goodput_refuses_a_step_time_that_cannot_be(micros: float) -> None:
    with pytest.raises(ValueError, match="step time must be positive"):
        goodput(1, 0, micros, ())


def test_counts_by_context_are_the_sums_of_their_parts() -> None:
    a, b, c = (Counts(100, 100, (100,), (kept,)) for kept in (40, 50, 10))
    parts = [Part(c, 4096), Part(a, 1024), Part(b, 1024)]
    assert list(by_context(parts).items()) == [(1024, a + b), (4096, c)]
    assert by_context([Part(a, None), Part(b, None)]) == {}


@given(PRIORS, COUNTS, st.floats(0, 1e5))
def test_estimate_is_possible_and_never_rises(prior: Estimate, live: Counts, weight: float) -> None:
    result = estimate(prior, live, weight)
    assert all(0 <= a <= 1 for a in result.acceptance)
    assert all(a >= b for a, b in pairwise(result.acceptance))
    low, high = sorted((prior.coverage, live.coverage))
    assert low - 1e-9 <= result.coverage <= high + 1e-9


@given(PRIORS, st.floats(1, 1e5))
def test_estimate_without_traffic_is_the_prior(prior: Estimate, weight: float) -> None:
    result = estimate(prior, Counts.zero(POSITIONS), weight)
    assert result.acceptance == pytest.approx(prior.acceptance)
    assert result.coverage == pytest.approx(prior.coverage)


def test_estimate_refuses_another_number_of_positions_and_a_negative_weight() -> None:
    with pytest.raises(ValueError, match="the prior has 2 positions and the counts have 3"):
        estimate(Estimate((0.7, 0.4), 1.0), Counts.zero(POSITIONS), 1)
    with pytest.raises(ValueError, match="prior weight"):
        estimate(Estimate((0.7, 0.4, 0.2), 1.0), Counts.zero(POSITIONS), -1)


@given(COUNTS, COUNTS)
def test_counts_since_an_earlier_moment_add_up_again(a: Counts, b: Counts) -> None:
    assert (a + b) - b == a


@given(COUNTS, st.integers(0, 10_000))
def test_faded_counts_stay_possible(counts: Counts, enough: int) -> None:
    faded = counts.faded(enough)
    assert all(k <= d for k, d in zip(faded.kept, faded.drafted, strict=True))


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((1, 1, (1,), (2,)), id="more kept than drafted"),
        pytest.param((1, 2, (1,), (1,)), id="more steps with a draft than steps"),
        pytest.param((1, 1, (1, 1), (1,)), id="positions differ"),
        pytest.param((-1, -1, (1,), (1,)), id="negative"),
    ],
)
def test_counts_that_cannot_be_are_refused(numbers: tuple[int, int, tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Counts(*numbers)


def test_counts_that_go_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Counts.zero(1) - Counts(1, 1, (1,), (1,))


def test_rates_are_non_increasing_and_zero_where_nothing_was_drafted() -> None:
    assert Counts(9, 9, (10, 4, 0), (5, 3, 0)).rates == (0.5, 0.5, 0.0)


def test_regret_names_what_cannot_be_compared() -> None:
    result = regret(Table.fixed(2, 8), {1: {1: 100.0, 2: 90.0}, 8: {1: 100.0}})
    assert [(x.batch_size, x.best_length, round(x.loss, 3)) for x in result.losses] == [(1, 1, 0.1)]
    assert result.unknown == (8,)
    assert regret(Table.fixed(2, 8), {}).worst is None


def test_grid_is_dense_where_step_times_jump() -> None:
    assert batch_sizes(128) == (*range(1, 17), *range(20, 65, 4), *range(72, 129, 8))
    assert batch_sizes(30) == (*range(1, 17), 20, 24, 28, 30)
    assert batch_sizes(1) == (1,)
    with pytest.raises(ValueError, match="at least 1"):
        batch_sizes(0)


def test_fingerprints_differ_by_the_fields_that_changed() -> None:
    a, b = Fingerprint.of({"gpu": "H200", "k": 3, "revision": None}), Fingerprint.of({"k": 4, "gpu": "H200"})
    assert a == Fingerprint.of({"revision": "", "k": "3", "gpu": "H200"})
    assert a.digest != b.digest
    assert a.changed(b) == ("k", "revision")


def test_a_drafter_that_drafts_in_some_steps_pays_for_drafts_in_those_only() -> None:
    times = {0: 100.0, 3: 300.0}
    assert [expected_step_time(times, 3, c) for c in (0.0, 0.25, 1.0)] == [100.0, 150.0, 300.0]
    assert expected_step_time({3: 300.0}, 3, 0.25) == 300.0  # without T(B,0) nothing is known to be cheaper


def test_predicts_every_cell_as_the_formula_says() -> None:
    traffic = Estimate((0.8, 0.6, 0.5), coverage=0.25)
    predicted = predict_goodput({4: {0: 100.0, 3: 300.0}}, traffic)
    assert predicted == {4: {0: pytest.approx(4 / 100 * 1e6), 3: pytest.approx(4 * (1 + 0.25 * 1.9) / 150 * 1e6)}}
