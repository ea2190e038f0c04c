"""Acceptance: how often guesses are kept, from exact counts, and its estimate from a prior and live counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from operator import mul


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine counted; every field only grows while one engine runs.

    Index 0 of `drafted` and `kept` is position 1. `kept[i]` counts requests whose first `i + 1` guesses were all kept,
    `drafted[i]` those that were offered so many, so `kept / drafted` is the unconditional `a`, right also when k varies.
    """

    request_steps: int
    drafted_steps: int
    drafted: tuple[int, ...]
    kept: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.drafted) != len(self.kept):
            raise ValueError(f"drafted has {len(self.drafted)} positions and kept {len(self.kept)}; they must be equal")
        if min((self.request_steps, self.drafted_steps, *self.drafted, *self.kept)) < 0:
            raise ValueError("counts must not be negative")
        if any(k > d for k, d in zip(self.kept, self.drafted, strict=True)):
            raise ValueError(f"more guesses kept {list(self.kept)} than drafted {list(self.drafted)}")
        if self.drafted_steps > self.request_steps:
            raise ValueError(f"more steps with a draft ({self.drafted_steps}) than steps ({self.request_steps})")

    @classmethod
    def zero(cls, positions: int) -> Counts:
        return cls(0, 0, (0,) * positions, (0,) * positions)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.request_steps + other.request_steps,
            self.drafted_steps + other.drafted_steps,
            tuple(a + b for a, b in zip(self.drafted, other.drafted, strict=True)),
            tuple(a + b for a, b in zip(self.kept, other.kept, strict=True)),
        )

    def __sub__(self, earlier: Counts) -> Counts:
        """Counts since `earlier`. Raises ValueError when they went backwards, which means another engine counted them."""
        return Counts(
            self.request_steps - earlier.request_steps,
            self.drafted_steps - earlier.drafted_steps,
            tuple(a - b for a, b in zip(self.drafted, earlier.drafted, strict=True)),
            tuple(a - b for a, b in zip(self.kept, earlier.kept, strict=True)),
        )

    def faded(self, enough: float) -> Counts:
        """Half the evidence, so that old traffic fades, but only where it is `enough`: a position that is seldom seen keeps its few counts.

        Rounded down in a way that keeps kept <= drafted.
        """
        steps = 2 if self.request_steps >= enough else 1
        parts = [2 if drafted >= enough else 1 for drafted in self.drafted]
        return Counts(
            self.request_steps // steps,
            self.drafted_steps // steps,
            tuple(d // part for d, part in zip(self.drafted, parts, strict=True)),
            tuple(k // part for k, part in zip(self.kept, parts, strict=True)),
        )

    @property
    def coverage(self) -> float:
        """Share of request-steps with a draft; 1 when nothing was counted."""
        return self.drafted_steps / self.request_steps if self.request_steps else 1.0

    @property
    def rates(self) -> tuple[float, ...]:
        """`a_i` as counted, non-increasing; 0 where a position was never drafted."""
        return non_increasing([k / d if d else 0.0 for k, d in zip(self.kept, self.drafted, strict=True)])


@dataclass(frozen=True, slots=True)
class Part:
    """Counts of some answers; `context_tokens`: what their prompts were lengthened to, None as they are."""

    counts: Counts
    context_tokens: int | None


def by_context(parts: Sequence[Part]) -> dict[int, Counts]:
    """Counts at each length that prompts were lengthened to, ascending; empty when they were not."""
    found: dict[int, Counts] = {}
    for part in sorted(parts, key=lambda part: part.context_tokens or 0):
        if part.context_tokens is not None:
            found[part.context_tokens] = found.get(part.context_tokens, Counts.zero(len(part.counts.drafted))) + part.counts
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the controller believes about traffic: `a_i` for every position, and the coverage."""

    acceptance: tuple[float, ...]
    coverage: float


def estimate(prior: Estimate, live: Counts, prior_weight: float) -> Estimate:
    """Posterior mean with a prior worth `prior_weight` drafted tokens a position.

    Where all positions were drafted alike it is `a_i = (w * prior_i + kept_i) / (w + drafted_i)`. A position that was drafted less often
    than the one before it (shorter lengths are in force, and it is seen in a part of the steps) follows that one: of the requests with
    i - 1 guesses kept, `q_i = (w * prior_i + kept_i) / (w * prior_(i-1) + reached_i)` keep one more, and `a_i = q_1 * ... * q_i`. It is the
    product-limit estimate of censored times with its prior (Kaplan, Meier, J. Am. Stat. Assoc. 53 (1958) 457-481; Walker, Muliere,
    Ann. Stat. 25 (1997) 1762-1780), and supposes what that does: that a request's length in force says nothing of its acceptance.
    `reached_i`, the requests offered i guesses with i - 1 of them kept, is not counted: it is `drafted_i * kept_(i-1) / drafted_(i-1)`.

    Args:
        prior: what was believed before; as many positions as `live`.
        live: counts since then.
        prior_weight: `w` >= 0; with `w` = 0 a position that was never drafted keeps the prior's `prior_i / prior_(i-1)`.

    Raises:
        ValueError: the number of positions differs, or the weight is negative.
    """
    steps = prior_weight + live.request_steps
    coverage = (prior_weight * prior.coverage + live.drafted_steps) / steps if steps else prior.coverage
    return Estimate(tuple(accumulate((q for q, _ in _one_more(prior, live, prior_weight)), mul)), coverage)


def standard_errors(prior: Estimate, live: Counts, prior_weight: float, design_effect: float = 1.0) -> tuple[float, ...]:
    """How far each `a_i` of `estimate` may be off: the root of `Var a_i = q_i^2 Var a_(i-1) + a_(i-1)^2 q_i (1 - q_i) / n_i`.

    `n_i` are the drafts behind `q_i`, the prior's included. That is Greenwood's formula; where all positions were drafted alike it is
    the binomial `a (1 - a) / n`. A position without any evidence counts as one draft.

    Args:
        prior, live, prior_weight: as for `estimate`.
        design_effect: drafts that are worth one independent draft, from 1 up: drafts of one answer are alike.

    Raises:
        ValueError: as `estimate`.
    """
    errors: list[float] = []
    before, variance = 1.0, 0.0
    for q, n in _one_more(prior, live, prior_weight):
        variance = q * q * variance + before * before * q * (1 - q) / max(n, 1.0)
        before *= q
        errors.append(sqrt(design_effect * variance))
    return tuple(errors)


def _one_more(prior: Estimate, live: Counts, prior_weight: float) -> Iterator[tuple[float, float]]:
    """For each position, of the requests that kept all guesses before it: the share that keeps this one, and how many drafts say so."""
    if prior_weight < 0:
        raise ValueError(f"prior weight must not be negative, got {prior_weight}")
    if len(prior.acceptance) != len(live.drafted):
        raise ValueError(f"the prior has {len(prior.acceptance)} positions and the counts have {len(live.drafted)}; they must be equal")
    prior_before, rate_before = 1.0, 1.0
    for p, drafted, kept in zip(prior.acceptance, live.drafted, live.kept, strict=True):
        reached = max(drafted * rate_before, float(kept))
        n = prior_weight * prior_before + reached
        believed = min(1.0, p / prior_before) if prior_before else 0.0
        share = reached / n if n else 0.0
        q = min(1.0, (1 - share) * believed + (share * kept / reached if reached else 0.0))
        yield q, n
        prior_before = p
        rate_before = min(rate_before, kept / drafted) if drafted else rate_before * q


def surprises(prior: Estimate, known: Counts, prior_weight: float, fresh: Counts, least: int) -> tuple[float, ...]:
    """How far fresh counts are from what is believed, for each position with at least `least` drafts among them: squared standard errors.

    The two-proportion test, `(f - a)^2 / (p (1 - p) (1 / n_f + 1 / n))`, with `f` the fresh share of `n_f` drafts, `a` the estimate from
    prior and known counts, worth `n`, and `p` the share of both together. For independent drafts of the same traffic its mean is 1; for
    drafts of which some are alike it is their design effect.

    Args:
        prior, known, prior_weight: what is believed, as for `estimate`.
        fresh: counts that are not in `known`.
        least: drafts below which a share is not near enough to normal.
    """
    believed = estimate(prior, known, prior_weight).acceptance
    found: list[float] = []
    for a, old, drafted, kept in zip(believed, known.drafted, fresh.drafted, fresh.kept, strict=True):
        n = prior_weight + old
        if n and drafted >= least:
            # Half a success and half a failure more: the variance is not 0 where nothing or all was kept.
            pooled = (a * n + kept + 0.5) / (n + drafted + 1)
            found.append((kept / drafted - a) ** 2 / (pooled * (1 - pooled) * (1 / drafted + 1 / n)))
    return tuple(found)


def non_increasing(rates: Sequence[float]) -> tuple[float, ...]:
    """All of the first i + 1 guesses kept implies the first i kept: a later rate above an earlier one is noise."""
    bounded: list[float] = []
    for rate in rates:
        bounded.append(min(rate, bounded[-1]) if bounded else rate)
    return tuple(bounded)
