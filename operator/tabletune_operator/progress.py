"""The annotation `tabletune.io/progress` of a profiling Job: how far the tuner is, and how it ended (docs/protocol.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tabletune_operator.times import parse_time

PROGRESS_ANNOTATION = "tabletune.io/progress"
FORMAT_VERSION = 1


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    BLOCKED = "Blocked"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """What the tuner last wrote; `outcome` is None while it runs."""

    stage: str
    cells_done: int
    cells_total: int
    percent: int
    message: str
    finish_at: datetime | None
    updated_at: datetime
    gpu_seconds: int
    outcome: Outcome | None
    reason: str | None


class ProgressError(ValueError):
    """The annotation cannot be read: which field, and why."""


def parse_progress(text: str) -> Progress:
    """Raises ProgressError."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProgressError(f"{PROGRESS_ANNOTATION} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProgressError(f"{PROGRESS_ANNOTATION} is not a JSON object")
    if value.get("formatVersion") != FORMAT_VERSION:
        raise ProgressError(
            f"{PROGRESS_ANNOTATION} has formatVersion {value.get('formatVersion')!r}; this operator reads {FORMAT_VERSION}. "
            "Run operator and tuner of one version"
        )
    finish = _text(value, "finishAt")
    outcome = _text(value, "outcome")
    try:
        return Progress(
            stage=_text(value, "stage") or "",
            cells_done=_count(value, "cellsDone"),
            cells_total=_count(value, "cellsTotal"),
            percent=min(100, _count(value, "percent")),
            message=_text(value, "message") or "",
            finish_at=parse_time(finish) if finish else None,
            updated_at=parse_time(_text(value, "updatedAt") or ""),
            gpu_seconds=_count(value, "gpuSeconds"),
            outcome=Outcome(outcome) if outcome else None,
            reason=_text(value, "reason"),
        )
    except ProgressError:
        raise
    except ValueError as error:
        raise ProgressError(f"{PROGRESS_ANNOTATION} cannot be read: {error}") from error


def _count(value: dict[str, Any], field: str) -> int:
    found = value.get(field, 0)
    if type(found) is not int or found < 0:
        raise ProgressError(f"{PROGRESS_ANNOTATION}: {field} is {found!r}, not a count")
    return found


def _text(value: dict[str, Any], field: str) -> str | None:
    found = value.get(field)
    if found is not None and not isinstance(found, str):
        raise ProgressError(f"{PROGRESS_ANNOTATION}: {field} is {found!r}, not a text")
    return found
