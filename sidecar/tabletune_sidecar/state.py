"""The state file: what the controller believes, kept over restarts of the sidecar's container."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from tabletune.acceptance import Counts, Estimate
from tabletune.formats import counts_fields
from tabletune.table import Table
from tabletune_sidecar.belief import Belief
from tabletune_sidecar.controller import State
from tabletune_sidecar.counters import expect, expect_number, parse_counters, to_counters
from tabletune_sidecar.exploration import parse_message, to_message
from tabletune_sidecar.live_file import parse_live, to_live

FORMAT_VERSION = 1


class StateFileError(Exception):
    """The file exists and cannot be used."""


def load_state(path: Path) -> State:
    """The saved state; a fresh one when there is no file. Raises StateFileError."""
    try:
        saved = json.loads(path.read_text())
    except FileNotFoundError:
        return State()
    except (OSError, ValueError) as error:
        raise StateFileError(f"{path} cannot be read ({error})") from error
    try:
        if saved["formatVersion"] != FORMAT_VERSION:
            raise StateFileError(f"{path} has formatVersion {saved['formatVersion']}; this TableTune reads {FORMAT_VERSION}")
        return parse_state(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise StateFileError(f"{path} is damaged ({type(error).__name__}: {error})") from error


def save_state(path: Path, state: State) -> None:
    """Replace the file as a whole. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps({"formatVersion": FORMAT_VERSION, **to_saved(state)}, separators=(",", ":")))
    fresh.replace(path)


def parse_state(saved: dict[str, Any]) -> State:
    """Raises KeyError, TypeError or ValueError."""
    return State(
        belief=None if saved["belief"] is None else _parse_belief(saved["belief"]),
        boot_id=None if saved["bootId"] is None else expect(str, saved["bootId"]),
        seen=parse_counters(saved["seen"]),
        earlier=parse_counters(saved["earlier"]),
        first_push=None if saved["firstPush"] is None else parse_counters(saved["firstPush"]),
        steps_since_rebuild=expect(int, saved["stepsSinceRebuild"]),
        swapped_at=tuple(expect_number(at) for at in saved["swappedAt"]),
        traffic_switches=expect(int, saved["trafficSwitches"]),
        rebuilds_changed=expect(int, saved["rebuildsChanged"]),
        rebuilds_unchanged=expect(int, saved["rebuildsUnchanged"]),
        live=parse_live(saved["live"]),
    )


def to_saved(state: State) -> dict[str, Any]:
    return {
        "belief": None if state.belief is None else _to_belief(state.belief),
        "bootId": state.boot_id,
        "seen": to_counters(state.seen),
        "earlier": to_counters(state.earlier),
        "firstPush": None if state.first_push is None else to_counters(state.first_push),
        "stepsSinceRebuild": state.steps_since_rebuild,
        "swappedAt": list(state.swapped_at),
        "trafficSwitches": state.traffic_switches,
        "rebuildsChanged": state.rebuilds_changed,
        "rebuildsUnchanged": state.rebuilds_unchanged,
        "live": to_live(state.live),
    }


def _parse_belief(saved: dict[str, Any]) -> Belief:
    belief = Belief(
        digest=expect(str, saved["digest"]),
        prior=_parse_estimate(saved["prior"]),
        prior_weight=expect_number(saved["priorWeight"]),
        live=_parse_counts(saved["live"]),
        fresh=_parse_counts(saved["fresh"]),
        design_effect=expect_number(saved["designEffect"]),
        used=_parse_estimate(saved["used"]),
        errors=tuple(expect_number(error) for error in saved["standardErrors"]),
        wanted=None if saved["wanted"] is None else Table.parse(saved["wanted"]),
        tables=tuple(Table.parse(ranges) for ranges in saved["tables"]),
        batch_sizes={expect(int, B): expect(int, steps) for B, steps in saved["batchSizes"]},
        explore=None if saved["explore"] is None else parse_message(saved["explore"]),
        unsettled=expect(int, saved["unsettled"]),
    )
    if not 0 <= belief.prior_weight < inf or not 1 <= belief.design_effect < inf:
        raise ValueError(f"priorWeight {belief.prior_weight} or designEffect {belief.design_effect} cannot be")
    widths = {len(belief.prior.acceptance), len(belief.used.acceptance), len(belief.errors), len(belief.live.drafted)}
    if len(widths) > 1:
        raise ValueError("prior, used, standardErrors and live have different numbers of positions")
    _ = belief.live - belief.fresh  # raises ValueError when the part is larger than the whole
    return belief


def _to_belief(belief: Belief) -> dict[str, Any]:
    return {
        "digest": belief.digest,
        "prior": _to_estimate(belief.prior),
        "priorWeight": belief.prior_weight,
        "live": counts_fields(belief.live),
        "fresh": counts_fields(belief.fresh),
        "designEffect": belief.design_effect,
        "used": _to_estimate(belief.used),
        "standardErrors": list(belief.errors),
        "wanted": None if belief.wanted is None else belief.wanted.to_vllm(),
        "tables": [table.to_vllm() for table in belief.tables],
        "batchSizes": [[B, steps] for B, steps in sorted(belief.batch_sizes.items())],
        "explore": None if belief.explore is None else to_message(belief.explore),
        "unsettled": belief.unsettled,
    }


def _parse_counts(saved: dict[str, Any]) -> Counts:
    return Counts(
        expect(int, saved["requestSteps"]),
        expect(int, saved["draftedSteps"]),
        tuple(expect(int, n) for n in saved["drafted"]),
        tuple(expect(int, n) for n in saved["kept"]),
    )


def _parse_estimate(saved: dict[str, Any]) -> Estimate:
    estimate = Estimate(tuple(expect_number(a) for a in saved["acceptance"]), expect_number(saved["coverage"]))
    if not all(0 <= share <= 1 for share in (*estimate.acceptance, estimate.coverage)):
        raise ValueError(f"{saved} is no acceptance: shares are between 0 and 1")
    return estimate


def _to_estimate(estimate: Estimate) -> dict[str, Any]:
    return {"acceptance": list(estimate.acceptance), "coverage": estimate.coverage}
