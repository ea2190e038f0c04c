"""The rules by which kstatus (Flux, kpt, `kubectl` plugins) reads an object that is not of a built-in kind.

A copy of the rules, not the library, which is in Go: pkg/kstatus/status/{generic,status}.go of kubernetes-sigs/cli-utils. In this order:
being deleted; another generation observed; the first of Reconciling and Stalled that is True, as the list has them; else done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kstatus(body: Mapping[str, Any]) -> str:
    """InProgress, Failed, Current or Terminating."""
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = body.get("status", {})
    if "observedGeneration" in status and status["observedGeneration"] != body["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", ()):
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return "Failed"
    return "Current"
