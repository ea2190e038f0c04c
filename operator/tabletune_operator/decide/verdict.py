"""Verified: what the live measurements decided. "Verified" is true whichever way they went, or an Off would never be Ready."""

from __future__ import annotations

from tabletune.verdict import NOTHING_GAINED, VerdictKind
from tabletune_operator.conditions import LONGEST_MESSAGE, Verified, clipped, short
from tabletune_operator.decide.stage import Stage
from tabletune_operator.observation import Files
from tabletune_operator.pods import config_map_name

_REASONS = {
    VerdictKind.TABLE: Verified.TABLE_PAYS,
    VerdictKind.FIXED: Verified.FIXED_LENGTH_PAYS,
    VerdictKind.PRESENT: Verified.PRESENT_PAYS,
    VerdictKind.OFF: Verified.SPECULATION_LOSES,
    VerdictKind.BLOCKED: Verified.NOT_DECIDED,
}


def judge_verdict(draft_table: str, files: Files) -> Stage:
    verdict = files.table.verdict
    config_map = short(config_map_name(draft_table))
    if verdict.kind is VerdictKind.BLOCKED:
        step = f"Delete ConfigMap {config_map} to measure again."
    elif verdict.kind is VerdictKind.OFF:
        step = f"Mode Patch does that: nothing to do. More: report.md in ConfigMap {config_map}."
    else:
        step = f"Nothing to do. More: report.md in ConfigMap {config_map}."
    reason = Verified.NOTHING_GAINED if verdict.reason == NOTHING_GAINED else _REASONS[verdict.kind]
    return Stage(reason, f"{clipped(verdict.message, LONGEST_MESSAGE - 1 - len(step))} {step}")
