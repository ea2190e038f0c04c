"""What goes on around a target, for the guard before a roll-out (decide/guard.py): scales, budgets, room for more pods. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tabletune_operator.keepers import scales
from tabletune_operator.kinds import kind_of, replicas_of
from tabletune_operator.label_selector import selects
from tabletune_operator.nodes import free_by_node, gpu_request
from tabletune_operator.observation import Budget

Body = Mapping[str, Any]


_COUNTED = frozenset({"Deployment", "StatefulSet", "LeaderWorkerSet"})
"""Kinds whose status counts their replicas."""


def find_scaling(body: Body, scalers: Iterable[Body]) -> str | None:
    """What is under way with the replicas of this workload; None: nothing is. KEDA's own autoscalers are among `scalers`."""
    for scaler in scalers:
        status = scaler.get("status") or {}
        wanted, present = status.get("desiredReplicas"), status.get("currentReplicas")
        # 0 is what stands there before an autoscaler ever got its metrics, and as long as it gets none.
        if wanted and wanted != (present or 0) and scales(scaler, body):
            return f"{scaler['kind']} {scaler['metadata']['name']} scales it from {present or 0} to {wanted} replicas"
    if body["kind"] not in _COUNTED:
        return None
    status, replicas = body.get("status") or {}, replicas_of(body)
    present, updated = status.get("replicas", 0), status.get("updatedReplicas", 0)
    if not kind_of(body).is_counted(body):
        return None
    # A StatefulSet may keep old replicas for ever: by its partition, or with OnDelete.
    if body["kind"] == "Deployment" and updated < min(present, replicas):
        return f"an earlier roll-out of it is under way ({updated} of {replicas} replicas updated)"
    if present != replicas:
        return f"it is being scaled from {present} to {replicas} replicas"
    return None


def find_budgets(labels: Mapping[str, str], budgets: Iterable[Body]) -> tuple[Budget, ...]:
    """Those that select pods with these labels, by name."""
    found = (
        Budget(b["metadata"]["name"], int((b.get("status") or {}).get("disruptionsAllowed", 0)))
        for b in budgets
        if selects((b.get("spec") or {}).get("selector"), labels)
    )
    return tuple(sorted(found, key=lambda budget: budget.name))


def find_room(nodes: Iterable[Body], pods: Iterable[Body], resource: str | None, request: int) -> int | None:
    """How many pods that ask for `request` GPUs each find them now: those of one pod must be on one node. None without a GPU."""
    if resource is None or request < 1:
        return None
    return sum(free // request for free in free_by_node(nodes, pods, resource).values())


def find_next_taker(pods: Iterable[Body], own: Collection[str], resource: str | None) -> str | None:
    """The first pod by name, other than those named in `own`, that the scheduler finds no node for and that asks for this GPU."""
    return min((pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] not in own and _waits_for(pod, resource)), default=None)


def _waits_for(pod: Body, resource: str | None) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    unschedulable = any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)
    return unschedulable and "deletionTimestamp" not in pod["metadata"] and gpu_request(pod["spec"], resource) > 0
