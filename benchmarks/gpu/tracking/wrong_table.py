"""Part `wrong-table`: how long a controller that begins with a wrong table takes to 99 % of the measured table's goodput, at each load.

Measured table, wrong table, controller, measured table again, under one load that goes on. The controller is a new sidecar process whose
files say the wrong table, and which knows nothing of what the engine counted so far.
"""

from __future__ import annotations

import time
from math import sqrt
from typing import Any

from tracking.bench import MAIN, Bench
from tracking.measure import Bin, Tables, bins, level, seconds_to, spread

WANTED = 0.99
LEAST_BINS = 7  # from the moment on, before it counts
OVERHEAD_SECONDS = 10.0


def wrong_table(bench: Bench) -> None:
    loads = bench.part("wrong-table").setdefault("loads", {})
    bench.engines[MAIN].set_rates(bench.options.rates)
    for load in bench.options.loads:
        if str(load) not in loads:
            o = bench.options
            bench.need(o.settle + o.window * 1.5 + 2 * o.bin + o.most + OVERHEAD_SECONDS, f"load {load}")
            loads[str(load)] = _at(bench, load)
            bench.note()
            print(f"{load} requests: {_short(loads[str(load)])}", flush=True)


def _at(bench: Bench, load: int) -> dict[str, Any]:
    o, engine, measured = bench.options, bench.engines[MAIN], bench.measured
    kind, wrong = measured.wrong_at(load)
    files = measured.write(bench.run_dir / "wrong", wrong)
    with bench.loads[MAIN].keep(load, o.tokens):
        engine.put(measured.best)
        time.sleep(o.settle)
        reference = list(bins(engine, o.window, o.bin))
        engine.put(wrong)
        time.sleep(o.bin / 2)
        lost = list(bins(engine, 2 * o.bin, o.bin))
        found: list[Bin] = []
        with bench.sidecar(engine, files) as controller:
            tables = Tables(controller)
            for each in bins(engine, o.most, o.bin, tables.look):
                found.append(each)
                if seconds_to(found, WANTED * level(reference), LEAST_BINS) is not None:
                    break
        engine.put(measured.best)
        time.sleep(o.bin / 2)
        again = list(bins(engine, o.window / 2, o.bin))
    both = [x.tokens_per_second for x in (*reference, *again)]
    wanted = level([*reference, *again])
    noise = spread(both) * sqrt(1 / len(both) + 1 / LEAST_BINS)
    return {
        "wrong": kind,
        "wrongTable": wrong.to_vllm(),
        "referenceTokensPerSecond": round(wanted, 1),
        "referenceSpread": round(spread(both), 4),
        "referenceDrift": round(level(again) / level(reference) - 1, 4),
        "wrongShare": round(level(lost) / wanted, 4),
        "secondsTo99": seconds_to(found, WANTED * wanted, LEAST_BINS),
        "secondsTo99WithinNoise": seconds_to(found, (WANTED - 2 * noise) * wanted, LEAST_BINS),
        "noise": round(noise, 4),  # standard error of a share
        "secondsToMeasuredLength": tables.first_with(measured.best.length_at(load), load),
        "settledShare": round(level(found[-LEAST_BINS:]) / wanted, 4),
        "watchedSeconds": round(found[-1].at + o.bin, 1),
        "tables": tables.seen,
        "bins": {name: [x.to_json() for x in some] for name, some in (("reference", reference), ("controller", found), ("again", again))},
    }


def _short(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("bins", "wrongTable")}
