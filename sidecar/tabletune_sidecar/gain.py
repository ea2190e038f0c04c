"""What the table in force gains by estimate, at the batch sizes that the engine runs at. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tabletune.acceptance import Estimate
from tabletune.goodput import Step, predict_goodput, predict_steps
from tabletune.profile import Profile
from tabletune.profile import step_times as profile_step_times
from tabletune.regimes import Prefills
from tabletune.table import Table
from tabletune_sidecar.controller import EngineFacts
from tabletune_sidecar.counters import Chosen, steps_at

HALF_LIFE_STEPS = 10_000
"""Of a step's weight: a minute or two of a busy engine."""

OFF = "off"
LAUNCH_TABLE = "launch-table"


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Share of steps at each batch size, old steps fading. The shares add up to 1; there are none before the first step.

    For what is shown, so it goes on where nothing is rebuilt (no files, no table). `Belief.batch_sizes` is for a decision: it is saved,
    and fades with the evidence, a half with each rebuild.
    """

    shares: Mapping[int, float] = field(default_factory=dict)
    counted: Mapping[int, int] = field(default_factory=dict)  # steps by batch size, as read last

    def after(self, chosen: Chosen) -> BatchSizes:
        """Take in a later reading of all steps so far. What went back (an engine that counts anew) adds nothing."""
        counted = steps_at(chosen)
        fresh = {B: more for B, steps in counted.items() if (more := steps - self.counted.get(B, 0)) > 0}
        total = sum(fresh.values())
        if not total:
            return replace(self, counted=counted)
        kept = 0.5 ** (total / HALF_LIFE_STEPS) if self.shares else 0.0
        seen = self.shares.keys() | fresh.keys()
        return BatchSizes({B: kept * self.shares.get(B, 0.0) + (1 - kept) * fresh.get(B, 0) / total for B in seen}, counted)


def estimate_gains(
    in_force: Table,
    rivals: Mapping[str, Table],
    shares: Mapping[int, float],
    *,
    traffic: Estimate,
    step_times: Mapping[int, Mapping[int, float]],
    prefills: Prefills | None,
    profile: Profile,
) -> dict[str, float]:
    """Gain of the table in force over no speculation and over other tables: 0.05 = 5 % more tokens a second.

    `sum_B w_B G(B, k_table) / G(B, k_other) - 1`, with `w_B` the share of time spent at batch size B: how much longer the same tokens
    would have taken. An estimate: goodput is predicted from the profile and the acceptance in use, not measured.

    Args:
        in_force: the table that the engine follows.
        rivals: the other tables, by name.
        shares: of steps by batch size; sizes between two measured ones count with the one below, larger than all not at all.
        traffic: acceptance and coverage.
        step_times: microseconds by batch size and draft length, with speculation.
        prefills: what steps with a prefill cost; None: decode-only steps are all there is.
        profile: for the engine without speculation.

    Returns:
        By the rivals' names and `off`; what was measured at none of the batch sizes is left out.
    """
    steps = predict_steps(_known(step_times, traffic), traffic, prefills)
    off = predict_goodput(profile_step_times(profile.baseline), traffic, profile.baseline_prefills())
    grid = sorted(steps)
    others: dict[str, Table | None] = {OFF: None, **rivals}
    sums = {name: [0.0, 0.0] for name in others}
    for batch_size, share in shares.items():
        at = bisect_right(grid, batch_size) - 1
        if at < 0 or batch_size > grid[-1]:
            continue
        B = grid[at]
        own = steps[B].get(in_force.length_at(batch_size))
        if own is None:
            continue
        time = share * own.micros
        for name, table in others.items():
            other = off.get(B, {}).get(0) if table is None else _goodput(steps[B].get(table.length_at(batch_size)))
            if other is not None:
                sums[name][0] += time * own.goodput / other
                sums[name][1] += time
    return {name: longer / time - 1 for name, (longer, time) in sums.items() if time}


def rivals_of(engine: EngineFacts, lengths: Collection[int]) -> dict[str, Table]:
    """What this engine could follow instead: its launch table, and each of its lengths that the tuner kept, for all batch sizes."""
    found = {f"fixed-{k}": Table.fixed(k, 1) for k in sorted(set(engine.launch_lengths) & set(lengths))}
    return found if engine.launch_table is None else {LAUNCH_TABLE: engine.launch_table, **found}


def _known(step_times: Mapping[int, Mapping[int, float]], traffic: Estimate) -> dict[int, dict[int, float]]:
    """Without lengths whose acceptance nobody knows, and batch sizes that then have none."""
    known = {B: {k: micros for k, micros in row.items() if k <= len(traffic.acceptance)} for B, row in step_times.items()}
    return {B: row for B, row in known.items() if row}


def _goodput(step: Step | None) -> float | None:
    return None if step is None else step.goodput
