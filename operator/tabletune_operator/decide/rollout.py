"""RolledOut: does every replica prove that it runs what was decided, and if not, what is the next step towards it?

The old setting is put back when new replicas do not come up. One try for each request: what failed once is not tried again until
spec, table or target changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import RolledOut, clipped, short
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.decide.target import Wanted
from tabletune_operator.decide.tracking import known_replica
from tabletune_operator.drift import is_in_place
from tabletune_operator.kept import is_kept, rolled_inputs
from tabletune_operator.observation import Damage, Files, Observation, Replica, Workload
from tabletune_operator.plan import ApplyRollout, Inject, RestoreTarget, StopInjecting
from tabletune_operator.pods import config_map_name
from tabletune_operator.restore import restore, template_digest
from tabletune_operator.rollout import Rollout, RolloutRequest, build_rollout
from tabletune_operator.status import RolloutStatus
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
    """A new replica that will not come up."""

    pod: str
    why: str


def judge_rollout(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:  # noqa: PLR0911 - one for each case
    """`wanted` and `files` are None while an earlier stage has no answer: what is rolled out then stays, and is watched."""
    remembered = seen.draft.status.rollout
    workload = seen.workload
    ours = workload is not None and workload.rolled is not None and workload.owner == seen.draft.ref.name
    if workload is not None and isinstance(workload.original, Damage):
        return RollingOut(Stage(RolledOut.CANNOT_ROLL_OUT, workload.original.message), remembered)
    if workload is None or wanted is None or files is None or files.kind is VerdictKind.BLOCKED:
        if workload is None or not ours:
            return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, "Nothing is rolled out before it is verified. Nothing to do."), remembered)
        return _watch(seen, workload, remembered)
    if files.kind is VerdictKind.PRESENT:
        return RollingOut(_keep(workload, ours=ours), None)
    if wanted.spec.rollout.mode == "Recommend":
        return RollingOut(_recommend(seen, workload, files, ours=ours), None)
    if workload.foreign is not None:
        return RollingOut(_drifted(workload, workload.foreign), remembered)
    if files.kind is VerdictKind.OFF and not ours and wanted.target.speculation is None:
        stage = Stage(RolledOut.SPECULATION_REMOVED, f"{wanted.target.called} runs without --speculative-config already. Nothing to do.")
        return RollingOut(stage, None)
    try:
        rollout = build_rollout(
            RolloutRequest(
                draft_table=seen.draft.ref.name,
                target=wanted.target,
                config=files.speculative_config,
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
        started = RolloutStatus(digest=_request(rollout, wanted.target), started_at=to_time(seen.now))
        return _watch(seen, workload, remembered if known else started)
    return _next_step(seen, workload, wanted.target, rollout, ours=ours)


def _request(rollout: Rollout, target: Target) -> str:
    """What one try is for: another table, option or pod template is another request (`kubectl rollout restart` makes one)."""
    return f"{rollout.inputs}-{template_digest(target.template)[:8]}"


def give_back(workload: Workload, why: str) -> Stage:
    return Stage(
        RolledOut.GIVING_BACK,
        f"{why}: {workload.called} gets back what it had before: {workload.kind.replacing(workload.body)}",
        (RestoreTarget(restore(workload.body)),),
    )


def _keep(workload: Workload, *, ours: bool) -> Stage:
    if ours:
        return give_back(workload, "The setting that was there before is the best one now")
    return Stage(
        RolledOut.PRESENT_KEPT,
        f"{workload.called} keeps its present setting, the best one measured; nothing is rolled out. Nothing to do.",
    )


def _recommend(seen: Observation, workload: Workload, files: Files, *, ours: bool) -> Stage:
    if ours:
        return give_back(workload, "spec.rollout.mode is Recommend now")
    if files.kind is VerdictKind.OFF:
        step = "To follow it remove --speculative-config from the target"
    else:
        step = f"To follow it copy vllm.yaml of ConfigMap {short(config_map_name(seen.draft.ref.name))} into the target"
    return Stage(RolledOut.RECOMMENDED, f"Mode Recommend: {workload.called} is not changed. {step}, or set spec.rollout.mode to Patch.")


def _drifted(workload: Workload, found: str) -> Stage:
    return Stage(
        RolledOut.DRIFTED,
        f"{workload.called} was edited by somebody else: {clipped(found, 80)} instead of ours. Left as it is. To keep it set "
        "spec.rollout.mode to Recommend; to take it back write the value of speculative-config.json into it.",
    )


def _next_step(  # noqa: PLR0911 - one for each case
    seen: Observation, workload: Workload, target: Target, rollout: Rollout, *, ours: bool
) -> RollingOut:
    request, remembered = _request(rollout, target), seen.draft.status.rollout
    tried = remembered is not None and remembered.digest == request
    if tried and not ours:
        before = seen.draft.conditions.get("RolledOut")
        if before is not None and before.reason == RolledOut.ROLLED_BACK.name:
            return RollingOut(Stage(RolledOut.ROLLED_BACK, before.message), remembered)
        return RollingOut(
            Stage(
                RolledOut.PUT_BACK,
                f"The old setting of {workload.called} was put back after our roll-out, by another writer (kubectl rollout undo, GitOps, "
                "Helm) or by a roll-back cut short. Left as it is. Commit ours there, or try again: "
                f"{workload.kind.again(workload.body)}.",
            ),
            remembered,
        )
    if tried and rolled_inputs(workload.body) not in {None, rollout.inputs}:
        # Ours was in place, and an earlier one of ours is there again: only who undid the later one does that.
        return RollingOut(
            Stage(
                RolledOut.PUT_BACK,
                f"{workload.called} has an earlier roll-out of ours again (kubectl rollout undo). Left as it is. To have the newer table: "
                f"kubectl rollout undo again, or {workload.kind.again(workload.body)}",
            ),
            remembered,
        )
    if ours and (workload.rolled == rollout.digest or (tried and workload.rolled != "")):
        return RollingOut(
            Stage(
                RolledOut.DRIFTED,
                f"Fields of ours in {workload.called} were changed or removed by somebody else. Left as it is. To have them back "
                "set spec.rollout.mode to Recommend, then to Patch again; or delete this DraftTable.",
            ),
            remembered,
        )
    if seen.job is not None:
        return RollingOut(
            Stage(
                RolledOut.WAITING_FOR_JOB_POD,
                f"Profiling Job {short(seen.job.name)} is ending; new replicas may need its GPU, so they start after it. Nothing to do.",
            ),
            remembered,
        )
    if workload.loan is not None:
        return RollingOut(
            Stage(RolledOut.WAITING_FOR_JOB_POD, f"{workload.called} first gets the replica back that was lent to the Job. Nothing to do."),
            remembered,
        )
    return RollingOut(
        Stage(
            RolledOut.ROLLING_OUT,
            f"{workload.called} gets the new setting: {workload.kind.replacing(workload.body)}",
            (ApplyRollout(rollout.apply),),
        ),
        RolloutStatus(digest=request, started_at=to_time(seen.now)),
    )


def _watch(seen: Observation, workload: Workload, status: RolloutStatus | None) -> RollingOut:
    """What replicas say of the roll-out that is on the target."""
    if not workload.revised:
        stage = Stage(RolledOut.ROLLING_OUT, f"{workload.called} has the new setting; its replicas come next. Nothing to do.")
        return RollingOut(stage, status)
    completed = status is not None and status.completed_at is not None
    current = [r for r in workload.replicas if r.pod.current and not r.pod.terminating and not r.pod.finished]
    failing = next((_Failing(r.pod.name, why) for r in current if (why := why_failing(seen, workload, r)) is not None), None)
    if failing is not None and not completed:
        return RollingOut(
            Stage(
                RolledOut.ROLLED_BACK,
                _rolled_back(seen, workload, failing),
                (RestoreTarget(restore(workload.body)),),
            ),
            status,
        )
    refused = refusing(current)
    if refused is not None:
        return RollingOut(refused, status)
    stage = _proof(seen, workload, current, failing, completed=completed)
    if stage.reason.status == "True" and not completed:
        status = (status or RolloutStatus()).model_copy(update={"completed_at": to_time(seen.now)})
    return RollingOut(stage, status)


def _rolled_back(seen: Observation, workload: Workload, failing: _Failing) -> str:
    step = f"Old setting of {workload.called} restored at {clock(seen.now)}. Not tried again until spec or target changes."
    stuck = workload.kind.stuck(workload.body, failing.pod)
    step += f" To have it replaced: {stuck}" if stuck else f" To try now: {workload.kind.again(workload.body)}"
    return f"{clipped(failing.why, 298 - len(step))}. {step}"


def why_failing(seen: Observation, workload: Workload, replica: Replica) -> str | None:
    """Why a new replica will not come up; None while it may. A replica that was ready once has come up."""
    pod = replica.pod
    age = (seen.now - pod.created).total_seconds()
    if pod.ready:
        return None
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


def _proof(seen: Observation, workload: Workload, current: list[Replica], failing: _Failing | None, *, completed: bool) -> Stage:  # noqa: PLR0911 - by case
    desired = workload.desired
    old = [r for r in workload.replicas if not r.pod.current and not r.pod.terminating and not r.pod.finished]
    ready = [r for r in current if r.pod.ready]
    tracked = any(r.pod.has_sidecar for r in current)
    proved = [r for r in ready if not r.pod.has_sidecar or has_proved(seen, r)]
    counts = f"{len(proved)} of {max(desired, len(current))} replicas"
    settled = not old and len(proved) == len(ready) and (completed or (len(ready) >= desired > 0 and len(ready) == len(current)))
    if settled:
        if tracked:
            return Stage(RolledOut.PROVED, f"{counts} proved that they honour the table. Nothing to do.")
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
