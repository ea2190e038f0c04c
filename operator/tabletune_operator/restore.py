"""The record of a roll-out on its target, and the way back: the pod template byte for byte as its user had it. Pure.

rollout.py writes the record; whatever happened since, `restore` gives what was there before, with what others changed meanwhile.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tabletune.argv import ArgvError, fold_speculative_config, with_speculative_config
from tabletune_operator.command import CommandError, read_command, script_item, with_written
from tabletune_operator.crd import GROUP
from tabletune_operator.kinds import RUNNING, called, template_of, with_template
from tabletune_operator.overlaying import take_out
from tabletune_operator.pods import DRAFT_TABLE_LABEL, PLUGIN_PATH

RECORD_ANNOTATION = f"{GROUP}/record"
OWNER_ANNOTATION = f"{GROUP}/drafttable"
DIGEST_ANNOTATION = f"{GROUP}/table-digest"
"""On the pod template, so that replicas show which roll-out they belong to."""

RECORD_VERSION = 1
INPUTS = "inputs"
"""Key of the record: digest of what the roll-out was asked for, which is the same in every version of the operator."""
SOCKET_VARIABLE, WARM_UP_VARIABLE = "TABLETUNE_SOCKET", "TABLETUNE_WARM_UP_SECONDS"
OWN_VARIABLES = (SOCKET_VARIABLE, WARM_UP_VARIABLE)


@dataclass(frozen=True, slots=True)
class ListVariable:
    """A variable that is a list which others may have entries in; ours is one entry of it."""

    name: str
    ours: str
    separator: str

    def with_ours(self, others: str) -> str:
        """Ours first: what comes first is found first."""
        return self.separator.join([self.ours, *self._others(others)])

    def without_ours(self, value: str) -> str:
        return self.separator.join(self._others(value))

    def _others(self, value: str) -> list[str]:
        return [entry for entry in value.split(self.separator) if entry not in {"", self.ours}]


PYTHON_PATH = ListVariable("PYTHONPATH", PLUGIN_PATH, ":")
PLUGINS = ListVariable("VLLM_PLUGINS", "tabletune", ",")
"""vLLM loads every plugin that it finds, unless this variable names some: then ours must be named too."""

MERGED = (PYTHON_PATH, PLUGINS)


class RecordError(ValueError):
    """The record on the target cannot be used: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the annotation holds: the engine's container as it was, and the part of the pod template that we applied."""

    container: str
    command: list[str] | None
    args: list[str] | None
    environment: Mapping[str, dict[str, Any] | None]  # whole entries of `env`, by name
    applied: Mapping[str, Any]
    template_digest: str
    own: Mapping[str, Any] | None = None  # `spec` of an object that is written whole, as far as we wrote it
    ours: Mapping[str, Any] | None = None  # what we wrote into it
    inputs: str | None = None  # digest of what the roll-out was asked for; None: by a version that did not say


def rolled_digest(workload: Mapping[str, Any]) -> str | None:
    """Digest of the roll-out that is on the target; None: not rolled."""
    if RECORD_ANNOTATION not in (workload["metadata"].get("annotations") or {}):
        return None
    digest: str | None = _template_annotations(workload).get(DIGEST_ANNOTATION)
    return digest


def is_intact(workload: Mapping[str, Any]) -> bool:
    """Are all our fields as we applied them? True for a target that is not rolled. Raises RecordError."""
    record = read_record(workload)
    return record is None or _contains(template_of(workload), record.applied)


def restore(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The whole object to write back: the pod template as it was before us, our annotations gone, others' changes kept.

    Its resource version is the one read, so that a change in between is a conflict and never lost. Unchanged when not rolled.

    Raises:
        RecordError: the record cannot be read.
    """
    record, restored = read_record(workload), copy.deepcopy(dict(workload))
    if record is None:
        return restored
    if record.ours is not None and not workload.get(RUNNING):
        restored["spec"] = take_out(restored["spec"], record.own, record.ours) or {}
        _remove_names(restored["metadata"], "annotations", RECORD_ANNOTATION, OWNER_ANNOTATION)
        return restored
    template = dict(template_of(restored))
    pod, applied = template["spec"], record.applied["spec"]
    _remove(pod, "initContainers", {c["name"] for c in applied.get("initContainers", ())})
    _remove(pod, "volumes", {v["name"] for v in applied.get("volumes", ())})
    for container in pod["containers"]:
        if container["name"] == record.container:
            _restore_container(container, record, container_of(record.applied, record.container))
    _remove_names(template.get("metadata", {}), "annotations", DIGEST_ANNOTATION, OWNER_ANNOTATION)
    _remove_names(template.get("metadata", {}), "labels", DRAFT_TABLE_LABEL)
    _remove_names(restored["metadata"], "annotations", RECORD_ANNOTATION, OWNER_ANNOTATION)
    return with_template(restored, template)


def restores_exactly(workload: Mapping[str, Any]) -> bool:
    """Is the pod template that `restore` gives byte for byte the one before the roll-out? False when others changed it meanwhile."""
    record = read_record(workload)
    return record is None or template_digest(template_of(restore(workload))) == record.template_digest


def template_digest(template: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(template).encode()).hexdigest()


def read_record(workload: Mapping[str, Any]) -> Record | None:
    text = (workload["metadata"].get("annotations") or {}).get(RECORD_ANNOTATION)
    if text is None:
        return None
    where = f"Annotation {RECORD_ANNOTATION} of {called(workload)}"
    cure = "Write the pod template back by hand, then remove the annotation."
    try:
        value = json.loads(text)
        version = value["formatVersion"]
        record = Record(
            value["container"],
            value["command"],
            value["args"],
            value["environment"],
            value["applied"],
            value["templateDigest"],
            value.get("own"),
            value.get("ours"),
            value.get(INPUTS),
        )
        container_of(record.applied, record.container)
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise RecordError(f"{where} cannot be read ({error!r:.80}), so what was there before is not known. {cure}") from error
    if version != RECORD_VERSION:
        raise RecordError(f"{where} has formatVersion {version}; this TableTune reads {RECORD_VERSION}. {cure}")
    return record


def applied_command(container: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The container with the command, arguments and variables of its flags as we applied them."""
    applied = container_of(record.applied, record.container)
    fields = {field: applied[field] for field in ("command", "args") if field in applied}
    return _with_flags({**container, **fields}, {name: _entry(applied, name) for name in _flag_variables(record)})


def original_command(container: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The container with the command, arguments and variables of its flags as they were before us."""
    applied, before = container_of(record.applied, record.container), {"command": record.command, "args": record.args}
    fields = {field: before[field] or [] for field in before if field in applied}
    return _with_flags({**container, **fields}, {name: record.environment[name] for name in _flag_variables(record)})


def _restore_container(container: dict[str, Any], record: Record, applied: Mapping[str, Any]) -> None:
    before = {"command": record.command, "args": record.args}
    if script_item([*(applied.get("command") or container.get("command") or ()), *(applied.get("args") or ())]) is not None:
        _restore_script(container, record, applied)
    else:
        for field in ("command", "args"):
            if field in applied:
                _set(container, field, _restored_list(container.get(field) or [], before[field], applied[field]))
    _restore_environment(container, record, applied)
    _remove(container, "volumeMounts", {m["name"] for m in applied.get("volumeMounts", ())})


def _restore_script(container: dict[str, Any], record: Record, applied: Mapping[str, Any]) -> None:
    """What was there, if nobody else wrote it; else theirs with the old speculative config, unless that is their change."""
    variables = _flag_variables(record)
    lists = {field: applied[field] for field in ("command", "args") if field in applied}
    entries = {name: _entry(applied, name) for name in variables}
    old = _with_flags(
        {**container, **{field: {"command": record.command, "args": record.args}[field] or [] for field in lists}},
        {name: record.environment[name] for name in variables},
    )
    theirs = all(container.get(field) == value for field, value in lists.items())
    if theirs and all(_entry(container, name) == entry for name, entry in entries.items()):
        changed = old
    else:
        try:
            live = read_command(container)
            if live.speculation != read_command(applied_command(container, record)).speculation:
                return
            changed = with_written(container, live.write(read_command(old).speculation))
        except CommandError:
            return
    for field in ("command", "args", "env"):
        _set(container, field, changed.get(field))


def _flag_variables(record: Record) -> tuple[str, ...]:
    """Variables that held speculative flags."""
    return tuple(name for name in record.environment if name not in {variable.name for variable in MERGED})


def _with_flags(container: dict[str, Any], entries: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """The container with these entries of `env` in the place of those of their names; None: without it."""
    if not entries:
        return container
    kept = [entries.get(entry["name"], entry) for entry in container.get("env") or ()]
    there = {entry["name"] for entry in container.get("env") or ()}
    added = [entry for name, entry in entries.items() if name not in there]
    return {**container, "env": [entry for entry in (*kept, *added) if entry is not None]}


def _entry(container: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in container.get("env") or () if entry["name"] == name), None)


def _restored_list(current: list[str], before: list[str] | None, applied: list[str]) -> list[str] | None:
    """What was there, if nobody else wrote the list; else their list with the old speculative config, unless that is their change."""
    if current == applied:
        return before
    try:
        if fold_speculative_config(current).config != fold_speculative_config(applied).config:
            return current
        return list(with_speculative_config(current, fold_speculative_config(before or []).config))
    except ArgvError:
        return current


def _restore_environment(container: dict[str, Any], record: Record, applied: Mapping[str, Any]) -> None:
    ours = {entry["name"]: entry for entry in applied.get("env", ())}
    merged = {variable.name: variable for variable in MERGED}
    restored = []
    for entry in container.get("env") or ():
        name = entry["name"]
        if name in OWN_VARIABLES and name in ours and (name != WARM_UP_VARIABLE or entry == ours[name]):
            continue  # another warm-up is its user's word
        if name not in merged or name not in ours:  # what held flags is restored with them
            restored.append(entry)
        elif entry == ours[name]:
            before = record.environment.get(name)
            restored += [] if before is None else [before]
        else:  # changed by somebody since: theirs, without our entry
            value = merged[name].without_ours(entry["value"]) if "value" in entry else None
            restored += [entry] if value is None else [{**entry, "value": value}] if value else []
    _set(container, "env", restored)


def _contains(live: Any, applied: Any) -> bool:
    """Is everything that we applied still there? Lists of named things may hold more; any other list is ours as a whole."""
    if isinstance(applied, Mapping):
        return isinstance(live, Mapping) and all(key in live and _contains(live[key], value) for key, value in applied.items())
    if isinstance(applied, list) and applied and isinstance(applied[0], Mapping):
        key = "mountPath" if "mountPath" in applied[0] else "name"  # one volume can be mounted twice
        by_key = {item.get(key): item for item in live or ()}
        return all(_contains(by_key.get(item[key]), item) for item in applied)
    return bool(live == applied)


def container_of(template: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(c for c in template["spec"]["containers"] if c["name"] == name)
    return found


def _template_annotations(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations: Mapping[str, Any] = template_of(workload).get("metadata", {}).get("annotations") or {}
    return annotations


def _set(parent: dict[str, Any], field: str, value: list[Any] | None) -> None:
    """An empty list is an absent one: the API server stores none."""
    if value:
        parent[field] = value
    else:
        parent.pop(field, None)


def _remove(parent: dict[str, Any], field: str, names: set[str]) -> None:
    _set(parent, field, [item for item in parent.get(field) or () if item["name"] not in names])


def _remove_names(metadata: dict[str, Any], field: Literal["annotations", "labels"], *names: str) -> None:
    kept = {key: value for key, value in (metadata.get(field) or {}).items() if key not in names}
    if kept:
        metadata[field] = kept
    else:
        metadata.pop(field, None)


def canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
