"""Acceptance from a prior and live counts: also where positions are not drafted alike, and how sure it is."""

from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.acceptance import Counts, Estimate, estimate, standard_errors, surprises

RATES = (0.7, 0.42, 0.21)
PRIOR = Estimate(RATES, 1.0)
NOTHING = Counts.zero(3)


def sampled(random: Random, lengths: list[int], rates: tuple[float, ...] = RATES) -> Counts:
    """Requests with drafts of these lengths, each guess kept by lot."""
    drafted, kept = [0] * len(rates), [0] * len(rates)
    for length in lengths:
        draw = random.random()
        for i in range(length):
            drafted[i] += 1
            kept[i] += draw < rates[i]
    return Counts(len(lengths), len(lengths), tuple(drafted), tuple(kept))


nested = st.lists(st.integers(0, 5000), min_size=4, max_size=4).map(lambda n: sorted(n, reverse=True))
priors = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda a: Estimate(tuple(sorted(a, reverse=True)), 1.0))


@given(priors, nested, st.floats(0.1, 1e5))
def test_is_the_plain_posterior_mean_where_all_positions_were_drafted_alike(prior: Estimate, counts: list[int], weight: float) -> None:
    drafted, *kept = counts
    live = Counts(drafted, drafted, (drafted,) * 3, tuple(kept))
    plain = [(weight * p + k) / (weight + drafted) for p, k in zip(prior.acceptance, kept, strict=True)]
    assert estimate(prior, live, weight).acceptance == pytest.approx(plain, abs=1e-9)
    errors = [(a * (1 - a) / max(weight + drafted, 1)) ** 0.5 for a in plain]
    if weight * min(prior.acceptance) >= 1 or kept[-1] >= 1:
        assert standard_errors(prior, live, weight) == pytest.approx(errors, rel=1e-6, abs=1e-9)


def test_a_position_that_was_not_drafted_follows_the_one_before_it() -> None:
    live = Counts(8000, 8000, (8000, 0, 0), (2800, 0, 0))
    result = estimate(PRIOR, live, 2000).acceptance
    assert result[0] == pytest.approx((2000 * 0.7 + 2800) / 10_000)
    assert result[1:] == pytest.approx((result[0] * 0.42 / 0.7, result[0] * 0.21 / 0.7))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("long_share", [0.02, 0.3])
def test_longer_drafts_in_a_part_of_the_steps_bias_nothing(long_share: float, seed: int) -> None:
    """As when the table drafts long at small batch sizes only, or exploring alone does: the length says nothing of the acceptance."""
    random = Random(seed)
    live = sampled(random, [3 if random.random() < long_share else 1 for _ in range(40_000)])
    wrong = Estimate((0.4, 0.1, 0.02), 1.0)
    result, errors = estimate(wrong, live, 20), standard_errors(wrong, live, 20)
    for a, true, error in zip(result.acceptance, RATES, errors, strict=True):
        assert abs(a - true) < 4 * error + 20 / (40_000 * long_share)


def test_where_acceptance_depends_on_the_batch_size_longer_positions_are_those_of_the_sizes_that_draft_them() -> None:
    """What is supposed does not hold here: the requests that draft short keep half as many first guesses as those that draft long."""
    long, short = Counts(1000, 1000, (1000, 1000), (800, 500)), Counts(1000, 1000, (1000, 0), (400, 0))
    result = estimate(Estimate((0.5, 0.25), 1.0), long + short, 0)
    assert result.acceptance == pytest.approx((0.6, 0.5))  # the first of all, the second of those with long drafts


def test_errors_are_how_far_estimates_spread() -> None:
    random, found = Random(3), []
    lengths = [3] * 150 + [1] * 850
    for _ in range(400):
        live = sampled(random, lengths)
        found.append((estimate(PRIOR, live, 0).acceptance, standard_errors(PRIOR, live, 0)))
    for at in range(3):
        spread = pstdev(a[at] for a, _ in found)
        # `reached` is an estimate itself, from as many drafts: at most a fifth wider than the formula says.
        assert fmean(e[at] for _, e in found) == pytest.approx(spread, rel=0.25)


def test_errors_grow_with_the_design_effect_and_are_those_of_one_draft_without_evidence() -> None:
    live = Counts(100, 100, (100, 100, 100), (70, 42, 21))
    once, four = standard_errors(PRIOR, live, 0), standard_errors(PRIOR, live, 0, design_effect=4)
    assert four == pytest.approx([2 * e for e in once])
    assert standard_errors(PRIOR, NOTHING, 0)[0] == pytest.approx((0.7 * 0.3) ** 0.5)


def test_a_prior_that_faded_away_still_says_what_follows() -> None:
    live = Counts(1000, 1000, (1000, 0, 0), (350, 0, 0))
    for weight in (0.0, 5e-324):
        assert estimate(PRIOR, live, weight).acceptance == pytest.approx((0.35, 0.21, 0.105))


def test_counts_of_the_same_traffic_are_no_surprise_and_those_of_another_are() -> None:
    random = Random(4)
    found = [
        surprise for _ in range(300) for surprise in surprises(PRIOR, sampled(random, [3] * 500), 0, sampled(random, [3] * 500), least=100)
    ]
    assert fmean(found) == pytest.approx(1, abs=0.2)
    assert max(found) < 25
    other = surprises(PRIOR, NOTHING, 2000, sampled(random, [3] * 500, (0.5, 0.25, 0.1)), least=100)
    assert min(other) > 25


def test_drafts_that_are_alike_surprise_by_their_design_effect() -> None:
    random = Random(6)

    def tenfold() -> Counts:
        one = sampled(random, [3] * 50)
        return Counts(500, 500, tuple(10 * d for d in one.drafted), tuple(10 * k for k in one.kept))

    found = [surprise for _ in range(300) for surprise in surprises(PRIOR, tenfold(), 0, tenfold(), least=100)]
    assert fmean(found) == pytest.approx(10, rel=0.2)


def test_too_few_drafts_and_no_belief_say_nothing() -> None:
    few = Counts(99, 99, (99, 99, 99), (1, 0, 0))
    assert surprises(PRIOR, NOTHING, 2000, few, least=100) == ()
    assert surprises(PRIOR, NOTHING, 0, sampled(Random(1), [3] * 500), least=100) == ()


def test_only_what_is_known_well_fades() -> None:
    counts = Counts(4000, 3001, (3001, 100, 0), (2001, 33, 0))
    assert counts.faded(2000) == Counts(2000, 1500, (1500, 100, 0), (1000, 33, 0))
    assert counts.faded(0) == Counts(2000, 1500, (1500, 50, 0), (1000, 16, 0))
