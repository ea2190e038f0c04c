"""The files of the ConfigMap `<name>-tabletune` (docs/formats.md): the only place that reads and writes them
(table.json: table_file.py; fleet.json: fleet_file.py).

`to_*` never fails; `parse_*` takes text that anybody may have edited, and either returns a whole value or raises a
FormatError that names file, field and cure. A damaged file is never half used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from tabletune.acceptance import Counts, Estimate, Part
from tabletune.fleet_file import FLEET, FleetFile, parse_fleet, to_fleet
from tabletune.graphs import GraphCells
from tabletune.intervals import Interval, intervals
from tabletune.nodes import FORMAT_VERSION, PPM, FormatError, Node, dump, read_root
from tabletune.profile import Ceiling, Cell, Fingerprint, Measurement, Profile, SkippedCell, Transition
from tabletune.regimes import PrefillCell, Requests
from tabletune.table_file import TABLE, Capacity, TableFile, parse_table, to_table

__all__ = [
    "ACCEPTANCE",
    "FILES",
    "FLEET",
    "PPM",
    "PROFILE",
    "REPORT",
    "SPECULATIVE_CONFIG",
    "TABLE",
    "TRACKED",
    "VLLM_YAML",
    "AcceptanceFile",
    "Capacity",
    "FleetFile",
    "FormatError",
    "TableFile",
    "counts_fields",
    "digest_of",
    "parse_acceptance",
    "parse_fleet",
    "parse_profile",
    "parse_table",
    "to_acceptance",
    "to_fleet",
    "to_profile",
    "to_table",
]

PROFILE = "profile.json"
ACCEPTANCE = "acceptance.json"
SPECULATIVE_CONFIG = "speculative-config.json"
VLLM_YAML = "vllm.yaml"
REPORT = "report.md"
FILES = (PROFILE, ACCEPTANCE, TABLE, SPECULATIVE_CONFIG, VLLM_YAML, REPORT)
"""Written by the profiling Job."""
TRACKED = (PROFILE, ACCEPTANCE, TABLE)
"""What a sidecar works from; fleet.json says which of them it was counted with."""


@dataclass(frozen=True, slots=True)
class AcceptanceFile:
    """Acceptance as the Job counted it on prompts. `parts`: the same counts, each part of other answers; may be empty."""

    counts: Counts
    temperature_milli: int
    prompt_count: int
    prompts_digest: str
    prompts_source: str
    warnings: tuple[str, ...]
    parts: tuple[Part, ...] = ()

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Where each `a_i` lies, with the confidence of `tabletune.acceptance`."""
        return intervals(self.counts, [part.counts for part in self.parts])

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.counts.rates, self.counts.coverage)


def digest_of(texts: Mapping[str, str]) -> str:
    """Twelve hex digits that change when any of the TRACKED files does."""
    joined = "\0".join(f"{name}\0{texts[name]}" for name in TRACKED)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def to_profile(profile: Profile) -> str:
    m = profile.measurement
    return dump(
        {
            "formatVersion": FORMAT_VERSION,
            "fingerprint": {"digest": profile.fingerprint.digest, "fields": dict(profile.fingerprint.fields)},
            "engine": dict(profile.engine),
            "measurement": {
                "promptTokens": m.prompt_tokens,
                "outputTokens": m.output_tokens,
                "repeats": m.repeats,
                "rejectBy": m.reject_by,
                "measuredAt": m.measured_at,
                "gpuSeconds": m.gpu_seconds,
                "tunerVersion": m.tuner_version,
            },
            "noisePpm": profile.noise_ppm,
            "warnings": list(profile.warnings),
            "cells": [_cell(c, with_length=True) for c in profile.cells],
            "baseline": [_cell(c, with_length=False) for c in profile.baseline],
            "skipped": [{"batchSize": s.batch_size, "draftLength": s.draft_length, "reason": s.reason} for s in profile.skipped],
            "requests": _plain(_REQUESTS, profile.requests) if profile.requests else None,
            "prefill": [_plain(_PREFILL, c) for c in profile.prefill],
            "baselinePrefill": [_plain(_PREFILL, c) for c in profile.baseline_prefill],
            "ceilings": [_plain(_CEILING, c) for c in profile.ceilings],
            "transitions": [_plain(_TRANSITION, t) for t in profile.transitions],
        }
    )


def parse_profile(text: str) -> Profile:
    """Raises FormatError."""
    root = read_root(PROFILE, text)
    fingerprint = Fingerprint.of(root.child("fingerprint").child("fields").value)
    if root.child("fingerprint").text("digest") != fingerprint.digest:
        root.refuse("fingerprint.digest", f"does not match its fields (expected {fingerprint.digest})")
    m = root.child("measurement")
    cells = tuple(_parse_cell(c, with_length=True) for c in root.children("cells"))
    if not cells:
        root.refuse("cells", "is empty: nothing was measured")
    if len({(c.batch_size, c.draft_length) for c in cells}) != len(cells):
        root.refuse("cells", "holds a batch size and draft length twice")
    skipped = tuple(SkippedCell(s.integer("batchSize", 1), s.integer("draftLength", 0), s.text("reason")) for s in root.children("skipped"))
    if hole := _find_hole(cells, skipped):
        root.refuse("cells", f"has a hole: batchSize {hole[0]}, draftLength {hole[1]} is neither there nor in skipped")
    try:
        GraphCells.of(root.child("engine").value)
    except ValueError as error:
        root.refuse("engine", f"cannot be used: {error}")
    return Profile(
        fingerprint=fingerprint,
        engine=root.child("engine").value,
        measurement=Measurement(
            prompt_tokens=m.integer("promptTokens", 1),
            output_tokens=m.integer("outputTokens", 1),
            repeats=m.integer("repeats", 1),
            reject_by=m.text("rejectBy"),
            measured_at=m.text("measuredAt"),
            gpu_seconds=m.integer("gpuSeconds", 0),
            tuner_version=m.text("tunerVersion"),
        ),
        cells=cells,
        baseline=tuple(_parse_cell(c, with_length=False) for c in root.children("baseline")),
        skipped=skipped,
        noise_ppm=root.integer("noisePpm", 0),
        warnings=tuple(root.texts("warnings")),
        prefill=tuple(PrefillCell(*_integers(_PREFILL, c)) for c in root.children("prefill")),
        baseline_prefill=tuple(PrefillCell(*_integers(_PREFILL, c)) for c in root.children("baselinePrefill")),
        requests=_parse_requests(root),
        ceilings=tuple(Ceiling(*_integers(_CEILING, c)) for c in root.children("ceilings")),
        transitions=tuple(Transition(*_integers(_TRANSITION, t)) for t in root.children("transitions")),
    )


def to_acceptance(acceptance: AcceptanceFile) -> str:
    return dump(
        {
            "formatVersion": FORMAT_VERSION,
            **counts_fields(acceptance.counts),
            "parts": [{"contextTokens": part.context_tokens, **counts_fields(part.counts)} for part in acceptance.parts],
            "temperatureMilli": acceptance.temperature_milli,
            "prompts": {
                "count": acceptance.prompt_count,
                "digest": acceptance.prompts_digest,
                "source": acceptance.prompts_source,
            },
            "warnings": list(acceptance.warnings),
        }
    )


def parse_acceptance(text: str) -> AcceptanceFile:
    """Raises FormatError."""
    root = read_root(ACCEPTANCE, text)
    counts = _parse_counts(root)
    parts = tuple(_parse_part(part) for part in root.children("parts")) if "parts" in root.value else ()
    if any(len(part.counts.drafted) != len(counts.drafted) for part in parts) or (
        parts and sum((part.counts for part in parts), start=Counts.zero(len(counts.drafted))) != counts
    ):
        root.refuse("parts", "do not add up to the counts of the whole")
    prompts = root.child("prompts")
    return AcceptanceFile(
        counts=counts,
        temperature_milli=root.integer("temperatureMilli", 0),
        prompt_count=prompts.integer("count", 0),
        prompts_digest=prompts.text("digest"),
        prompts_source=prompts.text("source"),
        warnings=tuple(root.texts("warnings")),
        parts=parts,
    )


def counts_fields(counts: Counts) -> dict[str, Any]:
    """How counts are written, wherever they are."""
    return {
        "requestSteps": counts.request_steps,
        "draftedSteps": counts.drafted_steps,
        "drafted": list(counts.drafted),
        "kept": list(counts.kept),
    }


def _parse_part(node: Node) -> Part:
    is_lengthened = node.value.get("contextTokens") is not None
    return Part(_parse_counts(node), node.integer("contextTokens", 1) if is_lengthened else None)


def _parse_counts(node: Node) -> Counts:
    steps, drafted_steps = node.integer("requestSteps", 0), node.integer("draftedSteps", 0)
    drafted, kept = node.integers("drafted", 0), node.integers("kept", 0)
    try:
        return Counts(steps, drafted_steps, drafted, kept)
    except ValueError as error:
        node.refuse("drafted and kept", f"cannot be: {error}")


def _cell(cell: Cell, *, with_length: bool) -> dict[str, int]:
    length = {"draftLength": cell.draft_length} if with_length else {}
    return {
        "batchSize": cell.batch_size,
        **length,
        "stepTimeMicros": cell.step_time_micros,
        "spreadMicros": cell.spread_micros,
        "samples": cell.samples,
    }


def _parse_cell(node: Node, *, with_length: bool) -> Cell:
    return Cell(
        batch_size=node.integer("batchSize", 1),
        draft_length=node.integer("draftLength", 0) if with_length else 0,
        step_time_micros=node.integer("stepTimeMicros", 1),
        spread_micros=node.integer("spreadMicros", 0),
        samples=node.integer("samples", 1),
    )


# Fields in the order of their data class, with the least that each may be.
_PREFILL = {"batchSize": 1, "draftLength": 0, "promptTokens": 1, "stepTimeMicros": 1, "spreadMicros": 0, "samples": 1}
_REQUESTS = {"promptTokens": 1, "outputTokens": 1}
_CEILING = {"draftLength": 0, "batchSize": 1, "belowMicros": 1, "aboveMicros": 1}
_TRANSITION = {"fromLength": 0, "toLength": 0, "batchSize": 1, "tries": 0, "worstPauseMicros": 0, "failures": 0}


def _plain(fields: Mapping[str, int], value: PrefillCell | Requests | Ceiling | Transition) -> dict[str, int]:
    return dict(zip(fields, astuple(value), strict=True))


def _integers(fields: Mapping[str, int], node: Node) -> tuple[int, ...]:
    return tuple(node.integer(name, least) for name, least in fields.items())


def _parse_requests(root: Node) -> Requests | None:
    if "requests" in root.value and root.value["requests"] is None:
        return None
    return Requests(*_integers(_REQUESTS, root.child("requests")))


def _find_hole(cells: Sequence[Cell], skipped: Sequence[SkippedCell]) -> tuple[int, int] | None:
    """A batch size and length of the grid that was neither measured nor left out with a reason."""
    known = {(c.batch_size, c.draft_length) for c in cells} | {(s.batch_size, s.draft_length) for s in skipped}
    lengths = sorted({c.draft_length for c in cells})
    return next(((b, k) for b in sorted({c.batch_size for c in cells}) for k in lengths if (b, k) not in known), None)
