"""What others did to a target after we rolled it out. Pure.

Another speculative config than ours is somebody's decision: it stays, and we stop. Any other edit (an image, another flag) is an
ordinary change of the target, and the roll-out is made anew from it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from tabletune_operator.command import CommandError, read_command
from tabletune_operator.kinds import template_of, with_template
from tabletune_operator.owners import ARGUMENTS
from tabletune_operator.restore import RECORD_ANNOTATION, applied_command, container_of, is_intact, original_command, read_record
from tabletune_operator.rollout import Rollout

Body = Mapping[str, Any]


def is_in_place(workload: Body, rollout: Rollout) -> bool:
    """Does the pod template hold everything that this roll-out would write? Raises RecordError."""
    annotations = {**(workload["metadata"].get("annotations") or {}), RECORD_ANNOTATION: rollout.record}
    return is_intact({**workload, "metadata": {**workload["metadata"], "annotations": annotations}})


def foreign_speculation(workload: Body) -> str | None:
    """What somebody else wrote in place of our speculative config, for a message; None: ours is there. Raises RecordError."""
    record = read_record(workload)
    if record is None:
        return None
    live = next((c for c in template_of(workload)["spec"]["containers"] if c["name"] == record.container), None)
    if live is None:
        return None  # parse_target says that the container is gone
    try:
        theirs, ours = read_command(live).speculation, read_command(applied_command(live, record)).speculation
    except CommandError as error:
        return error.message
    if theirs == ours:
        return None
    return "no --speculative-config" if theirs is None else f"--speculative-config {json.dumps(theirs)}"


def is_put_back(workload: Body) -> bool:
    """Did somebody write the speculative config that was there before us over ours? Raises RecordError."""
    record, live = read_record(workload), _engine(workload)
    if record is None or live is None:
        return False
    try:
        theirs = read_command(live).speculation
        before = read_command(original_command(live, record)).speculation
        return theirs == before != read_command(applied_command(live, record)).speculation
    except CommandError:
        return False


def launched_speculation(workload: Body) -> Body | None:
    """The speculative config that we rolled out; None: nothing, or speculation off. Raises RecordError."""
    record, live = read_record(workload), _engine(workload)
    if record is None or live is None:
        return None
    try:
        return read_command(applied_command(live, record)).speculation
    except CommandError:
        return None


def written_arguments(workload: Body) -> tuple[str, ...]:
    """Which of `args` and `command` we write there; both where nothing is rolled out. Raises RecordError."""
    record = read_record(workload)
    if record is None:
        return ARGUMENTS
    applied = container_of(record.applied, record.container)
    return tuple(field for field in ARGUMENTS if field in applied)


def _engine(workload: Body) -> Body | None:
    """The container that the record is of, as it is now."""
    record = read_record(workload)
    if record is None:
        return None
    return next((c for c in template_of(workload)["spec"]["containers"] if c["name"] == record.container), None)


def as_applied(workload: Body) -> Body:
    """The workload with the engine's command as we applied it: what it would be without the others' edit of them.

    Raises RecordError.
    """
    record = read_record(workload)
    if record is None:
        return workload
    undone = copy.deepcopy(dict(template_of(workload)))
    undone["spec"]["containers"] = [
        applied_command(container, record) if container["name"] == record.container else container
        for container in undone["spec"]["containers"]
    ]
    return with_template(workload, undone)
