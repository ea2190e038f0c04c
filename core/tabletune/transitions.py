"""Which changes of draft length a table makes, where they are tried, and which of them must not be made. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from tabletune.profile import Transition
from tabletune.table import Table

StepTimes = Mapping[int, Mapping[int, float]]
"""`{B: {k: microseconds}}`."""

LEAST_TRIES = 5
"""Of a change at a batch size, before it is called safe."""

GPU_FLOOR_MICROS, GPU_STEPS = 500_000, 20
"""A time without a step is a pause when it is longer than both. Stalls on an H200 took 0.1 to 15.7 s, steps 4 to 16 ms."""
CPU_FLOOR_MICROS, CPU_STEPS = 2_000_000, 50
"""On a CPU: the machine's other work takes it for a second now and then."""


@dataclass(frozen=True, slots=True)
class Change:
    """Two lengths that follow each other in a running engine, and the batch sizes to try both directions at.

    `edge` is the first batch size of `right` where the two are neighbours in the table; None where only exploring goes between them.
    """

    left: int
    right: int
    batch_sizes: tuple[int, ...]
    edge: int | None


def changes_of(table: Table, explored: Sequence[int]) -> tuple[Change, ...]:
    """Every edge of a table, and from each of its lengths the way to the longest one, which an exploring step takes.

    Args:
        table: its last range ends at the largest batch size to be tried.
        explored: the lengths that an exploring step may take; empty: none explores.
    """
    largest, longest = table.ranges[-1].last, max(explored, default=None)
    changes = [
        Change(left.draft_length, right.draft_length, around(right.first, largest), right.first)
        for left, right in pairwise(table.ranges)
        if left.draft_length != right.draft_length
    ]
    met = {frozenset((c.left, c.right)) for c in changes}
    for k in table.lengths:
        if longest is not None and k != longest and frozenset((k, longest)) not in met:
            widest = max((r for r in table.ranges if r.draft_length == k), key=lambda r: r.last - r.first)
            changes.append(Change(k, longest, spread(widest.first, widest.last), None))
    return tuple(changes)


def around(edge: int, largest: int) -> tuple[int, ...]:
    """The batch sizes just below, at and above an edge; two below where there is none above. Odd and even ones are among them."""
    first = max(1, min(edge - 1, largest - 2))
    return tuple(range(first, min(first + 2, largest) + 1))


def spread(first: int, last: int) -> tuple[int, ...]:
    """The first, an odd one in the middle, and the last."""
    middle = (first + last) // 2
    return tuple(sorted({first, min(middle | 1, last), last}))


def step_micros(step_times: StepTimes, lengths: Sequence[int], batch_size: int) -> float:
    """What a step of one of `lengths` takes, the longer of them.

    Args:
        step_times: not empty; those of the next larger batch size count where this one was not measured.
        lengths: where none was measured, the longest step of that batch size.
        batch_size: of the step.
    """
    times = step_times[min((B for B in step_times if batch_size <= B), default=max(step_times))]
    return max((times[k] for k in lengths if k in times), default=max(times.values()))


def longest_pause_micros(transition: Transition, step_times: StepTimes, *, on_gpu: bool) -> float:
    """How long an engine may be without a step in this change. `step_times` as for `step_micros`."""
    floor, steps = (GPU_FLOOR_MICROS, GPU_STEPS) if on_gpu else (CPU_FLOOR_MICROS, CPU_STEPS)
    return max(floor, steps * step_micros(step_times, (transition.from_length, transition.to_length), transition.batch_size))


def is_bad(transition: Transition, step_times: StepTimes, *, on_gpu: bool) -> bool:
    """Whether a table must not make this change: the engine failed in it, or was without a step for too long."""
    return transition.failures > 0 or transition.worst_pause_micros > longest_pause_micros(transition, step_times, on_gpu=on_gpu)


def say_bad(bad: Transition) -> str:
    """What happened in a bad change, as a clause for people."""
    pause = f"it was without a step for {bad.worst_pause_micros / 1e6:.1f} s"
    what = f"the engine failed {bad.failures} time{'s' if bad.failures > 1 else ''}" if bad.failures else pause
    return f"as k went from {bad.from_length} to {bad.to_length} at B={bad.batch_size}, {what}"


def lengths_to_drop(
    transitions: Sequence[Transition], step_times: StepTimes, goodput: Mapping[int, Mapping[int, float]], *, on_gpu: bool
) -> dict[int, Transition]:
    """The lengths that a table must do without, and the bad change that each is dropped for; as the tuner drops them.

    Args:
        transitions: those that were tried.
        step_times: as for `step_micros`.
        goodput: `{B: {k: tokens a second}}`.
        on_gpu: on a CPU an engine may be without a step for longer.
    """
    dropped: dict[int, Transition] = {}
    for transition in transitions:
        if {transition.from_length, transition.to_length} & dropped.keys() or not is_bad(transition, step_times, on_gpu=on_gpu):
            continue
        left = {B: {k: g for k, g in row.items() if k not in dropped} for B, row in goodput.items()}
        dropped[length_to_drop(transition, {B: row for B, row in left.items() if row})] = transition
    return dropped


def length_to_drop(transition: Transition, goodput: Mapping[int, Mapping[int, float]]) -> int:
    """Of the two lengths of a bad change the one that is worth less: the mean share of each batch size's best; the longer of equal ones.

    Without it the two cannot follow each other, whatever table is built later. `goodput`: `{B: {k: tokens a second}}`.
    """

    def share(k: int) -> float:
        return mean(row.get(k, 0.0) / max(row.values()) for row in goodput.values())

    return min((transition.from_length, transition.to_length), key=lambda k: (share(k), -k))
