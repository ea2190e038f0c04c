"""Would a draft length of its own for steps that carry a prefill win?

usage: python -m benchmarks.regimes.two_lengths RECORDS OUT

RECORDS as for recorded.py. For each engine and load: the best pair (length in decode-only steps, length in steps with a prefill) against
the best single length, chosen on one half of the windows and valued on the other. Once as if the regime of a step were known when its
length is chosen, which is a step earlier: an upper bound. And once with what is known then, the regime of the step before.
Then the upper bound for other batch sizes and prompts, from the grid `h200` and what passing the largest graph added at 128 requests.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp
from pathlib import Path
from statistics import fmean, quantiles

from benchmarks.controller.grids import Grid, h200
from benchmarks.regimes.recorded import ACCEPTANCE, CEILING, ENGINES, REQUESTS, Window, fit, read_windows

from tabletune.goodput import tau
from tabletune.regimes import Requests

SPLITS = 200
Pair = tuple[int, int]  # lengths: decode only, with a prefill
PASSING_MICROS = 5_000.0
"""What a step with a prefill takes more when it passes the largest graph: 14.7 ms over decode only with k = 3 at 128 requests, and 9.9 with
k = 1 and 2 (results/regimes)."""
PREFILL_MICROS = 9_900.0


@dataclass(frozen=True)
class Known:
    """How often a step has the length that was meant for its regime."""

    with_prefill: float = 1.0
    decode_only: float = 1.0


@dataclass(frozen=True)
class Regimes:
    """Microseconds of a step at one batch size: decode only by length; with a prefill by length and prompt tokens in it."""

    batch_size: int
    lengths: tuple[int, ...]
    decode: Callable[[int], float]
    prefill: Callable[[int, float], float]


def goodput(regimes: Regimes, pair: Pair, requests: Requests, known: Known) -> float:
    """Tokens a second when each regime has its own length.

    In a steady state `n` requests begin in a step and bring `n L` tokens; a share `s = 1 - exp(-n)` of steps carries `n / s` of them:
    `n L = (1 - s) B tau_d + s ((B - n / s) tau_p + n / s)`. With one length `n` is the core's `prefills_per_step`.
    """
    B, (d, p) = regimes.batch_size, pair

    def mixed(own: float, decode: float, prefill: float) -> float:
        return own * prefill + (1 - own) * decode

    gain_d, gain_p = (tau(ACCEPTANCE.acceptance, k) for k in pair)
    tau_d = mixed(1 - known.decode_only, gain_d, gain_p)
    tau_p = mixed(known.with_prefill, gain_d, gain_p)

    def tokens(n: float) -> float:
        s = 1 - exp(-n)
        return (1 - s) * B * tau_d + s * B * tau_p - n * (tau_p - 1)

    low, high = 0.0, float(B)
    for _ in range(60):  # tokens(n) - n L falls with n
        middle = (low + high) / 2
        low, high = (middle, high) if tokens(middle) > middle * requests.output_tokens else (low, middle)
    s = 1 - exp(-low)
    prompt_tokens = requests.prompt_tokens * low / s
    decode = mixed(1 - known.decode_only, regimes.decode(d), regimes.decode(p))
    prefill = mixed(known.with_prefill, regimes.prefill(d, prompt_tokens), regimes.prefill(p, prompt_tokens))
    return tokens(low) / ((1 - s) * decode + s * prefill) * 1e6


def best_pair(regimes: Regimes, requests: Requests, known: Known) -> Pair:
    return max(product(regimes.lengths, repeat=2), key=lambda pair: goodput(regimes, pair, requests, known))


def best_single(regimes: Regimes, requests: Requests) -> Pair:
    return max(((k, k) for k in regimes.lengths), key=lambda pair: goodput(regimes, pair, requests, Known()))


def gain(regimes: Regimes, pair: Pair, single: Pair, requests: Requests, known: Known) -> float:
    """Of the pair over the single length: 0.01 = 1 %."""
    return goodput(regimes, pair, requests, known) / goodput(regimes, single, requests, known) - 1


def fitted(windows: Sequence[Window]) -> dict[int, Regimes]:
    """By load, from recorded windows; the steps beside a prefill are counted in with it."""
    times, cells = fit(windows)
    found: dict[int, Regimes] = {}
    for load, decode in times.items():
        prefill: dict[int, float] = {}
        for k in decode:
            own = [c for c in cells if (c.batch_size, c.draft_length) == (load, k)]
            prefill[k] = sum(c.step_time_micros * c.samples for c in own) / sum(c.samples for c in own)
        found[load] = Regimes(load, tuple(decode), decode.__getitem__, lambda k, _, prefill=prefill: prefill[k])  # type: ignore[misc]
    return found


def known_by_step_before(windows: Sequence[Window], load: int) -> Known:
    """When a length is chosen by the regime of the step before: how often the step that verifies it is of the same."""
    same = {True: 0, False: 0}
    steps = {True: 0, False: 0}
    for window in windows:
        if window.load == load:
            for before, after in pairwise(window.steps):
                steps[bool(after.prefills)] += 1
                same[bool(after.prefills)] += bool(before.prefills) == bool(after.prefills)
    return Known(same[True] / steps[True], same[False] / steps[False])


def halves(windows: Sequence[Window], rng: random.Random) -> tuple[list[Window], list[Window]]:
    """A random half of the windows of each load and length, and the other half; those with one window only are left out."""
    groups: dict[tuple[int, int], list[Window]] = {}
    for window in windows:
        groups.setdefault((window.load, window.length), []).append(window)
    first: list[Window] = []
    second: list[Window] = []
    for group in groups.values():
        if len(group) > 1:
            mixed = rng.sample(group, len(group))
            first += mixed[: len(mixed) // 2]
            second += mixed[len(mixed) // 2 :]
    return first, second


def recorded(windows: Sequence[Window]) -> list[dict[str, object]]:
    """By load: the pair that all windows together would choose, and what a pair chosen on one half gained on the other."""
    rng = random.Random(1)
    whole = fitted(windows)
    ways = {"known": dict.fromkeys(whole, Known()), "byStepBefore": {load: known_by_step_before(windows, load) for load in whole}}
    gains: dict[tuple[str, int], list[float]] = {}
    for _ in range(SPLITS):
        chosen, valued = map(fitted, halves(windows, rng))
        for (way, by_load), load in product(ways.items(), chosen.keys() & valued.keys()):
            known = by_load[load]
            pair, single = best_pair(chosen[load], REQUESTS, known), best_single(chosen[load], REQUESTS)
            if set(pair + single) <= set(valued[load].lengths):
                gains.setdefault((way, load), []).append(gain(valued[load], pair, single, REQUESTS, known))
    return [_row(load, regimes, ways, gains) for load, regimes in whole.items()]


def _row(load: int, regimes: Regimes, ways: dict[str, dict[int, Known]], gains: dict[tuple[str, int], list[float]]) -> dict[str, object]:
    single = best_single(regimes, REQUESTS)
    row: dict[str, object] = {
        "load": load,
        "single": single[0],
        "addedByPrefillMillis": {k: round((regimes.prefill(k, 0) - regimes.decode(k)) / 1000, 1) for k in sorted(regimes.lengths)},
    }
    for way, by_load in ways.items():
        known = by_load[load]
        pair = best_pair(regimes, REQUESTS, known)
        low, *_, high = quantiles(gains[way, load], n=20)
        row[way] = {
            "pair": pair,
            "share": [round(known.decode_only, 2), round(known.with_prefill, 2)],
            "gainPercent": _percent(gain(regimes, pair, single, REQUESTS, known)),
            "onOtherHalf": {"mean": _percent(fmean(gains[way, load])), "5%": _percent(low), "95%": _percent(high)},
        }
    return row


def modelled(grid: Grid, requests: Requests, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """By batch size: the upper bound from the grid, where what a prefill adds depends on the side of the largest graph alone."""
    for B in sizes:
        row = grid.times[B]

        def prefill(k: int, prompt_tokens: float, B: int = B) -> float:
            return grid.times[B][k] + PREFILL_MICROS + PASSING_MICROS * (B * (k + 1) + prompt_tokens > CEILING)

        regimes = Regimes(B, grid.lengths, row.__getitem__, prefill)
        pair, single = best_pair(regimes, requests, Known()), best_single(regimes, requests)
        yield {
            "batchSize": B,
            "promptTokens": requests.prompt_tokens,
            "outputTokens": requests.output_tokens,
            "single": single[0],
            "pair": pair,
            "gainPercent": _percent(gain(regimes, pair, single, requests, Known())),
        }


def _percent(share: float) -> float:
    return round(100 * share, 2)


def main(records: Path, out: Path) -> None:
    by_engine = {name: recorded(list(read_windows(records / f"{name}.csv.gz"))) for name in ENGINES}
    traffic = [Requests(prompt, output) for prompt in (40, 100, 200, 300, 400) for output in (50, 200, 800)]
    model = [row for requests in traffic for row in modelled(h200(), requests, (8, 16, 32, 48, 64, 80, 96, 104, 112, 120, 128))]
    out.write_text(json.dumps({"recorded": by_engine, "modelled": model}, indent=1) + "\n")
    for name, rows in by_engine.items():
        for row in rows:
            print(name, row)
    wins = [row for row in model if row["pair"] != (row["single"],) * 2]
    print(f"modelled: {len(wins)} of {len(model)} want two lengths")
    for row in wins:
        print(row)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
