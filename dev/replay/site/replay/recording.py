"""The recorded step times T(B, k), read between and beyond the measured points so that every cell has a time.

Between points: linear. Beyond the last batch size or draft length: the last slope goes on. That is enough for a stand-in that must
answer for any load; only the points themselves were measured.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RECORDING = Path(__file__).with_name("h200.json")


@dataclass(frozen=True)
class Recording:
    """Microseconds by batch size, for no speculation and for each draft length."""

    off: Mapping[int, float]
    by_length: Mapping[int, Mapping[int, float]]
    prefill_extra: Mapping[int, float]

    def step_seconds(self, batch_size: int, draft_length: int | None, prefill: bool) -> float:
        """Time of one step; `draft_length` None is an engine without speculation."""
        micros = self._micros(batch_size, draft_length)
        if prefill:
            micros += interpolate(self.prefill_extra, batch_size)
        return micros / 1e6

    def _micros(self, batch_size: int, draft_length: int | None) -> float:
        if draft_length is None:
            return interpolate(self.off, batch_size)
        column = {k: interpolate(times, batch_size) for k, times in self.by_length.items()}
        return interpolate(column, draft_length)


def read_recording(path: Path = RECORDING) -> Recording:
    data = json.loads(path.read_text())
    times = {name: {int(b): float(t) for b, t in row.items()} for name, row in data["stepTimeMicros"].items()}
    extra = {int(b): float(t) for b, t in data["prefillExtraMicros"].items()}
    return Recording(times.pop("off"), {int(k): row for k, row in times.items()}, extra)


def interpolate(points: Mapping[int, float], at: int) -> float:
    """Piecewise linear through the points; constant below the first, the last slope beyond the last."""
    xs = sorted(points)
    if at <= xs[0] or len(xs) == 1:
        return points[xs[0]]
    right = min(bisect_left(xs, at), len(xs) - 1)
    x0, x1 = xs[right - 1], xs[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)
