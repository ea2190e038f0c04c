"""Measured step times that the simulated engine runs on: what a profile knows, with its source.

Times are microseconds a step. Prefills are those of recorded steps of the same engine; a grid whose source tells nothing of them
has decode-only steps alone.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tabletune.acceptance import Estimate
from tabletune.goodput import tau
from tabletune.regimes import PrefillCell, Requests, prefills_per_step, share_with_prefill

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
RECORDED_ACCEPTANCE = Estimate((0.7, 0.5, 0.3), 1.0)
RECORDED_REQUESTS = Requests(prompt_tokens=40, output_tokens=200)
NOISE_PPM = 5_000  # what two repeats of a cell differ by, in the sweeps that these grids come from: 0.2 to 0.5 %


@dataclass(frozen=True)
class Grid:
    """`times[B][k]` in microseconds; `prefill` are steps that carry one, beside requests of the lengths `requests`."""

    name: str
    source: str
    times: Mapping[int, Mapping[int, float]]
    prefill: tuple[PrefillCell, ...] = ()
    requests: Requests | None = None
    largest_graph: int | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Draft lengths that every batch size has, ascending."""
        return tuple(sorted(set.intersection(*(set(row) for row in self.times.values()))))

    @property
    def largest(self) -> int:
        """The largest measured batch size."""
        return max(self.times)


def h200() -> Grid:
    """Lengths 0, 1 and 3 up to 128 requests, of the start that held {0, 1, 2, 3}.

    Left out: k = 2, whose graphs took away those of others at some batch sizes, and B = 9, where they took those of 0 and 1.
    """
    times = {B: row for B, row in read_cells(RESULTS / "2026-12-01-h200-graphs" / "cells.csv", (0, 1, 3)).items() if B <= 128 and B != 9}
    return Grid("h200", "results/2026-12-01-h200-graphs", times, read_prefills(), RECORDED_REQUESTS, 512)


def h200_pair(run: str = "2026-12-01-h200-qwen3-4b") -> Grid:
    """Lengths 1 and 3, what the tuner holds on the V2 runner; two runs on two machines were stored."""
    return Grid("h200-pair", f"results/{run}", read_cells(RESULTS / run / "cells.csv", (1, 3)), read_prefills(), RECORDED_REQUESTS, 512)


def llama() -> Grid:
    """Llama-3.1-8B with EAGLE, lengths 0, 1, 3 and 5 at five batch sizes: published in vllm-project/vllm pull request 32374."""
    return Grid("llama-8b", "github.com/vllm-project/vllm/pull/32374", read_cells(HERE / "data" / "llama-3.1-8b-eagle.csv", (0, 1, 3, 5)))


def read_cells(path: Path, lengths: tuple[int, ...]) -> dict[int, dict[int, float]]:
    """Rows `batch,k,value,metric` of those lengths; batch sizes that lack one are left out."""
    times: dict[int, dict[int, float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["k"].isdigit() and int(row["k"]) in lengths and row["metric"] == "step_us":
                times.setdefault(int(row["batch"]), {})[int(row["k"])] = float(row["value"])
    return {B: row for B, row in sorted(times.items()) if len(row) == len(lengths)}


def read_prefills() -> tuple[PrefillCell, ...]:
    """Steps with a prefill, from the medians of recorded steps (results/regimes): the time of their own, and what the two after lack."""
    engines: Mapping[str, Any] = json.loads((RESULTS / "regimes" / "recorded.json").read_text())
    return tuple(_prefill_cell(c) for c in engines["forced-k0123"]["conditions"])


def _prefill_cell(c: Mapping[str, Any]) -> PrefillCell:
    after = min(2.0, (1 - c["share"]) / c["share"])  # steps beside a prefill, for each that carries one
    millis = c["prefillMillis"] + after * (c["afterMillis"] - c["decodeMillis"])
    n = prefills_per_step(c["load"], tau(RECORDED_ACCEPTANCE.acceptance, c["length"]), RECORDED_REQUESTS.output_tokens)
    prompt_tokens = round(RECORDED_REQUESTS.prompt_tokens * n / share_with_prefill(n))
    return PrefillCell(c["load"], c["length"], prompt_tokens, round(1000 * millis), 0, round(c["steps"] * c["share"]))


def read_traces() -> dict[str, tuple[tuple[float, int], ...]]:
    """Batch sizes of recorded engines by name: (seconds from the start, requests scheduled), a pair for each change."""
    with gzip.open(HERE / "data" / "recorded-batch-sizes.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return {name: tuple(_running(group)) for name, group in groupby(rows, key=lambda row: row["trace"])}


def _running(rows: Iterator[dict[str, str]]) -> Iterator[tuple[float, int]]:
    millis = 0
    for row in rows:
        millis += int(row["milliseconds"])
        yield millis / 1000, int(row["requests"])
