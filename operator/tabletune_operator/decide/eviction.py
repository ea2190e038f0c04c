"""Which replica of a target may be evicted next, so that it comes back with the setting that the admission webhook adds. Pure.

One at a time, and only while everything else serves: an eviction takes a replica out of rotation for as long as its engine takes to start.
What a PodDisruptionBudget allows is the API server's word at the eviction itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tabletune_operator.conditions import short
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
    """Nothing is evicted now: why, as the end of a sentence. `for_ever`: not before somebody changes something."""

    why: str
    for_ever: bool = False


def next_eviction(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> EvictPod | Held:
    """The longest-running replica without the setting, when one may go."""
    held = _held(seen, workload, desired, replicas)
    if held is not None:
        return held
    first = min(replicas.without, key=lambda each: (each.pod.created, each.pod.name))
    return EvictPod(first.pod.name, first.pod.uid)


def _held(seen: Observation, workload: Workload, desired: int, replicas: Replicas) -> Held | None:  # noqa: PLR0911 - one for each case
    if desired < FEWEST_REPLICAS:
        return Held("the last ready replica is never evicted", for_ever=True)
    if seen.webhook is None or seen.webhook.problem is not None:
        return Held("the webhook is served again")
    if seen.job is not None or workload.loan is not None:
        return Held("the profiling Job has ended")
    if not workload.revised or any(not each.pod.current for each in replicas.all):
        return Held("its own roll-out is done")
    ready = [each for each in replicas.all if each.pod.ready]
    if len(ready) < max(desired, len(replicas.all)) or any(each.pod.terminating for each in workload.replicas):
        return Held(f"all {desired} replicas are ready")
    if replicas.proved < len(replicas.admitted):
        return Held("the replicas that have it proved it")
    young = [each for each in replicas.late if _age(each, seen.now) < AGAIN_AFTER]
    if young:
        return Held(f"{short(young[0].pod.name)}, which came without it, has run for {AGAIN_AFTER.seconds // 60} min")
    return None


def _age(replica: Replica, now: datetime) -> timedelta:
    return now - replica.pod.created
