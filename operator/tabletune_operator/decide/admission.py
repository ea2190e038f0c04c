"""RolledOut in mode Admission: the target stays as its user wrote it, and its new pods get the setting from the admission webhook.

Replicas that run already get it when they are recreated: by whoever does that (spec.rollout.replace Wait), or by evictions, one at a
time (Evict). What failed once is not tried again until spec, table or target changes, as in mode Patch.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tabletune.verdict import VerdictKind
from tabletune_operator.admission import KINDS_TOLD, request_of
from tabletune_operator.conditions import LONGEST_MESSAGE, RolledOut, clipped, short
from tabletune_operator.decide.approval import judge_approval
from tabletune_operator.decide.eviction import FEWEST_REPLICAS, Held, Replicas, next_eviction, next_return
from tabletune_operator.decide.guard import find_turn
from tabletune_operator.decide.regression import is_only_reported, judge_regression, worse
from tabletune_operator.decide.rollout import RollingOut, give_back, has_proved, judge_rollout, needs_gpu, refusing, why_failing
from tabletune_operator.decide.served import engine_of, sum_served
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.decide.target import Wanted
from tabletune_operator.injection import Injection, WorkloadKey
from tabletune_operator.observation import Damage, Files, Observation, Replica, Webhook, Workload
from tabletune_operator.plan import EvictPod, Inject, StopInjecting
from tabletune_operator.restore import template_digest
from tabletune_operator.rollout import build_rollout
from tabletune_operator.status import RolloutStatus
from tabletune_operator.target import Target, TargetError
from tabletune_operator.times import clock, parse_time, to_time

GRACE = timedelta(seconds=10)
"""Clocks of the API server and of the operator differ; so long after the start of a roll-out a pod may not know of it."""

_LEFT_ALONE = frozenset({RolledOut.RECOMMENDED, RolledOut.PRESENT_KEPT, RolledOut.SPECULATION_REMOVED})
"""Ends at which new pods get nothing from us."""


def judge_admission(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:  # noqa: PLR0911 - one for each case
    """As judge_rollout, which says what both modes have in common."""
    workload, remembered = seen.workload, seen.draft.status.rollout
    if workload is None or isinstance(workload.original, Damage):
        return judge_rollout(seen, wanted, files)
    ours = workload.rolled is not None and workload.owner == seen.draft.ref.name
    if wanted is None or files is None or files.kind is VerdictKind.BLOCKED:
        digest = _setting_of(remembered)
        if ours or digest is None or not any(each.pod.digest == digest for each in workload.replicas):
            return judge_rollout(seen, wanted, files)
        if remembered is not None and _is_taken_back(remembered):
            return RollingOut(_still_taken_back(seen, workload, digest, remembered, evicts=False), remembered)
        # What new pods get stays as it is: the webhook compares each with what was measured, and leaves alone what differs.
        return _watch(seen, workload, digest, remembered, evicts=False)
    if files.kind is VerdictKind.PRESENT or (workload.foreign is not None and not workload.put_back):
        return replace(judge_rollout(seen, wanted, files), webhook=StopInjecting())
    if seen.webhook is None:
        return RollingOut(
            Stage(
                RolledOut.ADMISSION_OFF,
                "spec.rollout.mode is Admission, but this operator runs without its webhook. Nothing was changed. Install the chart with "
                "admission.enabled=true, or set another mode.",
            ),
            remembered,
        )
    if files.kind is VerdictKind.OFF and not ours and wanted.target.speculation is None:
        removed = Stage(RolledOut.SPECULATION_REMOVED, f"{wanted.target.called} runs without --speculative-config already. Nothing to do.")
        return RollingOut(removed, None, StopInjecting())
    if wanted.target.kind.name not in KINDS_TOLD:
        what = f"Mode Admission cannot tell which pods are those of a {wanted.target.kind.name}. Nothing was changed. Set another mode."
        return RollingOut(Stage(RolledOut.CANNOT_ROLL_OUT, what), remembered, StopInjecting())
    injection = build_injection(seen, wanted, files)
    try:
        build_rollout(request_of(injection, wanted.target))
    except TargetError as error:
        return RollingOut(Stage(RolledOut.CANNOT_ROLL_OUT, error.message), remembered, StopInjecting())
    request = f"{injection.digest}-{template_digest(wanted.target.template)[:8]}"
    evicts = wanted.spec.rollout.replace == "Evict"
    if remembered is not None and _stays_taken_back(remembered, request, wanted.target):
        return RollingOut(_still_taken_back(seen, workload, injection.digest, remembered, evicts=evicts), remembered, StopInjecting())
    known = remembered is not None and _setting_of(remembered) == injection.digest and not _is_taken_back(remembered)
    unapproved = None if known else judge_approval(seen, wanted.spec, workload, files)
    if unapproved is not None:
        return RollingOut(unapproved, remembered)
    status = remembered if known else _started(seen, workload, request, injection.digest)
    if ours:
        return RollingOut(_take_back(seen, workload), status, Inject(injection))
    return _watch(seen, workload, injection.digest, status, files, evicts=evicts, webhook=seen.webhook, injection=injection)


def _started(seen: Observation, workload: Workload, request: str, digest: str) -> RolloutStatus:
    """A try that begins now; replicas without the setting are those that it replaces."""
    replaced = [each for each in workload.replicas if each.pod.digest != digest]
    return RolloutStatus(digest=request, started_at=to_time(seen.now), before=sum_served(workload, replaced))


def build_injection(seen: Observation, wanted: Wanted, files: Files) -> Injection:
    target = wanted.target
    return Injection(
        draft_table=seen.draft.ref,
        workload=WorkloadKey(target.namespace, target.kind.name, target.name),
        selector=target.selector,
        container=target.container,
        image=target.image,
        speculation=target.speculation,
        config=files.speculative_config,
        controller=wanted.spec.controller,
        own_image=seen.image,
        python_path=str(files.profile.engine.get("pythonPath") or ""),
    )


def left_running(workload: Workload | None) -> tuple[Replica, ...]:
    """Replicas that run a setting which the webhook added: it stays with them until they are recreated."""
    if workload is None or workload.rolled is not None:
        return ()
    # Of the template of now: the others are being replaced, as those of mode Patch are when it has given the target back.
    return tuple(each for each in _live(workload) if each.pod.digest is not None and each.pod.current and workload.revised)


def with_left_running(stage: Stage, workload: Workload | None) -> Stage:
    """For a target that is left alone: its message says so of replicas that are not as their template is."""
    left = left_running(workload)
    if not left or workload is None or stage.reason not in _LEFT_ALONE:
        return stage
    return replace(stage, message=f"{_left(left)} Restart them when it suits: {workload.kind.again(workload.body)}. {stage.message}")


def _left(left: tuple[Replica, ...]) -> str:
    one = len(left) == 1
    return f"{len(left)} {'replica' if one else 'replicas'} of mode Admission {'keeps' if one else 'keep'} the setting until recreated."


def _setting_of(status: RolloutStatus | None) -> str | None:
    """The digest of the injection, out of what a try was for."""
    return status.digest.partition("-")[0] if status is not None and status.digest else None


def _take_back(seen: Observation, workload: Workload) -> Stage:
    """From mode Patch: the pods that the give-back brings about get the setting from the webhook, so replicas restart once."""
    if seen.job is not None or workload.loan is not None:
        return Stage(
            RolledOut.WAITING_FOR_JOB_POD,
            f"The profiling Job is ending; {workload.called} gets its own template back after it. Nothing to do.",
        )
    return give_back(workload, "spec.rollout.mode is Admission now")


def _taken_back(status: RolloutStatus | None) -> RolloutStatus:
    """Remembered with the try itself: what was tried and has no beginning is not tried again."""
    return (status or RolloutStatus()).model_copy(update={"started_at": None})


def _is_taken_back(status: RolloutStatus) -> bool:
    return status.digest is not None and status.started_at is None


def _stays_taken_back(status: RolloutStatus, request: str, target: Target) -> bool:
    """One try for each request. Of a setting that did worse a restart is no new one: by it replicas leave that setting."""
    if not _is_taken_back(status):
        return False
    if status.worse_since is None:
        return status.digest == request
    return _setting_of(status) == request.partition("-")[0] and (status.before is None or status.before.engine == engine_of(target))


def _still_taken_back(seen: Observation, workload: Workload, digest: str, status: RolloutStatus, *, evicts: bool) -> Stage:
    before = seen.draft.conditions.get("RolledOut")
    told = before.message if before is not None and before.reason == RolledOut.ROLLED_BACK.name else None
    running = tuple(each for each in _live(workload) if each.pod.digest == digest)
    if status.worse_since is None:  # the ready ones serve, and stay
        gone = tuple(_evict(each) for each in running if why_failing(seen, workload, each) is not None)
    else:
        gone = tuple(_evict(each) for each in running if each.pod.crash is not None and not each.pod.ready)
        gone = gone or (_next_back(seen, workload, digest) if told is not None and evicts else ())
    return Stage(
        RolledOut.ROLLED_BACK,
        told
        or f"The setting kept a new replica of {workload.called} from starting, so new pods get none. Not tried again until spec or "
        f"target changes. To try now: {workload.kind.again(workload.body)}",
        gone,
    )


def _next_back(seen: Observation, workload: Workload, digest: str) -> tuple[EvictPod, ...]:
    """The next replica that leaves a setting that did worse; none while another is on its way, or all left it."""
    live = _live(workload)
    left, running = (tuple(each for each in live if (each.pod.digest == digest) is runs) for runs in (False, True))
    found = next_return(seen, workload, workload.desired, Replicas(left, running, (), len(left))) if running else None
    return (found,) if isinstance(found, EvictPod) else ()


def _live(workload: Workload) -> tuple[Replica, ...]:
    return tuple(each for each in workload.replicas if not each.pod.terminating and not each.pod.finished)


def _evict(replica: Replica) -> EvictPod:
    return EvictPod(replica.pod.name, replica.pod.uid)


def _sorted_out(seen: Observation, workload: Workload, digest: str, status: RolloutStatus | None) -> Replicas:
    live = _live(workload)
    admitted = tuple(each for each in live if each.pod.digest == digest)
    without = tuple(each for each in live if each.pod.digest != digest)
    started = parse_time(status.started_at) if status is not None and status.started_at is not None else seen.now
    return Replicas(
        admitted=admitted,
        without=without,
        late=tuple(each for each in without if each.pod.created > started + GRACE),
        proved=sum(each.pod.ready and (not each.pod.has_sidecar or has_proved(seen, each)) for each in admitted),
    )


def _watch(
    seen: Observation,
    workload: Workload,
    digest: str,
    status: RolloutStatus | None,
    files: Files | None = None,
    *,
    evicts: bool,
    webhook: Webhook | None = None,
    injection: Injection | None = None,
) -> RollingOut:
    """What the replicas say of the setting; `injection` None: new pods get what they got before. With `files` goodput counts, too."""
    replicas = _sorted_out(seen, workload, digest, status)
    inject = Inject(injection) if injection is not None else None
    completed = status is not None and status.completed_at is not None
    failing = next(((each, why) for each in replicas.admitted if (why := why_failing(seen, workload, each)) is not None), None)
    if failing is not None and not completed:
        replica, why = failing
        step = f"Since {clock(seen.now)} new pods get the old setting; {short(replica.pod.name)} is replaced. "
        step += "Not tried again until spec or target changes."
        message = f"{clipped(why, 298 - len(step))}. {step}"
        return RollingOut(Stage(RolledOut.ROLLED_BACK, message, (_evict(replica),)), _taken_back(status), StopInjecting())
    regression = judge_regression(seen, files, replicas.admitted, status)
    if status is not None:
        status = status.model_copy(update={"worse_since": regression.since, "worse_counted": regression.counted})
    if regression.certain and regression.found is not None:
        if is_only_reported(seen.draft.spec):
            return RollingOut(Stage(RolledOut.WORSE, worse(regression.found)), status, inject)
        stage = _worse(seen, workload, regression.found, evicts=evicts)
        return RollingOut(stage, _taken_back(status), StopInjecting())
    refused = refusing(list(replicas.admitted))
    if refused is not None:
        return RollingOut(refused, status, inject)
    stage = _progress(seen, workload, replicas, evicts=evicts, webhook=webhook, completed=completed)
    if stage.reason.status == "True" and not completed:
        status = (status or RolloutStatus()).model_copy(update={"completed_at": to_time(seen.now)})
    if status is not None:
        turn = find_turn(seen) if stage.reason is RolledOut.QUEUED else None
        status = status.model_copy(update={"queue": turn.queue if turn is not None else None})
    return RollingOut(stage, status, inject)


def _worse(seen: Observation, workload: Workload, found: str, *, evicts: bool) -> Stage:
    """New pods get the old setting at once; running replicas as they got this one: by evictions, or by who restarts them."""
    step = f"Since {clock(seen.now)} new pods get the old setting, "
    step += (
        "others are evicted one at a time"
        if evicts and workload.desired >= FEWEST_REPLICAS
        else f"others once restarted: {workload.kind.again(workload.body)}"
    )
    step += ". Not tried again until spec or target changes."
    return Stage(RolledOut.ROLLED_BACK, f"{clipped(found, 298 - len(step))}. {step}")


def _progress(  # noqa: PLR0911 - by case
    seen: Observation, workload: Workload, replicas: Replicas, *, evicts: bool, webhook: Webhook | None, completed: bool
) -> Stage:
    desired = workload.desired
    counts = f"{replicas.proved} of {max(desired, len(replicas.all))} replicas"
    if desired == 0 and not replicas.all:
        if completed:
            return Stage(RolledOut.PROVED, "The target has no replica now; the setting was proved before. Nothing to do.")
        return Stage(RolledOut.PROVING, "The target is scaled to 0 replicas. Scale it up: the setting is proved by the first that runs.")
    starting = [each for each in replicas.admitted if not each.pod.ready]
    done = not replicas.without and replicas.proved == len(replicas.admitted) - len(starting) > 0
    if done and (completed or (not starting and len(replicas.admitted) >= desired)):
        if any(each.pod.has_sidecar for each in replicas.admitted):
            return Stage(RolledOut.PROVED, f"{counts} proved that they honour the table; the target is unchanged. Nothing to do.")
        return Stage(RolledOut.SPECULATION_REMOVED, f"{counts} run without speculation, as measured best. Nothing to do.")
    if replicas.late:
        return _not_admitted(seen, workload, replicas, desired, evicts=evicts, webhook=webhook)
    waiting = next((each for each in starting if each.pod.waits_for_gpu), None)
    if waiting is not None:
        return needs_gpu(seen, workload, waiting)
    moving = not workload.revised or any(not each.pod.current for each in replicas.all)
    if starting or moving or len(replicas.all) < desired:
        what = f"{short(starting[0].pod.name)} is starting" if starting else "replicas are being replaced"
        return Stage(RolledOut.ROLLING_OUT, f"{counts} run the setting that new pods get; {what}. Nothing to do.")
    if replicas.without:
        return _replacing(seen, workload, replicas, desired, evicts=evicts)
    silent = [short(each.pod.name) for each in replicas.admitted if each.pod.has_sidecar and each.sidecar is None]
    heard = f"Sidecar of {listed(silent, 2)} is silent: see kubectl logs POD -c tabletune-sidecar." if silent else "Nothing to do."
    return Stage(
        RolledOut.PROVING, f"{counts} of {workload.called} proved the new table; each sidecar proves it with a request of its own. {heard}"
    )


def _replacing(seen: Observation, workload: Workload, replicas: Replicas, desired: int, *, evicts: bool) -> Stage:
    problem = seen.webhook.problem if seen.webhook is not None else None
    if problem is not None:
        return Stage(
            RolledOut.NOT_ADMITTED,
            f"{len(replicas.admitted)} of {len(replicas.all)} replicas run the setting, and new pods do not get it now: "
            f"{clipped(problem, 160)} They serve as their template says.",
        )
    counts, restart = f"{len(replicas.admitted)} of {len(replicas.all)} replicas", workload.kind.again(workload.body)
    if not evicts:
        return Stage(
            RolledOut.WAITING_FOR_RESTART,
            f"{counts} run the setting; the others get it when they are recreated, for the workload is not changed. "
            f"Restart them when it suits: {restart}; or set spec.rollout.replace to Evict.",
        )
    match next_eviction(seen, workload, desired, replicas):
        case Held(why, for_ever=True):
            return Stage(RolledOut.WAITING_FOR_RESTART, f"{counts} run the setting, and {why}. Restart it when it suits: {restart}")
        case Held() as held:
            told = f"{counts} run the setting; the next is evicted once {held.why}. "
            return Stage(held.reason, f"{clipped(told, LONGEST_MESSAGE - len(held.cure))}{held.cure}")
        case action:
            return Stage(
                RolledOut.ROLLING_OUT,
                f"{counts} run the setting; {short(action.name)} is evicted, as far as PodDisruptionBudgets allow. Nothing to do.",
                (action,),
            )


def _not_admitted(
    seen: Observation, workload: Workload, replicas: Replicas, desired: int, *, evicts: bool, webhook: Webhook | None
) -> Stage:
    first = max(replicas.late, key=lambda each: each.pod.created)
    known = (webhook.problem or webhook.refusal) if webhook is not None else None
    why = (known or "the API server did not reach the webhook, or another one undid it").rstrip(".")
    found = next_eviction(seen, workload, desired, replicas) if evicts else Held("", for_ever=True)
    match found:
        case Held(for_ever=True):
            step = f"Then restart it: kubectl delete pod {short(first.pod.name)}"
        case Held(cause):
            step = f"The next is evicted once {cause}."
        case action:
            step = f"{short(action.name)} is evicted now."
    told = f"{len(replicas.admitted)} of {len(replicas.all)} replicas got the setting; {short(first.pod.name)} started without it at "
    told += f"{clock(first.pod.created)} (serving is correct). Likely: "
    message = f"{told}{clipped(why, LONGEST_MESSAGE - 2 - len(told) - len(step))}. {step}"
    return Stage(RolledOut.NOT_ADMITTED, message, () if isinstance(found, Held) else (found,))
