"""Tries a draft length for a few turns where live times say that the one in force is slower than profiled. Pure.

While one length is in force everywhere near a batch size, nothing tells whether it alone is slower than profiled (the profile rejects every
guess) or the whole engine is. If another length would be better should the profile be right about it, it is put in force at the batch
sizes of the moment. It goes on as long as it may still be better, until its live times are known; then the table is built with them. What
was seen is kept, so a trial that does not promise ends after a turn or two and is not repeated before its times are old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, sqrt

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.regimes import Prefills
from tabletune.table import Table
from tabletune_sidecar.step_times import (
    MIN_DIFFERENCE,
    Ratio,
    StepTimes,
    StepTimesByCell,
    best_known,
    difference,
    ratios_at,
    regions_of,
)

PROFILE_ERROR = 0.3
"""How far the profile is trusted for a length without live times: standard error of the log ratio, live over profile."""
IN_FORCE_ERROR = 0.05
"""Standard error of the log ratio of the length in force, before another one is tried: it is not measured meanwhile."""
TRIED_ERROR = 0.03
"""Standard error of a difference of log ratios at which a length has been tried; or 1.5 that of the length in force."""
PAUSE = 25
"""Steps without a trial for each step of one: a trial that loses a quarter costs 1 % of the tokens meanwhile, one a minute."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Batch sizes `first` to `last`, around `batch_size`, draft `draft_length` for now."""

    batch_size: int
    first: int
    last: int
    draft_length: int


@dataclass(frozen=True, slots=True)
class Trials:
    """`steps` are those of the running trial; `next_at` counts as `StepTimes.compared`."""

    running: Trial | None = None
    steps: int = 0
    next_at: int = 0


@dataclass(frozen=True, slots=True)
class Choosing:
    """What goodput is predicted from: the profile's times of the lengths that may be used, and traffic."""

    times: StepTimesByCell
    traffic: Estimate
    prefills: Prefills | None
    noise: float  # relative noise floor of the profile


def turn(trials: Trials, seen: StepTimes, steps: Mapping[int, int], table: Table, given: Choosing) -> Trials:
    """Begin, go on with or end a trial.

    Args:
        trials: as left by the turn before.
        seen: live step times, this turn's included.
        steps: by batch size, since the turn before.
        table: what would be in force without a trial.
        given: what may be chosen, and what it is worth.
    """
    running = trials.running
    if running is not None:
        found = _best(seen, running.batch_size, table, given)
        fresh = sum(count for B, count in steps.items() if running.first <= B <= running.last)
        pays = table.length_at(running.batch_size) == running.draft_length
        if found is not None and found.draft_length == running.draft_length:
            if fresh and not found.is_known:
                return replace(trials, steps=trials.steps + fresh)
            pays = True
        # What pays costs nothing, and the next batch size may follow at once.
        return Trials(next_at=seen.compared + (0 if pays else PAUSE * (trials.steps + fresh)))
    if seen.compared < trials.next_at:
        return trials
    for batch_size in sorted(steps, key=lambda B: (-steps[B], B)):
        found = _best(seen, batch_size, table, given)
        if found is not None and not found.is_known:
            return replace(trials, running=_around(batch_size, found.draft_length, max(given.times)), steps=0)
    return trials


def with_trial(table: Table, trial: Trial | None) -> Table:
    """The table with the trial's length at its batch sizes."""
    if trial is None:
        return table
    last = max(trial.last + 1, table.ranges[-1].last)
    lengths = [trial.draft_length if trial.first <= B <= trial.last else table.length_at(B) for B in range(1, last + 1)]
    edges = [B for B in range(1, last + 1) if B == 1 or lengths[B - 1] != lengths[B - 2]]
    ends = [*(edge - 1 for edge in edges[1:]), last]
    return Table.parse([[first, end, lengths[first - 1]] for first, end in zip(edges, ends, strict=True)])


@dataclass(frozen=True, slots=True)
class _Best:
    draft_length: int
    is_known: bool  # by live times, so that the table is built with them


def _best(seen: StepTimes, batch_size: int, table: Table, given: Choosing) -> _Best | None:
    """What beats the table's length at this batch size, by live times where there are some and else by the profile; None: nothing does."""
    region = next(((first, last) for first, last in regions_of(given.times) if first <= batch_size <= last), None)
    kept = table.length_at(batch_size)
    if region is None or kept not in given.times[region[0]]:
        return None
    row, kinds = given.times[region[0]], ratios_at(seen, kept, *region)
    in_force = best_known(kinds) if kinds else None
    if in_force is None or in_force.error > IN_FORCE_ERROR or in_force.value <= MIN_DIFFERENCE:
        return None
    found = {k: difference(ratios_at(seen, k, *region), kinds) for k in row if k != kept}
    # As profiled, a length is faster beside the one in force by what that one is slower than profiled.
    trusted = -in_force.value
    believed = {kept: row[kept]} | {k: row[k] * exp(_believed(trusted, live)) for k, live in found.items()}
    goodput = predict_goodput({batch_size: believed}, given.traffic, given.prefills)[batch_size]
    best = max(goodput, key=lambda k: (goodput[k], -k))
    if goodput[best] <= goodput[kept] * (1 + max(given.noise, MIN_DIFFERENCE)):
        return None
    live = found[best]
    return _Best(best, live is not None and live.error <= max(TRIED_ERROR, 1.5 * in_force.error))


def _believed(trusted: float, live: Ratio | None) -> float:
    """A difference of log ratios, from trust in the profile and from live times, by their errors."""
    return trusted if live is None else trusted + (live.value - trusted) * PROFILE_ERROR**2 / (PROFILE_ERROR**2 + live.error**2)


def _around(batch_size: int, draft_length: int, largest: int) -> Trial:
    """Half a doubling to each side: few changes of length while the batch size wanders."""
    first, last = round(batch_size / sqrt(2)), round(batch_size * sqrt(2))
    return Trial(batch_size, max(1, first), max(batch_size, min(last, largest)), draft_length)
