"""Load, and tokens a second of an engine under it, by the plugin's counters and the engine's own clock."""

from __future__ import annotations

import json
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import mean, median
from typing import Any

from mismatch import serving
from tracking.engines import Engine, Sidecar

from tabletune.table import Table

REQUESTS_A_PROCESS = 32
PROMPTS = 512
ANSWER_SECONDS = 60.0  # of a load process
LOOK_SECONDS = 0.25


class LoadFailedError(Exception):
    """A request failed, or a process that sends them."""


@dataclass(frozen=True, slots=True)
class Bin:
    """`at`: seconds from the start of the first one; `lengths`: steps by the length that was chosen."""

    at: float
    tokens_per_second: float
    batch_size: float  # mean of a step
    lengths: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        lengths = {str(k): steps for k, steps in sorted(self.lengths.items())}
        return {
            "at": round(self.at, 2),
            "tokensPerSecond": round(self.tokens_per_second, 1),
            "B": round(self.batch_size, 1),
            "steps": lengths,
        }


class Load:
    """The tuner's load processes (load_worker.py says what is spoken), about 32 requests each, for one engine."""

    def __init__(self, url: str, most: int, last_token: int) -> None:
        source = random.Random(1)
        prompts = [[source.randrange(serving.FIRST_TOKEN, last_token) for _ in range(serving.PROMPT_TOKENS)] for _ in range(PROMPTS)]
        setup = {"url": url, "apiKey": None, "model": serving.MODEL, "prompts": prompts}
        argv = [sys.executable, "-m", "tabletune_tuner.load_worker"]
        self._processes = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
            for _ in range(ceil(most / REQUESTS_A_PROCESS))
        ]
        for process in self._processes:
            _write(process, setup)
        for process in self._processes:
            _expect(process, "ready")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @contextmanager
    def keep(self, concurrency: int, tokens: int) -> Iterator[None]:
        """So many requests at any time, of three quarters to five quarters of `tokens`. Raises LoadFailedError at the end."""
        used = self._processes[: ceil(concurrency / REQUESTS_A_PROCESS)]
        flow = {"concurrency": concurrency, "first": 0, "max_tokens": tokens, "temperature": 0.0}
        for n, process in enumerate(used):
            _write(process, {"flow": flow, "slots": list(range(n, concurrency, len(used)))})
        try:
            yield
        finally:
            for process in used:
                assert process.stdin is not None
                process.stdin.write(b"\n")
            for process in used:
                _expect(process, "stopped")


class Tables:
    """When a sidecar had which table in force, in seconds since it was made, looked at several times a second."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar, self._begun = sidecar, time.monotonic()
        self.seen: list[dict[str, Any]] = []

    def look(self) -> None:
        state = self._sidecar.state()
        table = state["table"]["inForce"] if state else None
        if table and (not self.seen or self.seen[-1]["table"] != table):
            self.seen.append({"seenAt": round(time.monotonic() - self._begun, 1), "table": table})

    def first_with(self, length: int, load: int) -> float | None:
        """When a table first gave this length to that many requests."""
        return next((each["seenAt"] for each in self.seen if Table.parse(each["table"]).length_at(load) == length), None)


def bins(engine: Engine, seconds: float, width: float, watch: Callable[[], None] | None = None) -> Iterator[Bin]:
    """Tokens a second in bins of `width` seconds, for so long, and `watch` between; bins are counted from the call on."""
    begun = time.monotonic()
    before = engine.ask("counts")
    at = time.monotonic() - begun
    for n in range(round(seconds / width)):
        while (wait := begun + (n + 1) * width - time.monotonic()) > 0:
            if watch is not None:
                watch()
            time.sleep(min(wait, LOOK_SECONDS))
        now = engine.ask("counts")
        yield _bin(at, before, now)
        at, before = time.monotonic() - begun, now


def _bin(at: float, before: dict[str, Any], now: dict[str, Any]) -> Bin:
    old = {(B, k): steps for B, k, steps in before["chosen"]}
    chosen = {(B, k): more for B, k, steps in now["chosen"] if (more := steps - old.get((B, k), 0))}
    steps = sum(chosen.values())
    lengths: dict[int, int] = {}
    for (_, k), more in chosen.items():
        lengths[k] = lengths.get(k, 0) + more
    seconds = max(now["uptimeSeconds"] - before["uptimeSeconds"], 1e-3)
    batch = sum(B * more for (B, _), more in chosen.items()) / steps if steps else 0.0
    return Bin(at, (now["tokens"] - before["tokens"]) / seconds, batch, lengths)


def level(found: Sequence[Bin]) -> float:
    """Mean tokens a second."""
    return mean(x.tokens_per_second for x in found)


def spread(values: Sequence[float]) -> float:
    """Standard deviation as the median absolute deviation tells it, over the median."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values) / middle if middle else 0.0


def seconds_to(found: Sequence[Bin], wanted: float, least: int) -> float | None:
    """When the first bin began from which on all bins together, `least` or more, are at `wanted` tokens a second; None: never."""
    for i in range(len(found) - least + 1):
        if level(found[i:]) >= wanted:
            return round(found[i].at, 1)
    return None


def _write(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")


def _expect(process: subprocess.Popen[bytes], word: str) -> None:
    """Read until it says so. Raises LoadFailedError for anything else, and when it says nothing for too long."""
    assert process.stdout is not None
    failed = ""
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while waiting.select(ANSWER_SECONDS):
            line = process.stdout.readline()
            if not line:
                raise LoadFailedError("a load process ended")
            said = json.loads(line)
            if said["said"] == word:
                if failed:
                    raise LoadFailedError(failed)
                return
            failed = str(said.get("message"))
    raise LoadFailedError(f"a load process did not say {word!r} within {ANSWER_SECONDS:.0f} s")
