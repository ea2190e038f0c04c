"""Other ways to choose a draft length, each written from its authors' description; no code of theirs.

What was left out or made simpler stands in each docstring, and always in the rival's favour where there was a choice: all of them see
every step without delay or cost, may change the length from step to step at no price, and know the engine's lengths.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np
from benchmarks.controller.engine import Step

from tabletune.table import Range, Table

DOCUMENTED = {
    3: ((1, 64, 3), (65, 128, 1), (129, 512, 0)),
    5: ((1, 16, 5), (17, 32, 4), (33, 64, 3), (65, 128, 1), (129, 512, 0)),
}
"""The two examples of vLLM's page on dynamic speculative decoding, by longest length."""


def documented(lengths: Sequence[int], largest: int, shrink: int = 1) -> Table:
    """The documentation's table for the longest of `lengths`, with every range `shrink` times shorter.

    A length that the engine was not launched for becomes the next shorter one that it was.
    """
    ranges: list[Range] = []
    for _, last, k in DOCUMENTED[max(lengths)]:
        first = ranges[-1].last + 1 if ranges else 1
        if first <= largest:
            ranges.append(Range(first, min(last // shrink, largest), max((x for x in lengths if x <= k), default=min(lengths))))
    ranges[-1] = Range(ranges[-1].first, largest, ranges[-1].draft_length)
    return Table(tuple(ranges))


class LinearModel:
    """TurboSpec (SmartSpec), arXiv 2406.14066: the length of highest predicted goodput in every step.

    Step times from a linear model of the tokens in the step and the guesses drafted, fitted to the profile by least squares; one
    acceptance rate `p`, a moving average, with guesses taken as independent: `tau(k) = (1 - p^(k+1)) / (1 - p)`.
    Simplified: one length for the batch instead of one for each request, no term for context (the profile has one length), and the
    model is fitted once, to the same profile that TableTune has. Added, since nothing is learned while nothing is drafted: one step
    in PROBE_EVERY drafts the shortest length then.
    """

    REMEMBERED_STEPS = 100
    PROBE_EVERY = 100

    def __init__(self, times: Mapping[int, Mapping[int, float]], lengths: Sequence[int], rate: float) -> None:
        cells = [(B, k, micros) for B, row in times.items() for k, micros in row.items() if k in lengths]
        design = np.array([(1.0, k, B, B * k) for B, k, _ in cells])
        fitted, *_ = np.linalg.lstsq(design, np.array([micros for *_, micros in cells]), rcond=None)
        self.coefficients: tuple[float, ...] = tuple(float(x) for x in fitted)
        self._lengths = tuple(sorted(lengths))
        self._rate = rate
        self._idle = 0

    def predict_micros(self, batch_size: int, k: int) -> float:
        fixed, drafting, token, guess = self.coefficients
        return max(1.0, fixed + drafting * k + token * batch_size + guess * batch_size * k)

    def choose(self, batch_size: int) -> int:
        p = min(self._rate, 0.999)
        best = max(self._lengths, key=lambda k: ((1 - p ** (k + 1)) / (1 - p) / self.predict_micros(batch_size, k), -k))
        self._idle = 0 if best else self._idle + 1
        return next(k for k in self._lengths if k) if self._idle and not self._idle % self.PROBE_EVERY else best

    def saw(self, step: Step) -> None:
        if step.kept:
            kept = sum(step.kept)
            missed = step.decoding - step.kept[-1]  # each request's first miss; those that kept all had none
            if kept + missed:
                self._rate += (kept / (kept + missed) - self._rate) / self.REMEMBERED_STEPS

    def tick(self, now: float) -> None:
        """Decides in every step."""


class Bandit:
    """Nightjar, arXiv 2512.22420: a bandit of its own for each batch size, whose arms are the lengths, 0 among them.

    Each bandit works in blocks that double in length, of about as many bins as a bin has steps. A bin explores (one length drawn
    evenly, for the whole bin) with a probability that falls as 1 over the root of the number of bins so far; otherwise it uses the
    length with the most tokens a second as measured at that batch size. Each length is tried once first.
    Simplified: no cost of taking drafting up again, no off-loading of the drafter. In its favour: batch sizes share the bandit of the
    nearest measured one, and steps that carry a prefill teach it nothing, for they would be noise.
    """

    def __init__(self, sizes: Sequence[int], lengths: Sequence[int], seed: int) -> None:
        self._sizes = sorted(sizes)
        self._arms = {B: _Arms(lengths, random.Random(f"{seed}/{B}")) for B in sizes}

    def choose(self, batch_size: int) -> int:
        return self._at(batch_size).choose()

    def saw(self, step: Step) -> None:
        if not step.prefill:
            self._at(step.batch_size).reward(step.draft_length, step.tokens, step.micros)

    def tick(self, now: float) -> None:
        """Decides in every step."""

    def _at(self, batch_size: int) -> _Arms:
        at = bisect_right(self._sizes, batch_size)
        near = self._sizes[max(at - 1, 0) : at + 1]
        return self._arms[min(near, key=lambda B: abs(B - batch_size))]


class _Arms:
    """The bandit of one batch size."""

    def __init__(self, lengths: Sequence[int], rng: random.Random) -> None:
        self._rng = rng
        self._lengths = tuple(lengths)
        self._tokens = dict.fromkeys(lengths, 0.0)
        self._micros = dict.fromkeys(lengths, 0.0)
        self._block, self._bins, self._left_in_block, self._left_in_bin = 1, 0, 0, 0
        self._current = lengths[0]

    def choose(self) -> int:
        for k in self._lengths:
            if not self._micros[k]:
                return k
        if not self._left_in_bin:
            self._begin_bin()
        self._left_in_bin -= 1
        return self._current

    def reward(self, k: int, tokens: float, micros: float) -> None:
        self._tokens[k] += tokens
        self._micros[k] += micros

    def _begin_bin(self) -> None:
        if not self._left_in_block:
            self._block *= 2
            self._left_in_block = self._block
        self._left_in_bin = min(isqrt(self._block), self._left_in_block)
        self._left_in_block -= self._left_in_bin
        self._bins += 1
        if self._rng.random() < self._bins**-0.5:
            self._current = self._rng.choice(self._lengths)
        else:
            self._current = max(self._lengths, key=lambda k: self._tokens[k] / self._micros[k])


class Tiers:
    """SGLang's adaptive speculative decoding (its documentation): a moving average of kept guesses, and thresholds between tiers.

    Each range of batch sizes has an average and tiers of its own (from 1, 8, 32 and 64 requests on, with the documented defaults).
    The average moves by `ALPHA` a step; after WARM_UP steps, every UPDATE_EVERY steps the length falls to a lower tier when the average
    is below that tier less a half (less DOWN), and rises when it is above the present one less a half. From 0 it tries the next tier.
    Step times are not looked at. Tiers are those of the defaults that the engine was launched for; where that leaves none, the shortest.
    """

    ALPHA, WARM_UP, UPDATE_EVERY = 0.2, 10, 5
    DEFAULTS = ((1, (1, 3, 5, 7), 0.25), (8, (0, 1, 3), 0.0), (32, (0, 1), 0.0), (64, (0,), 0.0))  # from, tiers, DOWN

    def __init__(self, lengths: Sequence[int]) -> None:
        self._from = [first for first, _, _ in self.DEFAULTS]
        self._ranges = [_Tier([k for k in tiers if k in lengths] or [min(lengths)], down) for _, tiers, down in self.DEFAULTS]

    def choose(self, batch_size: int) -> int:
        return self._at(batch_size).length

    def saw(self, step: Step) -> None:
        if step.decoding:
            self._at(step.batch_size).saw(sum(step.kept) / step.decoding, step.draft_length, self)

    def tick(self, now: float) -> None:
        """Decides in every step."""

    def _at(self, batch_size: int) -> _Tier:
        return self._ranges[bisect_right(self._from, batch_size) - 1]


class _Tier:
    """One range of batch sizes."""

    def __init__(self, tiers: Sequence[int], down: float) -> None:
        self._tiers = sorted(tiers)
        self._down = down
        self._at = len(self._tiers) // 2
        self._average = self.length - 1.0
        self._steps = 0

    @property
    def length(self) -> int:
        return self._tiers[self._at]

    def saw(self, kept: float, drafted: int, rules: Tiers) -> None:
        if drafted:
            self._average += rules.ALPHA * (kept - self._average)
        self._steps += 1
        if self._steps > rules.WARM_UP and not self._steps % rules.UPDATE_EVERY:
            self._move()

    def _move(self) -> None:
        before = self._at
        if not self.length:
            self._at = min(before + 1, len(self._tiers) - 1)
            self._average = max(self._average, self.length - 1.0)
            return
        while self._at and self._average <= max(self._tiers[self._at - 1], 1) - 0.5 - self._down:
            self._at -= 1
        while self._at >= before and self._at < len(self._tiers) - 1 and self._average > self.length - 0.5:
            self._at += 1
