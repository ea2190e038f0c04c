"""The ConfigMap `<name>-tabletune`, read as one value: every file, and whether they agree with each other. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tabletune import formats
from tabletune.speculative_config import LONGEST_FIELD, TABLE_FIELD, parse_speculative_config
from tabletune.table import Table
from tabletune.verdict import VerdictKind
from tabletune_operator.launch_file import parse_setting
from tabletune_operator.observation import Damage, Files

REUSED_FROM_ANNOTATION = "tabletune.io/reused-from"
"""On a ConfigMap: DraftTable whose measured files it copies. Written and read by the operator; absent: measured for this one."""

READ_FILES = (formats.PROFILE, formats.ACCEPTANCE, formats.TABLE, formats.SPECULATIVE_CONFIG)
"""Those that decide something; the others are for people and may be changed or deleted freely."""


def parse_files(name: str, data: Mapping[str, str], reused_from: str | None, uid: str = "") -> Files | Damage | None:
    """None when a file that decides something is gone: deleting one is how its measurement is asked for again.

    `uid` is the ConfigMap's, where it is our own.
    """
    if any(file not in data for file in READ_FILES):
        return None
    try:
        profile = formats.parse_profile(data[formats.PROFILE])
        acceptance = formats.parse_acceptance(data[formats.ACCEPTANCE])
        table = formats.parse_table(data[formats.TABLE])
    except formats.FormatError as error:
        return Damage(f"ConfigMap {name}, {error}")
    try:
        config = _parse_config(data[formats.SPECULATIVE_CONFIG], table)
    except ValueError as error:
        return Damage(f"ConfigMap {name}, {error} The file is not used. Restore it, or measure again (delete it).")
    digest = hashlib.sha256(json.dumps([data[file] for file in READ_FILES]).encode()).hexdigest()[:12]
    tracked, bare = formats.digest_of(data), _parse_bare(data.get(formats.VLLM_YAML, ""))
    return Files(profile, acceptance, table, config, digest, reused_from, tracked, _parse_fleet(name, data), uid, bare)


def _parse_bare(text: str) -> dict[str, Any] | None:
    """What an engine without the plugin gets; None: nothing that it could follow."""
    setting = parse_setting(text)
    if setting is None:
        return None
    try:
        Table.parse(setting.get(TABLE_FIELD))
    except ValueError:
        return None
    return dict(setting)


def _parse_fleet(name: str, data: Mapping[str, str]) -> formats.FleetFile | Damage | None:
    """It decides nothing but what new replicas start from, so its damage is no other file's."""
    if formats.FLEET not in data:
        return None
    try:
        return formats.parse_fleet(data[formats.FLEET])
    except formats.FormatError as error:
        return Damage(f"ConfigMap {name}, {error}")


def _parse_config(text: str, table: formats.TableFile) -> dict[str, Any] | None:
    """Raises ValueError, with file, field and what is wrong, when the engine could not follow these two files."""
    file = formats.SPECULATIVE_CONFIG
    if table.table is not None:
        outside = sorted(set(table.table.lengths) - set(table.launch_lengths))
        if outside:
            raise ValueError(
                f"{formats.TABLE}: ranges holds draft length {outside[0]}, "
                f"which launchLengths {list(table.launch_lengths)} does not contain."
            )
    if table.verdict.kind in {VerdictKind.OFF, VerdictKind.BLOCKED}:
        return None
    try:
        config = parse_speculative_config(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if table.verdict.kind is VerdictKind.PRESENT:
        return config  # its user's own; it is compared, never written
    longest = config.get(LONGEST_FIELD)
    if type(longest) is not int or longest < 1:
        raise ValueError(f"{file}: {LONGEST_FIELD} is {longest!r}, not a length of 1 or more.")
    if config.get(TABLE_FIELD) is not None:
        try:
            launch = Table.parse(config[TABLE_FIELD])
        except ValueError as error:
            raise ValueError(f"{file}: {TABLE_FIELD} cannot be used: {error}.") from error
        if max(launch.lengths) > longest:
            raise ValueError(f"{file}: {TABLE_FIELD} asks for {max(launch.lengths)} tokens and {LONGEST_FIELD} is {longest}.")
    return config
