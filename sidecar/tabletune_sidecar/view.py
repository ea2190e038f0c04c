"""What one turn of the loop shows to the outside, and its JSON for `/state` (docs/protocol.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import exp
from typing import Any

from tabletune.acceptance import Estimate
from tabletune.formats import counts_fields
from tabletune.table import Table
from tabletune_sidecar.controller import EngineFacts, State
from tabletune_sidecar.counters import StepCell, to_counters
from tabletune_sidecar.files import Files
from tabletune_sidecar.gain import estimate_gains, rivals_of
from tabletune_sidecar.goodput import Goodput
from tabletune_sidecar.honour import Verdict
from tabletune_sidecar.live import Live, correction_of, costs_of
from tabletune_sidecar.options import Mode
from tabletune_sidecar.problem import STOPS_TRACKING, Problem
from tabletune_sidecar.step_times import common_log_ratio, ratios_by_length

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the HTTP side may show; replaced as a whole by the loop."""

    mode: Mode
    state: State
    files: Files | None
    engine: EngineFacts | None  # as last heard
    reachable: bool
    in_force: list[list[int]] | None  # as the engine confirmed it
    generation: int | None
    verdict: Verdict
    cells: tuple[StepCell, ...]
    batch_shares: Mapping[int, float]  # of steps by batch size, lately
    batch_size_last: int | None
    draft_length_last: int | None
    problems: tuple[Problem, ...]
    updated_at: datetime  # UTC
    goodput: Goodput | None = None  # of the table in force

    @property
    def tracks(self) -> bool:
        """Whether this engine's table can follow its traffic now; if not, it keeps the last one."""
        return self.files is not None and not any(p.code in STOPS_TRACKING for p in self.problems)

    @property
    def gains(self) -> dict[str, float]:
        """`estimate_gains` of the table in force; empty while one of its inputs is not known."""
        belief = self.state.belief
        if belief is None or self.files is None or self.engine is None or self.in_force is None:
            return {}
        profile = self.files.profile
        costs = costs_of(self.state.live, profile)
        return estimate_gains(
            Table.parse(self.in_force),
            rivals_of(self.engine, self.files.table.launch_lengths),
            self.batch_shares,
            traffic=belief.used,
            step_times=costs.step_times,
            prefills=costs.prefills,
            profile=profile,
        )


def to_json(view: View) -> dict[str, Any]:
    state, engine, belief = view.state, view.engine, view.state.belief
    wanted = belief.wanted if belief else None
    return {
        "formatVersion": FORMAT_VERSION,
        "mode": view.mode.value,
        "engine": {
            "reachable": view.reachable,
            "bootId": engine.boot_id if engine else None,
            "active": engine.active if engine else None,
            "inactiveReason": engine.inactive_reason if engine else None,
            "vllm": engine.vllm if engine else None,
        },
        "table": {
            "inForce": view.in_force,
            "generation": view.generation,
            "wanted": wanted.to_vllm() if wanted else None,
            "changes": state.rebuilds_changed,
            "rebuilds": state.rebuilds_changed + state.rebuilds_unchanged,
            "trafficSwitches": state.traffic_switches,
        },
        "honoured": view.verdict.honour.value,
        "honouredSteps": view.verdict.steps,
        "violations": view.verdict.violations,
        "acceptance": {
            "prior": _estimate(belief.prior) if belief else None,
            "live": _estimate(Estimate(belief.live.rates, belief.live.coverage)) if belief and belief.live.request_steps else None,
            "used": _estimate(belief.used) if belief else None,
            "standardErrors": [round(error, 6) for error in belief.errors] if belief else None,
            "coverage": belief.used.coverage if belief else None,
            "evidence": counts_fields(belief.live) if belief else None,
        },
        "goodput": _goodput(view.goodput) if view.goodput else None,
        "stepTimes": _step_times(state.live, view.files),
        "requests": _requests(state.live, view.files),
        "counts": {**to_counters(state.total), "draftLengthLast": view.draft_length_last},
        "batchSizeLast": view.batch_size_last,
        "tracks": view.tracks,
        # What stops the tracking first.
        "problems": [{"code": p.code, "message": p.message} for p in sorted(view.problems, key=lambda p: p.code not in STOPS_TRACKING)],
        "estimatedGain": {baseline: round(gain, 4) for baseline, gain in view.gains.items()},
        "files": {"digest": view.files.digest if view.files else None},
        "updatedAt": view.updated_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def _step_times(live: Live, files: Files | None) -> dict[str, Any]:
    common, running = common_log_ratio(live.step_times), live.trials.running
    relative = correction_of(live, files.profile).relative if files else {}
    return {
        "common": None if common is None else round(exp(common), 3),
        "ratioByLength": {str(k): round(ratio, 3) for k, ratio in ratios_by_length(live.step_times).items()},
        "corrected": [[B, k, round(factor, 3)] for B, row in relative.items() for k, factor in row.items() if factor != 1.0],
        "trying": [running.first, running.last, running.draft_length] if running else None,
        "drift": live.step_times.drifts,
    }


def _requests(live: Live, files: Files | None) -> dict[str, Any]:
    mean = live.requests.mean(files.profile.requests if files else None)
    share = live.requests.share_with_prefill
    return {
        "promptTokens": mean.prompt_tokens if mean else None,
        "outputTokens": mean.output_tokens if mean else None,
        "seen": round(live.requests.requests),
        "shareWithPrefill": None if share is None else round(share, 4),
    }


def _estimate(estimate: Estimate) -> list[float]:
    return [round(a, 6) for a in estimate.acceptance]


def _goodput(goodput: Goodput) -> dict[str, int]:
    return {"steps": goodput.steps, "tokens": goodput.tokens, "expectedTokens": goodput.expected_tokens}
