"""`tabletune profile`: the tuner of a profiling Job, on this machine and without a cluster.

The options of the measurement are the Job's own (`tabletune_tuner.options`), so that both can only change together.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from tabletune_cli.errors import INTERRUPTED_EXIT, CommandError, refuse
from tabletune_cli.output import Output, print_json
from tabletune_cli.profile_screen import Screen, open_screen
from tabletune_tuner.local import local_supervisor
from tabletune_tuner.options import Options, add_measuring_options, parse_measuring
from tabletune_tuner.outcome import Outcome, Status
from tabletune_tuner.progress import Event
from tabletune_tuner.publish import FolderSink
from tabletune_tuner.run import run

CELLS, ENGINE_LOG = "cells.csv", "engine.log"
EXTRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


class _Parser(argparse.ArgumentParser):
    """argparse, with our style of refusing."""

    def error(self, message: str) -> NoReturn:
        refuse("BadArgument", f"{message}. See tabletune profile --help.")


class CellFile:
    """Every finished cell as a row of `cells.csv`, at once, so that a run that breaks later loses none of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        path.write_text("batch,k,value,metric\n")

    def add(self, event: Event) -> None:
        """Keep the event's cell, if it has one."""
        if event.cell is None:
            return
        length = "off" if event.is_baseline else event.cell.draft_length
        with self.path.open("a") as file:
            file.write(f"{event.cell.batch_size},{length},{event.cell.step_time_micros},step_us\n")
        self.count += 1


def profile(context: typer.Context) -> None:
    """Measure an engine on this machine: profile --out DIR [options] -- vllm serve MODEL ..."""
    parser = _Parser(
        prog="tabletune profile",
        description="Measures T(B,k) and acceptance of an engine on this machine, builds its table and compares it live. "
        "Exit 0: done; 1: blocked or failed; 2: an argument cannot be used; 130: interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the result, cells.csv and engine.log")
    parser.add_argument("--output", "-o", type=Output, choices=list(Output), default=Output.TEXT, help="text (default) or json, on stdout")
    add_measuring_options(parser)
    space = parser.parse_args(context.args)
    options = parse_measuring(parser, space, Path())
    out: Path = space.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        cells = CellFile(out / CELLS)
    except OSError as error:
        refuse("CannotWrite", f"--out {out} cannot be written ({error.strerror}). Give a folder that you may write.")
    # Whoever ends us by a signal ends the engine too: only an ordinary unwinding stops it. What nohup ignores stays ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        with local_supervisor(out / ENGINE_LOG) as run_dir, open_screen(options) as screen:
            outcome = asyncio.run(_measure(replace(options, run_dir=run_dir), FolderSink(out), screen, cells))
    except KeyboardInterrupt:
        print(f"Interrupted; the engine is stopped. {_kept(cells)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED_EXIT) from None
    _report(outcome, out, cells, space.output)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


async def _measure(options: Options, sink: FolderSink, screen: Screen, cells: CellFile) -> Outcome:
    def show(event: Event) -> None:
        screen.show(event)
        cells.add(event)

    return await run(options, sink, show)


def _kept(cells: CellFile) -> str:
    if not cells.count:
        return "No cell was finished, so nothing is kept."
    return f"{cells.count} cells are kept in {cells.path}; tabletune build --grid {cells.path} --acceptance RATES builds from them."


def _report(outcome: Outcome, out: Path, cells: CellFile, output: Output) -> None:
    files = [str(out / name) for name in outcome.files]
    if outcome.status is not Status.SUCCEEDED:
        message = f"{outcome.message} {_kept(cells)} Engine log: {out / ENGINE_LOG}"
        error = CommandError(outcome.reason, message, {"status": outcome.status.value})
        error.exit_code = 1
        raise error
    if output is Output.JSON:
        print_json({"status": outcome.status.value, "reason": outcome.reason, "message": outcome.message, "files": files})
    else:
        print(outcome.message)
        print("\n".join(files))
        print(f"Next: tabletune explain --dir {out}, tabletune plot --dir {out}")
