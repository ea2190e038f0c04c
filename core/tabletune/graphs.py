"""Cells in which an engine must not run, because its drafter would replay a graph that the target did not prepare.

The plugin finds them by asking the engine (docs/engine-safety.md); here is what follows from them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from tabletune.profile import Cell

DENSE_STEPS = 3  # of a common multiple: below, a coarser grid would cost small batches too much padding


@dataclass(frozen=True, slots=True)
class GraphCells:
    """What an engine says of its graphs: `mismatched` cells (B, k), None when it cannot be asked; `cured`: the plugin avoids them."""

    mismatched: frozenset[tuple[int, int]] | None
    cured: bool

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> GraphCells:
        """From the engine's facts as `hello` gives them and profile.json keeps them.

        Raises:
            ValueError: `graphCells` is not of its form.
        """
        said = facts.get("graphCells")
        if said is None:
            return UNKNOWN
        try:
            cells = said["mismatched"]
            return cls(None if cells is None else frozenset((int(B), int(k)) for B, k in cells), bool(said["cured"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError('"graphCells" must hold "mismatched" (a list of [B, k], or null) and "cured"') from error

    @property
    def needs_cure(self) -> bool:
        """Whether this engine is safe only as long as the plugin works in it."""
        return bool(self.mismatched)

    def is_refused(self, batch_size: int, draft_length: int) -> bool:
        """Whether this cell must not be run."""
        return not self.cured and (batch_size, draft_length) in (self.mismatched or ())

    def quiet_length(self, lengths: Sequence[int]) -> int:
        """The longest of `lengths` that has no mismatched cell: what serves at every batch size when the plugin does not work.

        Lengths are never mismatched all of them, for a length alone is not; should it be so, the longest.
        """
        loud = {k for _, k in self.mismatched or ()}
        return max((k for k in lengths if k not in loud), default=max(lengths))


UNKNOWN = GraphCells(None, cured=False)


def usable_cells(cells: Sequence[Cell], graphs: GraphCells) -> tuple[Cell, ...]:
    """The cells that a table may be built from: those that the engine may run."""
    return tuple(c for c in cells if not graphs.is_refused(c.batch_size, c.draft_length))


def profile_lengths(max_draft_length: int, runner: str) -> tuple[int, ...]:
    """The lengths that one engine start holds side by side.

    The V1 runner has no graph for a length, so any of 0..K may be put in force there. On the V2 runner a length beside others can
    take graphs away from them: with 2 beside 0 and 1, steps at every few batch sizes found none and took two to four times as long
    on an H200 (benchmarks/results/2026-12-01-h200-graphs), or would have stalled without the plugin. {1, K} is what is held there;
    where K + 1 is a power of two (1, 3, 7) both have a graph at each capture size.
    """
    if runner != "v2":
        return tuple(range(max_draft_length + 1))
    return (1,) if max_draft_length == 1 else (1, max_draft_length)


def capture_sizes(lengths: Sequence[int], max_num_seqs: int, largest: int) -> tuple[int, ...]:
    """Graph sizes in tokens with which every batch of these draft lengths finds a graph of its own, up to at least `largest` tokens.

    vLLM's V2 runner rounds each size up to a multiple of each query length q = k + 1, and offers a batch only the graphs of the next
    number of tokens (`CudaGraphManager._init_candidates`). None is left without where that number is a multiple of every q, or is the
    batch's own. So: multiples of the q's common multiple, and all multiples of each q where such a step would be coarse, or would lead
    past the largest batch of a q, for which there is no graph.

    Args:
        lengths: of the launch set; not empty.
        max_num_seqs: the engine's largest batch size.
        largest: tokens of the largest graph wanted; the answer may end up to a common multiple higher.
    """
    queries = sorted({k + 1 for k in lengths})
    step = lcm(*queries)
    top = -(-largest // step) * step
    spans = [(0, DENSE_STEPS * step), *((q * max_num_seqs // step * step, q * max_num_seqs // step * step + step) for q in queries)]
    own = {n for first, last in spans for q in queries for n in range(first, min(last, top) + 1, q) if n}
    return tuple(sorted(own | set(range(step, top + 1, step))))
