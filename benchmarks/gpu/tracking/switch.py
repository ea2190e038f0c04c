"""Part `switch`: the traffic becomes another one in the running engine, and comes back; what the time after that is worth.

Acceptance is written into vLLM's synthetic rejection between two steps (worker.py), so nothing restarts. Afterwards each length is measured
under the same traffic: the best of them is what that time is held against.
"""

from __future__ import annotations

import time
from typing import Any

from tracking.bench import MAIN, Bench
from tracking.measure import Bin, Tables, bins, level, seconds_to

from tabletune.table import Table

LEARN_SECONDS = 6.0  # of the first traffic, before the switch
FIXED_SECONDS = 4.0
WANTED = 0.96


def switch(bench: Bench) -> None:
    o, engine, part = bench.options, bench.engines[MAIN], bench.part("switch")
    if part.get("ways"):
        return
    ways: list[dict[str, Any]] = []
    lengths = bench.measured.lengths
    bench.need(LEARN_SECONDS + 2 * (o.after + len(lengths) * (FIXED_SECONDS + 1)) + 10, "two switches")
    files = bench.measured.write(bench.run_dir / "switch", bench.measured.best)
    try:
        with bench.loads[MAIN].keep(o.switch_load, o.tokens):
            engine.set_rates(o.rates)
            engine.put(bench.measured.best)
            time.sleep(o.settle)
            fixed: dict[tuple[float, ...], dict[int, float]] = {}
            found: list[tuple[tuple[float, ...], list[Bin], Tables]] = []
            with bench.sidecar(engine, files) as controller:
                controller.until_heard()
                time.sleep(LEARN_SECONDS)
                for rates in (o.other_rates, o.rates):
                    engine.set_rates(rates)
                    tables = Tables(controller)
                    found.append((rates, list(bins(engine, o.after, o.bin, tables.look)), tables))
            for rates, _, _ in found:
                engine.set_rates(rates)
                fixed[rates] = {k: _fixed(bench, k) for k in lengths}
    finally:
        engine.set_rates(o.rates)
    for i, (rates, seen, tables) in enumerate(found):
        best = max(fixed[rates].values())
        before = found[i - 1][0] if i else o.rates
        stale = bench.measured.best_for(before).length_at(o.switch_load)
        ways.append(
            {
                "to": list(rates),
                "load": o.switch_load,
                "fixed": {str(k): round(tokens, 1) for k, tokens in fixed[rates].items()},
                "bestTable": bench.measured.best_for(rates).to_vllm(),
                "seconds": o.after,
                "shareOfBest": round(level(seen) / best, 4),
                "shareWithoutController": round(fixed[rates][stale] / best, 4),
                "settledShare": round(level(seen[len(seen) // 2 :]) / best, 4),
                "secondsTo96": seconds_to(seen, WANTED * best, min(5, len(seen))),
                "secondsToBestLength": tables.first_with(max(fixed[rates], key=fixed[rates].__getitem__), o.switch_load),
                "tables": tables.seen,
                "bins": [x.to_json() for x in seen],
            }
        )
        print({name: value for name, value in ways[-1].items() if name != "bins"}, flush=True)
    part["ways"] = ways
    bench.note()


def _fixed(bench: Bench, k: int) -> float:
    engine = bench.engines[MAIN]
    engine.put(Table.fixed(k, bench.options.max_num_seqs))
    time.sleep(1.0)
    return level(list(bins(engine, FIXED_SECONDS, bench.options.bin)))
