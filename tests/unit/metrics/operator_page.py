"""The page of an operator at work: the reconcile itself in small worlds, one DraftTable each, in the states that alerts ask for."""

from __future__ import annotations

import asyncio
import copy
import functools
from datetime import datetime, timedelta

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_page import Family, families
from world import IMAGE, NAMESPACE, NOW, World, deployment, draft_table
from world_files import sidecar_state
from world_gpus import GpuWorld, full

from tabletune_operator.metrics import OperatorCollector
from tabletune_operator.observation import ObjectRef
from tabletune_operator.observe import Observer
from tabletune_operator.reconcile import Reconciler
from tabletune_operator.telemetry import OperatorView, Telemetry

LATER = NOW + timedelta(hours=1)


async def look(made: World, telemetry: Telemetry, name: str = "chat", times: int = 1) -> None:
    """So many reconciles, a second apart."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(made.answer), trust_env=False) as http:
        reconciler = Reconciler(made, Observer(made, http, IMAGE, lambda: made.now), telemetry)  # type: ignore[arg-type]
        for _ in range(times):
            await reconciler.reconcile(ObjectRef(NAMESPACE, name))
            made.now += timedelta(seconds=1)


def world(name: str) -> World:
    made = World(deployment(), draft_table(name))
    made.roll()
    return made


async def roll_out(made: World, telemetry: Telemetry, name: str, *, ready: bool = True) -> None:
    await look(made, telemetry, name, 2)
    made.finish_profile(name)
    await look(made, telemetry, name)
    if not ready:
        roll = made.roll
        made.roll = lambda target="decode", ready=False: roll(target, ready=ready)  # type: ignore[method-assign, assignment]
    await look(made, telemetry, name)


async def fail_profile(made: World, telemetry: Telemetry, name: str) -> None:
    """Three Jobs, all failed."""
    for _ in range(3):
        await look(made, telemetry, name, 2)
        made.progress(name, outcome="Failed", reason="EngineDied", message="The engine died.")
        made.end_job(name, failed=True)
        await look(made, telemetry, name)
        made.now += timedelta(minutes=6)
        await look(made, telemetry, name)


@functools.cache
def busy() -> OperatorView:
    """Of an operator with a DraftTable in each state that is told of."""
    return asyncio.run(_busy())


async def _busy() -> OperatorView:
    telemetry = Telemetry(NOW - timedelta(minutes=1))
    tracking = world("tracking")
    await roll_out(tracking, telemetry, "tracking")
    await look(tracking, telemetry, "tracking", 2)

    refusing = world("refusing")
    await roll_out(refusing, telemetry, "refusing")
    for address in refusing.states:
        refusing.states[address] = copy.deepcopy(sidecar_state("NotHonoured"))
    await look(refusing, telemetry, "refusing")

    crashing = world("crashing")
    await roll_out(crashing, telemetry, "crashing", ready=False)
    for pod in crashing.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await look(crashing, telemetry, "crashing")

    rolling = world("rolling")
    await roll_out(rolling, telemetry, "rolling", ready=False)
    await look(rolling, telemetry, "rolling")

    measuring = world("measuring")
    await look(measuring, telemetry, "measuring")
    measuring.progress("measuring")
    await look(measuring, telemetry, "measuring")

    waiting: GpuWorld = full(placement="Spare")
    await look(waiting, telemetry, "chat", 2)

    failing = world("failing")
    await fail_profile(failing, telemetry, "failing")

    blocked = World(deployment(args=["model"]), draft_table("blocked"))
    blocked.roll()
    await look(blocked, telemetry, "blocked")
    return telemetry.view


def text(view: OperatorView, now: datetime = LATER) -> str:
    registry = CollectorRegistry()
    registry.register(OperatorCollector(lambda: view, lambda: now))
    return generate_latest(registry).decode()


def page(view: OperatorView) -> tuple[Family, ...]:
    return families(text(view))


def value(view: OperatorView, name: str, now: datetime = LATER, **labels: str) -> float:
    """Of the one sample with these labels."""
    (found,) = (
        sample.value
        for family in text_string_to_metric_families(text(view, now))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found
