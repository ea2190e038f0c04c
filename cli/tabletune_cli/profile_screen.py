"""What a person sees while `tabletune profile` runs: a live screen on a terminal, plain lines without one. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Columns
from rich.text import Text

from tabletune_tuner.options import Options
from tabletune_tuner.progress import STAGES, Event, to_line

QUIET_SECONDS = 30.0
REDRAWS_PER_SECOND = 4
NOISY_SPREAD = 0.02
KEPT_WARNINGS = 3
ICONS = {"done": "✔", "now": "◌", "later": "◷", "warned": "⚠"}
ASCII_ICONS = {"done": "ok", "now": "..", "later": "  ", "warned": "warn"}


class Screen(Protocol):
    """Shows events from `with` to its end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def show(self, event: Event) -> None: ...


def open_screen(options: Options) -> Screen:
    """A live screen if stderr is a terminal; FORCE_COLOR alone does not make one."""
    if sys.stderr.isatty():
        return LiveScreen(options, Console(stderr=True))
    return PlainScreen(lambda line: print(line, file=sys.stderr, flush=True))


class PlainScreen:
    """One line for what starts, ends or warns, and for a cell at most every 30 s."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last = -QUIET_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to close."""

    def show(self, event: Event) -> None:
        now = self._clock()
        if event.kind == "moved" and (event.cell is None or now - self._last < QUIET_SECONDS):
            return
        if event.kind == "moved":
            self._last = now
        self._write(to_line(event))


@dataclass(slots=True)
class _Stage:
    name: str
    message: str
    begun: float
    ended: float | None = None


class LiveScreen:
    """Stages, a bar, and the step times as they come in; redrawn at most four times a second."""

    def __init__(self, options: Options, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._title = _title(options)
        self._clock = clock
        self._begun = clock()
        self._stages: list[_Stage] = []
        self._warnings: list[str] = []
        self._event: Event | None = None
        self._cells: dict[int | None, dict[int, str]] = {}  # by length, None = no speculation, and batch size
        self._icons = ICONS if console.encoding.lower().startswith("utf") else ASCII_ICONS
        self._live = Live(self, console=console, refresh_per_second=REDRAWS_PER_SECOND, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        now = self._clock()
        if event.kind == "started":
            self._close_stage(now)
            self._stages.append(_Stage(event.progress.stage, event.message, now))
        elif event.kind == "warned":
            self._warnings.append(event.message)
        elif self._stages:
            self._stages[-1].message = event.message
        if event.kind == "done":
            self._close_stage(now)
        if event.cell is not None:
            mark = "*" if event.cell.spread_micros > NOISY_SPREAD * event.cell.step_time_micros else " "
            length = None if event.is_baseline else event.cell.draft_length
            self._cells.setdefault(length, {})[event.cell.batch_size] = f"{event.cell.step_time_micros / 1000:.2f}{mark}"
        self._event = event

    def _close_stage(self, now: float) -> None:
        if self._stages and self._stages[-1].ended is None:
            self._stages[-1].ended = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock()
        width = options.max_width
        left = self._event.progress.left_seconds if self._event else None
        times = f"elapsed {_clock(now - self._begun)}" + (f"  left ~{_clock(left)}" if left is not None else "")
        yield _line(f"{self._title:<{max(width - len(times) - 2, 0)}}  {times}", width, "bold")
        for stage in self._stages:
            yield self._stage_line(stage, now, width)
            if stage.ended is None and stage.name == "sweep" and self._event:
                yield self._bar(self._event)
        entered = {s.name for s in self._stages}
        if later := [name for name in STAGES if name not in entered]:
            yield _line(f" {self._icons['later']} {' · '.join(later)}", width, "dim")
        for warning in self._warnings[-KEPT_WARNINGS:]:
            yield _line(f" {self._icons['warned']} {warning}", width, "yellow")
        if self._cells:
            yield Text()
            yield from self._cell_lines(width)

    def _stage_line(self, stage: _Stage, now: float, width: int) -> Text:
        took = _clock((stage.ended if stage.ended is not None else now) - stage.begun)
        icon = self._icons["done" if stage.ended is not None else "now"]
        text = f" {icon} {stage.name:<11} {stage.message}"
        room = max(width - len(took) - 2, 0)
        return _line(f"{text[:room]:<{room}}  {took}", width, "green" if stage.ended is not None else "cyan")

    def _bar(self, event: Event) -> Columns:
        p = event.progress
        row = Columns.grid(padding=(0, 2))
        cells = Text(f"{p.cells_done}/{p.cells_total} cells")
        row.add_row(
            Text(" " * 13), ProgressBar(total=max(p.cells_total, 1), completed=p.cells_done, width=40), cells, Text(f"{p.percent} %")
        )
        return row

    def _cell_lines(self, width: int) -> RenderResult:
        """The newest batch sizes that fit."""
        sizes = sorted({b for cells in self._cells.values() for b in cells})
        sizes = sizes[-max((width - 34) // 8, 1) :]
        yield Text("   B    " + "".join(f"{b:>7} " for b in sizes) + "  ms a step", style="bold")
        for length in sorted(self._cells, key=lambda k: -1 if k is None else k):
            cells = "".join(f"{self._cells[length].get(b, '· '):>8}" for b in sizes)
            yield _line(f"   {'off' if length is None else f'k={length}':<5}{cells}", width, "")
        if any(text.endswith("*") for cells in self._cells.values() for text in cells.values()):
            yield _line(f"   * spread of the repeats above {NOISY_SPREAD * 100:.0f} %", width, "dim")


def _line(text: str, width: int, style: str) -> Text:
    """Cut at the terminal's width, never wrapped."""
    line = Text(text, style=style, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def _title(options: Options) -> str:
    argv = options.serve_argv
    model = next((argv[at + 1] for at, word in enumerate(argv[:-1]) if word == "serve"), argv[0])
    method = options.method or (options.present or {}).get("method") or "no drafter"
    return f"TableTune profile · {model} + {method} · K={options.max_draft_length}"
