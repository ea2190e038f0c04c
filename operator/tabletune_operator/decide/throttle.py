"""Keeps a tuner that reports every cell from making a status write of every cell."""

from __future__ import annotations

from dataclasses import replace

from tabletune_operator.observation import Observation
from tabletune_operator.progress import Progress
from tabletune_operator.times import parse_time

EVERY_SECONDS = 10
EVERY_PERCENT = 5


def throttled(seen: Observation) -> Observation:
    """The observation with the progress that the status already tells, where the newer one is not worth a write yet."""
    known, job = seen.draft.status.profile, seen.job
    progress = job.progress if job is not None else None
    if job is None or not isinstance(progress, Progress) or progress.outcome is not None or known is None:
        return seen
    if known.last_progress_at is None or known.stage != progress.stage or known.percent is None or known.cells_total is None:
        return seen
    told_at = parse_time(known.last_progress_at)
    soon = 0 <= (progress.updated_at - told_at).total_seconds() < EVERY_SECONDS
    if not soon or abs(progress.percent - known.percent) >= EVERY_PERCENT or known.cells_total != progress.cells_total:
        return seen
    before = seen.draft.conditions.get("Profiled")
    if before is None or before.reason != "Profiling":
        return seen
    told = replace(
        progress,
        cells_done=known.cells_done or 0,
        percent=known.percent,
        finish_at=parse_time(known.finish_at) if known.finish_at is not None else None,
        updated_at=told_at,
        message=progress.message,
    )
    return replace(seen, job=replace(job, progress=told))
