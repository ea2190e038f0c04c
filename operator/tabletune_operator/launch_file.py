"""Mode ConfigFile: a file that vLLM reads at its start (`--config`), in a ConfigMap of its own, so that nobody's manifest is written. Pure.

The user's manifest names the file once. Whoever has `--config` on a file that is not there does not start, so the ConfigMap is there from
the first look on, is mounted as one that pods wait for, and outlives the DraftTable for as long as a target names it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import yaml

from tabletune.argv import FLAG, with_speculative_config
from tabletune.formats import FormatError
from tabletune.recommendation_file import RECOMMENDATION, RecommendationFile, Setting, parse_recommendation, to_recommendation
from tabletune.speculative_config import LONGEST_FIELD, TABLE_FIELD
from tabletune.table import Table
from tabletune_operator.command import ListCommand
from tabletune_operator.config_file import OPTION, find_file
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.pods import DRAFT_TABLE_LABEL, MANAGED_BY
from tabletune_operator.restore import container_of
from tabletune_operator.target import Target

KEY = "vllm.yaml"
VOLUME, MOUNT_PATH = "tabletune-config", "/etc/tabletune"
PATH = f"{MOUNT_PATH}/{KEY}"

_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """The ConfigMap as it lies in the cluster. `text` None: the file is not in it; `before` None: no speculation."""

    uid: str
    is_labelled: bool  # as ours; one that outlived its DraftTable is not
    text: str | None
    before: Setting
    others: Mapping[str, str]  # its other files


@dataclass(frozen=True, slots=True)
class Reading:
    """Does the target's engine read our file? `problem` says why not, and what to do; None: it does, and nothing overrides it."""

    is_read: bool  # `--config` names it
    problem: str | None


def launch_map_name(draft_table: str) -> str:
    """The ConfigMap's. Not the one with the results: that goes with the DraftTable, and has what was measured before it is to be run."""
    return f"{draft_table}-tabletune-config"


def parse_launch_file(config_map: Mapping[str, Any]) -> LaunchFile:
    """One without a readable record of what was there before says so itself: it is kept for engines whose DraftTable went."""
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    try:
        before = parse_recommendation(data[RECOMMENDATION]).before
    except (KeyError, FormatError):
        before = parse_setting(data.get(KEY, ""))
    others = {name: text for name, text in data.items() if name not in {KEY, RECOMMENDATION}}
    return LaunchFile(metadata["uid"], DRAFT_TABLE_LABEL in (metadata.get("labels") or {}), data.get(KEY), before, others)


def parse_setting(text: str) -> Setting:
    """The speculative config in a `--config` file; None: there is none, or none that can be read."""
    try:
        root = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    found = root.get("speculative-config") if isinstance(root, dict) else None
    return found if isinstance(found, dict) else None


def to_launch_file(draft_table: str, setting: Setting) -> str:
    """Never an empty document: vLLM ends at one. The setting is JSON, as after the flag, where YAML reads the same in it."""
    said = f"# Read by vLLM at its start. Written by TableTune for DraftTable {draft_table}: edits are overwritten.\n"
    if setting is None:
        return said + "{}\n"
    text = f"{said}speculative-config: {json.dumps(dict(setting), ensure_ascii=False)}\n"
    if parse_setting(text) == setting:
        return text
    return said + yaml.safe_dump({"speculative-config": dict(setting)}, sort_keys=False, width=10**6)


def present_setting(target: Target | None, spec: DraftTableSpec) -> Setting:
    """What the engine is to run before anything is measured: the target's own flags, else what spec.speculation says whole, else none."""
    if target is not None and target.speculation is not None:
        return dict(target.speculation)
    wanted = spec.speculation
    if wanted is None or wanted.method is None or wanted.max_draft_length is None:
        return None
    model = {} if wanted.model is None else {"model": wanted.model}
    return {"method": wanted.method, **model, LONGEST_FIELD: wanted.max_draft_length}


def build_config_map(namespace: str, draft_table: str, setting: Setting, before: Setting, overlay: Mapping[str, str]) -> dict[str, Any]:
    """Without an owner, so that it does not go with the DraftTable while engines name it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": launch_map_name(draft_table),
            "namespace": namespace,
            "labels": {**MANAGED_BY, DRAFT_TABLE_LABEL: draft_table},
        },
        "data": {
            KEY: to_launch_file(draft_table, setting),
            RECOMMENDATION: to_recommendation(RecommendationFile(before, ())),
            **overlay,
        },
    }


def build_kept_map(namespace: str, draft_table: str, setting: Setting, uid: str) -> dict[str, Any]:
    """What stays of it when its DraftTable goes: the file that engines name, and nothing that says it is ours."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": launch_map_name(draft_table), "namespace": namespace, "uid": uid},
        "data": {KEY: to_launch_file(draft_table, setting)},
    }


def launch_digest(setting: Setting, *, tracked: bool) -> str:
    """Changes exactly when running engines have to start again for `setting`.

    With a sidecar another table needs none, as long as its lengths are those that the engine was launched with.
    """
    told: Any = None if setting is None else dict(setting)
    if tracked and told is not None and told.get(TABLE_FIELD) is not None:
        told[TABLE_FIELD] = sorted(set(Table.parse(told[TABLE_FIELD]).lengths))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def names_launch_map(template: Mapping[str, Any], draft_table: str) -> bool:
    """Does any volume of the pod template come from our ConfigMap, whoever reads it?"""
    sources: list[Mapping[str, Any]] = []
    for volume in template["spec"].get("volumes") or ():
        sources += [volume, *(volume.get("projected") or {}).get("sources", ())]
    return any((source.get("configMap") or {}).get("name") == launch_map_name(draft_table) for source in sources)


def read_use(target: Target, draft_table: str) -> Reading:
    """Does the target name our file, once, and in the way in which vLLM takes it?"""
    argv = target.start.words
    named = [value for flag, value in pairwise(argv) if flag == OPTION]
    joined = next((arg for arg in argv if arg.startswith(f"{OPTION}=")), None)
    ours = launch_map_name(draft_table)
    if joined is not None:
        return Reading(False, f"vLLM takes {OPTION} and its file as two arguments only, found {joined!r:.60}. Write them as two.")
    if argv and argv[-1] == OPTION:
        return Reading(False, f"{OPTION} names no file. Add {PATH} after it.")
    if not named:
        return Reading(False, f"Its engine does not read the file yet. {snippet(draft_table)}")
    if len(named) > 1:
        return Reading(False, f"{OPTION} stands {len(named)} times in its arguments, and vLLM takes one. Keep {PATH} only.")
    return _judge_file(target, named[0], ours, draft_table)


def _judge_file(target: Target, path: str, ours: str, draft_table: str) -> Reading:
    if PurePosixPath(path).suffix not in _YAML:
        return Reading(False, f"{OPTION} names {path!r:.60}, and vLLM reads .yaml or .yml only. Name {PATH}.")
    source = find_file(target.template["spec"], container_of(target.template, target.container), target.start.words)
    if source is None:
        return Reading(False, f"{OPTION} names {path!r:.60}, which is in no ConfigMap that its pod mounts. {snippet(draft_table)}")
    name, key = source.config_map, source.key
    if name != ours or key != KEY:
        return Reading(
            False,
            f"{OPTION} names {path!r:.60}, which is key {key} of ConfigMap {name:.60}, and vLLM takes one file. Move what it says into "
            f"args and mount key {KEY} of ConfigMap {ours}, or set spec.rollout.mode to Recommend.",
        )
    if target.start.speculation is not None:
        return Reading(
            True, f"Its arguments hold speculative flags too ({FLAG}), and they win over the file. Remove them: the file says the same."
        )
    return Reading(True, None)


def without_file(target: Target, before: Setting) -> Target:
    """The target as it was before we wrote its file. One that is to run without speculation has to be told so: the file may speculate."""
    return replace(target, speculation=before, explicit_off=True)


def snippet(draft_table: str) -> str:
    """What a manifest has to have, short enough for a condition."""
    return (
        f"Add args {OPTION}, {PATH}; volumeMounts {{name: {VOLUME}, mountPath: {MOUNT_PATH}}}; volumes {{name: {VOLUME}, configMap: "
        f"{{name: {launch_map_name(draft_table)}}}}}"
    )


def config_template(target: Target, draft_table: str, parts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The pod template of an overlay by which the engine reads our file. `parts`: a roll-out's, with plugin and sidecar; None: without.

    None for an engine that a script starts: where an option is to stand in it is its author's to say.
    """
    if not isinstance(target.start, ListCommand):
        return None
    template: dict[str, Any] = copy.deepcopy(dict(parts)) if parts is not None else {"spec": {"containers": [{"name": target.container}]}}
    pod, start = template["spec"], target.start
    (container,) = pod["containers"]
    field, present = ("args", start.args) if start.args or not start.command else ("command", start.command)
    container.pop("args", None)
    written = with_speculative_config(present, None)
    container[field] = [*written] if OPTION in written else [*written, OPTION, PATH]
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    # Not optional: a pod that comes before the file waits for it, where an engine would end.
    source = {"name": launch_map_name(draft_table), "items": [{"key": KEY, "path": KEY}]}
    pod["volumes"] = [*pod.get("volumes", ()), {"name": VOLUME, "configMap": source}]
    return template
