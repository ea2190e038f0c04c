"""Part `fleet`: two replicas with another traffic than was profiled, the operator's own `judge_fleet` over their `/state`, and a third.

The replicas are loaded one after the other, so that they do not share the GPU's time. The third one is played by the second engine, with a
new sidecar that knows nothing of what the engine counted: once with the fleet's file and once without. Counted are its steps with another
length than the one that both replicas ended with, at the batch sizes of the load.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracking.bench import MAIN, SECOND, Bench
from tracking.engines import Engine

from tabletune import formats
from tabletune.formats import FLEET, digest_of, to_fleet
from tabletune.table import Table
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.fleet import judge_fleet
from tabletune_operator.observation import Files, ObjectRef
from tabletune_operator.sidecars import parse_state

OVERHEAD_SECONDS = 10.0
POLL_SECONDS = 0.05


def fleet(bench: Bench) -> None:
    o, part = bench.options, bench.part("fleet")
    if "with" in part:
        return
    if SECOND not in bench.engines:
        part["left out"] = "needs a second engine"
        return
    bench.need(2 * o.replica_seconds + 2 * o.newcomer_seconds + OVERHEAD_SECONDS, "two replicas and two starts of a third")
    files = bench.measured.write(bench.run_dir / "fleet", bench.measured.best)
    engines = [bench.engines[MAIN], bench.engines[SECOND]]
    states = []
    for engine in engines:
        engine.set_rates(o.other_rates)
        with bench.sidecar(engine, files) as replica:
            replica.until_heard()
            with bench.loads[engine.name].keep(o.fleet_load, o.tokens):
                time.sleep(o.replica_seconds)
                state = replica.state()
        if state is None:
            raise RuntimeError(f"the sidecar of {engine.name} does not answer")
        states.append(state)
    part["replicas"] = [{"inForce": s["table"]["inForce"], "acceptance": s["acceptance"], "goodput": s["goodput"]} for s in states]
    written, trial = _judge(bench, files, states)
    part["fleetFile"] = written
    part["trial"] = trial
    wanted = {Table.parse(s["table"]["inForce"]).length_at(o.fleet_load) for s in states}
    part["lengthOfReplicas"] = sorted(wanted)
    bench.note()
    for name in ("without", "with"):
        if name == "with":
            if written is None:
                part["with"] = None
                break
            (files / FLEET).write_text(written)
        part[name] = _newcomer(bench, engines[1], files, wanted)
        bench.note()
        print(f"{name} the fleet's file: {part[name]}", flush=True)
    engines[0].set_rates(o.rates)


def _judge(bench: Bench, folder: Path, states: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """What the operator would write for these replicas, by its own function; only names and time are made up."""
    texts = {name: (folder / name).read_text() for name in formats.TRACKED}
    spec = DraftTableSpec.model_validate({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bench"}})
    seen: Any = SimpleNamespace(draft=SimpleNamespace(spec=spec, ref=ObjectRef("bench", "bench")), now=datetime.now(UTC))
    table = formats.parse_table(texts[formats.TABLE])
    files = Files(bench.measured.profile, bench.measured.acceptance, table, None, "", None, digest_of(texts), None, "")
    replicas: list[Any] = [SimpleNamespace(pod=SimpleNamespace(name=f"r{i}"), sidecar=parse_state(s)) for i, s in enumerate(states)]
    found = judge_fleet(seen, files, replicas)
    return (to_fleet(found.file) if found.file is not None else None), found.trial


def _newcomer(bench: Bench, engine: Engine, files: Path, wanted: set[int]) -> dict[str, Any]:
    o = bench.options
    with bench.sidecar(engine, files) as third:
        first = third.until_heard()["table"]["inForce"]
        before = engine.ask("counts")
        with bench.loads[engine.name].keep(o.fleet_load, o.tokens):
            right_at = None
            begun = time.monotonic()
            while time.monotonic() - begun < o.newcomer_seconds:
                counts, state = engine.ask("counts"), third.state()
                if right_at is None and state and Table.parse(state["table"]["inForce"]).length_at(o.fleet_load) in wanted:
                    right_at = counts["steps"] - before["steps"]
                time.sleep(POLL_SECONDS)
            after, last = engine.ask("counts"), third.state()
    old = {(B, k): steps for B, k, steps in before["chosen"]}
    other = sum(n - old.get((B, k), 0) for B, k, n in after["chosen"] if k not in wanted and o.fleet_load < 2 * B)
    return {
        "firstTable": first,
        "lastTable": last["table"]["inForce"] if last else None,
        "stepsUntilRight": right_at,  # seen once a second
        "stepsWithAnotherLength": other - (after["exploringSteps"] - before["exploringSteps"]),
        "steps": after["steps"] - before["steps"],
    }
