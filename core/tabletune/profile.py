"""The profile: measured step times T(B, k) of one engine on one GPU, and the fingerprint of what they are valid for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.nodes import PPM
from tabletune.regimes import PrefillCell, Prefills, Requests
from tabletune.table import MIN_SWITCH_GAIN

EVERY_BATCH_SIZE_UP_TO = 16
EVERY_FOURTH_UP_TO = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured (B, k). Times in microseconds; `spread_micros` is the median absolute deviation of the repeats' medians."""

    batch_size: int
    draft_length: int
    step_time_micros: int
    spread_micros: int
    samples: int


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A (B, k) that could not be measured, and why, in words for people."""

    batch_size: int
    draft_length: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The largest captured graph, as a draft length meets it: step times at the last batch size below it and at the first above.

    `batch_size` is the last one whose `B (k + 1)` tokens fit into the graph.
    """

    draft_length: int
    batch_size: int
    below_micros: int
    above_micros: int


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of draft length that was tried in the running engine, at one batch size.

    `worst_pause_micros`: the longest time without a step while it was tried (in the second round of tries, where the first had a pause);
    `failures`: engines that died or hung in it.
    """

    from_length: int
    to_length: int
    batch_size: int
    tries: int
    worst_pause_micros: int
    failures: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a profile is valid for: names and values, all as text, sorted by name; equal fingerprints share a profile."""

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Fingerprint:
        return cls(tuple(sorted((name, "" if value is None else str(value)) for name, value in values.items())))

    @property
    def digest(self) -> str:
        """Twelve hex digits; short enough for a message, long enough for a namespace."""
        return hashlib.sha256(json.dumps(self.fields).encode()).hexdigest()[:12]

    def changed(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the fields that differ."""
        mine, theirs = dict(self.fields), dict(other.fields)
        return tuple(sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)))


@dataclass(frozen=True, slots=True)
class Measurement:
    """How the cells were measured."""

    prompt_tokens: int
    output_tokens: int
    repeats: int
    reject_by: str  # "engine" (vLLM's synthetic rejection) or "plugin"
    measured_at: str  # RFC 3339, UTC
    gpu_seconds: int
    tuner_version: str


@dataclass(frozen=True, slots=True)
class Profile:
    """T(B, k), the engine without speculation (`baseline`), and what could not be measured (`skipped`)."""

    fingerprint: Fingerprint
    engine: Mapping[str, Any]  # facts as the plugin's `hello` gives them
    measurement: Measurement
    cells: tuple[Cell, ...]
    baseline: tuple[Cell, ...]  # draft_length 0
    skipped: tuple[SkippedCell, ...]
    noise_ppm: int  # median relative spread of the repeats, per million
    warnings: tuple[str, ...] = ()  # of the run, in words for people
    prefill: tuple[PrefillCell, ...] = ()
    baseline_prefill: tuple[PrefillCell, ...] = ()  # of the engine without speculation
    requests: Requests | None = None  # lengths that the share of steps with a prefill follows from; None: not known
    ceilings: tuple[Ceiling, ...] = ()
    transitions: tuple[Transition, ...] = ()

    @property
    def switch_gain(self) -> float:
        """What another draft length must win, as a share: less is noise of the measurement, or not worth a change."""
        return max(MIN_SWITCH_GAIN, self.noise_ppm / PPM)

    def step_times(self) -> dict[int, dict[int, float]]:
        """`{B: {k: microseconds}}`."""
        return step_times(self.cells)

    def prefills(self) -> Prefills | None:
        """What steps with a prefill cost; None: not known, so that decode-only steps are all there is."""
        return self._prefills(self.prefill, self.cells)

    def baseline_prefills(self) -> Prefills | None:
        """The same for the engine without speculation; where that was not measured, what they add with speculation."""
        return self._prefills(self.baseline_prefill, self.baseline) or self.prefills()

    def _prefills(self, prefill: Sequence[PrefillCell], cells: Sequence[Cell]) -> Prefills | None:
        return None if self.requests is None else Prefills.of(prefill, step_times(cells), self.requests, largest_graph(self.engine))


def largest_graph(engine: Mapping[str, Any]) -> int | None:
    """Tokens of the largest captured graph, from the engine's facts; None without graphs, or when it does not say."""
    sizes = engine.get("captureSizes")
    return max(sizes) if sizes else None


def step_times(cells: Sequence[Cell]) -> dict[int, dict[int, float]]:
    """`{B: {k: microseconds}}`."""
    times: dict[int, dict[int, float]] = {}
    for cell in cells:
        times.setdefault(cell.batch_size, {})[cell.draft_length] = float(cell.step_time_micros)
    return times


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """The grid: every batch size up to 16, every fourth up to 64, every eighth from there, and the largest.

    Step times change in jumps at small batch sizes (kernels, graphs) and smoothly at large ones.

    Raises:
        ValueError: `max_batch_size` is below 1.
    """
    if max_batch_size < 1:
        raise ValueError(f"the largest batch size must be at least 1, got {max_batch_size}")
    dense = range(1, EVERY_BATCH_SIZE_UP_TO + 1)
    fourth = range(EVERY_BATCH_SIZE_UP_TO + 4, EVERY_FOURTH_UP_TO + 1, 4)
    eighth = range(EVERY_FOURTH_UP_TO + 8, max_batch_size + 1, 8)
    grid = {b for b in (*dense, *fourth, *eighth) if b <= max_batch_size}
    return tuple(sorted(grid | {max_batch_size}))
