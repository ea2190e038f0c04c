"""The profiling Job, as a decision sees it: what it measures, how far it is, and what to do when it ends badly or does not start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from tabletune_operator.conditions import Profiled, clipped, short
from tabletune_operator.decide.loan import judge_borrowing, may_borrow, own_loan, serving
from tabletune_operator.decide.queue import gives_way
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.target import Wanted
from tabletune_operator.jobs import REPROFILE_ANNOTATION, build_stop, request_digest
from tabletune_operator.observation import Damage, Files, Job, Observation, Pod
from tabletune_operator.plan import EnsureJobDeleted, StopJob
from tabletune_operator.progress import Outcome, Progress
from tabletune_operator.status import Queue as QueueStatus
from tabletune_operator.times import clock, spoken

MOST_ATTEMPTS = 3
RETRY_AFTER_SECONDS = (30, 300)
"""After the first and the second failure: what is transient is over by then, and what is not costs no third GPU hour at once."""

SILENT_AFTER_SECONDS = 180
"""A tuner that wrote nothing for so long is spoken of as silent; a single cell can take a minute or two."""

NO_POD_AFTER_SECONDS = 60

PROBLEM_SECONDS = 600
"""So long the kubelet may try again with an image that it cannot pull or a container that ends at once."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """The stage, the files that may be used, and how often the present request was tried.

    `queue` is its place while it waits for others. `answered` is the value of the annotation `tabletune.io/reprofile` that the
    files were measured for, while that is news.
    """

    stage: Stage
    files: Files | None
    attempts: int
    answered: str | None = None
    queue: QueueStatus | None = None


def has_ended(job: Job) -> bool:
    outcome = job.progress.outcome if isinstance(job.progress, Progress) else None
    return job.complete or job.failure is not None or (outcome is not None and all(pod.finished for pod in job.pods))


def asked_again(seen: Observation) -> str | None:
    """The value of `tabletune.io/reprofile` that nothing was measured for yet; None: no measurement is asked for."""
    known = seen.draft.status.profile
    asked = seen.draft.reprofile
    return None if asked is None or (known is not None and known.reprofile == asked) else asked


def answers(job: Job | None, asked: str) -> bool:
    """Did this Job measure what the annotation asked for, to the end?"""
    if job is None or job.reprofile != asked or not has_ended(job) or job.failure is not None:
        return False
    return isinstance(job.progress, Progress) and job.progress.outcome is Outcome.SUCCEEDED


def judge_job(seen: Observation, wanted: Wanted, job: Job, attempts: int) -> Profiling:
    """What the Job says, when no files answer what is asked for."""
    name = short(job.name)
    if job.deleting:
        return Profiling(
            Stage(Profiled.STARTING, f"The former profiling Job {name} is ending; a new one follows. Nothing to do."),
            None,
            attempts,
        )
    unwanted = _unwanted(seen, wanted, job)
    if unwanted is not None:
        return Profiling(Stage(Profiled.SPEC_CHANGED, unwanted, (EnsureJobDeleted(job.name),)), None, 0)
    if isinstance(job.progress, Progress) and job.progress.outcome is Outcome.BLOCKED:
        return Profiling(
            Stage(
                Profiled.BLOCKED,
                _with_cure(
                    f"{job.progress.reason}: {job.progress.message}",
                    f"Serving is not touched. Change it in the target, or delete Job {name} to try again.",
                ),
            ),
            None,
            attempts,
        )
    if has_ended(job):
        return _failed(seen, job, max(attempts, 1))
    return _unended(seen, wanted, job, attempts)


def _unended(seen: Observation, wanted: Wanted, job: Job, attempts: int) -> Profiling:
    late = _late(seen, wanted, job)
    if late is not None:
        return Profiling(late, None, attempts)
    way = gives_way(seen, job) if own_loan(seen) is None else None
    if way is not None:
        stage, queue = way
        # It was no attempt: nothing has begun.
        return Profiling(replace(stage, actions=(EnsureJobDeleted(job.name),)), None, max(0, attempts - 1), queue=queue)
    return Profiling(_running(seen, wanted, job), None, attempts)


def _late(seen: Observation, wanted: Wanted, job: Job) -> Stage | None:
    """A Job that took too long for what comes before measuring. From the start of its pod on, the kubelet keeps the time as well."""
    limit = wanted.spec.profile.wait_timeout_seconds
    started = [pod.started for pod in job.pods if pod.started is not None]
    if not started and (seen.now - job.created).total_seconds() > limit:
        return _stopped(seen, job, f"Its pod found no place on {gpus(seen)} within {spoken(limit)} (spec.profile.waitTimeoutSeconds).")
    problem = next((p for pod in job.pods if (p := pod.image_error or pod.crash) is not None), None)
    if problem is None or job.progress is not None or not started:
        return None
    if (seen.now - max(started)).total_seconds() <= PROBLEM_SECONDS:
        return None
    return _stopped(seen, job, f"Its pod did not start within {spoken(PROBLEM_SECONDS)}: {clipped(problem, 180)}.")


def _stopped(seen: Observation, job: Job, why: str) -> Stage:
    return Stage(
        Profiled.JOB_STOPPED,
        _with_cure(f"Job {short(job.name)} is stopped. {why}", "It counts as a failed attempt. Serving is not touched. Nothing to do yet."),
        (StopJob(build_stop(seen.draft.ref.namespace, job.name, job.uid, why)),),
    )


def _unwanted(seen: Observation, wanted: Wanted, job: Job) -> str | None:
    """Why the Job's result would be of no use; None: it measures what is asked for."""
    name, asked = short(job.name), asked_again(seen)
    if wanted.spec.profile.policy == "Never" and asked is None:
        return f"Job {name} is stopped: spec.profile.policy is Never now, and no annotation asks for a measurement. Nothing to do."
    if job.request != request_digest(wanted.request):
        what = "spec or the target's pod template"
    elif not wanted.unknown and job.fingerprint != wanted.fingerprint.digest:
        what = "the GPU, the image or the engine of the target"
    elif job.reprofile != asked:
        what = f"annotation {REPROFILE_ANNOTATION}"
    else:
        return None
    return f"Job {name} measures what is no longer asked for: {what} changed since. It is stopped and started anew. Nothing to do."


def _failed(seen: Observation, job: Job, attempts: int) -> Profiling:
    name, cause = short(job.name), _cause(job)
    if attempts >= MOST_ATTEMPTS:
        cure = f"Serving is not touched. See kubectl logs job/{name} --all-containers; change spec or target, or delete the Job to retry."
        return Profiling(Stage(Profiled.JOB_FAILED, _with_cure(f"{attempts} attempts failed. {cause}", cure)), None, attempts)
    ended = job.ended_at or (job.progress.updated_at if isinstance(job.progress, Progress) else job.created)
    again = ended + timedelta(seconds=RETRY_AFTER_SECONDS[attempts - 1])
    cure = f"Serving is not touched. Attempt {attempts + 1} of {MOST_ATTEMPTS} starts at {clock(again)}. Nothing to do yet."
    actions = (EnsureJobDeleted(job.name),) if seen.now >= again else ()
    return Profiling(Stage(Profiled.JOB_RETRIES, _with_cure(cause, cure), actions), None, attempts)


def _cause(job: Job) -> str:
    if job.stopped is not None:
        return f"Job {short(job.name)} was stopped. {job.stopped}"
    if isinstance(job.progress, Progress) and job.progress.outcome is Outcome.FAILED:
        return f"{job.progress.reason}: {job.progress.message}"
    failures = [pod.failure for pod in job.pods if pod.failure is not None]
    if failures:
        return f"Job {short(job.name)} failed: {failures[0]}."
    if job.failure is not None:
        return f"Job {short(job.name)} failed ({job.failure})."
    return f"Job {short(job.name)} ended without a result that can be used."


def _with_cure(cause: str, cure: str) -> str:
    """The cause may be as long as a program makes it; the next step must not be cut off."""
    cause = cause if cause.endswith((".", "…")) else f"{cause}."
    return f"{clipped(cause, 299 - len(cure))} {cure}"


def _running(seen: Observation, wanted: Wanted, job: Job) -> Stage:
    if isinstance(job.progress, Damage):
        return Stage(Profiled.PROFILING, f"Job {short(job.name)} runs; {job.progress.message}. Wait: the result counts, not the progress.")
    if job.progress is not None:
        return _progressing(seen, job, job.progress)
    pod = max(job.pods, key=lambda p: p.created, default=None)
    if pod is None:
        if (seen.now - job.created).total_seconds() > NO_POD_AFTER_SECONDS:
            return Stage(
                Profiled.POD_DOES_NOT_START,
                f"Job {short(job.name)} has no pod since {clock(job.created)}: a quota or an admission policy may refuse it. "
                f"Serving is not touched. See kubectl describe job {short(job.name)}; it goes on by itself.",
            )
        return Stage(Profiled.STARTING, f"Job {short(job.name)} is created, its pod comes next. Serving is not touched. Nothing to do.")
    return _starting(seen, wanted, job, pod)


def _starting(seen: Observation, wanted: Wanted, job: Job, pod: Pod) -> Stage:
    since = clock(pod.created)
    if pod.waits_for_gpu:
        return _waiting_for_gpu(seen, wanted, job, pod)
    if pod.unschedulable is not None:
        return Stage(
            Profiled.WAITING_FOR_NODE,
            _with_cure(
                f"No node takes pod {short(pod.name)} since {since}: {pod.unschedulable}",
                f"{serving(seen)} Free what is missing, or set spec.nodePool.",
            ),
        )
    problem = pod.image_error or pod.crash
    if problem is not None:
        return Stage(
            Profiled.POD_DOES_NOT_START,
            _with_cure(
                f"Pod {short(pod.name)} does not start since {since}: {problem}",
                f"{serving(seen)} See kubectl describe pod {short(pod.name)}; the kubelet tries again by itself.",
            ),
        )
    return Stage(
        Profiled.STARTING,
        f"Job {short(job.name)} runs on {pod.node or 'its node'} since {since}; the engine is being started. "
        f"{serving(seen)} Follow: kubectl logs -f job/{short(job.name)} -c tuner",
    )


def _waiting_for_gpu(seen: Observation, wanted: Wanted, job: Job, pod: Pod) -> Stage:
    # A GPU that is free on its own does not help a pod that needs two on one node, so numbers are told only when none is left.
    in_use = f" ({seen.pool.total} of {seen.pool.total} in use)" if seen.pool is not None and not seen.pool.free else ""
    waits = f"No free {gpus(seen)} since {clock(pod.created)}{in_use}."
    if wanted.spec.profile.placement == "BorrowReplica" and seen.workload is not None:
        return judge_borrowing(seen, job, pod, seen.workload, waits)
    borrow = ", or spec.profile.placement to BorrowReplica" if may_borrow(wanted.target) else ""
    return Stage(
        Profiled.WAITING_FOR_GPU,
        f"{waits} {serving(seen)} Free one, or set spec.nodePool to nodes that have one{borrow}; profiling then starts by itself.",
    )


def _progressing(seen: Observation, job: Job, progress: Progress) -> Stage:
    name = short(job.name)
    said = clipped(progress.message or progress.stage, 100)
    cells = f"{progress.cells_done} of {progress.cells_total} cells ({progress.percent} %), " if progress.cells_total else ""
    silent = (seen.now - progress.updated_at).total_seconds()
    now = f"{said}; no sign of life since {clock(progress.updated_at)}" if silent > SILENT_AFTER_SECONDS else said
    done = f"; done about {clock(progress.finish_at)}" if progress.finish_at is not None and silent <= SILENT_AFTER_SECONDS else ""
    return Stage(
        Profiled.PROFILING,
        f"{cells}{now}{done}. {serving(seen)} Engine restarts in this Job are planned. Follow: kubectl logs -f job/{name} -c tuner",
    )


def gpus(seen: Observation) -> str:
    return (seen.pool.product.name or "the target's GPU") if seen.pool is not None else "the target's GPU"
