"""The status of a DraftTable, made from the stages; what only moves with the clock is written rarely."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Literal

from tabletune.formats import FleetFile
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import clipped
from tabletune_operator.decide.fleet import FleetFindings
from tabletune_operator.decide.job import Profiling
from tabletune_operator.decide.loan import borrowed_at
from tabletune_operator.decide.profile import changes
from tabletune_operator.decide.stage import listed
from tabletune_operator.decide.target import Wanted
from tabletune_operator.decide.tracking import known_replica, last_heard, tracked_replicas
from tabletune_operator.display import UNCHANGED, gain_over_present, percent_text, ranges_text
from tabletune_operator.observation import Files, Observation, Replica, SidecarState
from tabletune_operator.plan import BorrowReplica
from tabletune_operator.pods import job_name
from tabletune_operator.progress import Progress
from tabletune_operator.status import Fleet, ProfileStatus, TableStatus, VerdictStatus
from tabletune_operator.status import Replica as ReplicaStatus
from tabletune_operator.times import parse_time, to_time

FLEET_EVERY_SECONDS = 20
"""Counts grow with every token; the sum is written so often at most, unless something that matters changed."""

TABLE_EVENT_EVERY_SECONDS = 600

MOST_REPLICAS = 64  # as the schema bounds the list


def profile_status(seen: Observation, wanted: Wanted | None, profiling: Profiling | None) -> ProfileStatus:
    if profiling is None or wanted is None:
        # Who is not accepted does not wait for its turn.
        return (seen.draft.status.profile or ProfileStatus()).model_copy(update={"queue": None})
    known = seen.draft.status.profile or ProfileStatus()
    update: dict[str, object] = {"queue": profiling.queue, "reprofile": profiling.answered or known.reprofile}
    if profiling.files is None and isinstance(seen.files, Files):
        update["changed"] = clipped(listed(changes(seen.files, wanted), 8), 256) or None
    if any(isinstance(action, BorrowReplica) for action in profiling.stage.actions):
        update["borrowed_at"] = to_time(seen.now)
    elif seen.job is not None:
        at = borrowed_at(seen, seen.job)
        update["borrowed_at"] = to_time(at) if at is not None else None
    return _stored_or_running(seen, wanted, profiling).model_copy(update=update)


def _stored_or_running(seen: Observation, wanted: Wanted, profiling: Profiling) -> ProfileStatus:
    files, job = profiling.files, seen.job
    if files is not None:
        cells = len(files.profile.cells) + len(files.profile.skipped)
        return ProfileStatus(
            fingerprint=files.profile.fingerprint.digest,
            source="Reused" if files.reused_from is not None else "Measured",
            reused_from=files.reused_from,
            cells_done=len(files.profile.cells),
            cells_total=cells,
            percent=100,
            gpu_minutes=0 if files.reused_from is not None else round(files.profile.measurement.gpu_seconds / 60),
            attempts=profiling.attempts,
        )
    fingerprint = job.fingerprint if job is not None else wanted.fingerprint.digest
    progress = job.progress if job is not None and isinstance(job.progress, Progress) else None
    if progress is None:
        return ProfileStatus(
            job_name=job_name(seen.draft.ref.name) if job is not None else None, fingerprint=fingerprint, attempts=profiling.attempts
        )
    return ProfileStatus(
        job_name=job_name(seen.draft.ref.name),
        fingerprint=fingerprint,
        stage=clipped(progress.stage, 256),
        cells_done=progress.cells_done,
        cells_total=progress.cells_total,
        percent=progress.percent,
        finish_at=to_time(progress.finish_at) if progress.finish_at is not None else None,
        last_progress_at=to_time(progress.updated_at),
        gpu_minutes=round(progress.gpu_seconds / 60),
        attempts=profiling.attempts,
    )


def table_status(files: Files | None) -> TableStatus | None:
    """None without files that may be used: `status` then keeps what it said."""
    if files is None:
        return None
    return TableStatus(
        ranges=clipped(_ranges(files), 256),
        launch_lengths=files.table.launch_lengths,
        largest_measured_batch_size=max((c.batch_size for c in files.profile.cells), default=0),
        digest=files.digest,
    )


def _ranges(files: Files) -> str:
    if files.kind is VerdictKind.PRESENT:
        return UNCHANGED
    return str(files.table.table) if files.table.table is not None else "off"


def verdict_status(files: Files | None) -> VerdictStatus | None:
    if files is None:
        return None
    gains, present = files.table.gains, gain_over_present(files)
    return VerdictStatus(
        kind=files.kind.value,
        gain_vs_present=percent_text(present) if present is not None else None,
        gain_vs_best_fixed=percent_text(gains.fixed) if gains is not None else None,
        gain_vs_off=percent_text(gains.off) if gains is not None else None,
        noise=percent_text(files.table.noise_ppm / 1_000_000, sign=False),
    )


def fleet_status(seen: Observation, fleet: FleetFindings) -> Fleet | None:
    replicas = tracked_replicas(seen)
    if not replicas:
        return None
    states = [r.sidecar for r in replicas if r.sidecar is not None]
    tables = Counter(state.in_force for state in states if state.in_force is not None)
    lines = tuple(
        clipped(f"{ranges_text(table)} on {count} {'replica' if count == 1 else 'replicas'}", 256)
        for table, count in sorted(tables.items(), key=lambda item: (-item[1], str(item[0])))
    )
    drafted, kept = _summed([s.drafted for s in states]), _summed([s.kept for s in states])
    old = seen.draft.status.fleet
    new = Fleet(
        heard=len(states),
        honoured=sum(state.honoured == "Proved" for state in states),
        last_heard=to_time(seen.now) if states else (old.last_heard if old is not None else None),
        tables=lines[:MOST_REPLICAS],
        table_changed_at=_changed_at(seen, lines, old),
        acceptance=_rates([k / d if d else 0.0 for k, d in zip(kept, drafted, strict=False)]),
        drafted_tokens=sum(drafted),
        kept_tokens=sum(kept),
        prior=_prior(fleet.file) if fleet.file is not None else None,
        start_table=clipped(str(fleet.file.table), 256) if fleet.file is not None and fleet.file.table is not None else None,
        trial=clipped(fleet.trial, 256) if fleet.trial is not None else None,
        outliers=fleet.outliers[:MOST_REPLICAS] or None,
        replicas=tuple(_replica(seen, r) for r in replicas[:MOST_REPLICAS]),
    )
    return old if old is not None and _says_the_same(new, old, seen) else new


def _says_the_same(new: Fleet, old: Fleet, seen: Observation) -> bool:
    if old.last_heard is None or seen.now - parse_time(old.last_heard) > timedelta(seconds=FLEET_EVERY_SECONDS):
        return False

    def told(fleet: Fleet) -> object:
        each = tuple((r.pod, r.engine, r.table, r.honoured, r.problem) for r in fleet.replicas or ())
        return fleet.heard, fleet.honoured, fleet.tables, fleet.prior, fleet.start_table, fleet.outliers, each

    return told(new) == told(old)


def _changed_at(seen: Observation, lines: tuple[str, ...], old: Fleet | None) -> str | None:
    if not lines:
        return old.table_changed_at if old is not None else None
    if old is None or old.table_changed_at is None:
        return to_time(seen.now)
    texts = {line.rpartition(" on ")[0] for line in lines}
    before = {line.rpartition(" on ")[0] for line in old.tables or ()}
    recent = seen.now - parse_time(old.table_changed_at) < timedelta(seconds=TABLE_EVENT_EVERY_SECONDS)
    return old.table_changed_at if texts == before or recent else to_time(seen.now)


def _replica(seen: Observation, replica: Replica) -> ReplicaStatus:
    sidecar, heard = replica.sidecar, to_time(last_heard(seen, replica))
    if sidecar is None:
        # What it said last stays true until it says something else: its engine keeps the last good table.
        said = known_replica(seen, replica) or ReplicaStatus(pod=replica.pod.name, node=replica.pod.node)
        return said.model_copy(update={"last_heard": heard, "problem": clipped(replica.silence or "silent", 256)})
    return ReplicaStatus(
        pod=replica.pod.name,
        node=replica.pod.node,
        engine=sidecar.vllm or replica.engine_version,
        table=clipped(str(sidecar.in_force), 256) if sidecar.in_force is not None else None,
        honoured=_honoured(sidecar),
        draft_length=sidecar.draft_length,
        batch_size=sidecar.batch_size,
        acceptance=_rates(sidecar.acceptance),
        last_heard=heard,
        problem=clipped(sidecar.problems[0], 256) if sidecar.problems else None,
    )


def _honoured(sidecar: SidecarState) -> Literal["Proved", "InForce", "NotHonoured", "Unknown"]:
    match sidecar.honoured:
        case "Proved" | "InForce" | "NotHonoured" as told:
            return told
        case _:
            return "Unknown"


def _rates(rates: list[float] | tuple[float, ...]) -> str | None:
    return "/".join(f"{rate:.2f}" for rate in rates) or None


def _prior(file: FleetFile) -> str:
    return f"{_rates(file.estimate.acceptance)} of {file.replicas} {'replica' if file.replicas == 1 else 'replicas'}"


def _summed(lists: list[tuple[int, ...]]) -> list[int]:
    longest = max((len(each) for each in lists), default=0)
    return [sum(each[at] for each in lists if at < len(each)) for at in range(longest)]
