"""`Live` in the state file: what was learned about costs, without the reading that it was learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabletune_sidecar.counters import expect
from tabletune_sidecar.live import Live
from tabletune_sidecar.request_lengths import RequestLengths
from tabletune_sidecar.step_times import StepTimes, Windows

PPM = 1_000_000


def to_live(live: Live) -> dict[str, Any]:
    """Log ratios as integers per million; unfinished windows are left out."""
    times, requests = live.step_times, live.requests
    return {
        "profile": live.profile,
        "bootId": live.boot_id,
        "compared": times.compared,
        "windows": [[at, k, kind, w.at, _ppm(w.log_ratios)] for (at, k, kind), w in sorted(times.windows.items())],
        "medians": _ppm(times.medians),
        "beyond": list(times.beyond),
        "drifts": times.drifts,
        "steps": [[at, round(n), round(requests.with_prefill.get(at, 0.0))] for at, n in sorted(requests.steps.items())],
        "tokens": round(requests.tokens),
        "promptTokens": round(requests.prompt_tokens),
    }


def parse_live(saved: Mapping[str, Any]) -> Live:
    """Raises KeyError, TypeError or ValueError."""
    steps = [(expect(int, at), expect(int, n), expect(int, prefills)) for at, n, prefills in saved["steps"]]
    if any(n < 0 or not 0 <= prefills <= n for _, n, prefills in steps):
        raise ValueError("steps with a prefill must be from 0 to all steps")
    return Live(
        profile=expect(str, saved["profile"]),
        boot_id=None if saved["bootId"] is None else expect(str, saved["bootId"]),
        step_times=StepTimes(
            compared=expect(int, saved["compared"]),
            windows={
                (expect(int, at), expect(int, k), expect(str, kind)): Windows.of(_log_ratios(values), expect(int, compared))
                for at, k, kind, compared, values in saved["windows"]
                if values
            },
            medians=_log_ratios(saved["medians"]),
            beyond=tuple(expect(bool, each) for each in saved["beyond"]),
            drifts=expect(bool, saved["drifts"]),
        ),
        requests=RequestLengths(
            steps={at: float(n) for at, n, _ in steps if n},
            with_prefill={at: float(prefills) for at, n, prefills in steps if n},
            tokens=float(expect(int, saved["tokens"])),
            prompt_tokens=float(expect(int, saved["promptTokens"])),
        ),
    )


def _ppm(values: tuple[float, ...]) -> list[int]:
    return [round(value * PPM) for value in values]


def _log_ratios(values: list[Any]) -> tuple[float, ...]:
    return tuple(expect(int, value) / PPM for value in values)
