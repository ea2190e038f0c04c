"""Decides the next step for one DraftTable: a pure function of what was observed, with one module for each condition.

Total: every observation gives a plan, and nothing raises. No client, no clock; a lint contract holds this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tabletune_operator.conditions import (
    NOT_STALLED,
    SETTLED,
    Accepted,
    Condition,
    Outlook,
    Profiled,
    RolledOut,
    Verified,
    clipped,
    condition_of,
    keep_transition_times,
)
from tabletune_operator.decide.admission import with_left_running
from tabletune_operator.decide.deletion import judge_deletion
from tabletune_operator.decide.delivery import judge_delivery
from tabletune_operator.decide.fleet import NOTHING_FOUND, FleetFindings, judge_fleet
from tabletune_operator.decide.job import Profiling
from tabletune_operator.decide.loan import judge_loan
from tabletune_operator.decide.profile import judge_profile
from tabletune_operator.decide.rollout import RollingOut
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.status import fleet_status, profile_status, table_status, verdict_status
from tabletune_operator.decide.suspension import held_profiling, held_rollout, shown_reason
from tabletune_operator.decide.target import Wanted, judge_target
from tabletune_operator.decide.throttle import throttled
from tabletune_operator.decide.tracking import is_followed, judge_tracking, tracked_replicas
from tabletune_operator.decide.verdict import judge_verdict
from tabletune_operator.display import build_display
from tabletune_operator.events import table_events, transition_events
from tabletune_operator.observation import Damage, Files, Observation
from tabletune_operator.plan import (
    Action,
    BorrowReplica,
    EnsureJobDeleted,
    Event,
    Inject,
    Plan,
    RestoreTarget,
    ReturnReplica,
    StopInjecting,
)
from tabletune_operator.status import Condition as ConditionStatus
from tabletune_operator.status import DraftTableStatus, RolloutStatus
from tabletune_operator.times import to_time

REQUEUE_SECONDS = {Outlook.WORKING: 3.0, Outlook.WAITING: 10.0, Outlook.GOOD: 15.0, Outlook.HUMAN: 15.0, Outlook.BEHIND: 15.0}
"""When to look again without an event. Replicas are only heard by asking, so a settled object is looked at too."""


def decide(seen: Observation) -> Plan:
    """Choose the next step."""
    if seen.draft.deleting:
        stages, actions, events = judge_deletion(seen)
        return _plan(
            seen, stages, actions, _Details(seen.draft.status.rollout, webhook=StopInjecting()), events=events, finished=not actions
        )
    if not seen.draft.has_finalizer:
        # Nothing may be changed in the cluster before its undoing is certain.
        return Plan((), None, (), REQUEUE_SECONDS[Outlook.WORKING])
    seen = throttled(seen)
    accepted, wanted = judge_target(seen)
    if wanted is None:
        stages, kept = _not_accepted(seen, accepted)
        actions, events = _with_loan(seen, stages)
        return _plan(seen, stages, actions, _Details(kept.status, webhook=kept.webhook), events=events)
    suspended = wanted.spec.state == "Suspended"
    profiling = held_profiling(judge_profile(seen, wanted)) if suspended else judge_profile(seen, wanted)
    files = profiling.files
    verified = (
        judge_verdict(seen.draft.ref.name, files)
        if files is not None
        else Stage(Verified.AWAITS_PROFILED, "Decided from the profile, which is not there yet. Nothing to do.")
    )
    rolling_out = _judge_rollout(seen, wanted, files)
    if suspended:
        rolling_out = held_rollout(rolling_out, seen.draft.status.rollout)
    fleet = judge_fleet(seen, files, tracked_replicas(seen) if is_followed(rolling_out.stage) else ())
    tracking = replace(judge_tracking(seen, rolling_out.stage, files, fleet), actions=fleet.actions)
    stages = (accepted, profiling.stage, verified, rolling_out.stage, tracking)
    actions, events = _with_loan(seen, stages)
    return _plan(seen, stages, actions, _Details(rolling_out.status, wanted, profiling, files, fleet, rolling_out.webhook), events=events)


@dataclass(frozen=True, slots=True)
class _Details:
    """What the stages found out besides their conditions."""

    rollout: RolloutStatus | None
    wanted: Wanted | None = None
    profiling: Profiling | None = None
    files: Files | None = None
    fleet: FleetFindings = NOTHING_FOUND
    webhook: Inject | StopInjecting | None = None


def _not_accepted(seen: Observation, accepted: Stage) -> tuple[tuple[Stage, ...], RollingOut]:
    """The later stages of an object that was not accepted: what is rolled out stays, and what is being measured is of no use."""
    stop: tuple[Action, ...] = ()
    refused = accepted.reason.outlook is Outlook.HUMAN and accepted.reason is not Accepted.SPEC_NOT_READABLE
    if refused and seen.job is not None and not seen.job.deleting:
        stop = (EnsureJobDeleted(seen.job.name),)
    rolling_out = _judge_rollout(seen, None, None)
    stages = (
        accepted,
        Stage(Profiled.AWAITS_ACCEPTED, "Measured once the DraftTable is accepted. See condition Accepted.", stop),
        Stage(Verified.AWAITS_PROFILED, "Decided from the profile, which is not there yet. See condition Accepted."),
        rolling_out.stage,
        judge_tracking(seen, rolling_out.stage, None, NOTHING_FOUND),
    )
    return stages, rolling_out


def _judge_rollout(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:
    """With what new pods get from the webhook: nothing in any other mode. A spec that cannot be read leaves that as it is."""
    rolling_out, spec = judge_delivery(seen, wanted, files), seen.draft.spec
    if not isinstance(spec, Damage) and spec.rollout.mode != "Admission":
        rolling_out = replace(rolling_out, webhook=StopInjecting())
    if isinstance(rolling_out.webhook, StopInjecting):
        rolling_out = replace(rolling_out, stage=with_left_running(rolling_out.stage, seen.workload))
    return rolling_out


def _with_loan(seen: Observation, stages: tuple[Stage, ...]) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """The actions of all stages, a loan's return first; and its events."""
    returned, events = judge_loan(seen)
    actions = (*returned, *(action for stage in stages for action in stage.actions))
    # Each of these names the version of the target that was seen, so only the first can succeed; the next look does the others.
    writes = [action for action in actions if isinstance(action, BorrowReplica | ReturnReplica | RestoreTarget)]
    return tuple(action for action in actions if action not in writes[1:]), events


def _plan(
    seen: Observation,
    stages: tuple[Stage, ...],
    actions: tuple[Action, ...],
    details: _Details,
    *,
    events: tuple[Event, ...] = (),
    finished: bool = False,
) -> Plan:
    conditions = _conditions(seen, stages)
    status = _status(seen, stages, conditions, details)
    if not seen.draft.deleting:
        events = (*events, *transition_events(conditions, seen.draft.conditions), *table_events(status.fleet, seen.draft.status.fleet))
    return Plan(
        actions=actions,
        status=_to_write(status, seen.draft.status),
        events=events,
        requeue_seconds=min(REQUEUE_SECONDS[stage.reason.outlook] for stage in stages),
        finished=finished,
        webhook=details.webhook,
    )


def _deciding(stages: tuple[Stage, ...]) -> Stage:
    """The stage that says which state the object is in: the first that is not where it should be, or how the roll-out ended."""
    for stage in stages:
        if stage.reason.outlook not in {Outlook.GOOD, Outlook.BEHIND}:
            return stage
    *_, rolled_out, tracking = stages
    return rolled_out if rolled_out.reason.state != "Tracking" else tracking


def _conditions(seen: Observation, stages: tuple[Stage, ...]) -> tuple[Condition, ...]:
    generation, now = seen.draft.generation, seen.now
    conditions = (*(condition_of(stage.reason, stage.message, generation, now) for stage in stages), *summarised(stages, generation, now))
    return keep_transition_times(conditions, seen.draft.conditions)


def summarised(stages: tuple[Stage, ...], generation: int, now: datetime) -> tuple[Condition, ...]:
    """Ready, Reconciling and Stalled, of which always exactly one is True (docs/gitops.md)."""

    def summary(kind: str, holds: bool, reason: str, message: str) -> Condition:
        return Condition(kind, "True" if holds else "False", reason, clipped(message), generation, to_time(now))

    deciding = _deciding(stages)
    ready = all(stage.reason.outlook is Outlook.GOOD for stage in stages)
    moving = next((s for s in stages if s.reason.outlook in {Outlook.WORKING, Outlook.WAITING}), None)
    stuck = next((s for s in stages if s.reason.outlook is Outlook.HUMAN), None)
    return (
        summary("Ready", ready, deciding.reason.name, deciding.message),
        # Never beside Stalled: of the two, tools believe the one that they read first.
        summary("Reconciling", True, moving.reason.name, moving.message)
        if moving is not None and stuck is None
        else summary("Reconciling", False, SETTLED, "No work is going on, or a person is needed first: see Stalled. Nothing else to do."),
        summary("Stalled", True, stuck.reason.name, stuck.message)
        if stuck is not None
        else summary("Stalled", False, NOT_STALLED, "It goes on without a person. Nothing to do."),
    )


def _status(seen: Observation, stages: tuple[Stage, ...], conditions: tuple[Condition, ...], details: _Details) -> DraftTableStatus:
    old, files = seen.draft.status, details.files
    profile, fleet, deciding = profile_status(seen, details.wanted, details.profiling), fleet_status(seen, details.fleet), _deciding(stages)
    sidecars = [r.sidecar for r in tracked_replicas(seen) if r.sidecar is not None]
    live = [sidecar.in_force for sidecar in sidecars if sidecar.in_force is not None]
    shown = shown_reason(deciding.reason, details.wanted)
    *_, rolled_out, _ = stages
    if rolled_out.reason in {RolledOut.SPECULATION_REMOVED, RolledOut.PRESENT_KEPT} and seen.workload is not None:
        honoured = sum(r.pod.current and r.pod.ready for r in seen.workload.replicas)  # nothing is there to be heard
    else:
        honoured = (fleet.honoured or 0) if fleet is not None else 0
    return DraftTableStatus(
        observed_generation=seen.draft.generation,
        conditions=tuple(ConditionStatus.model_validate(condition.to_status()) for condition in conditions),
        display=build_display(seen, shown, deciding.message, files=files, profile=profile, live=live, honoured=honoured),
        profile=profile,
        table=table_status(files) or old.table,
        verdict=verdict_status(files) or old.verdict,
        rollout=details.rollout,
        fleet=fleet,
    )


def _to_write(new: DraftTableStatus, old: DraftTableStatus) -> Mapping[str, Any] | None:
    if new == old:
        return None
    written: dict[str, Any] = new.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written
