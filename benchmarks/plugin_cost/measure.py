"""What the plugin adds to a step: vLLM's own scheduler with it and without it, in turns, in one process on a CPU.

usage: PYTHONPATH=PLUGIN PYTHON benchmarks/plugin_cost/measure.py TINY OUT.json    (README.md says what the three are)

Two AsyncSchedulers hold the same requests with two steps in flight, as on a GPU; a step is one `schedule()` and one
`update_from_output()`, in time that the thread really ran. The model is left out: every guess is rejected. A pair of
steps, one of each scheduler, gives one difference; a round gives the median of its differences. The table says k=1, and
every 50th step explores k=3.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import vllm
from async_scheduler import make_config, make_scheduler
from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tabletune.channel import Channel, ChannelClosedError
from tabletune_engine.hooks import install

BATCH_SIZES = (1, 64, 256)
ROUNDS, PAIRS, SETTLE = 9, 300, 20  # steps that settle after the prefills are not counted
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 400
LAUNCH = [[1, 256, 1], [257, 257, 3]]  # so that both lengths may be put in force
EXPLORE = {"everySteps": 50, "draftLength": 3, "ranges": [[1, 256]]}
BLOCKS = 16_384
MOST_TOKENS = 8192  # in a step
READS = 50
STEP_TIMES = Path(__file__).parents[1] / "results/2026-12-01-h200-graphs/cells.csv"  # k=1, microseconds


@dataclass
class Lane:
    """One scheduler and the steps that it has in flight."""

    scheduler: Any
    in_flight: deque[Any] = field(default_factory=deque)

    def step(self) -> float:
        """One step; the microseconds of this thread that the scheduler took for it."""
        began = time.thread_time_ns()
        out = self.scheduler.schedule()
        nanos = time.thread_time_ns() - began
        self.in_flight.append(out)
        if len(self.in_flight) == 2:
            out = self.in_flight.popleft()
            ids = list(out.num_scheduled_tokens)
            index = {request_id: i for i, request_id in enumerate(ids)}
            result = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=[[7] for _ in ids])
            began = time.thread_time_ns()
            self.scheduler.update_from_output(out, result)
            nanos += time.thread_time_ns() - began
        return nanos / 1000

    def begin(self, B: int) -> None:
        """Take in B requests, and settle."""
        for i in range(B):
            params = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
            self.scheduler.add_request(Request(f"r{i}", [5] * PROMPT_TOKENS, params, None))
        for _ in range(SETTLE):
            self.step()

    def end(self) -> None:
        """Drop every request."""
        self.scheduler.finish_requests([request.request_id for request in self.scheduler.running], RequestStatus.FINISHED_ABORTED)
        while self.scheduler.has_requests() or any(out.num_scheduled_tokens for out in self.in_flight):
            self.step()
        self.in_flight.clear()


def measure(lanes: list[Lane], B: int) -> Iterator[tuple[list[float], list[float]]]:
    """By lane: the median step of every round, and the median of what it took longer than the first lane."""
    for _ in range(ROUNDS):
        for lane in lanes:
            lane.begin(B)
        micros: list[list[float]] = [[] for _ in lanes]
        for turn in range(PAIRS):
            for i in range(len(lanes)):
                place = (i + turn) % len(lanes)
                micros[place].append(lanes[place].step())
        for lane in lanes:
            lane.end()
        yield [median(m) for m in micros], [median(x - bare for x, bare in zip(m, micros[0], strict=True)) for m in micros]


def gpu_step(B: int) -> tuple[int, float]:
    """Measured step time of an H200 at the largest batch size up to B: that batch size, and microseconds."""
    with STEP_TIMES.open() as file:
        rows = [(int(row["batch"]), float(row["value"])) for row in csv.DictReader(file) if row["k"] == "1" and row["metric"] == "step_us"]
    largest = max(batch for batch, _ in rows if batch <= B)
    return largest, median(value for batch, value in rows if batch == largest)


def reads(socket_path: str) -> dict[str, float]:
    """Microseconds from a question to its answer, by operation, while the engine idles."""
    taken: dict[str, float] = {}
    with Channel(socket_path) as channel:
        for op in ("counts", "steps"):
            times = []
            for _ in range(READS):
                began = time.perf_counter_ns()
                channel.ask(op)
                times.append((time.perf_counter_ns() - began) / 1000)
            taken[op] = round(median(times), 1)
    return taken


def main() -> None:
    tiny, destination = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        socket_path = f"{folder}/engine.sock"
        config = make_config(tiny, LAUNCH, BLOCKS, max_num_batched_tokens=MOST_TOKENS)
        lanes = [Lane(make_scheduler(config))]  # made before the plugin holds on to the class
        install(socket_path)
        lanes.append(Lane(make_scheduler(config)))
        with Channel(socket_path) as channel:
            wait_for(channel)
            channel.ask("table", ranges=[[1, 256, 1]], explore=EXPLORE)
            cells = [to_cell(B, list(measure(lanes, B))) for B in BATCH_SIZES]
            counts = channel.ask("counts")
        result = {
            "conditions": {
                "vllm": vllm.__version__,
                "python": platform.python_version(),
                "cpu": cpu_name(),
                "cpus": os.cpu_count(),
                "loadAverage": [round(load, 1) for load in os.getloadavg()],
                "scheduler": "AsyncScheduler, two steps in flight, decode only",
                "rounds": ROUNDS,
                "pairsOfARound": PAIRS,
                "exploringShare": round(counts["exploringSteps"] / counts["steps"], 4),
                "gpuStepTimes": STEP_TIMES.parent.name,
            },
            "cells": cells,
            "answerMicros": reads(socket_path),
        }
    Path(destination).write_text(json.dumps(result, indent=1) + "\n")
    for cell in cells:
        print(cell)
    print(result["answerMicros"])


def wait_for(channel: Channel) -> None:
    while True:
        try:
            channel.ask("hello")
        except ChannelClosedError:
            time.sleep(0.05)
            continue
        return


def to_cell(B: int, rounds: list[tuple[list[float], list[float]]]) -> dict[str, Any]:
    added = sorted(differences[1] for _, differences in rounds)
    at, step_micros = gpu_step(B)
    return {
        "batchSize": B,
        "schedulerMicros": round(median(steps[0] for steps, _ in rounds), 1),
        "addedMicros": round(median(added), 1),
        "addedMicrosLeast": round(added[0], 1),
        "addedMicrosMost": round(added[-1], 1),
        "gpuStepMicros": round(step_micros),
        "gpuStepBatchSize": at,
        "percentOfGpuStep": round(100 * median(added) / step_micros, 3),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
