"""Whether the engine really drafts what the table says: from what the plugin counted since this engine first took a table. Pure.

A shorter length than the longest is the test: an engine that ignores its table drafts the longest in every step, and where the
table says the longest too, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tabletune_sidecar.counters import Counters

PROVING_STEPS = 4
"""So many steps with a shorter length are no accident of one that was under way."""

MAX_STRAY_VIOLATIONS = 2
MAX_VIOLATION_SHARE = 0.01
"""Stray request-steps, as around a preemption, are no proof against an engine."""


class Honour(StrEnum):
    PROVED = "Proved"  # steps with a shorter length were seen, and they carried no more drafts
    IN_FORCE = "InForce"  # the engine took the table; no telling step was seen yet
    NOT_HONOURED = "NotHonoured"  # requests carried more drafts than the length chosen for them
    UNKNOWN = "Unknown"  # no table of ours in force, or nobody answers


@dataclass(frozen=True, slots=True)
class Verdict:
    honour: Honour
    steps: int  # telling steps since the first push
    violations: int  # request-steps since the first push


UNKNOWN = Verdict(Honour.UNKNOWN, 0, 0)


def judge(since_first_push: Counters, launch_lengths: Sequence[int]) -> Verdict:
    """Judge what one engine start counted since it first took a table.

    Args:
        since_first_push: counters since then.
        launch_lengths: the lengths that it may use; with one length only, every step is telling.
    """
    longest = max(launch_lengths, default=0)
    telling = {(B, k): steps for (B, k), steps in since_first_push.chosen.items() if k < longest or len(launch_lengths) == 1}
    steps = sum(telling.values())
    request_steps = sum(B * n for (B, _), n in telling.items())
    violations = since_first_push.violations
    if violations > max(MAX_STRAY_VIOLATIONS, MAX_VIOLATION_SHARE * request_steps):
        return Verdict(Honour.NOT_HONOURED, steps, violations)
    return Verdict(Honour.PROVED if steps >= PROVING_STEPS else Honour.IN_FORCE, steps, violations)
