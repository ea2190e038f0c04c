"""What the sweep measures, and when a cell is known well enough. Pure; `sweep` does it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import median

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.profile import Ceiling, Cell, SkippedCell
from tabletune.regimes import WITHIN, PrefillCell, way_of
from tabletune.table import MIN_SWITCH_GAIN, build_choices

RAMP_STEPS = 32  # until all requests decode, besides one a request
SLACK_STEPS = 16  # a cell, for steps that run between two looks
LEAST_STEPS = 16  # samples of a repeat; fewer say nothing about their spread
LEAST_REPEATS = 3  # that a spread, and so the noise floor, is computed from

USUAL_ACCEPTANCE = (0.7, 0.8, 0.6)
"""Of a guess whose predecessors were all kept: what edges of a table are looked for with. The sweep comes before acceptance is known."""
MOST_EDGE_SIZES = 8
EDGE_SHARE = 5  # of the grid: no more than a fifth of its batch sizes is added for edges

FIRST_PREFILL_SIZE, PREFILL_SIZE_FACTOR = 8, 4  # below, hardly a step carries a prefill

MOST_PREFILLS = 3
"""More in a step are rare where it is near the largest graph with fewer."""

HOPELESS_MARGIN = 1.1
"""A single repeat may be so far off; cells beyond it are not measured again."""


@dataclass(frozen=True, slots=True)
class Room:
    """What fits into the engine. None: not known, so not a limit."""

    max_model_len: int | None
    kv_cache_tokens: int | None


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """`lengths` is None for the engine without speculation."""

    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...] | None
    repeats: int
    steps: int  # samples a cell and repeat, at most
    prompt_tokens: int
    ceiling: int | None = None  # tokens of the largest captured graph
    request_tokens: int = 0  # prompt of a mean request, as it comes with a prefill

    @property
    def cells(self) -> tuple[int, ...]:
        """The draft lengths of a row."""
        return (0,) if self.lengths is None else self.lengths

    def baseline(self, cells: Sequence[Cell]) -> SweepPlan:
        """The same for the engine without speculation, at the batch sizes of `cells`."""
        return replace(self, batch_sizes=tuple(sorted({c.batch_size for c in cells})), lengths=None)

    def stays_within(self, batch_size: int, draft_length: int) -> bool:
        """Whether a step of these stays within the largest graph with a prefill in it."""
        return way_of(batch_size, draft_length, self.request_tokens, self.ceiling) == WITHIN


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of a cell: its median, of how many steps, and the standard error of that."""

    step_time_micros: int
    count: int
    error_micros: float = 0.0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """`steps_saved`: of `steps_planned`, those that cells did not need."""

    cells: tuple[Cell, ...]
    skipped: tuple[SkippedCell, ...]
    steps_planned: int
    steps_saved: int
    prefill: tuple[PrefillCell, ...] = ()

    @property
    def saved(self) -> str:
        """For people."""
        return f"{self.steps_saved} of {self.steps_planned} steps were not needed"


def tokens_needed(plan: SweepPlan, batch_size: int, lengths: int) -> int:
    """Output tokens that each request must have, to serve so many draft lengths one after the other."""
    return batch_size + RAMP_STEPS + lengths * (plan.steps + SLACK_STEPS)


def lengths_at_once(plan: SweepPlan, batch_size: int, room: Room) -> int:
    """How many draft lengths one batch of requests can serve before it is too long; 0: not even one."""
    limits = [room.max_model_len, None if room.kv_cache_tokens is None else room.kv_cache_tokens // batch_size]
    free = min((x for x in limits if x is not None), default=None)
    if free is None:
        return len(plan.cells)
    free -= plan.prompt_tokens + max(plan.cells) + 1
    return max(0, min(len(plan.cells), (free - tokens_needed(plan, batch_size, 0)) // (plan.steps + SLACK_STEPS)))


def order_of(lengths: Sequence[int], repeat: int) -> tuple[int, ...]:
    """Up and down in turn, so that a slow drift within a batch does not favour one length."""
    return tuple(lengths) if repeat % 2 == 0 else tuple(reversed(lengths))


def summarise(batch_size: int, draft_length: int, samples: Sequence[Sample]) -> Cell:
    """The median of the repeats, and their median absolute deviation; the standard error of the only one, where there is one."""
    times = [s.step_time_micros for s in samples]
    middle = median(times)
    spread = median(abs(t - middle) for t in times) if len(samples) > 1 else samples[0].error_micros
    return Cell(batch_size, draft_length, max(round(middle), 1), round(spread), sum(s.count for s in samples))


def noise_ppm(cells: Sequence[Cell]) -> int:
    """The median relative spread, per million."""
    return round(median(c.spread_micros / c.step_time_micros for c in cells) * 1_000_000) if cells else 0


def error_of(deviation: float, count: int) -> float:
    """Standard error of a median: `1.2533 sigma / sqrt(n)` for normal samples, whose `sigma` is 1.4826 times their median absolute
    deviation.
    """
    return 1.2533 * 1.4826 * deviation / sqrt(count)


def is_settled(middle: float, deviation: float, count: int, floor: float) -> bool:
    """Whether the standard error of a median is inside the noise floor; the 95 % interval of three such medians is then about the floor.

    Args:
        middle: the median, in the same unit as `deviation`, the median absolute deviation.
        count: samples.
        floor: relative, 0.01 = 1 %.
    """
    return error_of(deviation, count) <= floor * middle


def next_look(samples: int, most: int) -> int:
    """How many samples to wait for before asking again whether they are enough."""
    return min(samples + max(samples // 2, 1), most)


def has_enough(repeats: Sequence[Sample], floor: float) -> bool:
    """Whether more repeats of a cell would change nothing: at least 3, and their median is settled."""
    times = [s.step_time_micros for s in repeats]
    if len(times) < LEAST_REPEATS:
        return False
    middle = median(times)
    return is_settled(middle, median(abs(t - middle) for t in times), len(times), floor)


def cannot_win(times: Mapping[int, float], k: int, rivals: Collection[int]) -> bool:
    """Whether no traffic makes draft length k the best one at a batch size, so that one repeat tells enough about it.

    `tau(k) / tau(j)` is largest when every guess is kept, so k can only be better than a shorter j where `T(k) / T(j)` is below
    `(k + 1) / (j + 1)`. Past the largest graph it often is not, and there a step takes longest.

    Args:
        times: step time of decode-only steps by draft length, in one unit.
        k: one of them.
        rivals: those whose steps take about as long with a prefill. Others may lose to k although their decode-only steps do not.
    """
    return any(times[k] * (j + 1) > HOPELESS_MARGIN * times[j] * (k + 1) for j in times if j < k and j in rivals)


def floor_of(cells: Sequence[Cell]) -> float:
    """The noise floor that cells measured so far give, relative; never below what a change of length must win."""
    return max(MIN_SWITCH_GAIN, noise_ppm(cells) / 1_000_000)


def ceiling_batch_sizes(largest_graph: int | None, lengths: Sequence[int], grid: Sequence[int]) -> tuple[int, ...]:
    """Batch sizes at the edge of the captured graphs, within the grid: for each length the last one inside, the next, and one
    between that and the grid's next point, so that a jump is told from a slope.

    Args:
        largest_graph: tokens of the largest captured graph; None without graphs.
        lengths: draft lengths; a step of B requests has `B (k + 1)` tokens.
        grid: ascending.
    """
    sizes: set[int] = set()
    for edge in graph_edges(largest_graph, lengths, grid):
        following = min(B for B in grid if edge < B)
        sizes |= {edge, edge + 1, (edge + 1 + following) // 2}
    return tuple(sorted(sizes))


def prefill_ceiling_batch_sizes(
    largest_graph: int | None, lengths: Sequence[int], grid: Sequence[int], prompt_tokens: int
) -> tuple[int, ...]:
    """The first batch sizes where steps with 1, 2 or 3 prefills pass the captured graphs, within the grid.

    There one length becomes much slower than another, a good deal before a decode-only step passes them: on an H200 a table whose edge
    lay at the grid's next point behind it lost 21 % (docs/results.md). Decode-only steps do not jump there, so one side is enough.

    Args:
        prompt_tokens: of a mean request. The other arguments are as above.
    """
    if largest_graph is None:
        return ()
    sizes: set[int] = set()
    for prefills in range(1, MOST_PREFILLS + 1):
        sizes |= {edge + 1 for edge in graph_edges(largest_graph - prefills * prompt_tokens, lengths, grid)}
    return tuple(sorted(sizes))


def graph_edges(largest_graph: int | None, lengths: Sequence[int], grid: Sequence[int]) -> tuple[int, ...]:
    """The largest batch size of each length whose step fits into the largest graph, where the grid goes beyond it; ascending."""
    if largest_graph is None:
        return ()
    return tuple(sorted(edge for k in set(lengths) if 1 <= (edge := largest_graph // (k + 1)) < grid[-1]))


def with_ceilings(grid: Sequence[int], lengths: Sequence[int], largest_graph: int | None, prompt_tokens: int) -> tuple[int, ...]:
    """The grid with the batch sizes at the edge of the captured graphs, for steps without a prefill and with a few."""
    edges = ceiling_batch_sizes(largest_graph, lengths, grid)
    return tuple(sorted({*grid, *edges, *prefill_ceiling_batch_sizes(largest_graph, lengths, grid, prompt_tokens)}))


def find_ceilings(cells: Sequence[Cell], largest_graph: int | None) -> tuple[Ceiling, ...]:
    """The edges of the captured graphs that were measured on both sides."""
    times = {(c.batch_size, c.draft_length): c.step_time_micros for c in cells}
    if largest_graph is None:
        return ()
    edges = [(k, largest_graph // (k + 1)) for k in sorted({k for _, k in times})]
    return tuple(Ceiling(k, B, times[B, k], times[B + 1, k]) for k, B in edges if (B, k) in times and (B + 1, k) in times)


def next_edge(step_times: Mapping[int, Mapping[int, float]], noise: float, tried: Collection[int]) -> int | None:
    """The batch size to measure next, so that an edge of the table is known more closely; None when all are.

    It halves the gap between two neighbours that choose different lengths, for the likeliest acceptance first.
    """
    longest = max(k for row in step_times.values() for k in row)
    for rate in USUAL_ACCEPTANCE:
        traffic = Estimate(tuple(rate**i for i in range(1, longest + 1)), 1.0)
        choices = build_choices(predict_goodput(step_times, traffic), noise)
        for left, right in pairwise(choices):
            middle = (left.batch_size + right.batch_size) // 2
            if left.draft_length != right.draft_length and middle > left.batch_size and middle not in tried:
                return middle
    return None


def most_edges(grid: Sequence[int]) -> int:
    """How many batch sizes may be added to a grid for its edges."""
    return min(MOST_EDGE_SIZES, len(grid) // EDGE_SHARE)


def prefill_batch_sizes(plan: SweepPlan) -> tuple[int, ...]:
    """Where steps with a prefill are measured: 8, 32, 128 and so on as far as the grid has them, its largest, and where a step just fits
    into the largest graph, but not with a prefill.
    """
    grid = plan.batch_sizes
    sizes, B = {max(grid), *graph_edges(plan.ceiling, plan.cells, grid)} & set(grid), FIRST_PREFILL_SIZE
    while max(grid) > B:
        sizes |= {B} & set(grid)
        B *= PREFILL_SIZE_FACTOR
    return tuple(sorted(sizes))


def prefill_lengths(plan: SweepPlan) -> tuple[int, ...]:
    """The shortest and the longest: what a prefill adds differs by the largest graph, not by length (tabletune.regimes)."""
    return tuple(sorted({min(plan.cells), max(plan.cells)}))
