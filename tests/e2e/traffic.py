"""Requests through a Service from inside the cluster, as a gateway sends them, and how many of them failed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from place import STEP_SECONDS, Place
from workloads import config_map

IMAGE = "tabletune.local/tabletune:dev"
"""It has Python and httpx."""
NAME = "traffic"
PROGRAM = "traffic_pod.py"
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests so far, or between two moments: answered ones, and failed ones by what the client saw."""

    answered: int
    failed: dict[str, int]

    def since(self, before: Tally) -> Tally:
        return Tally(
            self.answered - before.answered,
            {kind: count - before.failed.get(kind, 0) for kind, count in self.failed.items() if count > before.failed.get(kind, 0)},
        )


class Traffic:
    def __init__(self, place: Place) -> None:
        self._place = place

    def tally(self) -> Tally:
        """As of the last second."""
        log = self._place.cluster.kubectl("logs", NAME, "-n", self._place.namespace, "--tail=1").out
        found = json.loads(log) if log.strip() else {"answered": 0, "failed": {}}
        return Tally(found["answered"], found["failed"])

    def wait_answered(self, more: int) -> None:
        """Until so many more requests have got an answer."""
        wanted = self.tally().answered + more
        self._place.until(lambda: self.tally().answered >= wanted, f"{more} more requests are answered", STEP_SECONDS)


@contextlib.contextmanager
def traffic(place: Place, service: str = "decode") -> Iterator[Traffic]:
    """Some requests at a time to this Service, from when its first one was answered until the end of the block."""
    place.create(config_map(NAME, {PROGRAM: (Path(__file__).parent / PROGRAM).read_text()}))
    place.create(_pod(f"http://{service}.{place.namespace}.svc:8000/v1/completions"))
    found = Traffic(place)
    place.until(lambda: place.get("Pod", NAME)["status"]["phase"] == "Running", "the traffic's pod runs")
    found.wait_answered(1)
    try:
        yield found
    finally:
        place.delete("Pod", NAME)
        place.delete("ConfigMap", NAME)


def _pod(url: str) -> dict[str, Any]:
    container = {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", f"/program/{PROGRAM}"],
        "env": [{"name": "TRAFFIC_URL", "value": url}, {"name": "TRAFFIC_AT_ONCE", "value": str(AT_ONCE)}],
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "program", "configMap": {"name": NAME}}],
        },
    }
