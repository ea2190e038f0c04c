"""Which replica of a target may be evicted next, so that it comes back with the setting that the admission webhook adds. Pure.

One at a time, and only while everything else serves: an eviction takes a replica out of rotation for as long as its engine takes to start.
The guard before it is that of a roll-out (guard.py) where the two are alike: its turn in the namespace, no scale under way. A replica's
own GPU is the next one's, so no spare one is asked for, but nobody else may wait for it. What a PodDisruptionBudget allows is the API
server's word at the eviction itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tabletune_operator.conditions import Reason, RolledOut, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.guard import find_turn
from tabletune_operator.observation import Observation, Replica, Workload
from tabletune_operator.plan import EvictPod

FEWEST_REPLICAS = 2
"""The last ready replica is never evicted: nobody would serve until its engine has started again."""

AGAIN_AFTER = timedelta(minutes=30)
"""A replica that came back without the setting is a sign that the webhook does not work: so long nothing else is evicted."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Those of a target that neither end nor have ended, by what they run."""

    admitted: tuple[Replica, ...]  # with the setting of now
    without: tuple[Replica, ...]  # with none, or with an earlier one
    late: tuple[Replica, ...]  # of those, created when they should have got it
    proved: int  # of the admitted ones

    @property
    def all(self) -> tuple[Replica, ...]:
        return (*self.admitted, *self.without)


@dataclass(frozen=True, slots=True)
class Held:
    """Nothing is evicted now: why, as the end of a sentence. `for_ever`: not before somebody changes something.

    `reason`: which condition that is. Only RollingOut holds up the others of the namespace.
    """

    why: str
    for_ever: bool = False
    reason: Reason = RolledOut.ROLLING_OUT
    cure: str = "Nothing to do."


def next_eviction(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> EvictPod | Held:
    """The longest-running replica without the setting, when one may go."""
    held = _held(seen, workload, desired, replicas)
    return held if held is not None else _oldest(replicas)


def next_return(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> EvictPod | Held:
    """The same for a way back, with `without` as those that still run what is taken back: nobody's turn is waited for, nor the webhook."""
    held = _unsafe(seen, workload, desired, replicas)
    return held if held is not None else _oldest(replicas)


def _oldest(replicas: Replicas) -> EvictPod:
    first = min(replicas.without, key=lambda each: (each.pod.created, each.pod.name))
    return EvictPod(first.pod.name, first.pod.uid)


def _held(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> Held | None:
    if seen.webhook is None or seen.webhook.problem is not None:
        return Held("the webhook is served again")
    unsafe = _unsafe(seen, workload, desired, replicas)
    if unsafe is not None:
        return unsafe
    if replicas.proved < len(replicas.admitted):
        return Held("the replicas that have it proved it")
    young = [each for each in replicas.late if _age(each, seen.now) < AGAIN_AFTER]
    if young:
        return Held(f"{short(young[0].pod.name)}, which came without it, has run for {AGAIN_AFTER.seconds // 60} min")
    turn = find_turn(seen)  # last, for who waits for anything else has no place in the queue
    if turn is not None:
        return Held(f"{turn.name}, whose roll-out comes before, is done ({turn.queue.place} that wait)", reason=RolledOut.QUEUED)
    return None


def _unsafe(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> Held | None:  # noqa: PLR0911 - one for each case
    """What speaks against any eviction."""
    if desired < FEWEST_REPLICAS:
        return Held("the last ready replica is never evicted", for_ever=True)
    if seen.job is not None or workload.loan is not None:
        return Held("the profiling Job has ended", reason=RolledOut.WAITING_FOR_JOB_POD)
    if not workload.revised or any(not each.pod.current for each in replicas.all):
        return Held("its own roll-out is done")
    ready = [each for each in replicas.all if each.pod.ready]
    if len(ready) < max(desired, len(replicas.all)) or any(each.pod.terminating for each in workload.replicas):
        return Held(f"all {desired} replicas are ready")
    if seen.around.scaling is not None:
        return Held(f"this is over: {seen.around.scaling}", reason=RolledOut.SCALING)
    taker, spec = seen.around.next_taker, seen.draft.spec
    if taker is not None and isinstance(spec, DraftTableSpec) and spec.rollout.guard.free_gpus == "Require":
        cure = "Free one, or set spec.rollout.guard.freeGPUs to Ignore."
        why = f"no other pod waits for its GPU ({short(taker)} does, and would take it)"
        return Held(why, reason=RolledOut.WAITING_FOR_RESTART, cure=cure)
    return None


def _age(replica: Replica, now: datetime) -> timedelta:
    return now - replica.pod.created
