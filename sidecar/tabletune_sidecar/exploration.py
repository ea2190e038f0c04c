"""When to explore: an engine that drafts short never sees what longer drafts would bring, so one step in many is made longer. Pure.

It explores only where it has drafted short for long, with the longest safe length, never through a change or into a cell that is known
to be bad, and so seldom that it costs at most EXPLORE_BUDGET of goodput.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tabletune.acceptance import Counts
from tabletune.goodput import Step
from tabletune.graphs import GraphCells
from tabletune.profile import Profile
from tabletune.table import Table
from tabletune.transitions import is_bad
from tabletune_sidecar.counters import expect

EXPLORE_BUDGET = 0.005
"""Share of goodput that exploring may cost."""

SHORT_REBUILDS = 4
"""A batch size has drafted short for long when the tables of so many rebuilds in a row had less than the longest length there."""

SEEN_SHARE = 0.1
"""Where the longest drafts are at least so many of all, they are seen without exploring."""

Steps = Mapping[int, Mapping[int, Step]]
"""The mean decode-only step by batch size and draft length, as predicted."""


@dataclass(frozen=True, slots=True)
class Explore:
    """One step in `every_steps` is drafted with `draft_length`, of those that draft less at a batch size of `ranges` (first, last)."""

    every_steps: int
    draft_length: int
    ranges: tuple[tuple[int, int], ...]


def to_message(explore: Explore) -> dict[str, Any]:
    """As the engine's socket and the state file have it."""
    return {
        "everySteps": explore.every_steps,
        "draftLength": explore.draft_length,
        "ranges": [list(row) for row in explore.ranges],
    }


def parse_message(fields: Mapping[str, Any]) -> Explore:
    """The inverse of `to_message`. Raises KeyError, TypeError or ValueError."""
    explore = Explore(
        every_steps=expect(int, fields["everySteps"]),
        draft_length=expect(int, fields["draftLength"]),
        ranges=tuple((expect(int, first), expect(int, last)) for first, last in fields["ranges"]),
    )
    if min(explore.every_steps, explore.draft_length, *(n for row in explore.ranges for n in row)) < 1:
        raise ValueError(f"{fields} cannot be explored: its numbers are from 1 up")
    return explore


@dataclass(frozen=True, slots=True)
class Forbidden:
    """What an exploring step must not do: run a cell (B, k), or change between two lengths."""

    cells: frozenset[tuple[int, int]]
    changes: frozenset[frozenset[int]]

    @classmethod
    def of(cls, profile: Profile, graphs: GraphCells) -> Forbidden:
        """Mismatched cells, cured ones too, as they take two to four times as long; changes that were tried and bad at any batch size."""
        known = graphs if graphs.mismatched is not None else GraphCells.of(profile.engine)
        times, on_gpu = profile.step_times(), profile.engine.get("device") != "cpu"
        bad = (frozenset((t.from_length, t.to_length)) for t in profile.transitions if is_bad(t, times, on_gpu=on_gpu))
        return cls(known.mismatched or frozenset(), frozenset(bad))


def plan_exploring(
    tables: Sequence[Table], steps: Steps, fresh: Counts, batch_sizes: Mapping[int, int], forbidden: Forbidden, *, least_every_steps: int
) -> Explore | None:
    """Where and how often to explore from now on; None: not at all.

    Args:
        tables: of the last rebuilds, the one in force last.
        steps: for the lengths that this engine may use and the batch sizes that it can reach; its longest length is explored.
        fresh: counts since the last rebuild.
        batch_sizes: steps lately by batch size.
        forbidden: what no step may be explored with.
        least_every_steps: explore no more often than one step in so many; 0: never.
    """
    longest = max((k for row in steps.values() for k in row), default=0)
    if not least_every_steps or not longest or len(tables) < SHORT_REBUILDS:
        return None
    if fresh.drafted[0] and fresh.drafted[longest - 1] >= SEEN_SHARE * fresh.drafted[0]:
        return None
    may = [B for B in range(1, max(steps) + 1) if _may_explore(B, longest, tables[-SHORT_REBUILDS:], _measured(steps, B), forbidden)]
    if not may:
        return None
    least = _steps_between(may, longest, tables[-1], steps, batch_sizes)
    every = least_every_steps
    while every < least:
        every *= 2  # in large steps, so that the engine is not told of every small change of load
    return Explore(every, longest, _ranges(may))


def exploring_loss(length: int, longest: int, row: Mapping[int, Step]) -> float:
    """Tokens that one exploring step loses: what the table's length makes in its time, less what it makes itself; 0 when it gains."""
    if length not in row or longest not in row:
        return 0.0
    explored = row[longest]
    return max(0.0, explored.micros * row[length].goodput / 1e6 - explored.tokens)


def _may_explore(B: int, longest: int, tables: Iterable[Table], row: Mapping[int, Step], forbidden: Forbidden) -> bool:
    lengths = [table.length_at(B) for table in tables]
    return (
        max(lengths) < longest
        and {lengths[-1], longest} <= row.keys()
        and (B, longest) not in forbidden.cells
        and frozenset((lengths[-1], longest)) not in forbidden.changes
    )


def _steps_between(may: Collection[int], longest: int, table: Table, steps: Steps, batch_sizes: Mapping[int, int]) -> int:
    """The least number of steps between two exploring ones, among those that may explore, that keeps to the budget."""
    lost = made = 0.0
    explored = frozenset(may)
    for B, count in batch_sizes.items():
        row, length = _measured(steps, B), table.length_at(B)
        if length in row:
            made += count * row[length].tokens
        if B in explored:
            lost += count * exploring_loss(length, longest, row)
    return ceil(lost / (EXPLORE_BUDGET * made)) if made else 0


def _measured(steps: Steps, batch_size: int) -> Mapping[int, Step]:
    """The row of the largest measured batch size up to this one: what the table goes by between two of them."""
    known = sorted(steps)
    return steps[known[max(0, bisect_right(known, batch_size) - 1)]]


def _ranges(batch_sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of batch sizes that follow each other, from ascending ones."""
    runs: list[tuple[int, int]] = []
    for B in batch_sizes:
        if runs and runs[-1][1] == B - 1:
            runs[-1] = (runs[-1][0], B)
        else:
            runs.append((B, B))
    return tuple(runs)
