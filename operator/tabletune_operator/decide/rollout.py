"""RolledOut: does every replica prove that it runs what was decided, and if not, what is the next step towards it?

The old setting is put back when new replicas do not come up. One try for each request: what failed once is not tried again until
spec, table or target changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import RolledOut, clipped, short
from tabletune_operator.decide.approval import approval_of, judge_approval
from tabletune_operator.decide.guard import judge_guard
from tabletune_operator.decide.put_back import (
    drifted,
    is_asked,
    is_settled,
    put_back,
    refuse,
    removed,
    tried_again_at,
    undone,
    with_put_back,
)
from tabletune_operator.decide.regression import is_only_reported, judge_regression, worse
from tabletune_operator.decide.served import sum_served
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.decide.target import Wanted
from tabletune_operator.decide.tracking import known_replica
from tabletune_operator.drift import is_in_place
from tabletune_operator.kept import is_kept, rolled_inputs
from tabletune_operator.launch import config_to_launch, why_restart
from tabletune_operator.observation import Damage, Files, Observation, Replica, Workload
from tabletune_operator.plan import Action, ApplyRollout, Inject, RestoreTarget, StopInjecting
from tabletune_operator.restore import restore, template_digest
from tabletune_operator.rollout import Rollout, RolloutRequest, build_rollout
from tabletune_operator.status import RolloutQueue, RolloutStatus
from tabletune_operator.target import Target, TargetError
from tabletune_operator.times import clock, to_time

MOST_CRASHES = 2
"""A new replica that ended so often does not come up; the first end can be bad luck (a node, a download)."""

IMAGE_GRACE_SECONDS = 60
"""A registry may be away for a moment."""


@dataclass(frozen=True, slots=True)
class RollingOut:
    """The stage, and what to remember of the roll-out; `status` None: nothing is rolled out, and nothing was tried."""

    stage: Stage
    status: RolloutStatus | None
    webhook: Inject | StopInjecting | None = None  # None: it goes on as it did


@dataclass(frozen=True, slots=True)
class _Failing:
    """A new replica that will not come up, or that shows what became worse; `pod` is empty where none does."""

    pod: str
    why: str


def judge_rollout(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:  # noqa: PLR0911 - one for each case
    """`wanted` and `files` are None while an earlier stage has no answer: what is rolled out then stays, and is watched."""
    remembered = seen.draft.status.rollout
    workload = seen.workload
    if workload is None:  # one that is made again under this name has had no roll-out
        return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, "Nothing is rolled out before it is verified. Nothing to do."), None)
    ours = workload.rolled is not None and workload.owner == seen.draft.ref.name
    if isinstance(workload.original, Damage):
        return RollingOut(Stage(RolledOut.CANNOT_ROLL_OUT, workload.original.message), remembered)
    if wanted is None or files is None or files.kind is VerdictKind.BLOCKED:
        if not ours:
            return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, "Nothing is rolled out before it is verified. Nothing to do."), remembered)
        return _watch(seen, workload, remembered, None)
    if files.kind is VerdictKind.PRESENT:
        return _keep(seen, wanted, workload, files, ours=ours)
    if ours and wanted.spec.rollout.mode != "Patch":
        return RollingOut(give_back(workload, f"spec.rollout.mode is {wanted.spec.rollout.mode} now"), None)
    if workload.foreign is not None and not workload.put_back:
        return RollingOut(drifted(workload, workload.foreign), remembered)
    if files.kind is VerdictKind.OFF and not ours and wanted.target.speculation is None:
        stage = Stage(RolledOut.SPECULATION_REMOVED, f"{wanted.target.called} runs without --speculative-config already. Nothing to do.")
        return RollingOut(stage, None)
    runner = files.profile.engine.get("runner")
    running = workload.launched if ours else None
    try:
        rollout = build_rollout(
            RolloutRequest(
                draft_table=seen.draft.ref.name,
                target=wanted.target,
                config=config_to_launch(running, files.speculative_config, files.table.launch_lengths, runner),
                controller=wanted.spec.controller,
                image=seen.image,
                python_path=str(files.profile.engine.get("pythonPath") or ""),
            )
        )
    except TargetError as error:
        return RollingOut(Stage(RolledOut.CANNOT_ROLL_OUT, error.message), remembered)
    if ours and (is_in_place(workload.body, rollout) or is_kept(workload.body, rollout)):
        # Not remembered: we were stopped between the apply and the status. An edit of the target by its user is no new roll-out.
        known = remembered is not None and (remembered.digest or "").startswith(f"{rollout.inputs}-")
        request = _request(rollout, wanted.target)
        rolling = _watch(seen, workload, remembered if known else _started(seen, workload, files, request), files)
        if rolling.stage.reason is RolledOut.ROLLED_BACK and rolling.status is not None:
            # The target may have been edited or restarted since: what is taken back is the try of now.
            return replace(rolling, status=rolling.status.model_copy(update={"digest": request}))
        return rolling
    why = ""
    if running is not None and files.speculative_config is not None:
        why = why_restart(running, files.speculative_config, files.table.launch_lengths, runner) or ""
    return _next_step(seen, wanted, workload, files, rollout, ours=ours, why=why)


def _started(seen: Observation, workload: Workload, files: Files, request: str, counted: tuple[Replica, ...] = ()) -> RolloutStatus:
    """A roll-out that begins now. Earlier put-backs stay remembered. `counted`: the replicas that it replaces."""
    before, profile = seen.draft.status.rollout, seen.draft.status.profile
    return RolloutStatus(
        digest=request,
        started_at=to_time(seen.now),
        target_uid=workload.body["metadata"]["uid"],
        approved=approval_of(seen, files),
        reprofile=profile.reprofile if profile is not None else None,
        put_backs=before.put_backs if before is not None else None,
        before=sum_served(workload, counted),
    )


def _waiting(seen: Observation, queue: RolloutQueue | None = None) -> RolloutStatus:
    """A roll-out that waits to begin: nothing of an earlier try counts for it but the put-backs."""
    before = seen.draft.status.rollout
    return RolloutStatus(put_backs=before.put_backs if before is not None else None, queue=queue)


def _request(rollout: Rollout, target: Target) -> str:
    """What one try is for: another table, option or pod template is another request (`kubectl rollout restart` makes one)."""
    return f"{rollout.inputs}-{template_digest(target.template)[:8]}"


def give_back(workload: Workload, why: str) -> Stage:
    return Stage(
        RolledOut.GIVING_BACK,
        f"{why}: {workload.called} gets back what it had before: {workload.kind.replacing(workload.body)}",
        (RestoreTarget(restore(workload.body)),),
    )


def _keep(seen: Observation, wanted: Wanted, workload: Workload, files: Files, *, ours: bool) -> RollingOut:
    if not ours:
        stage = Stage(
            RolledOut.PRESENT_KEPT,
            f"{workload.called} keeps its present setting, the best one measured; nothing is rolled out. Nothing to do.",
        )
        return RollingOut(stage, None)
    unapproved = judge_approval(seen, wanted.spec, workload, files)
    if unapproved is not None:
        return RollingOut(unapproved, seen.draft.status.rollout)
    return RollingOut(give_back(workload, "The setting that was there before is the best one now"), None)


def _next_step(
    seen: Observation, wanted: Wanted, workload: Workload, files: Files, rollout: Rollout, *, ours: bool, why: str
) -> RollingOut:
    """What is decided is not on the target. `why` it needs a restart, where a table of ours runs already."""
    request, spec = _request(rollout, wanted.target), wanted.spec
    stopped = _stopped(seen, workload, files, request) if not ours or workload.put_back else None
    if stopped is not None:
        return stopped
    known = seen.draft.status.rollout
    tried = known is not None and known.digest == request
    if tried and not workload.put_back and rolled_inputs(workload.body) not in {None, rollout.inputs}:
        return RollingOut(undone(workload), known)
    if ours and not workload.put_back and (workload.rolled == rollout.digest or (tried and workload.rolled != "")):
        return RollingOut(removed(workload), known)
    if workload.managed_by is not None and workload.managed_by.fights and spec.rollout.ownership == "Respect":
        return RollingOut(refuse(workload.managed_by, workload), seen.draft.status.rollout)
    held = _held(seen, wanted, workload, files, why)
    if held is not None:
        return held
    because = f" ({why})" if why else ""
    stage = Stage(
        RolledOut.ROLLING_OUT,
        f"{workload.called} gets the new setting{because}: {workload.kind.replacing(workload.body)}",
        (ApplyRollout(rollout.apply),),
    )
    return RollingOut(stage, _started(seen, workload, files, request, workload.replicas))


def _held(seen: Observation, wanted: Wanted, workload: Workload, files: Files, why: str) -> RollingOut | None:
    """What a roll-out waits for before it touches anything; None: it begins."""
    then = f" Then {workload.called} restarts: {why}." if why else ""
    if seen.job is not None:
        stage = Stage(
            RolledOut.WAITING_FOR_JOB_POD,
            f"Profiling Job {short(seen.job.name)} is ending; new replicas may need its GPU, so they start after it.{then} Nothing to do.",
        )
        return RollingOut(stage, _waiting(seen))
    if workload.loan is not None:
        stage = Stage(
            RolledOut.WAITING_FOR_JOB_POD, f"{workload.called} first gets the replica back that was lent to the Job.{then} Nothing to do."
        )
        return RollingOut(stage, _waiting(seen))
    unapproved = judge_approval(seen, wanted.spec, workload, files, why)
    if unapproved is not None:
        return RollingOut(unapproved, _waiting(seen))
    held = judge_guard(seen, wanted.spec, workload, wanted.target)
    return RollingOut(held.stage, _waiting(seen, held.queue)) if held is not None else None


def _stopped(seen: Observation, workload: Workload, files: Files, request: str) -> RollingOut | None:
    """The old setting is on the target: put back by us or by others after a try of ours, and not yet settled. None: one more try."""
    known, profile, owner = seen.draft.status.rollout, seen.draft.status.profile, workload.managed_by
    if known is None or known.digest is None or known.target_uid not in {None, workload.body["metadata"]["uid"]}:
        return None
    approved = approval_of(seen, files)
    answered = profile.reprofile if profile is not None else None
    before = seen.draft.conditions.get("RolledOut")
    if before is not None and before.reason == RolledOut.ROLLED_BACK.name and not workload.put_back:
        stays = known.digest == request and not is_asked(known, approved=approved, reprofile=answered)
        return RollingOut(Stage(RolledOut.ROLLED_BACK, before.message), known) if stays else None
    known = with_put_back(known, seen, workload)
    again_at = tried_again_at(known, workload.writer)
    if (again_at is not None and seen.now >= again_at) or is_settled(known, request, owner=owner, approved=approved, reprofile=answered):
        return None
    return RollingOut(put_back(known, seen, workload, owner, again_at), known)


def _watch(seen: Observation, workload: Workload, status: RolloutStatus | None, files: Files | None) -> RollingOut:
    """What replicas say of the roll-out that is on the target."""
    return watch(seen, workload, status, (RestoreTarget(restore(workload.body)),), files)


def watch(
    seen: Observation, workload: Workload, status: RolloutStatus | None, back: tuple[Action, ...], files: Files | None = None
) -> RollingOut:
    """What replicas say of the setting that they start with. `back` gives the old one back if new replicas do not come up; empty: it is
    not ours to give back. With `files` they are also held against the setting before.
    """
    if not workload.revised:
        complaint = workload.kind.complaint(workload.body)
        said = f"{workload.called} has the new setting; its replicas come next. Nothing to do."
        if complaint is not None:
            said = f"{workload.called} has the new setting, but its replicas do not: {short(complaint, 160)}. They serve as before."
        return RollingOut(Stage(RolledOut.ROLLING_OUT, said), status)
    completed = status is not None and status.completed_at is not None
    current = [r for r in workload.replicas if r.pod.current and not r.pod.terminating and not r.pod.finished]
    failing = next((_Failing(r.pod.name, why) for r in current if (why := why_failing(seen, workload, r)) is not None), None)
    if failing is not None and not completed and back:
        return RollingOut(Stage(RolledOut.ROLLED_BACK, _rolled_back(seen, workload, failing), back), status)
    if failing is not None and not completed:
        said = f"{clipped(failing.why, 180)}. Its setting is not ours to put back: correct it where it is kept. See kubectl describe pod."
        return RollingOut(Stage(RolledOut.ROLLING_OUT, said), status)
    regression = judge_regression(seen, files, current, status)
    if status is not None:
        status = status.model_copy(update={"worse_since": regression.since, "worse_counted": regression.counted})
    if regression.certain and regression.found is not None:
        return RollingOut(_worse(seen, workload, _Failing(regression.pod, regression.found), back), status)
    refused = refusing(current)
    if refused is not None:
        return RollingOut(refused, status)
    stage = _proof(seen, workload, current, failing, files, completed=completed)
    if stage.reason.status == "True" and not completed:
        status = (status or RolloutStatus()).model_copy(update={"completed_at": to_time(seen.now)})
    return RollingOut(stage, status)


def _worse(seen: Observation, workload: Workload, found: _Failing, back: tuple[Action, ...]) -> Stage:
    if not back:
        return Stage(
            RolledOut.WORSE,
            f"{clipped(found.why, 180)}. Serving goes on. Its setting is not ours to put back: correct it where it is kept.",
        )
    if is_only_reported(seen.draft.spec):
        return Stage(RolledOut.WORSE, worse(found.why))
    return Stage(RolledOut.ROLLED_BACK, _rolled_back(seen, workload, found), back)


def _rolled_back(seen: Observation, workload: Workload, failing: _Failing) -> str:
    step = f"Old setting of {workload.called} restored at {clock(seen.now)}. Not tried again until spec or target changes."
    stuck = workload.kind.stuck(workload.body, failing.pod) if failing.pod else None
    step += f" To have it replaced: {stuck}" if stuck else f" To try now: {workload.kind.again(workload.body)}"
    return f"{clipped(failing.why, 298 - len(step))}. {step}"


def why_failing(seen: Observation, workload: Workload, replica: Replica) -> str | None:
    """Why a new replica will not come up; None while it may. A replica that was ready once has come up."""
    pod = replica.pod
    age = (seen.now - pod.created).total_seconds()
    if pod.ready:
        return None
    if pod.out_of_memory is not None and pod.restarts >= MOST_CRASHES:
        return f"New replica {short(pod.name)}: {pod.out_of_memory}. Raise it"
    if pod.crash is not None and pod.restarts >= MOST_CRASHES:
        return f"New replica {short(pod.name)} does not start: {pod.crash}"
    if pod.image_error is not None and age > IMAGE_GRACE_SECONDS:
        return f"New replica {short(pod.name)} does not start: {pod.image_error}"
    deadline = _deadline_seconds(workload)
    if age > deadline:
        what = f"found no node ({pod.unschedulable})" if pod.unschedulable is not None else "was not ready"
        return f"New replica {short(pod.name)} {what} within {deadline} s, the target's own start deadline"
    return None


def _deadline_seconds(workload: Workload) -> int:
    return workload.original.start_deadline_seconds if isinstance(workload.original, Target) else 3600


def refusing(current: list[Replica]) -> Stage | None:
    for replica in current:
        sidecar, pod = replica.sidecar, short(replica.pod.name)
        if sidecar is None:
            continue
        if sidecar.honoured == "NotHonoured":
            return Stage(
                RolledOut.NOT_HONOURED,
                f"Replica {pod} has the table but drafted other lengths in {sidecar.violations} request-steps. "
                "Serving is correct, not faster. Update vLLM, or delete this DraftTable to restore the old setting.",
            )
        if sidecar.reachable and not sidecar.active:
            return Stage(
                RolledOut.PLUGIN_INACTIVE,
                f"The plugin in replica {pod} left the engine as it is: {clipped(sidecar.inactive_reason or 'no reason given', 120)}. "
                "Serving is correct. Update vLLM or TableTune, or delete this DraftTable to restore the old setting.",
            )
    return None


def _proof(  # noqa: PLR0911 - by case
    seen: Observation, workload: Workload, current: list[Replica], failing: _Failing | None, files: Files | None, *, completed: bool
) -> Stage:
    desired = workload.desired
    old = [r for r in workload.replicas if not r.pod.current and not r.pod.terminating and not r.pod.finished]
    ready = [r for r in current if r.pod.ready]
    tracked = any(r.pod.has_sidecar for r in current)
    proved = [r for r in ready if not r.pod.has_sidecar or has_proved(seen, r)]
    counts = f"{len(proved)} of {max(desired, len(current))} replicas"
    settled = not old and len(proved) == len(ready) and (completed or (len(ready) >= desired > 0 and len(ready) == len(current)))
    if settled:
        if tracked:
            return Stage(RolledOut.PROVED, f"{counts} proved that they honour the table.{_later(files, proved)} Nothing to do.")
        if completed and not current:
            return Stage(RolledOut.PROVED, "The target has no replica now; the setting was proved before. Nothing to do.")
        return Stage(RolledOut.SPECULATION_REMOVED, f"{counts} run without speculation, as measured best. Nothing to do.")
    starting = [r for r in current if not r.pod.ready]
    waiting = next((r for r in starting if r.pod.waits_for_gpu), None)
    if waiting is not None:
        return needs_gpu(seen, workload, waiting)
    held = workload.kind.held_back(workload.body, [r.pod.name for r in old]) if not starting else None
    if held is not None:
        return Stage(RolledOut.HELD_BACK, f"{counts} run the new setting. {held} Nothing is forced.")
    if starting or old or len(ready) < desired:
        return _still_rolling(workload, starting, counts, failing, tracked=tracked)
    if desired == 0:
        return Stage(RolledOut.PROVING, "The target is scaled to 0 replicas. Scale it up: the setting is proved by the first that runs.")
    silent = [short(r.pod.name) for r in ready if r.pod.has_sidecar and r.sidecar is None]
    heard = f"Sidecar of {listed(silent, 2)} is silent: see kubectl logs POD -c tabletune-sidecar." if silent else "Nothing to do."
    return Stage(RolledOut.PROVING, f"{counts} proved the new table; each sidecar proves it with a request of its own. {heard}")


def _later(files: Files | None, proved: list[Replica]) -> str:
    """Of a table that came after the roll-out and needs no restart."""
    behind = [r for r in proved if files is not None and r.sidecar is not None and r.sidecar.files not in {None, files.tracked}]
    if files is None or not behind:
        return ""
    return f" A newer table ({files.digest}) reaches {len(behind)} of them within minutes: no restart, so no approval."


def has_proved(seen: Observation, replica: Replica) -> bool:
    """By its own word; a sidecar that is silent now has not taken its word back."""
    if replica.sidecar is not None:
        return replica.sidecar.honoured == "Proved"
    known = known_replica(seen, replica)
    return known is not None and known.honoured == "Proved"


def needs_gpu(seen: Observation, workload: Workload, waiting: Replica) -> Stage:
    pool = seen.pool
    in_use = f" ({pool.total} of {pool.total} {pool.product.name} in use)" if pool is not None and not pool.free else ""
    until = clock(waiting.pod.created + timedelta(seconds=_deadline_seconds(workload)))
    slower = ", or set the target's strategy to maxSurge 0 and maxUnavailable 1" if workload.kind.surges else ""
    return Stage(
        RolledOut.ROLL_OUT_NEEDS_GPU,
        f"New replica {short(waiting.pod.name)} waits for a GPU{in_use}; old replicas serve. Free one{slower}. "
        f"At {until} the old setting is put back.",
    )


def _still_rolling(workload: Workload, starting: list[Replica], counts: str, failing: _Failing | None, *, tracked: bool) -> Stage:
    done = "run the new setting and proved it" if tracked else "run the new setting"
    if failing is not None:
        return Stage(
            RolledOut.ROLLING_OUT,
            f"{counts} {done}. {clipped(failing.why, 150)}. It came after our roll-out, so nothing is put back. See kubectl describe pod.",
        )
    if starting:
        until = clock(starting[0].pod.created + timedelta(seconds=_deadline_seconds(workload)))
        return Stage(
            RolledOut.ROLLING_OUT, f"{counts} {done}; {short(starting[0].pod.name)} is starting (time until {until}). Nothing to do."
        )
    return Stage(RolledOut.ROLLING_OUT, f"{counts} {done}; old replicas are being replaced. Nothing to do.")
