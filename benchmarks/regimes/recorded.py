"""Does a prediction with two regimes choose better than one from decode-only steps? Asked of recorded steps.

usage: python benchmarks/regimes/recorded.py RECORDS OUT

RECORDS is a folder of `*.csv.gz`: one row a scheduler step, `seconds, requests, length chosen, tokens scheduled, milliseconds since the
step before`, of a closed loop whose acceptance is known (README.md). Step times are fitted on every second window and judged on the rest,
by the product's own functions.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput, tau
from tabletune.regimes import PrefillCell, Prefills, Requests, bucket_of, prefills_per_step, share_with_prefill

ACCEPTANCE = Estimate((0.7, 0.5, 0.3), 1.0)
REQUESTS = Requests(prompt_tokens=40, output_tokens=200)  # means of 16-64 and 100-300
CEILING = 512  # tokens of the largest captured graph
LOADS = (8, 32, 64, 96, 128)
ENGINES = ("forced-k0123", "forced-k31", "forced-k0123-until-crash")  # one start each; the fourth has too few windows of a cell
SETTLE = 4  # steps after a change of the length
LEAST_STEPS = 60  # of a window
SETTLED = 2  # decode-only steps after a prefill until the pipeline of two steps is full again
STALL_MS = 100.0  # a pause of the engine is no step time (the graph mismatch, docs/engine-safety.md)


@dataclass(frozen=True)
class Step:
    batch_size: int
    prompt_tokens: int  # 0: decode only
    prefills: int
    millis: float  # until the next step is scheduled
    since_prefill: int


@dataclass(frozen=True)
class Window:
    """Steps of one load and one length in a row."""

    load: int
    length: int
    steps: tuple[Step, ...]

    @property
    def tokens_per_second(self) -> float:
        """By the acceptance that the engine was told to have, so that its luck is not in it."""
        gain = tau(ACCEPTANCE.acceptance, self.length)
        return sum((s.batch_size - s.prefills) * gain + s.prefills for s in self.steps) / sum(s.millis for s in self.steps) * 1000


def read_steps(path: Path) -> Iterator[tuple[int, Step]]:
    """Steps with the length that was in force in them. The time of a step is what passes until the next is scheduled."""
    with gzip.open(path, "rt") as file:
        rows = [[float(x) for x in row] for row in csv.reader(file) if row[0][0].isdigit()]
    since = 0
    for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
        B, scheduled, decode = int(row[1]), int(row[3]), 1 + int(before[2])
        beyond = scheduled - B * decode
        # Each prefill brings a prompt instead of a request's own tokens; how many there are, the mean prompt tells.
        prefills = max(1, round(beyond / (REQUESTS.prompt_tokens - decode))) if beyond else 0
        since = 0 if prefills else since + 1
        yield int(before[2]), Step(B, beyond + prefills * decode, prefills, after[4], since)


def read_windows(path: Path) -> Iterator[Window]:
    """Windows of a load that stays, and no pause in them."""
    for length, group in groupby(read_steps(path), key=lambda pair: pair[0]):
        steps = [step for _, step in group][SETTLE:]
        if len(steps) < LEAST_STEPS:
            continue
        sizes = sorted(s.batch_size for s in steps)
        load = min(LOADS, key=lambda x: abs(x - sizes[len(sizes) * 9 // 10]))
        if load - mean(sizes) <= 0.08 * load + 0.5:
            yield Window(load, length, tuple(s for s in steps if s.millis < STALL_MS and s.batch_size >= 0.8 * load))


def fit(windows: Sequence[Window]) -> tuple[dict[int, dict[int, float]], tuple[PrefillCell, ...]]:
    """T(B, k) of settled decode-only steps, and cells of steps with a prefill, with what the steps after them lack counted in."""
    times: dict[int, dict[int, float]] = defaultdict(dict)
    cells: list[PrefillCell] = []
    for (load, length), steps in _by_cell(windows).items():
        settled = [s.millis for s in steps if not s.prefills and s.since_prefill > SETTLED]
        decode = times[load][length] = 1000 * median(settled)
        after = [1000 * s.millis - decode for s in steps if not s.prefills and s.since_prefill <= SETTLED]
        with_prefill = [s for s in steps if s.prefills]
        correction = sum(after) / len(with_prefill)
        for _, group in groupby(sorted(with_prefill, key=lambda s: s.prompt_tokens), key=lambda s: bucket_of(s.prompt_tokens)):
            found = list(group)
            micros = [1000 * s.millis for s in found]
            middle = median(micros)
            spread = median(abs(x - middle) for x in micros)
            prompt_tokens = round(mean(s.prompt_tokens for s in found))
            cells.append(PrefillCell(load, length, prompt_tokens, round(middle + correction), round(spread), len(micros)))
    return times, tuple(cells)


@dataclass(frozen=True)
class Judged:
    """One load: what was predicted and what was measured, by length. Noise is the spread of the windows' rates."""

    load: int
    tokens_per_second: dict[int, int]
    predicted: dict[int, int]
    chosen: int
    best: int
    loss_percent: float
    noise_percent: float


def judge(windows: Sequence[Window], predicted: dict[int, dict[int, float]]) -> list[Judged]:
    """By load: what the prediction would choose, what was best, and what the choice loses."""
    measured: dict[int, dict[int, float]] = defaultdict(dict)
    noise: dict[int, list[float]] = defaultdict(list)
    for (load, length), group in sorted(_grouped(windows).items()):
        rates = [w.tokens_per_second for w in group]
        measured[load][length] = median(rates)
        noise[load].append(median(abs(rate / median(rates) - 1) for rate in rates))
    rows: list[Judged] = []
    for load, by_length in measured.items():
        row = {k: predicted[load][k] for k in by_length}
        chosen, best = _best(row), _best(by_length)
        rows.append(
            Judged(
                load,
                {k: round(x) for k, x in by_length.items()},
                {k: round(x) for k, x in row.items()},
                chosen,
                best,
                round(100 * (1 - by_length[chosen] / by_length[best]), 1),
                round(100 * max(noise[load]), 1),
            )
        )
    return rows


def conditions(windows: Sequence[Window]) -> list[dict[str, object]]:
    """The share of steps with a prefill by load and length: as recorded, and as the formula has it."""
    rows: list[dict[str, object]] = []
    for (load, length), steps in sorted(_by_cell(windows).items()):
        n = prefills_per_step(load, tau(ACCEPTANCE.acceptance, length), REQUESTS.output_tokens)
        with_prefill = [s for s in steps if s.prefills]
        rows.append(
            {
                "load": load,
                "length": length,
                "steps": len(steps),
                "share": round(len(with_prefill) / len(steps), 3),
                "shareByFormula": round(share_with_prefill(n), 3),
                "decodeMillis": round(median(s.millis for s in steps if not s.prefills and s.since_prefill > SETTLED), 2),
                "afterMillis": round(median(s.millis for s in steps if not s.prefills and s.since_prefill <= SETTLED), 2),
                "prefillMillis": round(median(s.millis for s in with_prefill), 2),
            }
        )
    return rows


def flips(times: dict[int, dict[int, float]], cells: Sequence[PrefillCell]) -> list[dict[str, object]]:
    """Which length each prediction chooses, for other lengths of answers than the recorded ones."""
    rows: list[dict[str, object]] = []
    plain = predict_goodput(times, ACCEPTANCE)
    for output in (50, 100, 200, 400, 800, 1600):
        model = Prefills.of(cells, times, Requests(REQUESTS.prompt_tokens, output), CEILING)
        two = predict_goodput(times, ACCEPTANCE, model)
        rows.append({"outputTokens": output, **{f"B={B}": [_best(plain[B]), _best(two[B])] for B in sorted(times)}})
    return rows


def _best(row: dict[int, float]) -> int:
    return max(row, key=lambda k: row[k])


def _grouped(windows: Sequence[Window]) -> dict[tuple[int, int], list[Window]]:
    groups: dict[tuple[int, int], list[Window]] = defaultdict(list)
    for w in windows:
        groups[w.load, w.length].append(w)
    return groups


def _by_cell(windows: Sequence[Window]) -> dict[tuple[int, int], list[Step]]:
    return {key: [s for w in group for s in w.steps] for key, group in _grouped(windows).items()}


def answer(windows: Sequence[Window]) -> dict[str, object]:
    """Both predictions of one engine: fitted on one half of its windows and judged on the other, both ways."""
    groups = [group for group in _grouped(windows).values() if len(group) > 1]
    halves = [[w for group in groups for w in group[part::2]] for part in (0, 1)]
    kept = halves[0] + halves[1]
    result: dict[str, object] = {"windows": len(kept), "conditions": conditions(kept)}
    for name, with_prefills in (("decodeOnly", False), ("twoRegimes", True)):
        rows: list[Judged] = []
        for fitted, judged in (halves, halves[::-1]):
            times, cells = fit(fitted)
            rows += judge(
                judged, predict_goodput(times, ACCEPTANCE, Prefills.of(cells, times, REQUESTS, CEILING) if with_prefills else None)
            )
        result[name] = {"summary": summarise(rows), "loads": [asdict(row) for row in rows]}
    times, cells = fit(kept)
    return {**result, "otherOutputLengths": flips(times, cells)}


def summarise(rows: Sequence[Judged]) -> dict[str, object]:
    errors = sorted(abs(row.predicted[k] / rate - 1) for row in rows for k, rate in row.tokens_per_second.items())
    return {
        "errorPercentMedian": round(100 * median(errors), 1),
        "errorPercentWorst": round(100 * errors[-1], 1),
        "choices": len(rows),
        "notTheBest": sum(row.chosen != row.best for row in rows),
        "notTheBestBeyondNoise": sum(row.loss_percent > row.noise_percent for row in rows),
        "lossPercentMean": round(mean(row.loss_percent for row in rows), 1),
    }


def main(records: Path, out: Path) -> None:
    answers = {name: answer(list(read_windows(records / f"{name}.csv.gz"))) for name in ENGINES}
    out.write_text(json.dumps(answers, indent=1) + "\n")
    for name, found in answers.items():
        for how in ("decodeOnly", "twoRegimes"):
            print(name, how, found[how]["summary"])  # type: ignore[index]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
