"""What an operator of another version or image has rolled out. Pure.

A newer operator builds other images, flags and mounts into its pods than the one before. None of that is worth a restart of a serving
engine, so replicas keep what they have as long as nothing else asks for another roll-out; older sidecars and plugins are understood
(docs/upgrade.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tabletune_operator.drift import is_in_place
from tabletune_operator.restore import is_intact, read_record
from tabletune_operator.rollout import OWN_IMAGE_FIELDS, Rollout

Body = Mapping[str, Any]


def is_kept(workload: Body, rollout: Rollout) -> bool:
    """Is on the target what was asked for in the same words, as another version wrote it? Raises RecordError."""
    record = read_record(workload)
    if record is None:
        return False
    if record.inputs == rollout.inputs and is_intact(workload):
        return True
    # Edited by its user since, in a part that is not ours: then what we would write now must be there, but for the images.
    return is_in_place(workload, _with_images(rollout, record.applied))


def rolled_inputs(workload: Body) -> str | None:
    """What the roll-out that is on the target was asked for; None: not rolled, or by a version that did not say. Raises RecordError."""
    record = read_record(workload)
    return None if record is None else record.inputs


def _with_images(rollout: Rollout, applied: Body) -> Rollout:
    record = json.loads(rollout.record)
    before = {c["name"]: c for c in applied["spec"].get("initContainers", ())}
    for container in record["applied"]["spec"].get("initContainers", ()):
        old = before.get(container["name"], {})
        container.update({name: old[name] for name in OWN_IMAGE_FIELDS if name in old})
    return replace(rollout, record=json.dumps(record))
