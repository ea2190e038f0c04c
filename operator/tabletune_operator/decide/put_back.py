"""What to do about somebody who writes over our roll-out: stop, name them, and go on when the matter is settled.

One put-back ends a try: another writer's word counts more than ours. A second one within ten minutes says that a tool keeps the
target (`ManagedElsewhere`), and then a change of the pod template is no wish for another try either, for it is that tool's.

A GitOps controller reads the target and then writes it, so one that had read the old arguments when our roll-out came puts them back
though it was told to leave them, and would not do it again. So its put-back is followed by one try by itself, once it was quiet for a
while; not by a second one within a day, for each costs two restarts of every replica. Whoever else put it back may be a person
(`kubectl rollout undo`, `helm rollback`), and is asked to say "again".

Settled, so that one more try is made: what we would roll out is another thing (spec, table); the annotation `tabletune.io/approve` or
`tabletune.io/reprofile` asks for it; the owner of the target no longer keeps it; after a first put-back also: the pod template is
another one (`kubectl rollout restart` makes one).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tabletune_operator.conditions import LONGEST_MESSAGE, RolledOut, clipped, short
from tabletune_operator.crd import LONGEST_TEXT
from tabletune_operator.decide.stage import Stage
from tabletune_operator.observation import Observation, Workload
from tabletune_operator.owners import Owner, Writer, is_loop
from tabletune_operator.rollout import APPROVE_ANNOTATION
from tabletune_operator.status import PutBack, RolloutStatus
from tabletune_operator.times import clock, parse_time, to_time

TWICE_WITHIN = timedelta(minutes=10)
MOST_REMEMBERED = 4

QUIET = timedelta(minutes=2)
"""So long nobody may have written the arguments before a try by itself: a tool that keeps them does so sooner, at most once more."""

BY_ITSELF_EVERY = timedelta(days=1)
"""A tool that puts ours back whenever its interval is over must not have replicas restarted each time."""


FOUGHT = " (keeps it)"
"""Ends `status.rollout.owner` when that owner puts our fields back by itself."""


def is_settled(known: RolloutStatus, request: str, *, owner: Owner | None, approved: str | None, reprofile: str | None) -> bool:
    """Whether one more try is to be made after `known` was put back.

    Args:
        known: the last try, as the status remembers it.
        request: what would be rolled out now (rollout digest, a dash, digest of the pod template).
        owner: who keeps the target now.
        approved: digest that the annotation approves now, if it is this table's.
        reprofile: the wish for a measurement that was answered last.
    """
    freed = known.owner is not None and known.owner.endswith(FOUGHT) and (owner is None or not owner.fights)
    if freed or is_asked(known, approved=approved, reprofile=reprofile):
        return True
    if is_fought(known):
        return (known.digest or "").partition("-")[0] != request.partition("-")[0]
    return known.digest != request


def tried_again_at(known: RolloutStatus, writer: Writer | None) -> datetime | None:
    """When one more try is made though nobody asks for it; None: it is not. `known` holds the put-back, `writer` wrote last."""
    entries = known.put_backs or ()
    if not entries or entries[-1].by is None or not is_loop(entries[-1].by) or is_fought(known):
        return None
    last = parse_time(entries[-1].at)
    if len(entries) > 1 and last - parse_time(entries[-2].at) < BY_ITSELF_EVERY:
        return None
    if writer is None or not is_loop(writer.manager):
        return None
    return max(last, writer.at or last) + QUIET


def is_asked(known: RolloutStatus, *, approved: str | None, reprofile: str | None) -> bool:
    """Whether a person asks by annotation for one more try than `known`."""
    return (approved is not None and approved != known.approved) or (reprofile is not None and reprofile != known.reprofile)


def owner_text(owner: Owner | None) -> str | None:
    """For the status."""
    if owner is None:
        return None
    return f"{clipped(owner.name, LONGEST_TEXT - len(FOUGHT))}{FOUGHT if owner.fights else ''}"


def with_put_back(known: RolloutStatus, seen: Observation, workload: Workload) -> RolloutStatus:
    """One more put-back, unless this one is remembered already: each try can be put back once."""
    last = known.put_backs[-1] if known.put_backs else None
    if last is not None and (known.started_at is None or parse_time(last.at) >= parse_time(known.started_at)):
        return known
    by = clipped(workload.writer.manager, LONGEST_TEXT) if workload.writer is not None else None
    entries = (*(known.put_backs or ()), PutBack(at=to_time(seen.now), by=by))
    return known.model_copy(update={"put_backs": entries[-MOST_REMEMBERED:]})


def is_fought(known: RolloutStatus) -> bool:
    """Put back twice in ten minutes."""
    if known.put_backs is None or len(known.put_backs) < 2:
        return False
    before, last = (parse_time(entry.at) for entry in known.put_backs[-2:])
    return last - before <= TWICE_WITHIN


def put_back(known: RolloutStatus, seen: Observation, workload: Workload, owner: Owner | None, again_at: datetime | None = None) -> Stage:
    """What to say; `known` holds the put-back. `again_at`: when it is tried again by itself."""
    entries = known.put_backs or ()
    at = clock(parse_time(entries[-1].at)) if entries else clock(seen.now)
    name, by = workload.called, _by(entries[-1].by if entries else None, owner)
    if is_fought(known):
        first = clock(parse_time(entries[-2].at))
        what = f"{by} put the old setting of {name} back twice ({first}, {at}); we stopped. "
        cure = (
            "Commit our setting there, or set spec.rollout.mode to Recommend. To try again set annotation "
            f"{APPROVE_ANNOTATION} to status.table.digest."
        )
        return Stage(RolledOut.MANAGED_ELSEWHERE, f"{clipped(what, LONGEST_MESSAGE - len(cure))}{cure}")
    if again_at is not None:
        what = f"{by} put the old setting of {name} back after our roll-out ({at}). "
        cure = (
            f"Tried once more at {clock(again_at)} if nobody changes it until then. Nothing to do; or set spec.rollout.mode to Recommend."
        )
        return Stage(RolledOut.TRIED_AGAIN, f"{clipped(what, LONGEST_MESSAGE - len(cure))}{cure}")
    what = f"{by} put the old setting of {name} back after our roll-out ({at}). Left as it is. "
    cure = f"Commit ours there, or set spec.rollout.mode to Recommend; or try again: {workload.kind.again(workload.body)}"
    return Stage(RolledOut.PUT_BACK, f"{clipped(what, LONGEST_MESSAGE - len(cure))}{cure}")


def _by(manager: str | None, owner: Owner | None) -> str:
    if owner is not None:
        return f"{short(owner.name, 60)} ({short(manager, 40)})" if manager else short(owner.name, 60)
    return short(manager, 40) if manager else "Another writer (kubectl rollout undo, GitOps, Helm), or a roll-back cut short,"


def refuse(owner: Owner, workload: Workload) -> Stage:
    """Before anything was written: who keeps the target would put it back."""
    name = workload.called
    cure = f"Set spec.rollout.mode to Recommend and commit the setting there; or {short(owner.cure, 120)}."
    what = f"{short(owner.name, 90)} keeps {name} and would put our fields back, so nothing was changed. "
    return Stage(RolledOut.MANAGED_ELSEWHERE, f"{clipped(what, LONGEST_MESSAGE - len(cure))}{cure}")


def drifted(workload: Workload, found: str) -> Stage:
    """Another value than ours and than the one before: somebody's decision, which stays."""
    return Stage(
        RolledOut.DRIFTED,
        f"{workload.called} was edited by {_editor(workload)}: {clipped(found, 80)} instead of ours. Left as it is. To keep it set "
        "spec.rollout.mode to Recommend; to take it back write the value of speculative-config.json into it.",
    )


def removed(workload: Workload) -> Stage:
    """Our speculative config is there, and another field of ours is not."""
    return Stage(
        RolledOut.DRIFTED,
        f"Fields of ours in {workload.called} were changed or removed by {_editor(workload)}. Left as it is. To have them back "
        "set spec.rollout.mode to Recommend, then to Patch again; or delete this DraftTable.",
    )


def undone(workload: Workload) -> Stage:
    """Ours was in place, and an earlier one of ours is there again: only who undid the later one does that."""
    return Stage(
        RolledOut.PUT_BACK,
        f"{workload.called} has an earlier roll-out of ours again (kubectl rollout undo). Left as it is. To have the newer table: "
        f"kubectl rollout undo again, or {workload.kind.again(workload.body)}",
    )


def _editor(workload: Workload) -> str:
    writer = workload.writer
    if writer is None:
        return "somebody else"
    return f"{short(writer.manager, 40)} at {clock(writer.at)}" if writer.at is not None else short(writer.manager, 40)
