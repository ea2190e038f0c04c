"""Part `cost`: what the plugin costs a step, by the gaps between streamed chunks at the client: a step makes one chunk of a stream.

Every guess is rejected and all requests are of the same length, so a step is like any other. Two comparisons, in turns of some seconds, the
order changing from pair to pair: one engine whose plugin lets go of the scheduler and takes it again; and two engines, one of them
without the plugin, which has in it what any two engines differ by. A sidecar reads the engine that has the plugin, as in service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

from mismatch import serving
from tracking.bench import BARE, MAIN, SECOND, Bench
from tracking.engines import Engine
from tracking.measure import spread

STREAMS = 4  # of the requests of a turn whose chunks are timed: more would load the server and the client
SETTLING_GAPS = 30  # at either end of a turn, or a quarter of a short one
TURN_SECONDS = 6.0  # at most, as far as planned
WAIT_SECONDS = 60.0


def cost(bench: Bench) -> None:
    o, part = bench.options, bench.part("cost")
    found: dict[str, Any] = part.setdefault("comparisons", {})
    table = bench.measured.launch(o.max_num_seqs)
    files = bench.measured.write(bench.run_dir / "cost", table)
    part["length"] = max(bench.measured.lengths)
    for engine in bench.engines.values():
        engine.set_rates(tuple(0.0 for _ in o.rates))
    main = bench.engines[MAIN]
    try:
        main.tell("hold_plugin", "on")
    except OSError as error:
        part["one engine"] = f"its worker cannot reach the scheduler ({error})"
    else:
        try:
            _compare(bench, found, "one engine", read=main, files=files, choose=lambda on: _hold(main, on))
        finally:
            main.tell("hold_plugin", "on")
    if BARE not in bench.engines:
        return
    second, bare = bench.engines[SECOND], bench.engines[BARE]
    _compare(bench, found, "two engines", read=second, files=files, choose=lambda on: second if on else bare)


def _compare(bench: Bench, found: dict[str, Any], what: str, *, read: Engine, files: Path, choose: Callable[[bool], Engine]) -> None:
    """At each batch size, with an equal share of the time that is left for each comparison. `read`: by a sidecar, meanwhile."""
    loads = bench.options.cost_loads
    with bench.sidecar(read, files, "--mode", "Observe") as beside:
        beside.until_heard()
        for B in loads:
            key = f"{what}, B={B}"
            if key not in found:
                comparisons = (2 if BARE in bench.engines else 1) * len(loads)
                ends = time.monotonic() + bench.left / max(1, comparisons - len(found))
                found[key] = _pairs(bench, key, B, choose, ends)
                bench.note()


def _hold(engine: Engine, on: bool) -> Engine:
    engine.tell("hold_plugin", "on" if on else "off")
    return engine


def _pairs(bench: Bench, what: str, B: int, choose: Callable[[bool], Engine], ends: float) -> dict[str, Any]:
    """`choose`: the engine of a turn with the plugin, or without. `ends`: of time.monotonic(), when the last pair is done."""
    o = bench.options
    bench.need(2 * TURN_SECONDS, what)
    for on in (True, False):  # what is loaded at its first use is nobody's cost
        _turn(bench, choose(on), B, o.turn_tokens // 2)
    taken: list[dict[bool, float]] = []
    took = 0.0
    for n in range(o.pairs):
        begun = time.monotonic()
        if taken and begun + took > ends:
            break
        order = (True, False) if n % 2 else (False, True)
        taken.append({on: _turn(bench, choose(on), B, o.turn_tokens) for on in order})
        took = time.monotonic() - begun
    choose(True)
    added = [pair[True] / pair[False] - 1 for pair in taken]
    middle, around = median(added), spread([1 + x for x in added])
    found = {
        "pairs": len(added),
        "medianGapMicros": {name: round(median(pair[on] for pair in taken) * 1e6, 1) for name, on in (("with", True), ("without", False))},
        "addedShare": round(middle, 5),
        "spreadOfPairs": round(around, 5),
        "standardError": round(1.2533 * around / sqrt(len(added)), 5),  # of the median
        "addedByPair": [round(x, 5) for x in added],
    }
    print(f"{what}: {found}", flush=True)
    return found


def _turn(bench: Bench, engine: Engine, B: int, tokens: int) -> float:
    """The median gap between two chunks of a stream, in seconds, while all B requests run."""
    streams, last = min(STREAMS, B), bench.options.last_token
    rest = serving.Held(engine.url, B - streams, tokens, stream=False, last_token=last)
    timed = serving.Held(engine.url, streams, tokens, stream=True, last_token=last)
    if not (timed.wait(WAIT_SECONDS) and rest.wait(WAIT_SECONDS)) or timed.failures or rest.failures:
        raise RuntimeError(f"{timed.failures + rest.failures} of {B} requests to {engine.name} failed, or did not end")
    gaps = [gap for times in timed.times for gap in _gaps(times)]
    if len(gaps) < tokens // 8:
        raise RuntimeError(
            f"{engine.name} sent {len(gaps)} chunks with a gap for {streams} streams of {tokens} tokens: too few to time steps"
        )
    return median(gaps)


def _gaps(times: list[float]) -> Iterator[float]:
    gaps = [b - a for a, b in pairwise(times)]
    settling = min(SETTLING_GAPS, len(gaps) // 4)
    yield from gaps[settling : len(gaps) - settling]
