"""What a run is judged by: tokens a second against the best length at each moment, and against the launch table.

All in expected values: what a mean step of the engine's true (B, k) yields and takes, so that only choices differ, not luck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.controller.engine import Second, Traffic, Truth
from benchmarks.controller.scenarios import Run

from tabletune.table import Table

RECOVERED_LOSS = 0.02  # the target for a converged state
RECOVERED_SECONDS = 5  # that it must be kept for
MINUTE = 60
LEAST_SECONDS = 2.0  # at a load, before its loss counts


@dataclass(frozen=True)
class Flow:
    """Tokens by second: what was got, what the best length would have got at the same requests in the same time, and the launch table."""

    got: tuple[float, ...]
    best: tuple[float, ...]
    launch: tuple[float, ...]


@dataclass(frozen=True)
class Marks:
    """One policy in one run. Losses and gains are shares: 0.02 = 2 %."""

    worst_load_loss: float  # after convergence, at the load where it is largest
    worst_load: int
    mean_loss: float  # over the whole run
    recover_seconds: float | None  # the longest of the run's events; None: not before the next event
    worst_minute: float  # against the launch table; below 0: worse
    changes_per_second: float  # of the length, from one step to the next


def judge(run: Run, truth: Truth, launch: Table, log: Sequence[Second]) -> Marks:
    """Judge what was done."""
    return _judge(run, truth, launch, log, lambda second, place: second.tokens[place])


def judge_static(run: Run, truth: Truth, launch: Table, log: Sequence[Second], table: Table) -> Marks:
    """Judge what a table that never changes would have got at the same requests in the same time."""

    def tokens(second: Second, place: tuple[Traffic, int]) -> float:
        traffic, B = place
        return second.micros[place] * truth.rows(traffic)[B][table.length_at(B)].goodput

    return _judge(run, truth, launch, log, tokens)


def _judge(run: Run, truth: Truth, launch: Table, log: Sequence[Second], tokens: Callable[[Second, tuple[Traffic, int]], float]) -> Marks:
    flow = flow_of(truth, launch, log, tokens)
    loss, load = _worst_load(run, truth, log, tokens)
    return Marks(
        worst_load_loss=loss,
        worst_load=load,
        mean_loss=1 - sum(flow.got) / sum(flow.best),
        recover_seconds=_recovery(run, flow),
        worst_minute=worst_window(flow.got, flow.launch, MINUTE),
        changes_per_second=sum(second.changes for second in log) / len(log),
    )


def flow_of(truth: Truth, launch: Table, log: Sequence[Second], tokens: Callable[[Second, tuple[Traffic, int]], float]) -> Flow:
    """Sums by second."""
    got, best, launched = [], [], []
    for second in log:
        got.append(sum(tokens(second, place) for place in second.micros))
        best.append(sum(micros * _best(truth, place) for place, micros in second.micros.items()))
        launched.append(sum(micros * truth.rows(kind)[B][launch.length_at(B)].goodput for (kind, B), micros in second.micros.items()))
    return Flow(tuple(got), tuple(best), tuple(launched))


def worst_window(got: Sequence[float], other: Sequence[float], seconds: int) -> float:
    """The least of `got / other - 1` over all windows of so many seconds; over the whole, if that is shorter."""
    width = min(seconds, len(got))
    return min(sum(got[i : i + width]) / sum(other[i : i + width]) - 1 for i in range(len(got) - width + 1))


def time_to_recover(losses: Sequence[float], start: int, end: int) -> float | None:
    """Seconds from `start` until RECOVERED_SECONDS in a row lose at most RECOVERED_LOSS each on average; None: not before `end`."""
    for at in range(start, end - RECOVERED_SECONDS + 1):
        if sum(losses[at : at + RECOVERED_SECONDS]) / RECOVERED_SECONDS <= RECOVERED_LOSS:
            return float(at - start)
    return None


def _recovery(run: Run, flow: Flow) -> float | None:
    losses = [1 - got / best if best else 0.0 for got, best in zip(flow.got, flow.best, strict=True)]
    ends = (*run.events[1:], len(losses))
    times = [time_to_recover(losses, int(start), int(end)) for start, end in zip(run.events, ends, strict=True)]
    known = [t for t in times if t is not None]
    return max(known) if len(known) == len(times) else None


def _worst_load(run: Run, truth: Truth, log: Sequence[Second], tokens: Callable[[Second, tuple[Traffic, int]], float]) -> tuple[float, int]:
    """Where it loses most once settled: at which measured batch size (the nearest one to each step's), after which event."""
    sizes = sorted(truth.times)
    near = {B: min(sizes, key=lambda size: (abs(size - B), size)) for B in range(1, truth.grid.largest + 1)}
    got: dict[tuple[float, int], float] = defaultdict(float)
    best: dict[tuple[float, int], float] = defaultdict(float)
    time: dict[tuple[float, int], float] = defaultdict(float)
    for at, second in enumerate(log):
        event = max((e for e in run.events if e <= at), default=0.0)
        if at - event < run.settle:
            continue
        for place, micros in second.micros.items():
            key = (event, near[place[1]])
            got[key] += tokens(second, place)
            best[key] += micros * _best(truth, place)
            time[key] += micros
    losses = {key: 1 - got[key] / best[key] for key in time if time[key] >= LEAST_SECONDS * 1e6}
    worst = max(losses, key=lambda key: losses[key])
    return losses[worst], worst[1]


def _best(truth: Truth, place: tuple[Traffic, int]) -> float:
    traffic, B = place
    return max(cell.goodput for cell in truth.rows(traffic)[B].values())
