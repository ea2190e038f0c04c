"""What is left to do before a deleted DraftTable may go: its target as it was, its Job and the Job's pods gone.

Everything else of ours goes by its owner reference. Nothing here may hang: a target that is gone, or that is another's, is done.
"""

from __future__ import annotations

from tabletune_operator.conditions import DELETING_REASONS, Accepted, short
from tabletune_operator.decide.admission import left_running
from tabletune_operator.decide.launch_file import delete_launch_file
from tabletune_operator.decide.loan import judge_loan
from tabletune_operator.decide.stage import Stage
from tabletune_operator.observation import Damage, Observation
from tabletune_operator.plan import Action, EnsureJobAccessDeleted, EnsureJobDeleted, Event, RestoreTarget
from tabletune_operator.pods import job_name
from tabletune_operator.restore import restore


def judge_deletion(seen: Observation) -> tuple[tuple[Stage, ...], tuple[Action, ...], tuple[Event, ...]]:
    """The stages, what to do, and events. No actions: it may go."""
    returned, over = judge_loan(seen)
    actions: list[Action] = [*returned]
    events: list[Event] = [*over]
    left: list[str] = []
    workload, name = seen.workload, seen.draft.ref.name
    if workload is not None and returned:
        left.append(f"{workload.called} gets back the replica that was lent")
    elif workload is not None and workload.owner == name:  # one write of the target at a time: each names the version that was seen
        if isinstance(workload.original, Damage):
            # What was there before is not known, and waiting for it would keep the object for ever.
            events.append(Event("Warning", Accepted.RECORD_DAMAGED.name, f"Not restored. {workload.original.message}"))
        else:
            actions.append(RestoreTarget(restore(workload.body)))
            left.append(f"{workload.called} gets back what it had before")
    kept, said = delete_launch_file(seen)
    if kept:
        actions += kept
        events += said
        left.append("the file that engines read at their start gets its old setting back")
    if seen.job is not None:
        access = job_name(name)
        actions += [EnsureJobDeleted(seen.job.name), EnsureJobAccessDeleted((("RoleBinding", access), ("Role", access)))]
        left.append(f"Job {short(seen.job.name)} and its pods end")
    still = left_running(workload)
    if still and not actions:
        one = len(still) == 1
        told = f"{len(still)} {'replica keeps' if one else 'replicas keep'} the setting that the webhook added until recreated."
        events.append(Event("Warning", "ReplicasKeepSetting", f"{told} Restart them when it suits: kubectl rollout restart."))
    message = f"Being deleted: {'; '.join(left) or 'the target is as it was and nothing of ours is left'}. Nothing to do."
    return tuple(Stage(reason, message) for reason in DELETING_REASONS), tuple(actions), tuple(events)
