"""Holds an engine in cells whose drafter graph the target did not prepare, with the plugin's cure off and on (docs/engine-safety.md).

One engine start: the cure is switched in the running engine. Each cell is B requests of the same length, so that B stays as it
is from the first step to the last, with k forced, and k = 3 in short slices between, as a table that swaps lengths does.
A pause is a time without a step. An engine that dies or hangs is started again if there is time, and that is a result.
PYTHONPATH must name a folder that `python3 -m tabletune_engine.install` made: engine and script find the plugin there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import serving

from tabletune.channel import Channel, ChannelClosedError
from tabletune_engine.graph_report import GraphReport

TABLE = [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 256, 3]]
CLEAN = ((5, 1), (7, 1), (8, 1))
SUSPECT = ((6, 1), (9, 1), (129, 1), (10, 0), (11, 0), (12, 0))
BETWEEN = 3  # the length of the short slices
SLICE_SECONDS, BETWEEN_SECONDS = 0.6, 0.1
POLL_SECONDS = 0.01
PAUSE_SECONDS = 0.1
PAUSE_STEPS = 3  # that may follow a pause before it is seen
REACH_SECONDS = 30.0  # for all requests to be in the batch
HANG_SECONDS = 45.0
WARM_TOKENS = 60
RESTART_SECONDS = 90.0  # what another start takes
COLUMNS = (
    "B",
    "k",
    "mismatched",
    "cure",
    "steps",
    "medianMicros",
    "meanMicros",
    "pauses",
    "worstPauseMillis",
    "pausedSeconds",
    "cures",
    "outcome",
)


class EngineGoneError(Exception):
    """It died, or made no step for too long. The message is the outcome."""


def main() -> int:
    return Run(serving.parser(str(__doc__).splitlines()[0]).parse_args()).measure()


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        socket = str(options.out.resolve() / "engine.sock")
        self._server = serving.Server(options, TABLE, {"TABLETUNE_SOCKET": socket})
        self._plugin = Channel(socket, timeout=HANG_SECONDS)
        self._report = GraphReport(socket)
        self._result: dict[str, Any] = {"launchTable": TABLE, "tokens": options.tokens, "starts": [], "engine": None, "cells": []}

    def measure(self) -> int:
        """0 when the plan was measured as far as time allowed, whatever came of it."""
        try:
            self._start()
            self._run(time.monotonic() + self._options.seconds)
        except (RuntimeError, ChannelClosedError) as error:
            self._result["failed"] = str(error)
        finally:
            self._server.stop()
            serving.write(self._options.out, self._result)
        serving.print_table(self._result["cells"], COLUMNS)
        for name in ("cutShort", "failed"):
            if name in self._result:
                print(f"{name}: {self._result[name]}")
        return int("failed" in self._result)

    def _run(self, deadline: float) -> None:
        for cure, (B, k) in plan():
            needed = 0.0 if self._server.is_running() else RESTART_SECONDS
            if time.monotonic() + needed > deadline:
                self._result["cutShort"] = f"no time left at B={B}, k={k}, cure {cure}"
                return
            if needed:
                self._start()
            self._note(self._cell(B, k, cure))

    def _start(self) -> None:
        seconds = self._server.start()
        hello = self._plugin.ask("hello")
        graphs = hello["engine"]["graphCells"]
        self._result["starts"].append(round(seconds, 1))
        self._result["engine"] = hello["engine"]
        known = "unknown" if graphs["mismatched"] is None else len(graphs["mismatched"])
        print(f"served after {seconds:.0f} s; active {hello['active']}, cured {graphs['cured']}, mismatched cells: {known}", flush=True)
        if not hello["active"]:
            raise RuntimeError(f"the plugin is not active: {hello['inactiveReason']}")
        for B in sorted({B for B, _ in (*CLEAN, *SUSPECT)}):  # what is compiled at its first use is no pause of the graphs
            held = serving.Held(self._server.url, B, WARM_TOKENS, stream=False)
            for k in (1, 0, BETWEEN):
                self._plugin.ask("force", draftLength=k, reject=False)
                time.sleep(0.1)
            held.wait(HANG_SECONDS)

    def _note(self, cell: dict[str, Any]) -> None:
        self._result["cells"].append(cell)
        serving.write(self._options.out, self._result)
        print(" ".join(f"{name}={cell.get(name)}" for name in COLUMNS), flush=True)

    def _cell(self, B: int, k: int, cure: str) -> dict[str, Any]:
        mismatched = self._result["engine"]["graphCells"]["mismatched"]
        cell: dict[str, Any] = {"B": B, "k": k, "cure": cure, "mismatched": None if mismatched is None else [B, k] in mismatched}
        pauses: list[float] = []
        try:
            self._report.switch(cure == "on")
            self._plugin.ask("force", draftLength=BETWEEN, reject=False)
            self._plugin.ask("record", on=True)
            cures, steps = self._plugin.ask("counts")["graphCures"], self._steps(B, k)
            held = serving.Held(self._server.url, B, self._options.tokens, stream=False)
            self._watch(held, B, k, pauses)
            cell["cures"] = self._plugin.ask("counts")["graphCures"] - cures
            after = self._steps(B, k)
            cell["steps"], cell["medianMicros"] = after["count"] - steps["count"], after["medianMicros"]
            cell["meanMicros"] = (after["totalMicros"] - steps["totalMicros"]) // max(cell["steps"], 1)
            cell["outcome"] = f"{held.failures} requests failed" if held.failures else "ok"
        except (EngineGoneError, ChannelClosedError) as error:
            cell["outcome"] = f"{error} ({self._server.cause()})"
            self._server.stop()
        cell["pauses"] = len(pauses)
        cell["worstPauseMillis"] = round(max(pauses, default=0.0) * 1000)
        cell["pausedSeconds"] = round(sum(pauses), 2)
        cell["pauseMillis"] = [round(pause * 1000) for pause in pauses]
        return cell

    def _watch(self, held: serving.Held, B: int, k: int, pauses: list[float]) -> None:
        """Until a request ends, or the cell's time: force k, in slices another length, and note the times without a step."""
        begun = seen = still = slice_ends = time.monotonic()  # `still`: when it was last seen without another step
        steps, forced, reached = -1, BETWEEN, False
        while (held.running() == B and time.monotonic() - begun < serving.CELL_SECONDS) or not reached:
            counts = self._plugin.ask("counts")
            now = time.monotonic()
            if counts["steps"] != steps:
                # A look that came late is no pause: many steps went by.
                gap = now - seen if counts["steps"] - steps <= PAUSE_STEPS else still - seen
                if reached and gap > PAUSE_SECONDS:
                    pauses.append(gap)
                steps, seen, still = counts["steps"], now, now
            elif now - seen > HANG_SECONDS:
                pauses.append(now - seen)
                raise EngineGoneError(f"no step for {now - seen:.0f} s")
            else:
                still = now
            if not reached:
                reached, slice_ends = counts["batchSizeLast"] == B, now
                if not held.running() or now - begun > REACH_SECONDS:
                    raise EngineGoneError(f"{B} requests were not in the batch after {now - begun:.0f} s, {held.failures} failed")
            elif now >= slice_ends:
                forced = BETWEEN if forced == k else k
                self._plugin.ask("force", draftLength=forced, reject=False)
                slice_ends = now + (SLICE_SECONDS if forced == k else BETWEEN_SECONDS)
            time.sleep(POLL_SECONDS)
        self._plugin.ask("force", draftLength=BETWEEN, reject=False)  # what is left ends soon
        if not held.wait(HANG_SECONDS):
            raise EngineGoneError("the requests did not end")

    def _steps(self, B: int, k: int) -> dict[str, Any]:
        """Steps so far that followed a step of the same cell, their time, and the median of those since `record`."""
        for cell in self._plugin.ask("steps")["cells"]:
            if (cell["batchSize"], cell["draftLength"], cell["regime"]) == (B, k, "decode"):
                return dict(cell)
        return {"count": 0, "totalMicros": 0, "medianMicros": None}


def plan() -> Iterator[tuple[str, tuple[int, int]]]:
    """With the cure first; without it, what is most dangerous last."""
    for cure in ("on", "off"):
        for cell in (*CLEAN, *SUSPECT):
            yield cure, cell


if __name__ == "__main__":
    sys.exit(main())
