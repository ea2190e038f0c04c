"""The file of `vllm serve --config FILE`: where it lies, and what it adds to the arguments. Pure.

vLLM puts the file's options before those of the command line, so these win. Two things do not follow that order: dotted keys and
`spec-...` keys of a file are merged with whatever the command line says, so no flag that is written there could replace them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from tabletune.argv import FLAG, canonical_flag
from tabletune_operator.command import CommandError

OPTION = "--config"

Body = Mapping[str, Any]
Files = Mapping[str, Mapping[str, str]]
"""Data of ConfigMaps, by name."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Arguments as the engine sees them. `speculates`: the file sets a speculative config."""

    argv: tuple[str, ...]
    speculates: bool


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file that is a key of a ConfigMap."""

    config_map: str
    key: str


def find_file(pod: Body, container: Body, argv: Sequence[str]) -> FileKey | None:
    """The ConfigMap's key that `--config` names; None: there is no such option, or its file comes from elsewhere."""
    named = _path(argv)
    if named is None:
        return None
    path = str(PurePosixPath(container.get("workingDir", ".")) / named)
    found: tuple[int, Body, PurePosixPath] | None = None
    for mount in container.get("volumeMounts") or ():
        at = PurePosixPath(mount["mountPath"])
        if PurePosixPath(path).is_relative_to(at) and (found is None or len(at.parts) > found[0]):
            found = (len(at.parts), mount, PurePosixPath(path).relative_to(at))
    if found is None:
        return None
    _, mount, inside = found
    inside = PurePosixPath(mount["subPath"]) / inside if mount.get("subPath") else inside
    volume: Body = next((v for v in pod.get("volumes") or () if v["name"] == mount["name"]), {})
    for source in _sources(volume):
        key = _key(source, str(inside))
        if key is not None:
            return FileKey(str(source["name"]), key)
    return None


def _sources(volume: Body) -> Sequence[Body]:
    """ConfigMaps of a volume. Of several, those that name no items may hold any file, which their data only would tell."""
    if volume.get("configMap"):
        return [volume["configMap"]]
    projected = (volume.get("projected") or {}).get("sources") or ()
    return [s["configMap"] for s in projected if s.get("configMap") and (len(projected) == 1 or s["configMap"].get("items"))]


def merge_file(pod: Body, container: Body, argv: Sequence[str], config_maps: Files) -> Merged:
    """`argv` with the file's options in the place of `--config FILE`.

    Raises:
        CommandError: the file cannot be read here, or no flag could replace what it says about speculation.
    """
    path = _path(argv)
    if path is None:
        return Merged(tuple(argv), speculates=False)
    place = find_file(pod, container, argv)
    cure = "Write its options into args, or mount it from a ConfigMap."
    if place is None:
        raise CommandError(
            "ConfigFileNotRead", f"--config {path:.60} is no file of a ConfigMap, so what it says about speculation is not known. {cure}"
        )
    text = config_maps.get(place.config_map, {}).get(place.key)
    if text is None:
        raise CommandError(
            "ConfigFileNotRead", f"--config {path:.60} is key {place.key} of ConfigMap {place.config_map}, which is not there. Create it."
        )
    options, speculates = _options(text, f"Key {place.key} of ConfigMap {place.config_map} (--config)")
    at = argv.index(OPTION)
    rest = [*argv[:at], *argv[at + 2 :]]
    return Merged((*rest[: (first := _after_model(rest))], *options, *rest[first:]), speculates)


def _path(argv: Sequence[str]) -> str | None:
    """vLLM reads a file only when the option is a word of its own."""
    at = argv.index(OPTION) if OPTION in argv else -1
    return argv[at + 1] if 0 <= at < len(argv) - 1 else None


def _key(source: Body, inside: str) -> str | None:
    items = source.get("items")
    if items:
        return next((str(item["key"]) for item in items if item["path"] == inside), None)
    return inside if "/" not in inside and inside != "." else None


def _after_model(argv: Sequence[str]) -> int:
    if "serve" not in argv:
        return next((at for at, word in enumerate(argv) if word.startswith("vllm.entrypoints")), -1) + 1
    at = argv.index("serve") + 1
    return at + 1 if at < len(argv) and not argv[at].startswith("-") else at


def _options(text: str, where: str) -> tuple[list[str], bool]:
    """The file's options as vLLM spells them on a command line, and whether one of them is a speculative config."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _refused(f"{where} is no YAML ({str(error).splitlines()[0]:.60})", "Correct it.") from error
    if not isinstance(content, dict):
        raise _refused(f"{where} is no map of options", "Correct it.")
    spelled = [str(key) for key in content if canonical_flag(f"--{key}".partition(".")[0]) is not None]
    if len(spelled) > 1:
        raise _refused(f"{where} has {' and '.join(spelled)}", "Keep one of them, speculative-config.")
    if spelled and canonical_flag(f"--{spelled[0]}") != FLAG:
        raise _refused(f"{where} has {spelled[0]}, which no flag in args replaces", "Write it as an object under speculative-config.")
    options: list[str] = []
    for key, value in content.items():
        if isinstance(value, bool):
            options.append(f"--{key}" if value else f"--no-{key}")
        elif isinstance(value, list):
            options += [f"--{key}", *map(str, value)] if value else []
        else:
            options += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return options, bool(spelled)


def _refused(problem: str, cure: str) -> CommandError:
    return CommandError("ConfigFileNotUnderstood", f"{problem}. {cure}")
