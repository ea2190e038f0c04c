"""After a roll-out: do replicas do beyond doubt worse than with the setting before? Crash loops, goodput, failed requests, stalls.

Wrong alarms cost two restarts of every replica, so each doubt is counted for the new setting, and missing data says nothing.

Goodput is output tokens against those that the profile predicts for the rolled-out table in the same step time at the same batch sizes
with live acceptance (`goodput` of docs/protocol.md), so load and acceptance cancel out. Step times that are longer for all
lengths alike (long contexts, another load on the node) would be so with the setting before too: that share, which sidecars tell, is
taken out. What is left are stalls and lengths that cost more than was measured. With prompts much longer than the profiled ones
prefills take what no profile says, and nothing is judged.

Failed requests and stalls are held against what the engines before had counted (served.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tabletune.verdict import ArmName, VerdictKind
from tabletune_operator.conditions import clipped, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.served import find_worse, goes_on, sum_served
from tabletune_operator.decide.stage import percent
from tabletune_operator.decide.start_table import LEAST_STEPS, measuring_error
from tabletune_operator.observation import Damage, Files, Observation, Replica, SidecarState, Workload
from tabletune_operator.status import RolloutStatus, ServedCounts
from tabletune_operator.times import clock, parse_time, to_time

WATCHED = timedelta(hours=2)
"""After every replica had proved the setting. What comes later is not the roll-out's doing."""

SURE_AFTER = timedelta(minutes=15)
"""So long it must be worse at every look: a sidecar's goodput is of the last 5 to 10 min, so two windows at least agree."""

LEAST_MARGIN = 0.05
"""Below the setting before by less than this is never worse; nor by less than three times the measuring error."""

LONGER_PROMPTS = 2.0
"""Live prompts over profiled ones; beyond it goodput says nothing about the table."""

MOST_CRASHES = 2
"""As before the proof: one end can be bad luck."""


@dataclass(frozen=True, slots=True)
class Regression:
    """`found`: what is worse, with value and limit, in words; `pod`: one that shows it; `certain`: for long enough."""

    found: str | None = None
    pod: str = ""
    since: str | None = None  # as the status is to hold it
    certain: bool = False
    counted: ServedCounts | None = None  # what was counted then, as the status is to hold it


FINE = Regression()


def judge_regression(seen: Observation, files: Files | None, current: Sequence[Replica], known: RolloutStatus | None) -> Regression:
    """`current`: pods of the newest revision. `known`: the roll-out as the status remembers it; a completed one is judged."""
    if known is None or known.completed_at is None or seen.now - parse_time(known.completed_at) > WATCHED:
        return FINE
    crashing = [r for r in current if r.pod.crash is not None and r.pod.restarts >= MOST_CRASHES]
    if crashing and 2 * len(crashing) >= len(current):
        pod = crashing[0].pod
        what = f"{len(crashing)} of {len(current)} new replicas crash: {short(pod.name)}, {pod.out_of_memory or pod.crash}"
        return Regression(what, pod.name, known.worse_since or to_time(seen.now), certain=True)
    found = _lost_goodput(files, current) if files is not None else None
    if found is None:
        return _served_worse(seen, seen.workload, current, known) if seen.workload is not None else FINE
    since = parse_time(known.worse_since) if known.worse_since is not None else seen.now
    told = f"{found}, since {clock(since)}"
    return Regression(told, since=to_time(since), certain=seen.now - since >= SURE_AFTER)


def _served_worse(seen: Observation, workload: Workload, current: Sequence[Replica], known: RolloutStatus) -> Regression:
    found = find_worse(workload, current, known.before)
    if found is None:
        return FINE
    first, now = known.worse_counted, sum_served(workload, current)
    since = parse_time(known.worse_since) if known.worse_since is not None and first is not None else seen.now
    last_long = first is not None and seen.now - since >= SURE_AFTER
    again = goes_on(found, first, now) if first is not None and last_long else None
    if first is None or again is False:
        return Regression(found.said, since=to_time(seen.now), counted=now)
    return Regression(f"{found.said}, since {clock(since)}", since=to_time(since), certain=again is True, counted=first)


def _lost_goodput(files: Files, current: Sequence[Replica]) -> str | None:
    """Value and limit; None: not worse, or not known."""
    states = [r.sidecar for r in current if r.pod.ready]
    heard = [state for state in states if state is not None and _tells(state, files)]
    if not heard or len(heard) < len(states) or not files.table.loads:
        return None
    expected = sum(s.goodput.expected_tokens for s in heard if s.goodput is not None)
    tokens = sum(s.goodput.tokens * (s.slowdown or 1.0) for s in heard if s.goodput is not None)
    if not expected:
        return None
    # Of the loads that were compared live, the one where the setting before was the weakest beside the table.
    rolled_out: ArmName = "fixed" if files.kind is VerdictKind.FIXED else "table"
    before = 1 + min(load.gain("present", rolled_out) for load in files.table.loads)
    margin = max(LEAST_MARGIN, 3 * measuring_error(files))
    ratio, limit = tokens / expected, before * (1 - margin)
    if ratio >= limit:
        return None
    replicas = "1 replica" if len(heard) == 1 else f"{len(heard)} replicas"
    return f"{replicas} give {percent(ratio)} of the predicted tokens (limit {percent(limit)}; the setting before {percent(before)})"


def _tells(state: SidecarState, files: Files) -> bool:
    profiled = files.profile.measurement.prompt_tokens
    return (
        state.files == files.tracked
        and state.goodput is not None
        and state.goodput.steps >= LEAST_STEPS
        and state.slowdown is not None
        and state.prompt_tokens is not None
        and state.prompt_tokens <= LONGER_PROMPTS * profiled
    )


def is_only_reported(spec: DraftTableSpec | Damage) -> bool:
    """Whether replicas that do worse keep the setting. So they do where it cannot be read what their user wants."""
    return isinstance(spec, Damage) or spec.rollout.guard.after_rollout == "Report"


def worse(found: str) -> str:
    """The message where nothing is changed for it."""
    return f"{clipped(found, 180)}. Serving goes on. To go back delete this DraftTable, or set spec.rollout.guard.afterRollout to RollBack."
