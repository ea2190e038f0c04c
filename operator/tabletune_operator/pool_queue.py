"""Who else wants to measure on a GPU pool: one Job at a time on each, and who asked first is first. Pure.

A pool is a GPU product, in all namespaces that the operator serves. Without a GPU it is the namespace: nothing but its own Jobs is
known to share its nodes. Who waits says so in its own status, and says it again while it waits, so that one that cannot go on
(its namespace refuses the Job, say) does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tabletune_operator.jobs import POOL_ANNOTATION
from tabletune_operator.nodes import CPU
from tabletune_operator.observation import GpuPool, ObjectRef, Queue, Waiting
from tabletune_operator.pods import DRAFT_TABLE_LABEL
from tabletune_operator.status import ProfileStatus
from tabletune_operator.times import parse_time

STALE_AFTER_SECONDS = 180
"""Who has not said for so long that it waits does not count."""

Body = Mapping[str, Any]


def read_queue(tables: Iterable[Body], jobs: Iterable[Body], ref: ObjectRef, pool: GpuPool | None, now: datetime) -> Queue:
    """The others on this pool, from all DraftTables and all profiling Jobs that may be seen."""
    if pool is None:
        return Queue(None, ())
    product = pool.product.name

    def shares(namespace: str) -> bool:
        return product != CPU.name or namespace == ref.namespace

    running = sorted(
        (parse_time(job["metadata"]["creationTimestamp"]), owner.namespace, owner.name)
        for job in jobs
        if _is_running_on(job, product) and (owner := _owner(job)) != ref and shares(owner.namespace)
    )
    waiting = (_waiting(table, product, now) for table in tables)
    others = [w for w in waiting if w is not None and w.ref != ref and shares(w.ref.namespace)]
    first = ObjectRef(running[0][1], running[0][2]) if running else None
    return Queue(first, tuple(sorted(others, key=lambda w: (w.since, w.ref.namespace, w.ref.name))))


def _owner(job: Body) -> ObjectRef:
    metadata = job["metadata"]
    return ObjectRef(metadata["namespace"], (metadata.get("labels") or {}).get(DRAFT_TABLE_LABEL, ""))


def _is_running_on(job: Body, product: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    ended = any(c["type"] in {"Complete", "Failed"} and c["status"] == "True" for c in conditions)
    return not ended and (job["metadata"].get("annotations") or {}).get(POOL_ANNOTATION) == product


def _waiting(table: Body, product: str, now: datetime) -> Waiting | None:
    metadata = table["metadata"]
    profile = (table.get("status") or {}).get("profile")
    if profile is None or profile.get("queue") is None or "deletionTimestamp" in metadata:
        return None
    try:
        queue = ProfileStatus.model_validate(profile).queue
        if queue is None or queue.pool != product or now - parse_time(queue.seen_at) > timedelta(seconds=STALE_AFTER_SECONDS):
            return None
        return Waiting(ObjectRef(metadata["namespace"], metadata["name"]), parse_time(queue.since))
    except ValueError:  # written by another version; its own operator writes it anew
        return None
