"""Carries a plan out: its actions in order, then one status write, then its events. Safe to repeat, and to stop anywhere."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tabletune_operator.cluster import Cluster, ClusterError
from tabletune_operator.crd import GROUP, KIND, VERSION
from tabletune_operator.observation import Draft
from tabletune_operator.plan import (
    Action,
    ApplyConfigMap,
    ApplyFleet,
    ApplyLaunchFile,
    ApplyMark,
    ApplyRecommendation,
    ApplyRollout,
    BorrowReplica,
    EnsureConfigMapDeleted,
    EnsureJob,
    EnsureJobAccess,
    EnsureJobAccessDeleted,
    EnsureJobDeleted,
    Event,
    EvictPod,
    Plan,
    RestoreTarget,
    ReturnReplica,
    StopJob,
)
from tabletune_operator.times import to_time

COMPONENT = "tabletune-operator"
LONGEST_EVENT_MESSAGE = 1024

FLEET_MANAGER = "tabletune.io/fleet"
"""Field manager of fleet.json alone: what a manager stops applying is deleted, so who writes one key must not own the other files."""

RECOMMENDATION_MANAGER = "tabletune.io/recommendation"
"""Field manager of the overlay that mode Recommend writes, for the same reason."""

log = logging.getLogger(__name__)


async def act(plan: Plan, draft: Draft, now: datetime, cluster: Cluster) -> None:
    """Raises ClusterError; what was done until then stays, and the next reconcile goes on from there."""
    for action in plan.actions:
        await _do(action, draft.ref.namespace, cluster)
    if plan.status is not None:
        await cluster.apply(_with_status(draft, plan.status), "/status")
    for event in plan.events:
        await _post(build_event(event, draft, now), cluster)


async def _post(event: Mapping[str, Any], cluster: Cluster) -> None:
    """An event only tells what the conditions hold: one that is refused, as in a namespace that goes, must not hold up the work."""
    try:
        await cluster.create(event)
    except ClusterError as error:
        log.warning("An event was not posted; the conditions say the same: %s", error)


async def _do(action: Action, namespace: str, cluster: Cluster) -> None:  # noqa: PLR0912 - one for each action
    match action:
        case EnsureJobAccess(manifests):
            for manifest in manifests:
                await cluster.apply(manifest)
        case EnsureJob(manifest):
            await cluster.create(manifest)
        case EnsureJobDeleted(name):
            # In the foreground: a Job that is gone has no pod any more, so its GPU is free.
            await cluster.delete("Job", namespace, name, "Foreground")
        case EnsureJobAccessDeleted(names):
            for kind, name in names:
                await cluster.delete(kind, namespace, name)
        case ApplyRollout(manifest) if "resourceVersion" in manifest["metadata"]:
            await cluster.replace(manifest)
        case ApplyConfigMap(manifest) | ApplyRollout(manifest) | ApplyMark(manifest) | ApplyLaunchFile(manifest) | StopJob(manifest):
            await cluster.apply(manifest)
        case ApplyFleet(manifest):
            await cluster.apply(manifest, manager=FLEET_MANAGER)
        case ApplyRecommendation(manifest):
            await cluster.apply(manifest, manager=RECOMMENDATION_MANAGER)
        case EnsureConfigMapDeleted(name):
            await cluster.delete("ConfigMap", namespace, name)
        case RestoreTarget(body) | BorrowReplica(body) | ReturnReplica(body):
            await cluster.replace(body)
        case EvictPod(name, uid):
            if not await cluster.evict(namespace, name, uid):
                log.info("Pod %s/%s is not evicted now: a PodDisruptionBudget does not allow it.", namespace, name)


def _with_status(draft: Draft, status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The uid makes this a conflict, and no new object, when the DraftTable was deleted and made again meanwhile."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"namespace": draft.ref.namespace, "name": draft.ref.name, "uid": draft.uid},
        "status": status,
    }


def build_event(event: Event, draft: Draft, now: datetime) -> Mapping[str, Any]:
    """As `kubectl describe` shows it at the DraftTable."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": draft.ref.namespace, "name": f"{draft.ref.name[:200]}.{uuid.uuid4().hex[:16]}"},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "namespace": draft.ref.namespace,
            "name": draft.ref.name,
            "uid": draft.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:LONGEST_EVENT_MESSAGE],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": to_time(now),
        "lastTimestamp": to_time(now),
        "count": 1,
    }
