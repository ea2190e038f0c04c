"""What the operator tells of itself: the DraftTables as they were last decided, and counts of what this process did (metrics.py).

The reconcile reports here after it acted. A view is replaced as a whole, so the thread that serves `/metrics` needs no lock. Nothing
of it is stored: counters start at 0 with the process, and those of one DraftTable go with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus

from tabletune_operator.cluster import ClusterError
from tabletune_operator.conditions import REASONS, Outlook, Profiled
from tabletune_operator.decide.job import has_ended
from tabletune_operator.decide.tracking import tracked_replicas
from tabletune_operator.observation import Damage, Job, ObjectRef, Observation
from tabletune_operator.plan import ApplyRollout, Plan, RestoreTarget
from tabletune_operator.progress import Progress
from tabletune_operator.status import DraftTableStatus
from tabletune_operator.times import parse_time

SECONDS_EDGES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper edges of the histogram of reconciles: one takes 0.1 s or so, and 5 s when replicas do not answer."""

_WAITING = frozenset({Profiled.WAITING_FOR_GPU.name, Profiled.CANNOT_BORROW.name, Profiled.QUEUED.name})


_FAILED = frozenset(reason.name for reason in REASONS if reason.type == "RolledOut" and reason.outlook is Outlook.HUMAN)


class Result(StrEnum):
    """What becomes of roll-outs."""

    STARTED = "started"
    PROVED = "proved"  # every replica honours it
    ROLLED_BACK = "rolled_back"  # the old setting is back, for it did not work
    GIVEN_BACK = "given_back"  # the old setting is back, as asked for


class Proof(StrEnum):
    """What a replica with a sidecar says of its table."""

    PROVED = "Proved"
    IN_FORCE = "InForce"
    NOT_HONOURED = "NotHonoured"
    UNKNOWN = "Unknown"
    SILENT = "Silent"


class Cause(StrEnum):
    """Why a reconcile failed. All are tried again."""

    NO_ANSWER = "NoAnswer"
    CONFLICT = "Conflict"  # somebody wrote at the same time
    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    INVALID = "Invalid"
    SERVER_ERROR = "ServerError"
    REFUSED = "Refused"  # any other answer of the API server
    UNEXPECTED = "Unexpected"  # an error of ours


_CAUSES: Mapping[int, Cause] = {
    HTTPStatus.CONFLICT: Cause.CONFLICT,
    HTTPStatus.FORBIDDEN: Cause.FORBIDDEN,
    HTTPStatus.NOT_FOUND: Cause.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY: Cause.INVALID,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One condition as it is now."""

    type: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measuring:
    """A profiling Job that has not ended. `heard_at` is when its tuner last wrote; None: not yet."""

    created: datetime
    heard_at: datetime | None
    progress: float | None  # 0 to 1


@dataclass(frozen=True, slots=True)
class TableView:
    """One DraftTable as it was last decided, and what was done for it since this process began."""

    target: str
    gpu: str
    verdict: str
    mode: str
    state: str
    conditions: tuple[Standing, ...]
    measuring: Measuring | None
    waits_since: datetime | None  # for a GPU, its turn included
    replicas: Mapping[Proof, int]
    rollouts: Mapping[Result, int]
    gpu_seconds: int
    counted_job: tuple[str, int] | None  # uid, and GPU seconds of it that were seen


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram: how many ended up to each edge of SECONDS_EDGES (the last: beyond all), and the sum."""

    counts: tuple[int, ...] = (0,) * (len(SECONDS_EDGES) + 1)
    seconds: float = 0.0

    def with_one(self, seconds: float) -> Durations:
        at = bisect_left(SECONDS_EDGES, seconds)
        return Durations((*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :]), self.seconds + seconds)


@dataclass(frozen=True, slots=True)
class OperatorView:
    """All that `/metrics` tells."""

    tables: Mapping[ObjectRef, TableView] = field(default_factory=dict)
    durations: Durations = Durations()
    errors: Mapping[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))


class Telemetry:
    """Where the reconcile leaves what it saw and did."""

    def __init__(self, started: datetime) -> None:
        self._started = started
        self._view = OperatorView()

    @property
    def view(self) -> OperatorView:
        return self._view

    def acted(self, seen: Observation, plan: Plan) -> None:
        """After a plan was carried out, whole."""
        ref = seen.draft.ref
        if plan.finished:
            self.gone(ref)
            return
        table = view_table(seen, plan, self._view.tables.get(ref), self._started)
        self._view = replace(self._view, tables={**self._view.tables, ref: table})

    def gone(self, ref: ObjectRef) -> None:
        self._view = replace(self._view, tables={known: table for known, table in self._view.tables.items() if known != ref})

    def took(self, seconds: float) -> None:
        self._view = replace(self._view, durations=self._view.durations.with_one(seconds))

    def failed(self, error: Exception) -> None:
        cause = cause_of(error)
        self._view = replace(self._view, errors={**self._view.errors, cause: self._view.errors[cause] + 1})


def cause_of(error: Exception) -> Cause:
    if not isinstance(error, ClusterError):
        return Cause.UNEXPECTED
    if error.status is None:
        return Cause.NO_ANSWER
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Cause.SERVER_ERROR
    return _CAUSES.get(error.status, Cause.REFUSED)


def view_table(seen: Observation, plan: Plan, before: TableView | None, started: datetime) -> TableView:
    """What the status says now, and the counts carried on. `started` is when this process did."""
    status = DraftTableStatus.model_validate(plan.status) if plan.status is not None else seen.draft.status
    conditions = tuple(Standing(c.type, c.status, c.reason) for c in status.conditions or ())
    display, spec = status.display, seen.draft.spec
    gpu_seconds, counted = _gpu_seconds(seen.job, before, started)
    return TableView(
        target=(display.target if display is not None else None) or "-",
        gpu=(display.gpu if display is not None else None) or "-",
        verdict=(status.verdict.kind if status.verdict is not None else None) or "-",
        mode="-" if isinstance(spec, Damage) else spec.rollout.mode,
        state=((display.state if display is not None else None) or "Checking").partition(" ")[0],
        conditions=conditions,
        measuring=_measuring(seen.job),
        waits_since=_waits_since(seen, status, before),
        replicas=_replicas(seen),
        rollouts=_rollouts(seen, plan, status, before),
        gpu_seconds=gpu_seconds,
        counted_job=counted,
    )


def _measuring(job: Job | None) -> Measuring | None:
    if job is None or job.deleting or has_ended(job):
        return None
    if not isinstance(job.progress, Progress):
        return Measuring(job.created, None, None)
    return Measuring(job.created, job.progress.updated_at, job.progress.percent / 100)


def _waits_since(seen: Observation, status: DraftTableStatus, before: TableView | None) -> datetime | None:
    reason = next((c.reason for c in status.conditions or () if c.type == "Profiled"), None)
    if reason not in _WAITING:
        return None
    known = [pod.created for pod in seen.job.pods if pod.waits_for_gpu] if seen.job is not None else []
    if status.profile is not None and status.profile.queue is not None:
        known.append(parse_time(status.profile.queue.since))
    if before is not None and before.waits_since is not None:
        known.append(before.waits_since)  # its place in the queue and its Job change; it waits on
    return min(known, default=seen.now)


def _replicas(seen: Observation) -> Mapping[Proof, int]:
    told = Counter(Proof.SILENT if replica.sidecar is None else _proof(replica.sidecar.honoured) for replica in tracked_replicas(seen))
    return {proof: told[proof] for proof in Proof}


def _proof(honoured: str) -> Proof:
    return Proof(honoured) if honoured in {Proof.PROVED, Proof.IN_FORCE, Proof.NOT_HONOURED} else Proof.UNKNOWN


def _rollouts(seen: Observation, plan: Plan, status: DraftTableStatus, before: TableView | None) -> Mapping[Result, int]:
    counts = dict.fromkeys(Result, 0) if before is None else dict(before.rollouts)
    rolled_out = next((c.reason for c in status.conditions or () if c.type == "RolledOut"), None)
    taken_back = Result.ROLLED_BACK if rolled_out in _FAILED else Result.GIVEN_BACK
    for action in plan.actions:
        if isinstance(action, ApplyRollout):
            counts[Result.STARTED] += 1
        elif isinstance(action, RestoreTarget):
            counts[taken_back] += 1
    old = seen.draft.status.rollout
    completed = status.rollout.completed_at if status.rollout is not None else None
    if completed is not None and completed != (old.completed_at if old is not None else None):
        counts[Result.PROVED] += 1
    return counts


def _gpu_seconds(job: Job | None, before: TableView | None, started: datetime) -> tuple[int, tuple[str, int] | None]:
    """The sum that this process saw being spent. Of a Job that is older than the process, what was spent before is not counted again."""
    total, counted = (before.gpu_seconds, before.counted_job) if before is not None else (0, None)
    if job is None:
        return total, counted
    spent = job.progress.gpu_seconds if isinstance(job.progress, Progress) else 0
    if counted is None or counted[0] != job.uid:
        counted = (job.uid, 0 if job.created >= started else spent)
    return total + max(0, spent - counted[1]), (job.uid, max(spent, counted[1]))
