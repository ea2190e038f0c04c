"""Whose turn it is to measure on a GPU pool. One Job at a time, or they would measure each other; who asked first is first."""

from __future__ import annotations

from datetime import datetime, timedelta

from tabletune_operator.conditions import Profiled, short
from tabletune_operator.decide.stage import Stage
from tabletune_operator.observation import GpuPool, Job, ObjectRef, Observation
from tabletune_operator.status import Queue as QueueStatus
from tabletune_operator.times import parse_time, spoken, to_time

SAID_EVERY_SECONDS = 60
"""So often the status says that it still waits; below a third of what the others take for silence (pool_queue.py)."""

GIVES_WAY_AFTER_SECONDS = 900
"""A Job whose pod finds no GPU for so long makes room for the next in the queue, which may need fewer."""


def judge_turn(seen: Observation, pool: GpuPool) -> tuple[Stage, QueueStatus] | None:
    """None: it is this one's turn."""
    since, ref = _since(seen, pool), seen.draft.ref
    ahead = [w for w in seen.queue.waiting if (w.since, w.ref.namespace, w.ref.name) < (since, ref.namespace, ref.name)]
    running = seen.queue.running
    if running is None and not ahead:
        return None
    place = f"{ordinal(len(ahead) + 1)} of {len(seen.queue.waiting) + 1}"
    if running is not None:
        whom = f"{_named(running)}'s Job on {_product(pool)}"
    else:
        whom = f"{_named(ahead[0].ref)}, which is first in the queue for {_product(pool)}"
    stage = Stage(
        Profiled.QUEUED,
        f"Waits for {whom}; {place}. One Job at a time, or they would measure each other. Serving is not touched. "
        "Wait: this one starts by itself after it.",
    )
    return stage, _status(seen, pool, since, place)


def gives_way(seen: Observation, job: Job) -> tuple[Stage, QueueStatus] | None:
    """The Job waits for a GPU for long, and others wait for the same pool: it goes to the end of the queue. The caller stops it."""
    others = seen.queue.waiting
    waited = (seen.now - job.created).total_seconds()
    if not others or seen.pool is None or waited <= GIVES_WAY_AFTER_SECONDS or any(pod.node is not None for pod in job.pods):
        return None
    count = len(others) + 1
    stage = Stage(
        Profiled.QUEUED,
        f"No GPU for the Job in {spoken(waited)}, so {_named(others[0].ref)} on {_product(seen.pool)} is next and this one "
        f"{ordinal(count)} of {count}. Serving is not touched. Wait: it starts by itself after them, or free a GPU.",
    )
    # After all who wait now, also those who began to in this second.
    return stage, _status(seen, seen.pool, seen.now + timedelta(seconds=1), f"{ordinal(count)} of {count}")


def _since(seen: Observation, pool: GpuPool) -> datetime:
    known = seen.draft.status.profile
    if known is None or known.queue is None or known.queue.pool != pool.product.name:
        return seen.now
    return parse_time(known.queue.since)


def _status(seen: Observation, pool: GpuPool, since: datetime, place: str) -> QueueStatus:
    known = seen.draft.status.profile
    said = parse_time(known.queue.seen_at) if known is not None and known.queue is not None else None
    recently = said is not None and timedelta() <= seen.now - said < timedelta(seconds=SAID_EVERY_SECONDS)
    return QueueStatus(
        pool=pool.product.name, since=to_time(since), seen_at=to_time(said if recently and said is not None else seen.now), place=place
    )


def _named(ref: ObjectRef) -> str:
    return f"{short(ref.namespace, 40)}/{short(ref.name, 40)}"


def _product(pool: GpuPool) -> str:
    return pool.product.name or "the target's GPU"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
