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
from tabletune_operator.restore import RECORD_ANNOTATION, applied_command, is_intact, read_record
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
