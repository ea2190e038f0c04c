"""Who keeps the number of a target's replicas, so that none of them may be borrowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tabletune_operator.kinds import DEPLOYMENT, template_of
from tabletune_operator.label_selector import selects

Body = Mapping[str, Any]


def find_keepers(workload: Body, scalers: Iterable[Body], budgets: Iterable[Body]) -> tuple[str, ...]:
    """For messages: what each of them would do. `scalers` are HorizontalPodAutoscalers and KEDA's ScaledObjects of the namespace."""
    labels = (template_of(workload).get("metadata") or {}).get("labels") or {}
    found = [f"{s['kind']} {s['metadata']['name']} sets its replicas" for s in scalers if scales(s, workload)]
    found += [
        f"PodDisruptionBudget {b['metadata']['name']} allows no replica to stop"
        for b in budgets
        if selects((b.get("spec") or {}).get("selector"), labels) and (b.get("status") or {}).get("disruptionsAllowed", 0) < 1
    ]
    return tuple(sorted(found))


def scales(scaler: Body, workload: Body) -> bool:
    """Is this workload what it scales?"""
    target = (scaler.get("spec") or {}).get("scaleTargetRef") or {}
    named = (target.get("kind", DEPLOYMENT.name), target.get("name"))  # KEDA's default kind
    return named == (workload["kind"], workload["metadata"]["name"])
