"""What live steps say about costs, in place of the profile: step times, and how long requests are. Pure; the controller keeps it.

An engine's counters only grow, so what a reading adds is what counts. Another boot id is another engine, which counts from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tabletune.acceptance import Estimate
from tabletune.profile import Profile
from tabletune.regimes import Prefills, bucket_of
from tabletune.table import Table
from tabletune_sidecar import request_lengths, step_times, trial
from tabletune_sidecar.counters import Counters, StepCell, steps_at
from tabletune_sidecar.request_lengths import RequestLengths
from tabletune_sidecar.step_times import Correction, StepTimes
from tabletune_sidecar.trial import Choosing, Trials

CellKey = tuple[int, int, str, int]  # batch size, draft length, regime, bucket of prompt tokens


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine's counters as read last; an engine that just started has none."""

    cells: Mapping[CellKey, StepCell] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)  # by batch size
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Live:
    """`step_times` and `requests` survive a restart. `profile` names what the times are compared with; another one begins afresh."""

    profile: str = ""
    boot_id: str | None = None
    read: Reading | None = None  # None: counting begins with the next reading
    step_times: StepTimes = field(default_factory=StepTimes)
    requests: RequestLengths = field(default_factory=RequestLengths)
    steps: Mapping[int, int] = field(default_factory=dict)  # of the last reading, by batch size
    trials: Trials = field(default_factory=Trials)


@dataclass(frozen=True, slots=True)
class Costs:
    """What goodput is predicted from besides acceptance; `prefills` None: decode-only steps are all there is."""

    step_times: Mapping[int, Mapping[int, float]]
    prefills: Prefills | None


def absorb(live: Live, boot_id: str, cells: Sequence[StepCell], counters: Counters, profile: Profile) -> Live:
    """Take in one reading of an engine."""
    name = f"{profile.fingerprint.digest} {profile.measurement.measured_at}"
    if name != live.profile:
        live = replace(live, profile=name, step_times=StepTimes())
    if boot_id != live.boot_id:
        live = replace(live, boot_id=boot_id, read=Reading(), trials=Trials())
    before = live.read
    now = _read(before or Reading(), cells, counters)
    if before is None:
        return replace(live, read=now)
    fresh = [cell for key, counted in now.cells.items() if (cell := _since(counted, before.cells.get(key))) is not None]
    steps = {B: more for B, count in now.steps.items() if (more := count - before.steps.get(B, 0)) > 0}
    return replace(
        live,
        read=now,
        steps=steps,
        step_times=step_times.absorb(live.step_times, fresh, profile.step_times(), profile.prefills()),
        requests=request_lengths.absorb(live.requests, fresh, steps, max(0, now.tokens - before.tokens)),
    )


def costs_of(live: Live, profile: Profile) -> Costs:
    """The profile's costs, with what live steps say where they say enough."""
    return Costs(correction_of(live, profile).step_times, _prefills(live, profile))


def correction_of(live: Live, profile: Profile) -> Correction:
    return step_times.correct(live.step_times, profile.step_times(), profile.switch_gain)


def try_lengths(live: Live, profile: Profile, lengths: Collection[int], traffic: Estimate, table: Table) -> Live:
    """Begin, go on with or end a trial of one of the lengths that may be used, beside the table that is wanted."""
    times = {B: {k: micros for k, micros in row.items() if k in lengths} for B, row in profile.step_times().items()}
    given = Choosing({B: row for B, row in times.items() if row}, traffic, _prefills(live, profile), profile.switch_gain)
    return replace(live, trials=trial.turn(live.trials, live.step_times, live.steps, table, given))


def _prefills(live: Live, profile: Profile) -> Prefills | None:
    return replace(profile, requests=live.requests.mean(profile.requests)).prefills()


def _read(before: Reading, cells: Sequence[StepCell], counters: Counters) -> Reading:
    found = {_key(cell): cell for cell in cells if cell.count}
    # An answer leaves rare cells out when there are too many: they are remembered, or they would come back as all new.
    return Reading({**before.cells, **found}, steps_at(counters.chosen), counters.tokens)


def _key(cell: StepCell) -> CellKey:
    """A bucket's mean lies in the bucket, however its cell grows. Buckets stay apart: what prefills add jumps between them."""
    return cell.batch_size, cell.draft_length, cell.regime, bucket_of(round(cell.prompt_tokens / cell.count))


def _since(cell: StepCell, before: StepCell | None) -> StepCell | None:
    """The steps that came since; None when there are none."""
    if before is None:
        return cell if cell.count else None
    if cell.count <= before.count:
        return None
    return replace(
        cell,
        count=cell.count - before.count,
        total_micros=cell.total_micros - before.total_micros,
        prompt_tokens=cell.prompt_tokens - before.prompt_tokens,
    )
