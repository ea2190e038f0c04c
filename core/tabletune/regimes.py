"""Two regimes of a step: decode only, and with a prefill in it, which costs several times as much on a GPU.

Every request brings one prefill, however long its drafts are. So prefills take the same time from every draft length, and change which
is best only where a step passes the largest graph with one length and not with another, and as longer drafts end requests sooner, so that
more of them share a step. What they change much is how many tokens a second there are (benchmarks/results/regimes has the numbers).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import mean

PROMPT_TOKENS = (64, 256, 1024, 4096, 16384)
"""Upper bounds of the buckets of prompt tokens in a step; the last one holds all above, too."""

DECODE, BESIDE, PREFILL = 0, 1, 2
"""Regimes of a step: decode only; decode only, but beside a prefill; with a prefill."""

WITHIN, PASSING, BEYOND = 0, 1, 2
"""A step with a prefill stays within the largest captured graph, passes it, or would without the prefill."""

SETTLING_STEPS = 2
"""After a prefill that are beside it: an engine that schedules ahead has as many steps in flight."""


def regime_of(carries_prefill: bool, settling: int) -> tuple[int, int]:
    """A step's regime, as far as it is known while it runs, and how many of the next ones are still beside a prefill.

    `settling`: what the step before gave for it; 0 at first.
    """
    if carries_prefill:
        return PREFILL, SETTLING_STEPS
    return (BESIDE, settling - 1) if settling else (DECODE, 0)


def regime_before(regime: int, next_carries_prefill: bool) -> int:
    """The same once the next step is known: what comes just before a prefill is beside it."""
    return BESIDE if regime == DECODE and next_carries_prefill else regime


@dataclass(frozen=True, slots=True)
class PrefillCell:
    """Steps with a prefill at one (B, k): `step_time_micros` holds what the steps right after them are shorter or longer than T(B, k).

    `prompt_tokens` is the mean of a step, `spread_micros` the median absolute deviation of the steps.
    """

    batch_size: int
    draft_length: int
    prompt_tokens: int
    step_time_micros: int
    spread_micros: int
    samples: int


@dataclass(frozen=True, slots=True)
class Requests:
    """Mean lengths of requests in tokens: what the share of steps with a prefill follows from."""

    prompt_tokens: int
    output_tokens: int


def bucket_of(prompt_tokens: int) -> int:
    """The index in PROMPT_TOKENS of a step with so many prompt tokens."""
    return min(bisect_left(PROMPT_TOKENS, prompt_tokens), len(PROMPT_TOKENS) - 1)


def prefills_per_step(batch_size: int, tau: float, output_tokens: int) -> float:
    """Requests that begin in a step, where B are held: `B tau / (L + tau - 1)`, of L output tokens each, the first from its prefill.

    In a steady state as many requests end as begin, `n` a step, and a step yields `n L` tokens: `tau` for each request that decodes
    and one for each that is prefilled, `(B - n) tau + n`.
    """
    return min(batch_size * tau / (output_tokens + tau - 1.0), float(batch_size))


def share_with_prefill(prefills: float) -> float:
    """Share of steps with at least one prefill, for `prefills` a step: `1 - exp(-n)`, as requests end independently of each other."""
    return 1.0 - exp(-prefills)


def chances_of_prefills(prefills: float, most: int) -> Iterator[float]:
    """Chance that a step carries 1, 2, ..., `most` prefills, for so many a step on average: `exp(-n) n^m / m!`."""
    chance = exp(-prefills)
    for m in range(1, most + 1):
        chance *= prefills / m
        yield chance


@dataclass(frozen=True, slots=True)
class Prefills:
    """What prefills cost at any (B, k): from measured cells, and the lengths of the requests that bring them.

    What a prefill adds to a step is pooled over the draft lengths whose steps stay within the largest captured graph with it, pass it
    with it, or pass it without it already: between lengths of one such way it differed by less than between two windows of one length,
    and a choice must not follow that. Where it makes a step pass the graph it adds most, where the step passes it anyhow hardly anything.
    """

    extra: Mapping[tuple[int, int], Sequence[tuple[int, float]]]
    """By way (WITHIN, PASSING, BEYOND) and bucket: batch size and microseconds above T(B, k), ascending."""
    ceiling: int | None  # tokens of the largest captured graph
    requests: Requests
    nearest: Mapping[tuple[int, int], tuple[int, int]]
    """For each way and bucket, the measured one that stands for it: of the same way if there is one, then by bucket."""

    @classmethod
    def of(
        cls, cells: Sequence[PrefillCell], step_times: Mapping[int, Mapping[int, float]], requests: Requests, ceiling: int | None
    ) -> Prefills | None:
        """None when no cell tells: decode only is what is left."""
        pooled: dict[tuple[int, int], dict[int, list[float]]] = {}
        for c in cells:
            decode = step_times.get(c.batch_size, {}).get(c.draft_length)
            if decode is not None:
                way = way_of(c.batch_size, c.draft_length, c.prompt_tokens, ceiling)
                by_batch_size = pooled.setdefault((way, bucket_of(c.prompt_tokens)), {})
                by_batch_size.setdefault(c.batch_size, []).append(c.step_time_micros - decode)
        extra = {group: [(B, mean(values)) for B, values in sorted(sizes.items())] for group, sizes in pooled.items()}
        if not extra:
            return None
        nearest = {
            (way, bucket): min(extra, key=lambda g, w=way, b=bucket: (abs(g[0] - w), g[0], abs(g[1] - b), g[1]))  # type: ignore[misc]
            for way in (WITHIN, PASSING, BEYOND)
            for bucket in range(len(PROMPT_TOKENS))
        }
        return cls(extra, ceiling, requests, nearest)

    def mean_step(self, batch_size: int, draft_length: int, tau: float, decode_micros: float) -> tuple[float, float]:
        """Tokens and microseconds of a mean step: `(B - n) tau + n` and `T + sum_m P(m) extra(m)`.

        `P(m) = exp(-n) n^m / m!`, as requests end independently of each other: a step carries a whole number of prefills. The cost of their
        mean number instead would jump with the draft length, where one length brings a few more of them.
        """
        n = prefills_per_step(batch_size, tau, self.requests.output_tokens)
        added = 0.0
        for m, chance in enumerate(chances_of_prefills(n, _most_prefills(n)), start=1):
            added += chance * self.extra_micros(batch_size, draft_length, m * self.requests.prompt_tokens)
        return (batch_size - n) * tau + n, decode_micros + added

    def extra_micros(self, batch_size: int, draft_length: int, prompt_tokens: int) -> float:
        """What so many prompt tokens add to a step, with what the steps after it are longer or shorter: `T_prefill - T`."""
        way, bucket = way_of(batch_size, draft_length, prompt_tokens, self.ceiling), bucket_of(prompt_tokens)
        return between(self.extra[self.nearest[way, bucket]], batch_size)


def _most_prefills(prefills: float) -> int:
    """More in a step, of so many on average, come less than once in a million steps."""
    return ceil(prefills + 4 * sqrt(prefills) + 6)


def way_of(batch_size: int, draft_length: int, prompt_tokens: int, ceiling: int | None) -> int:
    """How a step with so many prompt tokens stands to the largest graph of `ceiling` tokens: WITHIN, PASSING or BEYOND."""
    if ceiling is None:
        return WITHIN
    decode_tokens = batch_size * (draft_length + 1)
    return (decode_tokens > ceiling) + (decode_tokens + prompt_tokens > ceiling)


def between(points: Sequence[tuple[int, float]], batch_size: int) -> float:
    """The value at a batch size: linear between two ascending points, and that of the nearest one outside them."""
    at = bisect_left(points, batch_size, key=lambda point: point[0])
    if at in (0, len(points)):
        return points[min(at, len(points) - 1)][1]
    (low, below), (high, above) = points[at - 1], points[at]
    return below + (above - below) * (batch_size - low) / (high - low)
