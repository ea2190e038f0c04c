"""What others did to a target after we rolled it out. Pure.

Another speculative config than ours is somebody's decision: it stays, and we stop. Any other edit (an image, another flag) is an
ordinary change of the target, and the roll-out is made anew from it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Drift:
    """What became of the engine's command that we wrote.

    foreign: what somebody else wrote in place of our speculative config, for a message; None: ours is there.
    put_back: and it is what was there before us.
    launched: the speculative config that we rolled out; None: nothing, or speculation off.
    arguments: which of `args` and `command` we write there; both where nothing is rolled out.
    """

    foreign: str | None = None
    put_back: bool = False
    launched: Body | None = None
    arguments: tuple[str, ...] = ARGUMENTS


def read_drift(workload: Body) -> Drift:
    """Raises RecordError."""
    record = read_record(workload)
    if record is None:
        return Drift()
    applied = container_of(record.applied, record.container)
    arguments = tuple(field for field in ARGUMENTS if field in applied)
    live = next((c for c in template_of(workload)["spec"]["containers"] if c["name"] == record.container), None)
    if live is None:
        return Drift(arguments=arguments)  # parse_target says that the container is gone
    theirs, wrong = _read(live)
    ours, unread = _read(applied_command(live, record))
    if wrong is not None or unread is not None:
        return Drift(wrong or unread, launched=ours, arguments=arguments)
    if theirs == ours:
        return Drift(launched=ours, arguments=arguments)
    foreign = "no --speculative-config" if theirs is None else f"--speculative-config {json.dumps(theirs)}"
    before, unread = _read(original_command(live, record))
    return Drift(foreign, unread is None and theirs == before, ours, arguments)


def _read(container: Body) -> tuple[Body | None, str | None]:
    """Its speculative config, or why that cannot be read."""
    try:
        return read_command(container).speculation, None
    except CommandError as error:
        return None, error.message


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
