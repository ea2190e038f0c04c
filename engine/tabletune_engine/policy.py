"""Chooses the draft length of every step, in the place of vLLM's `dynamic_sd_lookup`.

vLLM's scheduler looks the batch size up once a step; `Policy.__getitem__` is that look-up. It runs in the engine's own
thread, and reads one reference, so a table given by another thread holds from one step to the next, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

Ranges = tuple[tuple[int, int, int], ...]  # first batch size, last batch size, draft length


class BadTableError(Exception):
    """Ranges that no engine would take."""


class LengthNotInLaunchSetError(Exception):
    """A draft length that this engine was not launched for."""


@dataclass(frozen=True, slots=True)
class Exploring:
    """One step in `every_steps` (from 1) is drafted with `draft_length`, of those that would draft less at a batch size of `ranges`."""

    every_steps: int
    draft_length: int
    ranges: tuple[tuple[int, int], ...]  # first and last batch size


@dataclass(frozen=True, slots=True)
class Rules:
    """All that a look-up needs, prepared so that a step only reads.

    `lengths` has the table's length for every batch size, `stay` the lengths that the hysteresis allows to keep there, and
    `explored` the length that an exploring step has there, 0 for none.
    """

    ranges: Ranges
    lengths: tuple[int, ...]
    stay: tuple[frozenset[int], ...]
    explored: tuple[int, ...]
    every_steps: int
    forced: int | None


class Policy(list[int]):
    """A list of vLLM's own lengths that answers with ours. It stays a list, because vLLM may measure or print it."""

    def __init__(self, launch: Sequence[int], ranges: Ranges, allowed: Collection[int], is_prefill_near: Callable[[], bool]) -> None:
        """`is_prefill_near` is asked within a look-up that would explore: whether this step carries a prefill, or the next one will."""
        super().__init__(launch)
        self.allowed = tuple(sorted(allowed))
        self.generation = 0
        self.swaps = 0
        self.exploring_steps = 0
        self._is_prefill_near = is_prefill_near
        self._rules = Rules(ranges, tuple(launch), _stay(launch, 0), _explored(None, len(launch)), every_steps=0, forced=None)
        self._kept = launch[-1]  # the length that the table, not an exploring step, gave last
        self._unexplored_steps = 0  # that could have explored, since one did

    @property
    def ranges(self) -> Ranges:
        """The table in force, as it was given."""
        return self._rules.ranges

    @property
    def forced(self) -> int | None:
        """The length that overrides the table; None: the table is followed."""
        return self._rules.forced

    def __getitem__(self, batch_size: Any) -> Any:
        """The length for this step; vLLM calls it once a step."""
        rules = self._rules
        if rules.forced is not None:
            return rules.forced
        k = rules.lengths[batch_size]
        if k != self._kept and self._kept in rules.stay[batch_size]:
            k = self._kept
        self._kept = k
        explored = rules.explored[batch_size]
        if explored <= k:
            return k
        self._unexplored_steps += 1
        if self._unexplored_steps < rules.every_steps or self._is_prefill_near():
            return k
        self._unexplored_steps = 0
        self.exploring_steps += 1
        return explored

    def follow(self, ranges: Ranges, hysteresis: int, explore: Exploring | None) -> None:
        """Put another table in force from the next step on; `explore` None: it never does.

        Raises `BadTableError` or `LengthNotInLaunchSetError`, and then the table in force stays.
        """
        old = self._rules
        lengths = (old.lengths[0], *to_lengths(ranges, len(self) - 1))
        explored = _explored(explore, len(self))
        for k in (*(k for _, _, k in ranges), *(() if explore is None else (explore.draft_length,))):
            self._check(k)
        self._rules = Rules(
            ranges=ranges,
            lengths=lengths,
            stay=_stay(lengths, hysteresis),
            explored=explored,
            every_steps=explore.every_steps if explore is not None else 0,
            forced=old.forced,
        )
        self.generation += 1
        self.swaps += lengths != old.lengths

    def force(self, k: int | None) -> None:
        """Use one length whatever the batch size; None: follow the table again."""
        if k is not None:
            self._check(k)
        self._rules = replace(self._rules, forced=k)

    def _check(self, k: int) -> None:
        # The engine captured graphs for these lengths only; any other would run without, at several times the cost.
        if k not in self.allowed:
            names = ", ".join(map(str, self.allowed))
            raise LengthNotInLaunchSetError(f"Draft length {k} is none of this engine's ({names}). Start it with a table that holds {k}.")


def to_lengths(ranges: Ranges, max_batch_size: int) -> tuple[int, ...]:
    """The draft length for the batch sizes 1, 2, ..., `max_batch_size`, as vLLM reads a table.

    A gap, and what follows the last range, keeps the length before it. Raises `BadTableError` as vLLM would refuse.
    """
    lengths: list[int] = []
    covered = 0
    for first, last, k in sorted(ranges):
        if first > last:
            raise BadTableError(f"Range [{first}, {last}, {k}] ends before it begins. Swap its first two numbers.")
        if first <= covered:
            raise BadTableError(f"Range [{first}, {last}, {k}] begins inside the one before it. Ranges must not overlap.")
        if first != 1 and not lengths:
            raise BadTableError(f"The first range begins at {first}. It must begin at batch size 1.")
        # Cut before it is written out: a range may end at any number, and the engine's memory must not.
        lengths += lengths[-1:] * (min(first - 1, max_batch_size) - len(lengths))
        lengths += [k] * (min(last, max_batch_size) - len(lengths))
        covered = last
    if not lengths:
        raise BadTableError("The table has no range. Give at least [[1, N, k]].")
    lengths += lengths[-1:] * (max_batch_size - len(lengths))
    return tuple(lengths)


def _stay(lengths: Sequence[int], hysteresis: int) -> tuple[frozenset[int], ...]:
    """For every batch size, the lengths that the table has within `hysteresis` batch sizes of it."""
    return tuple(frozenset(lengths[max(1, B - hysteresis) : B + hysteresis + 1]) for B in range(len(lengths)))


def _explored(explore: Exploring | None, count: int) -> tuple[int, ...]:
    """The length of an exploring step at the batch sizes 0 to `count - 1`; 0: none is made there."""
    lengths = [0] * count
    if explore is None:
        return tuple(lengths)
    for first, last in explore.ranges:
        if first > last:
            raise BadTableError(f'Range [{first}, {last}] of "explore" ends before it begins. Swap its two numbers.')
        lengths[first : last + 1] = [explore.draft_length] * (min(last + 1, count) - first)
    return tuple(lengths)
