"""Intervals of acceptance: published values, what parts say, and how often they hold the truth."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.acceptance import Counts
from tabletune.intervals import intervals, wilson

POSITIONS = 3
COUNTS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=POSITIONS, max_size=POSITIONS).map(
    lambda pairs: Counts(10_000, 10_000, tuple(max(pair) for pair in pairs), tuple(min(pair) for pair in pairs))
)


@pytest.mark.parametrize(
    ("kept", "drafted", "low", "high"),
    [
        # R. G. Newcombe, Stat. Med. 17 (1998) 857-872, table I, method 3
        pytest.param(81, 263, 0.2553, 0.3662, id="many"),
        pytest.param(15, 148, 0.0624, 0.1605, id="few of many"),
        pytest.param(1, 29, 0.0061, 0.1718, id="one"),
        pytest.param(0, 20, 0.0, 0.1611, id="none kept"),
        pytest.param(20, 20, 1 - 0.1611, 1.0, id="all kept: the mirror of none"),
        pytest.param(0, 0, 0.0, 1.0, id="never drafted: nothing is known"),
    ],
)
def test_the_interval_of_a_counted_share(kept: int, drafted: int, low: float, high: float) -> None:
    found = wilson(kept, drafted)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("kept", "drafted", "confidence"), [(11, 10, 0.95), (-1, 10, 0.95), (1, 10, 0.0), (1, 10, 1.0)])
def test_no_interval_of_counts_or_confidence_that_cannot_be(kept: int, drafted: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"cannot be|confidence must be"):
        wilson(kept, drafted, confidence)


@given(st.lists(COUNTS, max_size=6))
def test_intervals_hold_the_rates_never_rise_and_parts_only_widen_them(parts: list[Counts]) -> None:
    counts = sum(parts, start=Counts.zero(POSITIONS))
    found = intervals(counts, parts)
    if min(counts.drafted):
        assert all(x.low - 1e-12 <= a <= x.high + 1e-12 for x, a in zip(found, counts.rates, strict=True))
    assert all(a.low >= b.low and a.high >= b.high and 0 <= b.low <= b.high <= 1 for a, b in pairwise(found))
    narrowest = intervals(counts)
    assert all(x.low <= y.low + 1e-12 and x.high >= y.high - 1e-12 for x, y in zip(found, narrowest, strict=True))


def one_position(*parts: tuple[int, int]) -> list[Counts]:
    return [Counts(drafted, drafted, (drafted,), (kept,)) for kept, drafted in parts]


def width(parts: list[Counts]) -> float:
    (found,) = intervals(sum(parts, start=Counts.zero(1)), parts)
    return found.high - found.low


def test_an_interval_is_as_wide_as_parts_differ() -> None:
    # Means of equal parts: 0.6 and a standard deviation of 0.1 over 10 parts; t with 9 degrees of freedom is 2.262.
    apart = one_position(*[(5051, 10_000), (6949, 10_000)] * 5)
    assert width(apart) == pytest.approx(2 * 2.262 * 0.1 / 10**0.5, rel=0.01)
    # Parts that differ no more than independent drafts would: the plain interval.
    alike = one_position(*[(6000, 10_000)] * 10)
    assert width(alike) == pytest.approx(2 * 1.96 * (0.6 * 0.4 / 100_000) ** 0.5, rel=0.01)


def test_the_interval_from_parts_holds_the_truth_as_often_as_it_says() -> None:
    """Answers whose own rates differ around 0.6: of 400 runs about 95 % must hold 0.6, and those of independent drafts far fewer."""
    source = random.Random(7)
    held = [0, 0]
    for _ in range(400):
        own = [min(max(source.gauss(0.6, 0.15), 0.0), 1.0) for _ in range(160)]
        kept = [round(110 * rate + source.gauss(0, (110 * rate * (1 - rate)) ** 0.5)) for rate in own]
        parts = one_position(*((sum(min(max(k, 0), 110) for k in kept[at : at + 16]), 16 * 110) for at in range(0, 160, 16)))
        counts = sum(parts, start=Counts.zero(1))
        for way, found in enumerate((intervals(counts, parts), intervals(counts))):
            held[way] += found[0].low <= 0.6 <= found[0].high
    assert 0.92 <= held[0] / 400 <= 0.99
    assert held[1] / 400 < 0.6


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="none"),
        pytest.param(one_position((40, 100)), id="one"),
        pytest.param(one_position((40, 100), (0, 0)), id="one that drafted"),
    ],
)
def test_too_few_parts_tell_nothing(parts: list[Counts]) -> None:
    counts = Counts(100, 100, (100,), (40,))
    assert intervals(counts, parts) == (wilson(40, 100),)


def test_parts_of_other_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="other positions than the 1 of the counts"):
        intervals(Counts(1, 1, (1,), (1,)), [Counts(1, 1, (1, 1), (1, 1))])
