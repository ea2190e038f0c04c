"""The files of a DraftTable's ConfigMap, from a folder or from a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tabletune.formats import ACCEPTANCE, PROFILE, TABLE, AcceptanceFile, TableFile, parse_acceptance, parse_profile, parse_table
from tabletune.profile import Profile
from tabletune.table import Table
from tabletune_cli.errors import refuse
from tabletune_cli.grid import read_text

READ = (PROFILE, ACCEPTANCE, TABLE)


@dataclass(frozen=True, slots=True)
class Stored:
    """What one profiling run left."""

    profile: Profile
    acceptance: AcceptanceFile
    table: TableFile


def load(directory: Path | None, namespace: str | None, name: str | None) -> Stored:
    """Read `--dir DIR`, or the ConfigMap of the DraftTable NAME.

    Raises:
        CommandError: neither or both are given, or something is missing.
        FormatError: a file is damaged.
    """
    if (directory is None) == (name is None):
        refuse("BadArgument", "Give one of --dir DIR (files of a ConfigMap) and NAME (a DraftTable, with -n NAMESPACE).")
    if directory is not None and namespace is not None:
        refuse("BadArgument", "-n goes with NAME; --dir reads files of this machine. Leave one out.")
    if name is not None:
        from tabletune_cli.cluster import read_config_map  # noqa: PLC0415 - loads the Kubernetes client, which other calls do without

        return _parse(*read_config_map(namespace, name))
    assert directory is not None
    return _parse({f: read_text(directory / f) for f in READ if (directory / f).exists()}, str(directory))


def parse_setting(text: str) -> Table | None:
    """The table that a setting of `loads` names: `k=3` or `1-64:3 65-128:1`, a note in brackets aside; None for anything else."""
    text = text.partition(" (")[0]
    if found := re.fullmatch(r"k=(\d+)", text):
        return Table.fixed(int(found[1]), 1)
    try:
        parts = [re.fullmatch(r"(\d+)(?:-(\d+))?:(\d+)", part) for part in text.split()]
        return Table.parse([[int(p[1]), int(p[2] or p[1]), int(p[3])] for p in parts if p]) if all(parts) else None
    except ValueError:
        return None


def _parse(texts: Mapping[str, str], origin: str) -> Stored:
    missing = [f for f in READ if f not in texts]
    if missing:
        refuse("FileMissing", f"{origin} lacks {', '.join(missing)}. The profiling Job writes them; see kubectl get dt, or measure again.")
    return Stored(parse_profile(texts[PROFILE]), parse_acceptance(texts[ACCEPTANCE]), parse_table(texts[TABLE]))
