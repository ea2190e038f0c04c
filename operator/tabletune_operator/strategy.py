"""How a workload replaces its replicas: how many more, and how many fewer, it has meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Strategy:
    """`surge`: pods beyond the wanted number; `unavailable`: wanted ones that may be missing. Both 0: it replaces none by itself."""

    surge: int
    unavailable: int


def strategy_of(body: Body) -> Strategy:
    """As the controller of its kind rounds: a surge up, a Deployment's unavailable ones down, a StatefulSet's up."""
    spec = body["spec"]
    replicas = int(spec.get("replicas", 1))
    match body.get("kind"):
        case "StatefulSet":
            update = spec.get("updateStrategy") or {}
            if update.get("type") == "OnDelete":
                return Strategy(0, 0)
            return Strategy(0, max(1, _count((update.get("rollingUpdate") or {}).get("maxUnavailable", 1), replicas, ceil)))
        case "LeaderWorkerSet":
            rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
            return _rolling(rolling, replicas, surge=0, unavailable=1)
        case _:
            update = spec.get("strategy") or {}
            if update.get("type") == "Recreate":
                return Strategy(0, replicas)
            return _rolling(update.get("rollingUpdate") or {}, replicas, surge="25%", unavailable="25%")


def _rolling(given: Body, replicas: int, *, surge: int | str, unavailable: int | str) -> Strategy:
    more = _count(given.get("maxSurge", surge), replicas, ceil)
    fewer = min(replicas, _count(given.get("maxUnavailable", unavailable), replicas, floor))
    # Two percentages may both come to 0, and then nothing could ever be replaced: Kubernetes takes 1 unavailable.
    return Strategy(more, fewer if more or fewer else 1)


def _count(value: int | str, replicas: int, rounded: Any) -> int:
    """A number, or a percentage of the replicas."""
    if isinstance(value, int):
        return value
    try:
        return int(rounded(int(value.removesuffix("%")) * replicas / 100))
    except ValueError:
        return 0  # the API server refuses such a text; a definition of a later version may not
