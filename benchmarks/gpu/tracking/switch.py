"""Part `switch`: the traffic becomes another one in the running engine, and comes back; what the minute after that is worth.

Acceptance is written into vLLM's synthetic rejection between two steps (worker.py), so nothing restarts. That minute is held against the
best length under the same traffic: each length is measured in turn, in short windows, half of them before the two switches and half
after, so that an engine that drifts over minutes gives neither side an advantage.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from tracking.bench import MAIN, Bench
from tracking.measure import Bin, Tables, bins, level, seconds_to

from tabletune.table import Table

LEARN_SECONDS = 6.0  # of the first traffic, before the switch
TURNS = 4  # of each length and traffic on each side
TURN_SECONDS, TURN_SETTLE_SECONDS = 3.0, 0.7
WANTED = 0.96

Rates = tuple[float, ...]
Turns = dict[tuple[Rates, int], list[float]]
"""Tokens a second of each turn, by acceptance and length."""


def switch(bench: Bench) -> None:
    o, engine, part = bench.options, bench.engines[MAIN], bench.part("switch")
    if part.get("ways"):
        return
    lengths, both = bench.measured.lengths, (o.other_rates, o.rates)
    turns_take = 2 * TURNS * len(both) * len(lengths) * (TURN_SECONDS + TURN_SETTLE_SECONDS)
    bench.need(LEARN_SECONDS + 2 * o.after + turns_take + 10, "two switches")
    files = bench.measured.write(bench.run_dir / "switch", bench.measured.best)
    turns: Turns = defaultdict(list)
    found: list[tuple[Rates, list[Bin], Tables]] = []
    try:
        with bench.loads[MAIN].keep(o.switch_load, o.tokens):
            time.sleep(o.settle)
            _take_turns(bench, both, turns)
            engine.set_rates(o.rates)
            engine.put(bench.measured.best)
            with bench.sidecar(engine, files) as controller:
                controller.until_heard()
                time.sleep(LEARN_SECONDS)
                for rates in both:
                    engine.set_rates(rates)
                    tables = Tables(controller)
                    found.append((rates, list(bins(engine, o.after, o.bin, tables.look)), tables))
            _take_turns(bench, both, turns)
    finally:
        engine.set_rates(o.rates)
    before = o.rates
    ways: list[dict[str, Any]] = []
    for rates, seen, tables in found:
        stale = bench.measured.best_for(before).length_at(o.switch_load)
        of_traffic = {k: turns[rates, k] for k in lengths}
        ways.append({"to": list(rates), **_way(bench, seen, tables, of_traffic, stale)})
        before = rates
        print({name: value for name, value in ways[-1].items() if name not in ("bins", "tables")}, flush=True)
    part["ways"] = ways
    bench.note()


def _take_turns(bench: Bench, traffics: Sequence[Rates], turns: Turns) -> None:
    """Each length under each traffic, TURNS times, forwards and backwards in turn."""
    engine = bench.engines[MAIN]
    for rates in traffics:
        engine.set_rates(rates)
        for turn in range(TURNS):
            for k in bench.measured.lengths if turn % 2 == 0 else reversed(bench.measured.lengths):
                engine.put(Table.fixed(k, bench.options.max_num_seqs))
                time.sleep(TURN_SETTLE_SECONDS)
                turns[rates, k].append(level(list(bins(engine, TURN_SECONDS, TURN_SECONDS))))


def _way(bench: Bench, seen: Sequence[Bin], tables: Tables, turns: Mapping[int, Sequence[float]], stale: int) -> dict[str, Any]:
    o = bench.options
    fixed = {k: mean(of_length) for k, of_length in turns.items()}
    best_length = max(fixed, key=fixed.__getitem__)
    best, of_best = fixed[best_length], turns[best_length]
    times = _row_at(bench.measured.profile.step_times(), o.switch_load)
    return {
        "load": o.switch_load,
        "fixed": {str(k): round(tokens, 1) for k, tokens in fixed.items()},
        "fixedTurns": {str(k): [round(tokens, 1) for tokens in of_length] for k, of_length in turns.items()},
        "seconds": o.after,
        "shareOfBest": round(level(seen) / best, 4),
        "shareOfBestError": round(stdev(of_best) / len(of_best) ** 0.5 / best, 4),
        "shareByLengths": round(_share_by_lengths(seen, fixed, times), 4),
        "shareWithoutController": round(fixed[stale] / best, 4),
        "settledShare": round(level(seen[len(seen) // 2 :]) / best, 4),
        "secondsTo96": seconds_to(seen, WANTED * best, min(5, len(seen))),
        "secondsToBestLength": tables.first_with(best_length, o.switch_load),
        "tables": tables.seen,
        "bins": [x.to_json() for x in seen],
    }


def _row_at(rows: Mapping[int, Mapping[int, float]], load: int) -> Mapping[int, float]:
    """The row of the batch size that is nearest to a load."""
    return rows[min(rows, key=lambda B: abs(B - load))]


def _share_by_lengths(seen: Sequence[Bin], fixed: Mapping[int, float], step_times: Mapping[int, float]) -> float:
    """What the lengths that were used are worth against the best one, weighted by the time of their steps: free of any drift.

    Args:
        seen: of the time that is judged.
        fixed: tokens a second by length.
        step_times: by length, in any unit.
    """
    seconds = {k: sum(each.lengths.get(k, 0) for each in seen) * step_times[k] for k in fixed}
    return sum(seconds[k] * fixed[k] for k in fixed) / sum(seconds.values()) / max(fixed.values())
