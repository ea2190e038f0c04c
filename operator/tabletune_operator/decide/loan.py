"""When a replica of the target is lent to the profiling Job, and when it is given back.

The record on the target (loan.py) is all that is remembered, so whoever looks next goes on from there: after a crash at any point,
with the DraftTable deleted or gone, whatever became of the Job. At most one loan for a Job; while its record is there, nothing
sets `replicas` a second time, so that somebody who puts it back is not fought.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tabletune_operator.conditions import LONGEST_MESSAGE, Profiled, clipped
from tabletune_operator.decide.stage import Stage
from tabletune_operator.kinds import DEPLOYMENT, replicas_of
from tabletune_operator.loan import Loan, close_loan, return_replica, take_replica
from tabletune_operator.observation import Damage, Job, Observation, Pod, Workload
from tabletune_operator.plan import Action, BorrowReplica, Event, ReturnReplica
from tabletune_operator.progress import Progress
from tabletune_operator.target import Target
from tabletune_operator.times import clock, parse_time

BORROW_AFTER_SECONDS = 30
"""A GPU may be free in a moment: a pod that is ending, a node that is coming."""

UNUSED_AFTER_SECONDS = 600
"""A borrowed replica whose GPU went to somebody else is given back."""

LEAST_REPLICAS = 2

RETURNED, LEFT_AS_IS = "ReplicaReturned", "ReplicasLeftAsIs"
"""Events when a loan ends: as before, or as somebody else set `replicas` meanwhile."""


def judge_loan(seen: Observation) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """What is to be given back now, by at most one write of the target, and the event of a loan that is over."""
    workload = seen.workload
    if workload is None or workload.loan is None:
        return (), ()
    deployment = workload.body
    if isinstance(workload.loan, Damage):
        told = f"{workload.loan.message} It is removed, and replicas stays {replicas_of(deployment)}. Set it to what it should be."
        return (ReturnReplica(close_loan(deployment)),), (Event("Warning", LEFT_AS_IS, told),)
    loan, own = workload.loan, seen.draft.ref.name
    if loan.draft_table != own and loan.draft_table in {rival.name for rival in seen.rivals}:
        return (), ()
    if loan.draft_table == own and _is_needed(seen, loan):
        return (), ()
    replicas = replicas_of(deployment)
    if replicas == loan.left:
        return (ReturnReplica(return_replica(deployment, loan)),), ()
    if replicas == loan.replicas:
        event = Event("Normal", RETURNED, f"{workload.called} has its {loan.replicas} replicas again. Nothing to do.")
    else:
        told = f"replicas of {workload.called} was set to {replicas} while 1 of {loan.replicas} was lent. It is left so. Nothing to do."
        event = Event("Warning", LEFT_AS_IS, told)
    return (ReturnReplica(close_loan(deployment)),), (event,)


def _is_needed(seen: Observation, loan: Loan) -> bool:
    job = seen.job
    if seen.draft.deleting or job is None or job.deleting or job.complete or job.failure is not None:
        return False
    if loan.at < job.created:
        return False  # it was for an earlier Job
    if isinstance(job.progress, Progress) and job.progress.outcome is not None:
        return False  # the tuner is done; what its pod still does needs no GPU
    waits = all(pod.node is None for pod in job.pods)
    return not waits or (seen.now - loan.at).total_seconds() <= UNUSED_AFTER_SECONDS


def own_loan(seen: Observation) -> Loan | None:
    """The loan to this DraftTable's Job that is in force: its record is there, and `replicas` is as we set it."""
    workload = seen.workload
    if workload is None or not isinstance(workload.loan, Loan) or workload.loan.draft_table != seen.draft.ref.name:
        return None
    return workload.loan if workload.desired == workload.loan.left else None


def may_borrow(target: Target) -> bool:
    """Is spec.profile.placement BorrowReplica of any use for it?"""
    return target.kind is DEPLOYMENT and target.replicas >= LEAST_REPLICAS


def serving(seen: Observation) -> str:
    """What profiling means for serving, as a sentence."""
    loan = own_loan(seen)
    if loan is None:
        return "Serving is not touched."
    return f"{loan.left} of {loan.replicas} replicas serve until the Job ends."


def borrowed_at(seen: Observation, job: Job) -> datetime | None:
    """When a replica was borrowed for this Job, by the record or else by the status."""
    workload, known = seen.workload, seen.draft.status.profile
    at = None
    if workload is not None and isinstance(workload.loan, Loan) and workload.loan.draft_table == seen.draft.ref.name:
        at = workload.loan.at
    elif known is not None and known.borrowed_at is not None:
        at = parse_time(known.borrowed_at)
    return at if at is not None and at >= job.created else None


def judge_borrowing(seen: Observation, job: Job, pod: Pod, workload: Workload, waits: str) -> Stage:
    """The Job's pod waits for a GPU, and the spec says to borrow one. `waits` says what it waits for, and since when."""
    replicas = workload.desired
    loan = own_loan(seen)
    if loan is not None:
        until = clock(loan.at + timedelta(seconds=UNUSED_AFTER_SECONDS))
        return Stage(
            Profiled.BORROWING,
            f"1 of {loan.replicas} replicas of {workload.called} is stopped for the Job since {clock(loan.at)}; the Job's pod gets its GPU "
            f"next. {serving(seen)} If it has none at {until} the replica comes back. Nothing to do.",
        )
    if borrowed_at(seen, job) is not None:
        why = "its GPU went to another pod, or replicas was set by somebody else (an autoscaler, GitOps)"
        return _refused(f"{waits} One replica of {workload.called} was stopped for this Job, and is not a second time: {why}.")
    obstacle = _obstacle(seen, workload)
    if obstacle is not None:
        return _refused(f"{waits} No replica of {workload.called} is borrowed: {obstacle}. Serving is not touched.")
    at = pod.created + timedelta(seconds=BORROW_AFTER_SECONDS)
    if seen.now < at:
        return Stage(
            Profiled.WAITING_FOR_GPU,
            f"{waits} At {clock(at)} one of {replicas} replicas of {workload.called} is stopped for the Job. Nothing to do.",
        )
    return Stage(
        Profiled.BORROWING,
        f"{waits} 1 of {replicas} replicas of {workload.called} is stopped for the Job; {replicas - 1} serve until it ends. Nothing to do.",
        (BorrowReplica(take_replica(workload.body, seen.draft.ref.name, seen.now)),),
    )


def _refused(what: str) -> Stage:
    cure = "Free a GPU; profiling then starts by itself."
    return Stage(Profiled.CANNOT_BORROW, f"{clipped(what, LONGEST_MESSAGE - 1 - len(cure))} {cure}")


def _obstacle(seen: Observation, workload: Workload) -> str | None:  # noqa: PLR0911 - one for each case
    """Why none of the replicas may be stopped; None: one may."""
    replicas = workload.desired
    if workload.kind is not DEPLOYMENT:
        return "only a Deployment's replicas are"
    if replicas < LEAST_REPLICAS:
        return f"it has {replicas}, and the last one is never stopped"
    if workload.loan is not None:
        return "one of them is lent already"
    if workload.keepers:
        return workload.keepers[0]
    if seen.pool is not None and not seen.pool.holds_target:
        return "not all of them run on nodes that the Job may use (spec.nodePool, cordoned nodes), so the GPU might be of no use"
    live = [r.pod for r in workload.replicas if not r.pod.terminating and not r.pod.finished]
    ready = [pod for pod in live if pod.ready and pod.current]
    if not workload.revised or len(ready) != replicas or len(live) != replicas:
        return f"{len(ready)} of {replicas} are ready with the present setting, and all must be"
    return None
