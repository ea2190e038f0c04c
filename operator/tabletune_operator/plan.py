"""What a decision asks for: actions in order, the status to write, events to post, and when to look again.

Every action is safe to repeat, and carries all that it needs, so that act.py decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tabletune_operator.injection import Injection


@dataclass(frozen=True, slots=True)
class EnsureJobAccess:
    """Let the profiling pod's service account write its Job's progress and its ConfigMap."""

    manifests: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class EnsureJob:
    """Create the profiling Job; one that exists under this name stays as it is."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureJobDeleted:
    """Delete the profiling Job in the foreground, so that it is gone only when its pods are."""

    name: str


@dataclass(frozen=True, slots=True)
class StopJob:
    """Let Kubernetes fail the Job and end its pods; the Job stays, with the reason."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureJobAccessDeleted:
    names: tuple[tuple[str, str], ...]  # kind (Role, RoleBinding) and name


@dataclass(frozen=True, slots=True)
class ApplyConfigMap:
    """Write a ConfigMap: another DraftTable's files as our own, or the file that engines read at their start (mode ConfigFile)."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApplyFleet:
    """Write fleet.json beside the other files of our ConfigMap. It names the ConfigMap's uid, so it can never create one."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApplyRecommendation:
    """Write an overlay beside the other files of our ConfigMap. It names the ConfigMap's uid, so it can never create one."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureConfigMapDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class ApplyRollout:
    """Server-side apply of our fields to the target. It names the target's uid, so it can never create one.

    A manifest with a resource version is the whole object, to be written as an update.
    """

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApplyLaunchFile:
    """Write what was decided into the file that engines read at their start (mode ConfigFile)."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApplyMark:
    """Server-side apply of the one annotation by which replicas start again (mode ConfigFile), or of nothing, which takes it away."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Put the target back as it was. The object holds the resource version that was seen, so nobody's edit is overwritten."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BorrowReplica:
    """Scale the target down by one and write the record of it, in one update that holds the resource version that was seen."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReturnReplica:
    """Give the borrowed replica back, or (once that is done or out of our hands) take the record away."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Ask the API server to evict a replica, if PodDisruptionBudgets allow it. The uid keeps a pod of the same name that came after it."""

    name: str
    uid: str


Action = (
    EnsureJobAccess
    | EnsureJob
    | StopJob
    | EnsureJobDeleted
    | EnsureJobAccessDeleted
    | ApplyConfigMap
    | ApplyFleet
    | ApplyRecommendation
    | EnsureConfigMapDeleted
    | ApplyRollout
    | ApplyLaunchFile
    | ApplyMark
    | RestoreTarget
    | BorrowReplica
    | ReturnReplica
    | EvictPod
)


@dataclass(frozen=True, slots=True)
class Inject:
    """New pods of the target get this from the admission webhook."""

    injection: Injection


@dataclass(frozen=True, slots=True)
class StopInjecting:
    """New pods of the target get nothing from the admission webhook."""


@dataclass(frozen=True, slots=True)
class Event:
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`status` is None when nothing of it changed. `finished`: a deleted object may go. `webhook` None: it goes on as it did."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any] | None
    events: tuple[Event, ...]
    requeue_seconds: float
    finished: bool = False
    webhook: Inject | StopInjecting | None = None
