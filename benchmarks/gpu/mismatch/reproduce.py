"""Shows vLLM's pauses without TableTune: a plain `vllm serve` with a hand-written table, and clients that hold B (docs/engine-safety.md).

For each B that the table gives 1 or 0, B streams of the same length run side by side, so that B stays as it is. A pause is a
gap between two tokens of a stream. B = 6, 9, 21 (k = 1) and 10, 11, 12, 17, 18 (k = 0) are the cells in which the drafter
replays a graph that the target did not prepare, by vLLM 0.33's own dispatch for this table and its default capture sizes.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

import serving

TABLE = [[1, 2, 3], [3, 3, 2], [4, 9, 1], [10, 20, 0], [21, 256, 1]]
MISMATCHED = (6, 9, 21, 10, 11, 12, 17, 18)
CLEAN = (5, 7, 8, 13, 16, 22)
PAUSE_SECONDS = 0.1
WARM_TOKENS = 60
COLUMNS = ("B", "k", "mismatched", "tokens", "medianGapMicros", "pauses", "worstPauseMillis", "outcome")


def main() -> int:
    options = serving.parser(str(__doc__).splitlines()[0]).parse_args()
    server = serving.Server(options, TABLE, {})
    result: dict[str, Any] = {"launchTable": TABLE, "cells": []}
    try:
        print(f"served after {server.start():.0f} s", flush=True)
        measure(server, options, result)
    except RuntimeError as error:
        result["failed"] = str(error)
        print(error, file=sys.stderr)
    finally:
        server.stop()
        serving.write(options.out, result)
    serving.print_table(result["cells"], COLUMNS)
    return int("failed" in result)


def measure(server: serving.Server, options: argparse.Namespace, result: dict[str, Any]) -> None:
    for B in (*CLEAN, *MISMATCHED):  # what is compiled at its first use is no pause of the graphs
        serving.Held(server.url, B, WARM_TOKENS, stream=True).wait(serving.REQUEST_SECONDS)
    deadline = time.monotonic() + options.seconds
    for B in (*CLEAN, *MISMATCHED):
        if time.monotonic() > deadline:
            return
        held = serving.Held(server.url, B, options.tokens, stream=True)
        held.wait(serving.CELL_SECONDS)
        held.leave()
        ended = held.wait(serving.REQUEST_SECONDS)
        cell: dict[str, Any] = {"B": B, "k": next(k for first, last, k in TABLE if first <= B <= last), "mismatched": B in MISMATCHED}
        cell |= summarise(held.times)
        cell["outcome"] = "ok" if ended and not held.failures else f"{held.failures} streams failed ({server.cause()})"
        result["cells"].append(cell)
        serving.write(options.out, result)
        print(" ".join(f"{name}={cell.get(name)}" for name in COLUMNS), flush=True)
        if not server.is_running() or not ended:
            raise RuntimeError(f"the server died or hangs at B={B}: {server.cause()}")


def summarise(times: list[list[float]]) -> dict[str, Any]:
    """Gaps between the tokens of a stream, while all streams run; a pause that all streams see is one."""
    first, last = max((t[0] for t in times if t), default=0.0), min((t[-1] for t in times if t), default=0.0)
    gaps = [(a, b - a) for t in times for a, b in pairwise(t) if a >= first and b <= last]
    pauses: list[tuple[float, float]] = []
    for begun, gap in sorted(gap for gap in gaps if gap[1] > PAUSE_SECONDS):
        if not pauses or begun > sum(pauses[-1]):
            pauses.append((begun, gap))
    lengths = sorted(gap for _, gap in gaps)
    return {
        "tokens": sum(map(len, times)),
        "medianGapMicros": round(lengths[len(lengths) // 2] * 1e6) if lengths else None,
        "pauses": len(pauses),
        "worstPauseMillis": round(max((gap for _, gap in pauses), default=0.0) * 1000),
    }


if __name__ == "__main__":
    sys.exit(main())
