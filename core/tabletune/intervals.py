"""How sure a counted acceptance is: an interval for each `a_i`, from counts and from how far parts of them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from tabletune.acceptance import Counts, non_increasing

CONFIDENCE = 0.95
"""Of the intervals that are shown."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where an `a_i` lies: 0 <= low <= high <= 1."""

    low: float
    high: float


def wilson(kept: float, drafted: float, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a share that was counted, `kept` of `drafted`; with nothing drafted, 0 to 1.

    With `z` the normal quantile of the confidence, `n` = drafted and `p` = kept / n:
    `(p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)`. Unlike `p ± z sqrt(p (1 - p) / n)` it stays in 0..1 and
    has a width when nothing or all was kept. Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212; recommended
    over the usual one by Brown, Cai, DasGupta, Stat. Sci. 16 (2001) 101-133, equation 4.

    It assumes that drafts are kept independently of each other; `intervals` corrects for those that are not.

    Raises:
        ValueError: the confidence is not inside 0..1, or more was kept than drafted.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if not 0 <= kept <= drafted:
        raise ValueError(f"{kept} kept of {drafted} drafted cannot be")
    if drafted == 0:
        return Interval(0.0, 1.0)
    z2 = _quantile(confidence) ** 2
    centre = kept + z2 / 2
    half = sqrt(z2 * (kept * (drafted - kept) / drafted + z2 / 4))
    return Interval(max(0.0, (centre - half) / (drafted + z2)), min(1.0, (centre + half) / (drafted + z2)))


def intervals(counts: Counts, parts: Sequence[Counts] = (), confidence: float = CONFIDENCE) -> tuple[Interval, ...]:
    """Of each `a_i`; bounds never rise from one position to the next, as `a_i` does not.

    Drafts of one answer are alike, so that n of them say less than n independent ones. Parts of the counts, each of other answers,
    show by how much: the design effect is the variance of the share between them over that of independent drafts, and the
    interval is `wilson` with as many drafts as independent ones would be worth (Korn, Graubard, Surv. Methodol. 24 (1998) 193-201).
    With fewer than two parts that drafted at a position its drafts count as independent, which is too narrow.

    Args:
        counts: of all answers.
        parts: which `counts` is the sum of; the more, the surer.
        confidence: inside 0..1.

    Raises:
        ValueError: the confidence is not inside 0..1, or a part has other positions than the counts.
    """
    if any(len(part.drafted) != len(counts.drafted) for part in parts):
        raise ValueError(f"a part has other positions than the {len(counts.drafted)} of the counts")
    effects = [design_effect([(part.kept[at], part.drafted[at]) for part in parts], confidence) for at in range(len(counts.drafted))]
    own = [wilson(k / effect, d / effect, confidence) for k, d, effect in zip(counts.kept, counts.drafted, effects, strict=True)]
    bounds = zip(non_increasing([x.low for x in own]), non_increasing([x.high for x in own]), strict=True)
    return tuple(Interval(low, high) for low, high in bounds)


def design_effect(parts: Sequence[tuple[int, int]], confidence: float = CONFIDENCE) -> float:
    """How many drafts are worth one independent draft, from `(kept, drafted)` of each part; never below 1.

    The variance is that of a ratio of sums over m clusters, `m / (m - 1) sum (kept_j - a drafted_j)^2 / drafted^2` (W. G. Cochran,
    Sampling Techniques, 3rd edition 1977, chapter 6), with Student's quantile of m - 1 degrees of freedom for the normal one.
    """
    used = [(kept, drafted) for kept, drafted in parts if drafted]
    kept, drafted = sum(k for k, _ in used), sum(d for _, d in used)
    if len(used) < 2 or kept in (0, drafted):
        return 1.0
    rate = kept / drafted
    variance = len(used) / (len(used) - 1) * sum((k - rate * d) ** 2 for k, d in used) / drafted**2
    widening = _student_quantile(confidence, len(used) - 1) / _quantile(confidence)
    return max(1.0, variance / (rate * (1 - rate) / drafted) * widening**2)


def _quantile(confidence: float) -> float:
    """Half the width of a two-sided normal interval, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _student_quantile(confidence: float, freedom: int) -> float:
    """The same for Student's t: the expansion of Abramowitz, Stegun, Handbook of Mathematical Functions (1964), 26.7.5, four terms."""
    z = _quantile(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
