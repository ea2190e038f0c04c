"""Whether a new table needs new engines. Pure.

A table is swapped in a running engine as long as its lengths are those that the engine was launched with. So replicas keep the
speculative config that they were started with, and the table in it, until something else than the table changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabletune.speculative_config import LONGEST_FIELD, TABLE_FIELD
from tabletune.table import Table

V2_RUNNER = "v2"

Config = Mapping[str, Any]


def config_to_launch(running: Config | None, wanted: Config | None, allowed: tuple[int, ...], runner: str | None) -> Config | None:
    """The config that replicas are to be started with: the running one, if `wanted` differs from it by a table that needs no restart.

    Args:
        running: what we rolled out; None: nothing, or speculation off.
        wanted: what the files say.
        allowed: draft lengths that may be used (`launchLengths` of table.json). One that is left out now, for a change to it stalled
            the engine, must not be in the table that a replica starts with.
        runner: of the profiled engine. V2 has graphs for the lengths of its launch table only; V1 runs every length up to the longest.
    """
    if running is None or wanted is None or why_restart(running, wanted, allowed, runner) is not None:
        return wanted
    return running


def why_restart(running: Config, wanted: Config, allowed: tuple[int, ...], runner: str | None) -> str | None:
    """What only a restart changes, in words; None: only the table is another one."""
    for key, what in ((LONGEST_FIELD, "longest draft length"), ("method", "method"), ("model", "drafter")):
        if running.get(key) != wanted.get(key):
            return f"{what} {running.get(key)} becomes {wanted.get(key)}"
    others = sorted(key for key in running.keys() | wanted.keys() if key != TABLE_FIELD and running.get(key) != wanted.get(key))
    if others:
        return f"{', '.join(others[:3])} in the speculative config changes"
    before, after = _lengths(running), _lengths(wanted)
    if before is None or after is None:
        return None if before == after else "the draft length begins or ends to follow a table"
    if not before <= set(allowed):
        return f"draft length {min(before - set(allowed))} must no longer be used"
    if before != after and runner in {None, V2_RUNNER}:
        return f"the lengths that engines are launched with, {sorted(before)}, become {sorted(after)}"
    return None


def _lengths(config: Config) -> set[int] | None:
    """Of its table; None without one that can be read."""
    ranges = config.get(TABLE_FIELD)
    try:
        return None if ranges is None else set(Table.parse(ranges).lengths)
    except ValueError:
        return None
