"""Acceptance of the stand-in: how many guesses of a request are kept in a step.

Rates are unconditional: entry i is the probability that the first i + 1 guesses are all kept. They are chosen so that code favours
long drafts, prose short ones and numbers none on the recorded step times; they are not measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from replay.tokens import Kind

RATES = {
    Kind.CODE: (0.78, 0.58, 0.43, 0.33, 0.26, 0.20, 0.16, 0.13),
    Kind.PROSE: (0.36, 0.13, 0.05, 0.02, 0.01, 0.0, 0.0, 0.0),
    Kind.NUMBERS: (0.02, 0.0),
}


def rates_for(kind: Kind, positions: int) -> tuple[float, ...]:
    """As many rates as positions; the last known one goes on."""
    known = RATES[kind]
    return tuple(known[min(i, len(known) - 1)] for i in range(positions))


def count_kept(rates: Sequence[float], drafted: int, rng: random.Random) -> int:
    """Sample how many of the drafted guesses are kept: one draw decides, for the rates are nested."""
    draw = rng.random()
    return sum(1 for rate in rates[:drafted] if draw < rate)
