"""A simulated engine: steps of a measured grid, guesses kept by chance, and whatever chooses the draft length.

A step verifies the length that was chosen in the step before, as in vLLM. Its batch size comes from the scenario; a request that ends
is followed by another, whose prefill shares a step with the rest. Time is simulated, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
from benchmarks.controller.grids import RECORDED_REQUESTS, Grid

from tabletune.goodput import tau
from tabletune.regimes import Prefills, between, chances_of_prefills, prefills_per_step, share_with_prefill

TICK_SECONDS = 1.0  # the sidecar's turn
STEP_NOISE = 0.02  # of a step's time, lognormal; the recorded spread of a cell is 0.5 to 3 %
DRAWN_AT_ONCE = 128
MOST_PREFILLS = 12  # in a step; more are too rare to count
SPREAD = 0.2  # acceptance of easy and hard requests over the traffic's own: 1 + and 1 - this; a third each, and a third as the traffic


@dataclass(frozen=True, eq=False)  # one object is one kind of traffic
class Traffic:
    """`acceptance[i]`: probability that the first `i + 1` guesses are all kept; from `heavy_from` requests on, `heavy` instead."""

    name: str
    acceptance: tuple[float, ...]
    heavy: tuple[float, ...] | None = None
    heavy_from: int = 0

    def at(self, batch_size: int) -> tuple[float, ...]:
        return self.acceptance if self.heavy is None or batch_size < self.heavy_from else self.heavy


@dataclass(frozen=True)
class TrueCell:
    """What a step at (B, k) truly is: microseconds of decode only, what prefills add, and the mean of many steps.

    `added[i]` is for a step with `i + 1` prefills, and `up_to[i]` the share with at most so many among the steps that carry any.
    """

    decode: float
    share: float  # of steps with a prefill
    begun: float  # requests that begin in a mean step
    up_to: tuple[float, ...]
    added: tuple[float, ...]
    tokens: float  # of a mean step
    micros: float

    @property
    def goodput(self) -> float:
        """Tokens a microsecond."""
        return self.tokens / self.micros


class Truth:
    """The engine's own step times: the grid's, times `scale[k]`, and off by `error` (relative, drawn anew for each cell and seed).

    Between two measured batch sizes: linear.
    """

    def __init__(self, grid: Grid, seed: int, error: float, scale: Mapping[int, float] | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.grid = grid
        self.times = {
            B: {k: micros * (scale or {}).get(k, 1.0) * (1 + error * float(rng.standard_normal())) for k, micros in row.items()}
            for B, row in grid.times.items()
        }
        self._prefills = Prefills.of(grid.prefill, grid.times, grid.requests, grid.largest_graph) if grid.requests is not None else None
        self._rows: dict[Traffic, list[dict[int, TrueCell]]] = {}

    def rows(self, traffic: Traffic) -> list[dict[int, TrueCell]]:
        """Cells by batch size (index 0 is not used) and length."""
        if traffic not in self._rows:
            sizes = range(1, self.grid.largest + 1)
            self._rows[traffic] = [{}, *({k: self._cell(B, k, traffic.at(B)) for k in self.grid.lengths} for B in sizes)]
        return self._rows[traffic]

    def _cell(self, B: int, k: int, acceptance: Sequence[float]) -> TrueCell:
        decode, gain = between([(size, row[k]) for size, row in self.times.items()], B), tau(acceptance, k)
        n = prefills_per_step(B, gain, RECORDED_REQUESTS.output_tokens)
        if self._prefills is None:
            return TrueCell(decode, 0.0, n, (), (), B * gain, decode)
        share = share_with_prefill(n)
        counts = range(1, MOST_PREFILLS + 1)  # as many begin as end, independently of each other: Poisson
        weights = [chance / share for chance in chances_of_prefills(n, MOST_PREFILLS)]
        added = tuple(self._prefills.extra_micros(B, k, m * RECORDED_REQUESTS.prompt_tokens) for m in counts)
        micros = decode + share * sum(w * x for w, x in zip(weights, added, strict=True))
        return TrueCell(decode, share, n, tuple(accumulate(weights)), added, (B - n) * gain + n, micros)


class Draws:
    """How many of n requests keep their first 1, 2, ..., k guesses; drawn for many steps at once."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left: dict[tuple[tuple[float, ...], int, int], list[list[int]]] = {}

    def kept(self, acceptance: tuple[float, ...], k: int, requests: int) -> list[int]:
        """By position."""
        key = (acceptance, k, requests)
        left = self._left.get(key)
        if not left:
            left = self._left[key] = self._draw(acceptance[:k], requests)
        return left.pop()

    def _draw(self, acceptance: tuple[float, ...], requests: int) -> list[list[int]]:
        at_least = np.array([1.0, *acceptance, 0.0])
        counts = self._rng.multinomial(requests, at_least[:-1] - at_least[1:], size=DRAWN_AT_ONCE)
        kept = counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        result: list[list[int]] = kept.tolist()
        return result


class Requests:
    """The requests in the engine: hard, plain or easy to guess for as long as they live, so that steps near each other are alike.

    What a mean request keeps is the traffic's acceptance. The oldest ends first, and another takes its place.
    """

    def __init__(self, most: int, rng: np.random.Generator) -> None:
        self._draws = Draws(rng)
        self._kinds = bytearray(rng.integers(0, 3, most).tolist())
        self._next_kinds: list[int] = rng.integers(0, 3, 7919).tolist()
        self._begun = 0
        self._oldest = 0
        self._rates: dict[tuple[float, ...], tuple[tuple[float, ...], ...]] = {}

    def begin(self, count: int, requests: int) -> list[int]:
        """The oldest `count` of so many requests end, and others begin in their places; the kinds of those."""
        kinds: list[int] = []
        for _ in range(count):
            kind = self._next_kinds[self._begun % 7919]
            self._oldest = (self._oldest + 1) % requests
            self._kinds[self._oldest] = kind
            self._begun += 1
            kinds.append(kind)
        return kinds

    def verify(self, acceptance: tuple[float, ...], k: int, requests: int, prefilling: Sequence[int]) -> list[int]:
        """Kept guesses by position of so many requests, without those of the kinds `prefilling`, which have only begun."""
        kept = [0] * k
        if k:
            for kind, rates in enumerate(self._rates_of(acceptance)):
                n = self._kinds.count(kind, 0, requests) - prefilling.count(kind)
                if n:
                    kept = [a + b for a, b in zip(kept, self._draws.kept(rates, k, n), strict=True)]
        return kept

    def _rates_of(self, acceptance: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
        """Of hard, plain and easy requests."""
        if acceptance not in self._rates:
            spread = min(SPREAD, 1 / acceptance[0] - 1)
            self._rates[acceptance] = tuple(tuple(a * (1 + sign * spread) for a in acceptance) for sign in (-1, 0, 1))
        return self._rates[acceptance]


@dataclass(slots=True)
class Step:
    """One step as whoever chooses may see it; the engine fills one object again and again."""

    batch_size: int = 0
    draft_length: int = 0  # verified in it
    decoding: int = 0  # requests that are not in their prefill
    kept: list[int] = field(default_factory=list)  # by position
    micros: float = 0.0
    prefill: bool = False

    @property
    def tokens(self) -> int:
        """Output tokens: one of every request, and the guesses that were kept."""
        return self.batch_size + sum(self.kept)


class Chooser(Protocol):
    """Whatever chooses draft lengths."""

    def choose(self, batch_size: int) -> int:
        """The length that the next step verifies, asked in a step of `batch_size` requests."""

    def saw(self, step: Step) -> None:
        """A step is done."""

    def tick(self, now: float) -> None:
        """Called every TICK_SECONDS, as the sidecar's loop turns."""


@dataclass
class Second:
    """What was done in one second, in expected values, so that luck is not in it: microseconds by traffic and B, and tokens."""

    micros: dict[tuple[Traffic, int], float] = field(default_factory=dict)
    tokens: dict[tuple[Traffic, int], float] = field(default_factory=dict)
    changes: int = 0  # of the length from one step to the next
    steps: int = 0


def simulate(
    truth: Truth, chooser: Chooser, seconds: float, *, load: Callable[[float], int], traffic: Callable[[float], Traffic], seed: int
) -> list[Second]:
    """Run the engine for so many simulated seconds.

    Args:
        truth: its step times.
        chooser: of draft lengths; sees every step.
        load: requests that a step at this moment holds; at most the grid's largest.
        traffic: what they are.
        seed: of everything that is chance.
    """
    rng = np.random.default_rng(seed)
    requests = Requests(truth.grid.largest, rng)
    noise: list[float] = np.exp(rng.normal(0.0, STEP_NOISE, 8191)).tolist()
    chances: list[float] = rng.random(8209).tolist()
    log = [Second() for _ in range(int(seconds))]
    step = Step()
    now, next_tick, count = 0.0, 0.0, 0
    length = chooser.choose(load(0.0))
    while now < len(log):
        if now >= next_tick:
            chooser.tick(now)
            next_tick += TICK_SECONDS
        kind, B = traffic(now), load(now)
        cell, chance = truth.rows(kind)[B][length], chances[count % 8209]
        step.prefill = chance < cell.share
        at = min(bisect_left(cell.up_to, chance / cell.share), len(cell.added) - 1) if step.prefill else 0
        count_begun = min(B, at + 1) if step.prefill else 0 if cell.share else min(B, int(cell.begun + chance))
        begun = requests.begin(count_begun, B)
        prefilling = begun if step.prefill else []
        step.batch_size, step.draft_length, step.decoding = B, length, B - len(prefilling)
        step.kept = requests.verify(kind.at(B), length, B, prefilling)
        step.micros = (cell.decode + (cell.added[at] if step.prefill else 0.0)) * noise[count % 8191]
        chooser.saw(step)
        second, place = log[int(now)], (kind, B)
        second.micros[place] = second.micros.get(place, 0.0) + cell.micros
        second.tokens[place] = second.tokens.get(place, 0.0) + cell.tokens
        chosen = chooser.choose(B)
        second.changes += chosen != length
        second.steps += 1
        length = chosen
        now += step.micros / 1e6
        count += 1
    return log
