"""Live step times against the profile's T(B, k): how far they differ, what to reckon with, and when to measure again. Pure.

The profile is measured with every guess rejected, at one length of context. Work that grows with kept guesses, longer contexts or a slower
GPU show only in live times. The engine gives counts and totals by cell (docs/protocol.md, `steps`), so a spread is had from the means of
windows: each cell keeps the log ratios, live over profile, of its newest ones, and their median and median absolute deviation count. One
stall of seconds spoils one window and moves neither.

Two kinds of steps are compared. Decode-only ones tell T(B, k) itself, but with many requests nearly every step carries a prefill or is
beside one; so all steps are compared too, less what the profile says that their prefills add. Two lengths are compared in the kind that
knows both better, so what the profile is wrong about prefills is in both.

What all lengths share at a batch size cancels in the choice between them. So lengths are compared with each other at the same batch sizes,
or near them: a length that is used elsewhere counts with an error that grows with the distance in batch size and with the steps that have
passed since. Only the part of a difference beyond noise is applied (a soft threshold: no step in the choice where a ratio is near it). A
length without live times has the ratio of the nearest lengths that have some: nothing is known for or against it, so the profile decides
between it and them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import copysign, exp, hypot, log, log2, sqrt
from statistics import median

from tabletune.regimes import Prefills
from tabletune_sidecar.counters import DECODE, PREFILL, StepCell
from tabletune_sidecar.problem import Problem

StepTimesByCell = Mapping[int, Mapping[int, float]]  # microseconds by batch size and draft length
Key = tuple[int, int, str]  # bin of batch sizes, draft length, kind of steps: DECODE or ALL

ALL = "all"
LEAST_OF_PROFILE = 0.1  # of T(B, k), when what prefills add is more than the steps took

BINS_PER_DOUBLING = 4
"""Batch sizes of one bin are within 19 %; live ones are anywhere between the profile's."""
WINDOW_STEPS = 10
KEPT_WINDOWS = 16  # of a cell
MIN_WINDOWS = 5
"""Fewer tell no spread. A reading a second makes one window of each cell, so 5 s or more."""

SIGNIFICANT_ERRORS = 3.0
MIN_DIFFERENCE = 0.02
"""Of log ratios: the mean of live times against a median, and batch sizes between the measured ones, are worth as much."""
LEAST_SPREAD = 0.01  # of a window's log ratio: windows that agree by chance are not exact
MAX_ERROR = 0.1  # standard error of a log ratio above which it counts as not known
MAX_CORRECTION = log(2.0)  # between two lengths: block drafters took up to 1.9 times the profiled time
ERROR_PER_DOUBLING = 0.07  # how far the common ratio may differ between batch sizes of 1 to 2
VARIANCE_PER_STEP = 0.15**2 / 1e6
"""A length that is not used may have changed: after a million steps by 0.15. So it is tried again in the end."""

DRIFT_LIMIT = 1.25
MEDIAN_STEPS = 2_000
KEPT_MEDIANS = 16
DRIFT_BEGINS, DRIFT_ENDS = 12, 4  # of these, that are beyond the limit
UNEVEN_SHARE = 0.25  # of the windows of all cells


@dataclass(frozen=True, slots=True)
class Sums:
    """Steps of an unfinished window; `profiled` is what they would have taken by the profile. Microseconds, prefills taken off."""

    count: int = 0
    micros: float = 0.0
    profiled: float = 0.0

    def plus(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.micros + other.micros, self.profiled + other.profiled)

    @property
    def log_ratio(self) -> float:
        return log(max(self.micros / self.profiled, LEAST_OF_PROFILE))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A log ratio, live over profile, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Log ratios of the newest windows of one cell, and what they say; `at`: steps that had been compared when the last one ended."""

    log_ratios: tuple[float, ...]
    at: int
    ratio: Ratio

    @classmethod
    def of(cls, log_ratios: Sequence[float], at: int) -> Windows:
        """Median of the windows and its standard error, `1.25 s / sqrt(m)` with `s` = 1.48 median absolute deviations.

        The deviations of few windows are uncertain themselves, hence `1 + 4 / m` times that; too few are never known well enough.
        """
        kept = tuple(log_ratios[-KEPT_WINDOWS:])
        m, middle = len(kept), median(kept)
        spread = max(1.4826 * median(abs(value - middle) for value in kept), LEAST_SPREAD)
        error = 1.2533 * spread / sqrt(m) * (1 + 4 / m)
        # Of one or two windows a stall may be all that is seen.
        return cls(kept, at, Ratio(middle, error if m >= MIN_WINDOWS else max(error, MAX_ERROR * (MIN_WINDOWS / m) ** 2)))

    @property
    def is_enough(self) -> bool:
        return len(self.log_ratios) >= MIN_WINDOWS


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What was seen so far, compared with one profile."""

    compared: int = 0  # steps that the profile has a time for
    unfinished: Mapping[Key, Sums] = field(default_factory=dict)
    windows: Mapping[Key, Windows] = field(default_factory=dict)
    lately: tuple[float, ...] = ()  # log ratios of decode-only windows of all cells, of the `lately_steps` since the last median was taken
    lately_steps: int = 0
    medians: tuple[float, ...] = ()  # of them, the newest ones
    beyond: tuple[bool, ...] = ()  # whether the profile did not describe the engine when each was taken
    drifts: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """`relative` holds the factors that change a choice, by batch size and draft length; empty: the profile's proportions hold."""

    step_times: dict[int, dict[int, float]]
    relative: dict[int, dict[int, float]]


def absorb(seen: StepTimes, fresh: Sequence[StepCell], times: StepTimesByCell, prefills: Prefills | None) -> StepTimes:
    """Take in the steps of a reading that were not in the one before; `prefills` None: only decode-only ones can be compared."""
    unfinished, windows, compared = dict(seen.unfinished), dict(seen.windows), seen.compared
    for cell in fresh:
        profiled = profiled_time(times, cell.batch_size, cell.draft_length)
        if profiled is None or cell.count <= 0 or cell.total_micros <= 0:
            continue
        compared += cell.count
        added = 0.0
        if cell.regime == PREFILL and prefills is not None:
            added = cell.count * prefills.extra_micros(cell.batch_size, cell.draft_length, round(cell.prompt_tokens / cell.count))
        more = Sums(cell.count, cell.total_micros - added, cell.count * profiled)
        for kind in (*((DECODE,) if cell.regime == DECODE else ()), *((ALL,) if prefills is not None else ())):
            key = (_bin(cell.batch_size), cell.draft_length, kind)
            unfinished[key] = unfinished.get(key, Sums()).plus(more)
    ended = {key: sums for key, sums in unfinished.items() if sums.count >= WINDOW_STEPS}
    for key, sums in ended.items():
        before = windows[key].log_ratios if key in windows else ()
        windows[key] = Windows.of((*before, sums.log_ratio), compared)
        del unfinished[key]
    decode_only = [sums for (*_, kind), sums in ended.items() if kind == DECODE]
    after = replace(
        seen,
        compared=compared,
        unfinished=unfinished,
        windows=windows,
        lately=(*seen.lately, *(sums.log_ratio for sums in decode_only)),
        lately_steps=seen.lately_steps + sum(sums.count for sums in decode_only),
    )
    return _take_median(after) if after.lately_steps >= MEDIAN_STEPS else after


def correct(seen: StepTimes, times: StepTimesByCell, noise: float) -> Correction:
    """The step times to reckon with: the profile's, with what live ones say beyond noise.

    Args:
        seen: live steps.
        times: the profile's T(B, k).
        noise: the profile's relative noise floor; a smaller difference between lengths is none.
    """
    common = _applied(Ratio(common_log_ratio(seen) or 0.0, 0.0), 0.0)
    corrected: dict[int, dict[int, float]] = {}
    relative: dict[int, dict[int, float]] = {}
    for B, last in regions_of(times):
        row = times[B]
        ratios = {k: known for k in row if (known := {kind: r for kind, r in ratios_at(seen, k, B, last).items() if r.error <= MAX_ERROR})}
        level, differences = (common, {}) if not ratios else _compare(ratios, noise)
        factors = {k: _between(differences, k) for k in row}
        corrected[B] = {k: micros * exp(level + factors[k]) for k, micros in row.items()}
        if any(factors.values()):
            relative[B] = {k: exp(factor) for k, factor in factors.items()}
    return Correction(corrected, relative)


def common_log_ratio(seen: StepTimes) -> float | None:
    """Of all steps, lately; None before there are enough."""
    return median(seen.medians) if seen.medians else None


def ratios_by_length(seen: StepTimes) -> dict[int, float]:
    """Live over profile for each draft length with enough decode-only steps, over all batch sizes by their number of windows."""
    sums: dict[int, tuple[float, int]] = {}
    for _, k, windows in _decode_only(seen):
        total, count = sums.get(k, (0.0, 0))
        weight = len(windows.log_ratios)
        sums[k] = total + weight * windows.ratio.value, count + weight
    return {k: exp(total / count) for k, (total, count) in sorted(sums.items())}


def drift(seen: StepTimes) -> Problem | None:
    """Said when the profile has not described this engine for long, so that correcting is not enough."""
    common = common_log_ratio(seen)
    if not seen.drifts or common is None:
        return None
    steps = len(seen.medians) * MEDIAN_STEPS
    cure = "To measure again set the annotation tabletune.io/reprofile; if contexts are longer now, raise spec.profile.promptTokens first."
    if abs(common) <= log(DRIFT_LIMIT) and _is_uneven(seen):
        k, least, most = _widest(seen)
        fact = f"Steps of k={k} take {least:.1f} to {most:.1f} times the profiled time, by batch size"
    else:
        fact = f"Steps take {exp(common):.1f} times the profiled time (limit {DRIFT_LIMIT})"
    return Problem("ProfileDrift", f"{fact}, over {steps:,} steps. {cure}")


def profiled_time(times: StepTimesByCell, batch_size: int, draft_length: int) -> float | None:
    """T(B, k) in microseconds, linear between two measured batch sizes; None outside them, or where one of the two has no such length."""
    grid = sorted(times)
    at = bisect_left(grid, batch_size)
    if at == len(grid) or (at == 0 and grid[0] != batch_size):
        return None
    high = times[grid[at]].get(draft_length)
    if grid[at] == batch_size or high is None:
        return high
    low = times[grid[at - 1]].get(draft_length)
    return None if low is None else low + (high - low) * (batch_size - grid[at - 1]) / (grid[at] - grid[at - 1])


def ratios_at(seen: StepTimes, draft_length: int, first: int, last: int) -> dict[str, Ratio]:
    """One length's ratio for batch sizes `first` to `last` by kind of steps; a kind without live times is left out.

    The weighted median of all bins, those elsewhere and of long ago for less.
    """
    inside, middle = range(_bin(first), _bin(last) + 1), (log2(first) + log2(last)) / 2
    weighted: dict[str, list[tuple[float, float]]] = {}
    for (at, k, kind), windows in seen.windows.items():
        if k == draft_length:
            doublings = 0.0 if at in inside else abs((at + 0.5) / BINS_PER_DOUBLING - middle)
            age = seen.compared - windows.at
            variance = windows.ratio.error**2 + (ERROR_PER_DOUBLING * doublings) ** 2 + VARIANCE_PER_STEP * age
            weighted.setdefault(kind, []).append((windows.ratio.value, 1 / variance))
    return {kind: _weighted_median(values) for kind, values in weighted.items()}


def difference(ratios: Mapping[str, Ratio], others: Mapping[str, Ratio]) -> Ratio | None:
    """Of two lengths, in the kind of steps that knows it best; None where no kind knows both."""
    kinds = sorted(ratios.keys() & others.keys())
    both = [Ratio(ratios[kind].value - others[kind].value, hypot(ratios[kind].error, others[kind].error)) for kind in kinds]
    return min(both, key=lambda ratio: ratio.error, default=None)


def best_known(ratios: Mapping[str, Ratio]) -> Ratio:
    return min(ratios.values(), key=lambda ratio: ratio.error)


def _weighted_median(weighted: list[tuple[float, float]]) -> Ratio:
    weighted.sort()
    sums = list(accumulate(weight for _, weight in weighted))
    return Ratio(weighted[bisect_left(sums, sums[-1] / 2)][0], 1 / sqrt(sums[-1]))


def _compare(ratios: Mapping[int, Mapping[str, Ratio]], noise: float) -> tuple[float, dict[int, float]]:
    """What all lengths have in common, from the one that is known best, and what each other one differs from it."""
    best = min(ratios, key=lambda k: (best_known(ratios[k]).error, k))
    differences = {k: _applied(found, noise) for k in ratios if k != best and (found := difference(ratios[k], ratios[best])) is not None}
    limited = {k: max(-MAX_CORRECTION, min(MAX_CORRECTION, value)) for k, value in differences.items()}
    return _applied(best_known(ratios[best]), noise), {best: 0.0, **limited}


def _applied(ratio: Ratio, noise: float) -> float:
    """The part beyond noise."""
    beyond = abs(ratio.value) - max(SIGNIFICANT_ERRORS * ratio.error, MIN_DIFFERENCE, noise)
    return copysign(max(beyond, 0.0), ratio.value)


def _between(differences: Mapping[int, float], draft_length: int) -> float:
    """A length's own difference, else linear between the nearest ones that are known, else the nearest one's."""
    if draft_length in differences or not differences:
        return differences.get(draft_length, 0.0)
    shorter = max((k for k in differences if k < draft_length), default=None)
    longer = min((k for k in differences if k > draft_length), default=None)
    if shorter is None or longer is None:
        return differences[min(differences, key=lambda k: abs(k - draft_length))]
    share = (draft_length - shorter) / (longer - shorter)
    return differences[shorter] + share * (differences[longer] - differences[shorter])


def regions_of(times: StepTimesByCell) -> list[tuple[int, int]]:
    """First and last batch size that share a choice: from each measured one up to before the next, as a table is built."""
    grid = sorted(times)
    return [*((B, following - 1) for B, following in pairwise(grid)), *((B, B) for B in grid[-1:])]


def _bin(batch_size: int) -> int:
    return int(BINS_PER_DOUBLING * log2(batch_size))


def _take_median(seen: StepTimes) -> StepTimes:
    ratio = median(seen.lately)
    beyond = (*seen.beyond[1 - KEPT_MEDIANS :], abs(ratio) > log(DRIFT_LIMIT) or _is_uneven(seen))
    return replace(
        seen,
        lately=(),
        lately_steps=0,
        medians=(*seen.medians[1 - KEPT_MEDIANS :], ratio),
        beyond=beyond,
        # Two limits, or it would begin and end with every other one.
        drifts=sum(beyond) > DRIFT_ENDS if seen.drifts else sum(beyond) >= DRIFT_BEGINS,
    )


def _is_uneven(seen: StepTimes) -> bool:
    """Whether one ratio for each length fails to describe a good part of what is seen."""
    by_length, apart, all_windows = ratios_by_length(seen), 0, 0
    for _, k, windows in _decode_only(seen):
        beyond = abs(windows.ratio.value - log(by_length[k])) - SIGNIFICANT_ERRORS * windows.ratio.error
        apart += len(windows.log_ratios) * (beyond > log(DRIFT_LIMIT))
        all_windows += len(windows.log_ratios)
    return apart > UNEVEN_SHARE * all_windows


def _widest(seen: StepTimes) -> tuple[int, float, float]:
    """The draft length whose ratio differs most between batch sizes, and its least and greatest ratio."""
    values: dict[int, list[float]] = {}
    for _, k, windows in _decode_only(seen):
        values.setdefault(k, []).append(windows.ratio.value)
    k = max(values, key=lambda k: max(values[k]) - min(values[k]))
    return k, exp(min(values[k])), exp(max(values[k]))


def _decode_only(seen: StepTimes) -> Iterator[tuple[int, int, Windows]]:
    """Bin, draft length and windows of the cells with enough of them."""
    return ((at, k, windows) for (at, k, kind), windows in seen.windows.items() if kind == DECODE and windows.is_enough)
