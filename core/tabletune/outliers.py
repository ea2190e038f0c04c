"""Whether replicas have the same traffic: which of them keeps other shares of its guesses than all others do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import NormalDist

from tabletune.acceptance import Counts
from tabletune.intervals import design_effect, wilson

CONFIDENCE = 0.99
"""Of the two intervals that must not meet."""

GAP = 0.1
"""Shares that differ by less are the spread of ordinary replicas, which moves the tokens of a step by a few percent."""

QUANTILE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

FEWEST_REPLICAS = 3
"""Of two that differ, nobody can say which is the other one."""

ASSUMED_DESIGN_EFFECT = 10.0
"""Where answers were not counted apart: an answer of some 30 drafts that are alike by 0.3, `1 + 29 * 0.3`."""


def design_effects(parts: Sequence[Counts], positions: int) -> tuple[float, ...]:
    """How many drafts are worth one independent draft, by position, as answers counted apart show it (`intervals.design_effect`)."""
    if len(parts) < 2:
        return (ASSUMED_DESIGN_EFFECT,) * positions
    return tuple(design_effect([(part.kept[at], part.drafted[at]) for part in parts]) for at in range(positions))


def find_outliers(counted: Mapping[str, Counts], effects: Sequence[float]) -> tuple[str, ...]:
    """Names of the replicas whose share of kept guesses, at any position, or whose coverage differs from that of all others.

    Each replica is held against the sum of the others: both shares get the score interval (`intervals.wilson`) for as many drafts as
    independent ones are worth, as drafts of one answer are alike (`effects`). The others' reaches at least as far as they differ among
    each other lets it (`intervals.design_effect`). An outlier's interval does not meet theirs, and its share is at least `GAP` away.

    Args:
        counted: recent counts by replica, all of as many positions as `effects`.
        effects: design effect of drafts by position, 1 or more.
    """
    if len(counted) < FEWEST_REPLICAS:
        return ()
    shares = {name: _shares(counts) for name, counts in counted.items()}
    # Whether a request-step has a draft hangs on its text as the first guess does.
    widths = (effects[0], *effects)
    return tuple(
        name
        for name, own in shares.items()
        if any(_differs(own[at], [other[at] for peer, other in shares.items() if peer != name], width) for at, width in enumerate(widths))
    )


def _shares(counts: Counts) -> tuple[tuple[int, int], ...]:
    """`(part, whole)` of the coverage, then of each position."""
    return tuple(chain([(counts.drafted_steps, counts.request_steps)], zip(counts.kept, counts.drafted, strict=True)))


def _differs(own: tuple[int, int], others: Sequence[tuple[int, int]], effect: float) -> bool:
    theirs = _sum(others)
    if not own[1] or not theirs[1] or abs(own[0] / own[1] - theirs[0] / theirs[1]) < GAP:
        return False
    a, b = (wilson(kept / effect, drafted / effect, CONFIDENCE) for kept, drafted in (own, theirs))
    # Not the score interval: with the few independent drafts that unlike replicas are worth, it leaves out shares near 0 and 1.
    rate = theirs[0] / theirs[1]
    spread = QUANTILE * sqrt(rate * (1 - rate) * design_effect(others, CONFIDENCE) / theirs[1])
    return a.low > max(b.high, rate + spread) or a.high < min(b.low, rate - spread)


def _sum(shares: Iterable[tuple[int, int]]) -> tuple[int, int]:
    parts, wholes = zip(*shares, strict=True)
    return sum(parts), sum(wholes)
