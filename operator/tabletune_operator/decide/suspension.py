"""`spec.state: Suspended`: nothing new is started. What runs stays, is watched, and is taken back if it does not work."""

from __future__ import annotations

from dataclasses import replace

from tabletune_operator.conditions import Outlook, Profiled, Reason, RolledOut
from tabletune_operator.decide.job import Profiling
from tabletune_operator.decide.rollout import RollingOut
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.target import Wanted
from tabletune_operator.plan import (
    Action,
    ApplyConfigMap,
    ApplyLaunchFile,
    ApplyMark,
    ApplyRollout,
    BorrowReplica,
    EnsureJob,
    EvictPod,
    Inject,
    RestoreTarget,
)
from tabletune_operator.status import RolloutStatus

CURE = "Set spec.state to Active to go on."


def held_profiling(profiling: Profiling) -> Profiling:
    """No Job is started and no replica borrowed; who is held waits in no queue, for others would wait for it."""
    starts = _has(profiling.stage, EnsureJob, BorrowReplica, ApplyConfigMap)
    if not starts and profiling.queue is None:
        return profiling
    what = "uses no other profile" if _has(profiling.stage, ApplyConfigMap) else "starts no profiling Job and borrows no replica"
    stage = Stage(Profiled.SUSPENDED, f"spec.state is Suspended, so it {what}. What runs stays as it is. {CURE}")
    return replace(
        profiling, stage=stage, files=None, attempts=max(0, profiling.attempts - 1) if starts else profiling.attempts, queue=None
    )


def held_rollout(rolling_out: RollingOut, before: RolloutStatus | None) -> RollingOut:
    """No roll-out, and no way back that only a changed wish asks for; one that does not work is still taken back.

    `before` is what is remembered of the last one, which this is no try after.
    """
    stage = rolling_out.stage
    asked = _has(stage, ApplyRollout, ApplyLaunchFile) or (
        _has(stage, RestoreTarget, ApplyMark) and stage.reason.outlook is not Outlook.HUMAN
    )
    evicts = _has(stage, EvictPod) and stage.reason is not RolledOut.ROLLED_BACK
    webhook = rolling_out.webhook
    # In mode Admission another setting for new pods is a roll-out too; the one that they get already goes on.
    injects = isinstance(webhook, Inject) and (before is None or not (before.digest or "").startswith(f"{webhook.injection.digest}-"))
    if not (asked or evicts or injects):
        return rolling_out
    held = Stage(RolledOut.SUSPENDED, f"spec.state is Suspended, so no replica is restarted: what they run stays as it is. {CURE}")
    return RollingOut(held, before, None if injects else webhook)


def shown_reason(reason: Reason, wanted: Wanted | None) -> Reason:
    """With the state that people see: whoever forgot that a DraftTable is suspended must find it so, also while nothing is held back."""
    if wanted is None or wanted.spec.state != "Suspended" or reason.outlook is not Outlook.GOOD:
        return reason
    return replace(reason, state=RolledOut.SUSPENDED.state)


def _has(stage: Stage, *kinds: type[Action]) -> bool:
    return any(isinstance(action, kinds) for action in stage.actions)
