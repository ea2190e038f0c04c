"""Everything that one version leaves behind in a cluster, as files: `tests/fixtures/VERSION/NAME.json`.

They are written once, by the code of that version (`python tests/unit/upgrade/older.py`, from that version's tag), and never edited: what
a later version must be able to read is what was really written.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(tests / folder) for folder in ("support", "unit/sidecar", "unit/operator_decide")]

from sidecar_views import busy
from world import World, deployment, draft_table, rolled_out, serving
from world_files import sidecar_state
from world_gpus import GpuWorld, full, is_lent

from tabletune import __version__
from tabletune.verdict import VerdictKind
from tabletune_operator.times import parse_time, to_time
from tabletune_sidecar.state import save_state

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


async def waiting_for_target() -> World:
    made = World(deployment(), draft_table())
    made.roll(ready=False)
    await made.turns(2)
    return made


async def measuring() -> World:
    made = serving()
    await made.turns(2)
    made.progress()
    await made.turn()
    return made


async def waiting_for_gpu() -> World:
    made = full(placement="Spare")
    await made.turns(3)
    return made


async def borrowing() -> World:
    made = full()
    await made.turn()
    made.now += timedelta(seconds=31)
    await made.turns(3)
    assert is_lent(made)
    return made


async def failed() -> World:
    made = serving()
    for _ in range(3):
        await made.turns(2)
        made.progress(outcome="Failed", reason="EngineDied", message="The engine died.")
        made.end_job(failed=True)
        await made.turn()
        made.now += timedelta(minutes=6)
        await made.turn()
    return made


async def rolling_out() -> World:
    made = serving()
    await made.turns(2)
    made.finish_profile()
    await made.turn()
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    await made.turns(2)
    return made


async def tracking() -> World:
    made = await rolled_out()
    for address in made.states:
        made.states[address] = sidecar_state(ranges=[[1, 63, 3], [64, 128, 1]])
    made.now += timedelta(minutes=11)
    await made.turns(2)
    return made


async def edited_since() -> World:
    """Rolled out, and another flag of the engine edited by its user afterwards."""
    made = await rolled_out()
    made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"].insert(1, "--uvicorn-log-level=warning")
    made.roll()
    await made.turns(3)
    return made


async def off() -> World:
    return await rolled_out(VerdictKind.OFF)


async def fixed() -> World:
    return await rolled_out(VerdictKind.FIXED)


async def present_kept() -> World:
    return await rolled_out(VerdictKind.PRESENT)


async def recommended() -> World:
    return await rolled_out(rollout={"mode": "Recommend"})


async def rolled_back() -> World:
    made = await rolling_out()
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turn()
    del made.roll
    made.roll()
    await made.turns(2)
    return made


async def put_back() -> World:
    made = serving()
    manifest = copy.deepcopy(made.get("Deployment", "decode"))
    await made.until_rolling_out()
    live = made.get("Deployment", "decode")
    live["spec"], live["metadata"]["annotations"] = manifest["spec"], {"deployment.kubernetes.io/revision": "7"}
    made.roll()
    await made.turns(3)
    return made


async def drifted() -> World:
    made = await rolled_out()
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["model", "--max-num-seqs=128", "--speculative-config", '{"method":"ngram","num_speculative_tokens":5}']
    made.roll()
    await made.turns(2)
    return made


async def not_honoured() -> World:
    made = await rolled_out()
    for address in made.states:
        made.states[address] = sidecar_state("NotHonoured")
    await made.turns(2)
    return made


async def blocked() -> World:
    made = serving()
    for address in made.versions:
        made.versions[address] = "0.23.0"
    await made.turns(2)
    return made


STATES: tuple[Callable[[], Awaitable[World]], ...] = (
    waiting_for_target, measuring, waiting_for_gpu, borrowing, failed, rolling_out, tracking, edited_since, off, fixed, present_kept,
    recommended, rolled_back, put_back, drifted, not_honoured, blocked,
)  # fmt: skip


def load(version: str, name: str) -> World:
    """The world as it was left."""
    kept = json.loads((FIXTURES / version / f"{name}.json").read_text())
    made = GpuWorld() if kept["scheduler"] else World()
    made.now, made.nodes, made.versions, made.states = parse_time(kept["now"]), kept["nodes"], kept["versions"], kept["states"]
    for body in kept["objects"]:
        number = body["metadata"]["resourceVersion"]
        made.put(body)["metadata"]["resourceVersion"] = number
    made._serial = 150  # beyond what is there, and still a part of an address
    return made


def dump(made: World) -> dict[str, Any]:
    now: datetime = made.now
    return {
        "now": to_time(now),
        "scheduler": isinstance(made, GpuWorld),
        "nodes": made.nodes,
        "versions": made.versions,
        "states": made.states,
        "objects": [body for _, body in sorted(made.objects.items())],
    }


async def write() -> None:
    folder = FIXTURES / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for state in STATES:
        (folder / f"{state.__name__}.json").write_text(json.dumps(dump(await state()), indent=1, sort_keys=True) + "\n")
    save_state(folder / "sidecar.state", busy().state)


if __name__ == "__main__":
    asyncio.run(write())
