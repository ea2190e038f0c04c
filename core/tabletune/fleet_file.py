"""`fleet.json` (docs/formats.md): what all replicas know of their traffic. Written by the operator, read by a sidecar that starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tabletune.acceptance import Estimate
from tabletune.nodes import FORMAT_VERSION, PPM, Node, dump, read_root
from tabletune.table import Table

FLEET = "fleet.json"


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The fleet's prior, and the table that new replicas start from."""

    files: str  # digest of the files that it was counted with (formats.digest_of): of no use with others
    estimate: Estimate
    drafted: tuple[int, ...]  # tokens that the replicas' counts held, by position
    replicas: int  # whose counts these are
    table: Table | None  # None: the table of table.json
    updated_at: str  # RFC 3339, UTC


def to_fleet(fleet: FleetFile) -> str:
    return dump(
        {
            "formatVersion": FORMAT_VERSION,
            "files": fleet.files,
            "acceptancePpm": [round(a * PPM) for a in fleet.estimate.acceptance],
            "coveragePpm": round(fleet.estimate.coverage * PPM),
            "drafted": list(fleet.drafted),
            "replicas": fleet.replicas,
            "ranges": fleet.table.to_vllm() if fleet.table is not None else [],
            "updatedAt": fleet.updated_at,
        }
    )


def parse_fleet(text: str) -> FleetFile:
    """Raises FormatError."""
    root = read_root(FLEET, text)
    acceptance, coverage = root.integers("acceptancePpm", 0), root.integer("coveragePpm", 0)
    if not acceptance or acceptance[0] > PPM or list(acceptance) != sorted(acceptance, reverse=True):
        root.refuse("acceptancePpm", f"must hold shares of at most {PPM:,} that never rise, found {list(acceptance)}")
    if coverage > PPM:
        root.refuse("coveragePpm", f"must be at most {PPM:,}, found {coverage}")
    drafted = root.integers("drafted", 0)
    if len(drafted) != len(acceptance):
        root.refuse("drafted", f"has {len(drafted)} positions and acceptancePpm {len(acceptance)}")
    return FleetFile(
        files=root.text("files"),
        estimate=Estimate(tuple(a / PPM for a in acceptance), coverage / PPM),
        drafted=drafted,
        replicas=root.integer("replicas", 1),
        table=_parse_ranges(root),
        updated_at=_parse_time(root),
    )


def _parse_ranges(root: Node) -> Table | None:
    ranges = root.value.get("ranges")
    if ranges == []:
        return None
    try:
        table = Table.parse(ranges)
    except ValueError as error:
        root.refuse("ranges", f"cannot be used: {error}")
    if table.to_vllm() != ranges:
        root.refuse("ranges", f"has a hole: {ranges}")
    return table


def _parse_time(root: Node) -> str:
    text = root.text("updatedAt")
    try:
        has_offset = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_offset = False
    if not has_offset:
        root.refuse("updatedAt", f"must be a time such as 2026-11-30T14:36:00Z, found {text!r:.40}")
    return text
