"""Goodput of the table in force against what the profile predicts for the rolled-out one, for `/state` (docs/protocol.md). Pure.

The operator compares this ratio between replicas: their load and their traffic are in both of its sides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.profile import Profile
from tabletune.table import Table
from tabletune_sidecar.counters import Counters, StepCell, steps_at

HALF_WINDOW_SECONDS = 300.0
"""The window is one to two halves long."""

LEAST_TOLD = 0.9
"""Share of steps whose time and prediction are known. Drafters that look text up leave most steps without a cell."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The engine's counters at one moment. `of`: the engine start and the table in force, within which readings compare."""

    of: tuple[str, str]
    seconds: float  # of any clock that never goes back
    tokens: int
    steps: Mapping[int, int]  # by batch size
    timed: Mapping[int, tuple[int, int]]  # steps in cells, and their microseconds, by batch size


@dataclass(frozen=True, slots=True)
class Window:
    """`start` is the oldest reading that counts; `middle` takes its place when it is half a window old."""

    start: Reading
    middle: Reading
    last: Reading


@dataclass(frozen=True, slots=True)
class Goodput:
    """Output tokens of a window, and those predicted for the rolled-out table in the same step time."""

    steps: int
    tokens: int
    expected_tokens: int


def read(of: tuple[str, str], seconds: float, counters: Counters, cells: Sequence[StepCell]) -> Reading:
    timed: dict[int, tuple[int, int]] = {}
    for cell in cells:
        count, micros = timed.get(cell.batch_size, (0, 0))
        timed[cell.batch_size] = count + cell.count, micros + cell.total_micros
    return Reading(of, seconds, counters.tokens, steps_at(counters.chosen), timed)


def advance(window: Window | None, reading: Reading) -> Window:
    """Take in a reading. Another engine start, or another table in force, begins a window of its own."""
    if window is None or window.start.of != reading.of:
        return Window(reading, reading, reading)
    if reading.seconds - window.middle.seconds >= HALF_WINDOW_SECONDS:
        return Window(window.middle, reading, reading)
    return Window(window.start, window.middle, reading)


def measure(window: Window, profile: Profile, rolled_out: Table, traffic: Estimate) -> Goodput | None:
    """None while nothing was counted, or too little of it can be told.

    Args:
        window: of one table in force.
        profile: predicts goodput.
        rolled_out: whose prediction the tokens are compared with.
        traffic: acceptance and coverage of this replica.
    """
    start, last = window.start, window.last
    predicted = _predict(profile, rolled_out, traffic)
    steps = told = 0
    expected = 0.0
    for batch_size, total in last.steps.items():
        fresh = total - start.steps.get(batch_size, 0)
        (count, micros), (count_before, micros_before) = (reading.timed.get(batch_size, (0, 0)) for reading in (last, start))
        steps += fresh
        goodput = _goodput_at(batch_size, rolled_out.length_at(batch_size), predicted)
        if fresh > 0 and count > count_before and goodput is not None:
            told += fresh
            expected += fresh * (micros - micros_before) / (count - count_before) / 1e6 * goodput
    if not told or told < LEAST_TOLD * steps:
        return None
    return Goodput(steps, last.tokens - start.tokens, round(expected * steps / told))


def _goodput_at(batch_size: int, draft_length: int, predicted: Mapping[int, Mapping[int, float]]) -> float | None:
    """Between two measured batch sizes the time that a request waits for a token, `B / G`, is linear, as step times are."""
    waits = [(B, B / row[draft_length]) for B, row in sorted(predicted.items()) if draft_length in row]
    at = bisect_left(waits, batch_size, key=lambda point: point[0])
    if at == len(waits) or (at == 0 and waits[0][0] > batch_size):
        return None
    (high, above), (low, below) = waits[at], waits[max(at - 1, 0)]
    return batch_size / (above if high == batch_size else below + (above - below) * (batch_size - low) / (high - low))


def _predict(profile: Profile, table: Table, traffic: Estimate) -> dict[int, dict[int, float]]:
    """Tokens a second by batch size and length, for the lengths of `table`; length 0 is what coverage is reckoned from."""
    lengths = {k for k in (0, *table.lengths) if k <= len(traffic.acceptance)}
    times = {B: {k: micros for k, micros in row.items() if k in lengths} for B, row in profile.step_times().items()}
    return predict_goodput(times, traffic, profile.prefills())
