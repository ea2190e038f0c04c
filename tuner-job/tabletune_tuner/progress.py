"""Where a run stands and when it will end: one event for each thing that happens, shown by whoever listens.

The estimate is work left at the pace measured in this run: steps at the seconds that recent steps took (waiting included),
and planned engine starts at the seconds that the last start took.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tabletune.profile import Cell

STAGES = ("preflight", "engine", "sweep", "acceptance", "build", "transitions", "verify", "publish")
FIRST_START_SECONDS = 120.0  # until one was measured
RECENT_WORK = 24  # pieces of work whose pace counts: later batch sizes are slower than earlier ones
LEAST_PIECES = 3  # an estimate from fewer is a guess

PRINT_EVERY_SECONDS = 10.0  # for events of which there are many

Kind = Literal["started", "worked", "moved", "done", "warned"]


@dataclass(frozen=True, slots=True)
class Progress:
    """`left_seconds` is None until there is a pace to tell it from."""

    stage: str
    cells_done: int
    cells_total: int
    percent: int
    left_seconds: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened: a stage `started` or is `done`, a piece of it is `worked`, a result `moved` it, or it `warned`.

    `cell` is a finished cell of the engine with speculation, or without (`is_baseline`).
    """

    kind: Kind
    message: str
    progress: Progress
    at: datetime
    cell: Cell | None = None
    is_baseline: bool = False


Show = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What a run still has to do: steps of the engine, and engine starts."""

    steps: float
    starts: int


def estimate_seconds(left: Work, seconds_per_step: float, seconds_per_start: float) -> float:
    """Seconds that `left` takes at a pace."""
    return left.steps * seconds_per_step + left.starts * seconds_per_start


class Tracker:
    """Counts work done against work planned, and tells every listener."""

    def __init__(self, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._begun = clock()
        self._left = Work(0, 0)
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_WORK)  # steps, seconds
        self._start_seconds = FIRST_START_SECONDS
        self._progress = Progress(STAGES[0], 0, 0, 0, None)
        self._stage_begun = self._begun
        self._stage_seconds: dict[str, float] = {}

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def stage_seconds(self) -> Mapping[str, float]:
        """Time spent in each stage so far."""
        spent = dict(self._stage_seconds)
        spent[self._progress.stage] = spent.get(self._progress.stage, 0.0) + self._clock() - self._stage_begun
        return spent

    def plan(self, work: Work, cells_total: int) -> None:
        """What is left to do, as far as it is known."""
        self._left = work
        self._progress = replace(self._progress, cells_total=cells_total)

    def enter(self, stage: str, message: str) -> None:
        """Begin a stage, which may have been there before."""
        now = self._clock()
        self._stage_seconds[self._progress.stage] = self._stage_seconds.get(self._progress.stage, 0.0) + now - self._stage_begun
        self._stage_begun = now
        self._progress = replace(self._progress, stage=stage)
        self._tell("started", message)

    def leave(self, message: str) -> None:
        """The present stage is over."""
        self._tell("done", message)

    def warn(self, message: str) -> None:
        self._tell("warned", message)

    def started(self, seconds: float) -> None:
        """An engine start is done."""
        self._start_seconds = seconds
        self._left = Work(self._left.steps, max(self._left.starts - 1, 0))

    def add_start(self) -> None:
        """One more engine start than was planned, or one that has to be repeated."""
        self._left = Work(self._left.steps, self._left.starts + 1)

    def worked(self, steps: float, seconds: float, message: str) -> None:
        """Planned steps are done, in this time."""
        if seconds > 0 and steps > 0:
            self._recent.append((steps, seconds))
        self._left = Work(max(self._left.steps - steps, 0.0), self._left.starts)
        self._tell("worked", message)

    def moved(self, message: str) -> None:
        """A result is there that is no cell."""
        self._tell("moved", message)

    def add(self, steps: float, cells: int) -> None:
        """More steps and cells than were planned."""
        self._left = Work(self._left.steps + steps, self._left.starts)
        self._progress = replace(self._progress, cells_total=self._progress.cells_total + cells)

    def drop(self, steps: float) -> None:
        """Planned steps will not be done."""
        self._left = Work(max(self._left.steps - steps, 0.0), self._left.starts)

    def cell_done(self, cell: Cell | None, message: str, *, is_baseline: bool = False) -> None:
        """A cell is measured, or skipped (None)."""
        done = self._progress.cells_done + 1
        self._progress = replace(self._progress, cells_done=done, cells_total=max(self._progress.cells_total, done))
        self._tell("moved", message, cell, is_baseline=is_baseline)

    def _tell(self, kind: Kind, message: str, cell: Cell | None = None, *, is_baseline: bool = False) -> None:
        self._update()
        self._show(Event(kind, message, self._progress, datetime.now(UTC), cell, is_baseline))

    def _update(self) -> None:
        steps = sum(s for s, _ in self._recent)
        if len(self._recent) < LEAST_PIECES or not steps:
            return
        left = estimate_seconds(self._left, sum(t for _, t in self._recent) / steps, self._start_seconds)
        spent = self._clock() - self._begun
        percent = min(int(100 * spent / (spent + left)), 99) if spent + left else 0
        # The estimate may grow; a bar that goes back only worries.
        self._progress = replace(self._progress, left_seconds=left, percent=max(percent, self._progress.percent))


def finish(progress: Progress) -> Progress:
    """The progress of a run that is over."""
    return replace(progress, percent=100, left_seconds=0.0)


def to_line(event: Event) -> str:
    """One plain line, for a log: `14:26:10Z sweep 27/72 37% B=32 k=3 5.33 ms spread 0.9 % left~590s`."""
    p = event.progress
    cells = f" {p.cells_done}/{p.cells_total}" if p.cells_total and p.stage in ("sweep", "engine") else ""
    left = f" left~{p.left_seconds:.0f}s" if p.left_seconds is not None and event.kind != "done" else ""
    sign = "warning: " if event.kind == "warned" else ""
    return f"{event.at:%H:%M:%SZ} {p.stage}{cells} {p.percent}% {sign}{event.message}{left}"


class LinePrinter:
    """Shows events as plain lines, for a log; pieces of work not more often than every 10 s."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last: datetime | None = None

    def __call__(self, event: Event) -> None:
        recent = self._last is not None and (event.at - self._last).total_seconds() < PRINT_EVERY_SECONDS
        if event.kind == "worked" and recent:
            return
        self._last = event.at
        self._write(to_line(event))


def to_annotation(event: Event, *, gpu_seconds: int, outcome: str | None = None, reason: str | None = None) -> dict[str, Any]:
    """The value of `tabletune.io/progress` (docs/protocol.md)."""
    p = event.progress
    finish_at = None if p.left_seconds is None else f"{event.at + timedelta(seconds=p.left_seconds):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "formatVersion": 1,
        "stage": p.stage,
        "cellsDone": p.cells_done,
        "cellsTotal": p.cells_total,
        "percent": p.percent,
        "message": event.message,
        "finishAt": finish_at,
        "updatedAt": f"{event.at:%Y-%m-%dT%H:%M:%SZ}",
        "gpuSeconds": gpu_seconds,
        "outcome": outcome,
        "reason": reason,
    }
