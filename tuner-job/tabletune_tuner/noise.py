"""The noise floor of the live comparison, from its own repeats: a gain that is not above it is no gain. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from statistics import fmean, median

from tabletune.prediction import arms_of
from tabletune.verdict import Load

LEAST_REPEATS = 3  # two windows are alike by chance too often; that they differ is believed
ASSUMED_DEVIATION = 0.016
"""Standard deviation of a live window relative to its arm, where it cannot be measured: the median over the 18 arms of two runs on an
H200 (`benchmarks/results`, 2026-11-30 and 2026-12-01, windows of about a second). With two repeats the floor is 3.2 %."""
CONFIDENCE = 2.0  # standard errors: about 95 %
NORMAL_CONSISTENCY = 1.4826
"""1 / Φ⁻¹(3/4): the median absolute deviation times this estimates the standard deviation of normal values (Hampel, The influence
curve and its role in robust estimation, JASA 69, 1974)."""
SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""What it lacks in small samples, by their size (Croux and Rousseeuw, Time-efficient algorithms for two highly robust estimators of
scale, 1992); n / (n - 0.8) above."""
MEDIAN_ERROR = sqrt(pi / 2)
"""Standard error of the median of n normal values, in deviations over sqrt(n), for large n; 8 % too much for 3, 25 % for 2."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The floor as a share of the rate; `assumed` when there were too few repeats to measure it, and they differ by less."""

    share: float
    assumed: bool


def relative_mad(values: Sequence[float]) -> float:
    """Median absolute deviation over the median. Raises statistics.StatisticsError without values."""
    middle = median(values)
    return median(abs(v - middle) for v in values) / middle


def spreads(windows: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The deviation of each arm at one load, without what the arms of a repeat have in common.

    All windows of a repeat see the same prompts, and others than those of another repeat: that repeats differ by their prompts is no
    noise in a comparison of arms. So a window is taken relative to the mean of its repeat, which takes 1/n of the squared deviation of
    n arms with it: sqrt(n / (n - 1)) gives it back. One arm alone has nothing to be compared with, and keeps its own deviation.

    Args:
        windows: tokens a second by arm, of the same repeats in the same order.
    """
    relative = {name: [rate / median(rates) for rate in rates] for name, rates in windows.items()}
    arms = len(relative)
    if arms < 2:
        return {name: relative_mad(rates) for name, rates in relative.items()}
    repeats = [fmean(repeat) for repeat in zip(*relative.values(), strict=True)]
    lost = sqrt(arms / (arms - 1))
    return {name: lost * relative_mad([r / of for r, of in zip(rates, repeats, strict=True)]) for name, rates in relative.items()}


def live_noise(loads: Sequence[Load], repeats: int, sweep_noise: float) -> Noise:
    """The gain that two equal arms stay below in 95 of 100 comparisons, and never less than the noise of the sweep.

    Each arm is the median of its windows; its deviation is taken from their median absolute deviation, and the mean of all arms and
    loads counts, as one arm's few windows say little. A gain is a difference of two arms: sqrt(2) times the error of one.
    With fewer than three repeats it is at least what is assumed. For a mean over several loads all this is too strict, but what one
    load loses is judged by it as well.
    """
    spreads = [arm.spread for x in loads for arm in arms_of(x)]
    correction = SMALL_SAMPLE.get(repeats, repeats / (repeats - 0.8))
    measured = MEDIAN_ERROR * NORMAL_CONSISTENCY * correction * fmean(spreads) if spreads else 0.0
    assumed = ASSUMED_DEVIATION if repeats < LEAST_REPEATS or not spreads else 0.0
    floor = CONFIDENCE * sqrt(2 / repeats) * max(measured, assumed)
    return Noise(max(sweep_noise, floor), assumed > measured and floor > sweep_noise)
