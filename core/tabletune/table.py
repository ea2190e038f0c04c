"""The table: draft length by batch size, built from goodput, and written the way vLLM wants it."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tabletune.words import percent

MIN_SWITCH_GAIN = 0.005
"""A change of length must win at least 0.5 %, or the table follows noise."""


@dataclass(frozen=True, slots=True)
class Range:
    """Batch sizes `first` to `last`, both included, and their draft length."""

    first: int
    last: int
    draft_length: int


@dataclass(frozen=True, slots=True)
class Table:
    """Ranges without gap or overlap from batch size 1; above the last range its length is carried on, as vLLM does.

    Raises:
        ValueError: no range, not starting at 1, a gap, an overlap, an empty range, or a negative length.
    """

    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        if not self.ranges:
            raise ValueError("a table needs at least one range")
        expected = 1
        for r in self.ranges:
            if r.first != expected:
                raise ValueError(f"range {r.first}..{r.last} must start at {expected}: ranges follow each other from 1")
            if r.last < r.first or r.draft_length < 0:
                raise ValueError(f"range [{r.first}, {r.last}, {r.draft_length}] must have first <= last and a length of 0 or more")
            expected = r.last + 1

    @classmethod
    def fixed(cls, draft_length: int, last: int) -> Table:
        """The same length at every batch size up to `last`."""
        return cls((Range(1, last, draft_length),))

    @classmethod
    def parse(cls, ranges: object) -> Table:
        """Read `[[first, last, k], ...]` (vLLM's form). Gaps take the length before them, as in vLLM.

        Raises:
            ValueError: anything but a list of three integers each, sorted, from 1, without overlap.
        """
        if not isinstance(ranges, list | tuple) or not ranges:
            raise ValueError(f"a table is a list of [first, last, draft length], got {ranges!r}")
        parsed: list[Range] = []
        for item in ranges:
            if not isinstance(item, list | tuple) or len(item) != 3 or any(type(n) is not int for n in item):
                raise ValueError(f"each range is [first, last, draft length] in integers, got {item!r}")
            first, last, length = item
            if parsed and first > parsed[-1].last + 1:
                parsed[-1] = Range(parsed[-1].first, first - 1, parsed[-1].draft_length)
            parsed.append(Range(first, last, length))
        return cls(tuple(parsed))

    def length_at(self, batch_size: int) -> int:
        """The draft length at a batch size of 1 or more."""
        at = bisect.bisect_right([r.first for r in self.ranges], batch_size) - 1
        return self.ranges[max(at, 0)].draft_length

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that occur, ascending."""
        return tuple(sorted({r.draft_length for r in self.ranges}))

    def up_to(self, last: int) -> Table:
        """The same from 1 to `last` (1 or more): cut there, or with the last length carried on."""
        kept = [r for r in self.ranges if r.first <= last]
        return Table((*kept[:-1], Range(kept[-1].first, last, kept[-1].draft_length)))

    def to_vllm(self) -> list[list[int]]:
        """`[[first, last, k], ...]` for `num_speculative_tokens_per_batch_size`."""
        return [[r.first, r.last, r.draft_length] for r in self.ranges]

    def __str__(self) -> str:
        return " ".join(f"{r.first}-{r.last}:{r.draft_length}" if r.last > r.first else f"{r.first}:{r.draft_length}" for r in self.ranges)


@dataclass(frozen=True, slots=True)
class Choice:
    """Why a batch size has its length. `margin` is the gain over the best other length (negative: the earlier length was kept)."""

    batch_size: int
    draft_length: int
    goodput: Mapping[int, float]  # tokens a second by length
    margin: float
    why: str


def build_choices(goodput: Mapping[int, Mapping[int, float]], noise: float = 0.0) -> tuple[Choice, ...]:
    """Choose a length for each measured batch size.

    At the smallest batch size the best length, smaller if equal. From there on the earlier length stays unless another wins by more
    than `max(0.5 %, noise)`, so that an edge is never noise. A length that is missing at a batch size cannot be chosen there.

    Args:
        goodput: tokens a second by batch size and draft length; every batch size needs at least one length.
        noise: relative noise floor of the measurement, 0.01 = 1 %.

    Raises:
        ValueError: nothing to choose from.
    """
    if not goodput:
        raise ValueError("no batch size was measured: there is nothing to build a table from")
    needed = max(MIN_SWITCH_GAIN, noise)
    choices: list[Choice] = []
    for batch_size in sorted(goodput):
        options = goodput[batch_size]
        if not options:
            raise ValueError(f"no draft length was measured at B={batch_size}: leave this batch size out or measure it")
        best = min(options, key=lambda k: (-options[k], k))
        kept = choices[-1].draft_length if choices else None
        if kept is None:
            chosen, why = best, "smallest batch size: best length"
        elif kept == best:
            chosen, why = best, "best length"
        elif kept not in options:
            chosen, why = best, f"{kept} cannot be used here"
        elif options[best] > options[kept] * (1 + needed):
            chosen, why = (
                best,
                f"{best} wins by {percent(options[best] / options[kept] - 1)}, above {percent(needed)}: switch",
            )
        else:
            chosen, why = (
                kept,
                f"{best} wins by {percent(options[best] / options[kept] - 1)}, not above {percent(needed)}: {kept} stays",
            )
        others = [g for k, g in options.items() if k != chosen]
        margin = options[chosen] / max(others) - 1 if others else 0.0
        choices.append(Choice(batch_size, chosen, dict(options), margin, why))
    return tuple(choices)


def table_of(choices: Sequence[Choice]) -> Table:
    """Ranges from choices. Between two measured batch sizes the earlier length stays; nothing reaches past the largest one."""
    ranges: list[Range] = []
    for choice in choices:
        if ranges and ranges[-1].draft_length == choice.draft_length:
            ranges[-1] = Range(ranges[-1].first, choice.batch_size, choice.draft_length)
        elif ranges:
            ranges[-1] = Range(ranges[-1].first, choice.batch_size - 1, ranges[-1].draft_length)
            ranges.append(Range(choice.batch_size, choice.batch_size, choice.draft_length))
        else:
            ranges.append(Range(1, choice.batch_size, choice.draft_length))
    return Table(tuple(ranges))


def launch_table(table: Table, lengths: Sequence[int], max_num_seqs: int) -> Table:
    """The table to start an engine with, so that every length in `lengths` may be put in force later without a restart.

    vLLM prepares graphs only for lengths in the launch table. A length that the table does not use gets one batch size of its own
    at the top, where traffic is rarest; the sidecar puts the true table in force as soon as the engine is up.

    Raises:
        ValueError: there are more unused lengths than batch sizes to give away.
    """
    unused = [k for k in lengths if k not in table.lengths]
    top = max_num_seqs - len(unused)
    if top < len(table.ranges):
        raise ValueError(f"max_num_seqs {max_num_seqs} is too small to hold the lengths {list(lengths)} side by side")
    kept = table.up_to(top)
    lost = [k for k in table.lengths if k not in kept.lengths]
    if lost:
        return launch_table(kept, sorted({*lengths, *lost}), max_num_seqs)
    return Table((*kept.ranges, *(Range(top + 1 + i, top + 1 + i, k) for i, k in enumerate(unused))))
