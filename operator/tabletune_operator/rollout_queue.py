"""Who else of a namespace rolls out, or waits to: one roll-out at a time there, and who waited first is first. Pure.

Each takes serving capacity, or a spare GPU, for as long as an engine takes to start. Who waits says so in its own status and says it
again while it waits (pool_queue.py has the same idea for profiling), so that one that cannot go on does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tabletune_operator.conditions import RolledOut, parse_conditions
from tabletune_operator.observation import ObjectRef, Queue, Waiting
from tabletune_operator.pool_queue import STALE_AFTER_SECONDS
from tabletune_operator.status import RolloutStatus
from tabletune_operator.times import parse_time

LONGEST_HOURS = 6
"""A roll-out that goes on for longer is stuck (a quota, a webhook), and no longer holds the others up."""

_MOVES_REPLICAS = frozenset({RolledOut.ROLLING_OUT.name, RolledOut.ROLL_OUT_NEEDS_GPU.name})

Body = Mapping[str, Any]


def read_rollouts(tables: Iterable[Body], ref: ObjectRef, now: datetime) -> Queue:
    """The others; `tables` are the DraftTables of this one's namespace."""
    rolling: list[Waiting] = []
    waiting: list[Waiting] = []
    for table in tables:
        other = ObjectRef(table["metadata"]["namespace"], table["metadata"]["name"])
        told = table.get("status") or {}
        if other == ref or "deletionTimestamp" in table["metadata"] or not told.get("rollout"):
            continue
        try:
            status, condition = RolloutStatus.model_validate(told["rollout"]), parse_conditions(told).get("RolledOut")
            since = _rolling_since(status, condition.reason if condition is not None else "", now)
            if since is not None:
                rolling.append(Waiting(other, since))
            elif status.queue is not None and now - parse_time(status.queue.seen_at) <= timedelta(seconds=STALE_AFTER_SECONDS):
                waiting.append(Waiting(other, parse_time(status.queue.since)))
        except ValueError:  # written by another version; its own operator writes it anew
            continue
    first = min(rolling, key=_by_age, default=None)
    return Queue(first.ref if first is not None else None, tuple(sorted(waiting, key=_by_age)))


def _rolling_since(status: RolloutStatus, reason: str, now: datetime) -> datetime | None:
    """Who only waits to begin has the same reason as one whose new replica waits, but no start."""
    if status.started_at is None or status.completed_at is not None or reason not in _MOVES_REPLICAS:
        return None
    since = parse_time(status.started_at)
    return since if now - since <= timedelta(hours=LONGEST_HOURS) else None


def _by_age(waiting: Waiting) -> tuple[datetime, str]:
    return waiting.since, waiting.ref.name
