"""The guard before a roll-out: whether replicas may be replaced now. Nothing has been touched while it says no.

Each answer waits for something outside and is looked at anew every time. Who waits for anything but its turn has no place in the
queue, so that nobody waits behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tabletune_operator.conditions import Reason, RolledOut, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.queue import SAID_EVERY_SECONDS, ordinal
from tabletune_operator.decide.stage import Stage
from tabletune_operator.observation import Observation, Workload
from tabletune_operator.status import RolloutQueue
from tabletune_operator.strategy import strategy_of
from tabletune_operator.target import Target
from tabletune_operator.times import parse_time, to_time


@dataclass(frozen=True, slots=True)
class Held:
    """Why a roll-out does not begin now, and its place in the namespace's queue, if that is why."""

    stage: Stage
    queue: RolloutQueue | None = None


def judge_guard(seen: Observation, spec: DraftTableSpec, workload: Workload, target: Target) -> Held | None:
    """None: it may begin."""
    turn = find_turn(seen)  # first, for one that rolls out now may hold the very GPU that is missing
    if turn is not None:
        whom = f"the roll-out of {turn.name}" if turn.rolls_out else f"{turn.name}, which is first"
        said = f"Waits for {whom}; {turn.queue.place}. One roll-out at a time in a namespace. Nothing is changed. "
        return Held(Stage(RolledOut.QUEUED, f"{said}Wait: it starts by itself."), turn.queue)
    around, name = seen.around, workload.called
    if around.scaling is not None:
        return _held(RolledOut.SCALING, f"{name}: {around.scaling}. The roll-out waits until that is over; nothing is changed. Wait.")
    strategy = strategy_of(workload.body)
    tight = next((b for b in around.budgets if b.allowed < strategy.unavailable), None)
    if tight is not None and target.replicas > 0:
        cure = "Wait, or change the budget"
        cure += " or the strategy (maxUnavailable 0)." if workload.kind.surges else "."
        return _held(
            RolledOut.DISRUPTION_BUDGET,
            f"The strategy of {name} stops {strategy.unavailable} of {target.replicas} replicas at a time, and PodDisruptionBudget "
            f"{short(tight.name)} allows {tight.allowed} now. Nothing is changed. {cure}",
        )
    # Where a replica may be missing meanwhile, its GPU is the next one's: then nothing can wait for ever.
    surge = min(strategy.surge, target.replicas) if strategy.unavailable == 0 else 0
    if spec.rollout.guard.free_gpus == "Require" and around.room is not None and around.room < surge:
        return _held(RolledOut.ROLL_OUT_NEEDS_GPU, _no_room(seen, workload, target, surge))
    return None


def _no_room(seen: Observation, workload: Workload, target: Target, surge: int) -> str:
    pool = seen.pool
    product = pool.product.name if pool is not None and pool.product.name else "GPU"
    pods = "a new replica" if surge == 1 else f"{surge} new replicas"
    return (
        f"{workload.called} starts {pods} before old ones end, and {seen.around.room} with {target.gpu_request} {product} fit now. "
        "Nothing is changed. Free a GPU, or set its strategy to maxSurge 0, maxUnavailable 1. Where nodes come on demand set "
        "spec.rollout.guard.freeGPUs to Ignore."
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """It is another's turn: that of the DraftTable `name`, who rolls out or only waited before; and the place in the queue."""

    name: str
    rolls_out: bool
    queue: RolloutQueue


def find_turn(seen: Observation) -> Turn | None:
    """One roll-out at a time in a namespace. None: nobody comes before."""
    others, ref = seen.rollouts, seen.draft.ref
    known = seen.draft.status.rollout
    before = known.queue if known is not None else None
    since = parse_time(before.since) if before is not None else seen.now
    ahead = [w for w in others.waiting if (w.since, w.ref.name) < (since, ref.name)]
    if others.running is None and not ahead:
        return None
    first = others.running if others.running is not None else ahead[0].ref
    place = f"{ordinal(len(ahead) + 1)} of {len(others.waiting) + 1}"
    return Turn(
        short(first.name),
        others.running is not None,
        RolloutQueue(since=to_time(since), seen_at=to_time(_said(before, seen.now)), place=place),
    )


def _said(before: RolloutQueue | None, now: datetime) -> datetime:
    """Said again now and then only: each time is a write."""
    said = parse_time(before.seen_at) if before is not None else now
    return said if timedelta() <= now - said < timedelta(seconds=SAID_EVERY_SECONDS) else now


def _held(reason: Reason, message: str) -> Held:
    return Held(Stage(reason, message))
