"""Tracking: are the sidecars of all replicas heard, and do their tables follow the traffic?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import RolledOut, Tracking, clipped, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.fleet import FleetFindings
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.observation import Files, Observation, Replica, SidecarState
from tabletune_operator.status import Replica as ReplicaStatus
from tabletune_operator.times import clock, parse_time

SILENT_AFTER_SECONDS = 60
MOST_OF_A_PROBLEM = 140
"""So that with two names of pods the message is whole; the log has all of it."""

_FOLLOWED = frozenset(
    {
        RolledOut.PROVED,
        RolledOut.WORSE,
        RolledOut.APPLIED,
        RolledOut.RECOMMENDATION_OUTDATED,
        RolledOut.PROVING,
        RolledOut.NOT_HONOURED,
        RolledOut.PLUGIN_INACTIVE,
        RolledOut.DRIFTED,
        RolledOut.WAITING_FOR_RESTART,
        RolledOut.NOT_ADMITTED,
    }
)
"""States of a roll-out in which sidecars are there to be heard."""


def judge_tracking(seen: Observation, rolled_out: Stage, files: Files | None, fleet: FleetFindings) -> Stage:
    untouched = {RolledOut.RECOMMENDED, RolledOut.NOT_PROVABLE, RolledOut.PRESENT_KEPT, RolledOut.SPECULATION_REMOVED}
    if rolled_out.reason in untouched or (files is not None and files.kind is VerdictKind.OFF):
        return Stage(Tracking.NOTHING_TO_TRACK, "No table of ours is in force, so there is nothing to follow. Nothing to do.")
    if not is_followed(rolled_out):
        return Stage(Tracking.AWAITS_ROLLED_OUT, "Sidecars are followed once the roll-out is done. Nothing to do.")
    replicas = tracked_replicas(seen)
    if not replicas:
        return Stage(Tracking.NO_REPLICA, "No replica with a sidecar is ready. Wait, or scale the target up (kubectl get pods).")
    silent = [r for r in replicas if r.sidecar is None and (seen.now - last_heard(seen, r)).total_seconds() > SILENT_AFTER_SECONDS]
    if silent:
        first = silent[0]
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        return Stage(
            Tracking.REPLICA_SILENT,
            f"Sidecar of {short(first.pod.name)}{more} not heard since {clock(last_heard(seen, first))} ({first.silence}); "
            f"its engine keeps the last good table. See kubectl logs {short(first.pod.name)} -c tabletune-sidecar",
        )
    return _judge_heard(seen, replicas, fleet)


def _judge_heard(seen: Observation, replicas: Sequence[Replica], fleet: FleetFindings) -> Stage:
    """None of them has been silent for long."""
    troubled = [r for r in replicas if r.sidecar is not None and r.sidecar.problems]
    stopped = [r for r in troubled if r.sidecar is not None and not r.sidecar.tracks]
    if stopped:
        return Stage(Tracking.REPLICA_PROBLEM, _problem(stopped))
    drifting = [(r, drift) for r in replicas if r.sidecar is not None and (drift := _drift(r.sidecar)) is not None]
    if drifting:
        (first, drift), more = drifting[0], f" and {len(drifting) - 1} more" if len(drifting) > 1 else ""
        return Stage(
            Tracking.PROFILE_DRIFT,
            f"Heard; the table is corrected by live times. {short(first.pod.name)}{more}: {clipped(drift, MOST_OF_A_PROBLEM)}",
        )
    spec, heard = seen.draft.spec, f"{len(replicas)} of {len(replicas)} replicas heard"
    if isinstance(spec, DraftTableSpec) and spec.controller.mode == "Observe":
        only = f"{heard}; mode Observe only reports."
        step = _problem(troubled) if troubled else "To follow traffic set spec.controller.mode to Track."
        return Stage(Tracking.OBSERVING, f"{only} {step}")
    step = _problem(troubled) if troubled else "Nothing to do."
    return Stage(Tracking.TRACKING, f"{heard}; their tables follow the traffic.{_outliers(fleet)} {step}")


def _problem(replicas: Sequence[Replica]) -> str:
    """What the first of them says is wrong, in its own words."""
    first, more = replicas[0], f" and {len(replicas) - 1} more" if len(replicas) > 1 else ""
    said = first.sidecar.problems[0] if first.sidecar is not None else ""
    return f"{short(first.pod.name)}{more}: {clipped(said, MOST_OF_A_PROBLEM)} See kubectl logs POD -c tabletune-sidecar"


def _outliers(fleet: FleetFindings) -> str:
    if not fleet.outliers:
        return ""
    have, keep = ("has", "It keeps its own table and is") if len(fleet.outliers) == 1 else ("have", "They keep their own tables and are")
    return f" {listed(map(short, fleet.outliers), 2)} {have} another traffic mix than the others. {keep} left out of the fleet's prior."


def is_followed(rolled_out: Stage) -> bool:
    """Whether the replicas of the roll-out are there to be heard."""
    return rolled_out.reason in _FOLLOWED


def _drift(sidecar: SidecarState) -> str | None:
    """How far live step times are from the profile, when the sidecar says that its corrections are not enough."""
    code = f"{Tracking.PROFILE_DRIFT.name}: "
    return next((problem.removeprefix(code) for problem in sidecar.problems if problem.startswith(code)), None)


def tracked_replicas(seen: Observation) -> tuple[Replica, ...]:
    """Replicas whose sidecar is to be heard: ready ones that have one."""
    if seen.workload is None:
        return ()
    return tuple(r for r in seen.workload.replicas if r.pod.has_sidecar and r.pod.ready and not r.pod.terminating)


def last_heard(seen: Observation, replica: Replica) -> datetime:
    """Now, or as the status remembers it; a replica that was never heard counts from its creation."""
    if replica.sidecar is not None:
        return seen.now
    known = known_replica(seen, replica)
    return parse_time(known.last_heard) if known is not None and known.last_heard is not None else replica.pod.created


def known_replica(seen: Observation, replica: Replica) -> ReplicaStatus | None:
    """The replica as the status remembers it."""
    fleet = seen.draft.status.fleet
    return next((r for r in (fleet.replicas if fleet is not None else None) or () if r.pod == replica.pod.name), None)
