"""The fleet: what all replicas together know of their traffic, and which of them has another one. For replicas that start (design.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import sqrt

from tabletune.acceptance import Counts, Estimate, estimate
from tabletune.formats import FLEET, FleetFile, to_fleet
from tabletune.outliers import design_effects, find_outliers
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.start_table import judge_start_table
from tabletune_operator.observation import Damage, Files, Observation, Replica, SidecarState
from tabletune_operator.plan import Action, ApplyFleet
from tabletune_operator.pods import config_map_name
from tabletune_operator.times import parse_time, to_time

EVERY_SECONDS = 300
"""Each write goes to the API server and to the kubelet of every replica."""

MOVED = 0.02
"""An `a_i` that moved by less moves no edge of a table."""


@dataclass(frozen=True, slots=True)
class FleetFindings:
    """What is so of all replicas. `file`: as it is in the cluster, or as it is written now; None: the profile's word still holds."""

    file: FleetFile | None = None
    outliers: tuple[str, ...] = ()  # pods
    trial: str | None = None  # of a table that new replicas could start from, in words
    actions: tuple[Action, ...] = ()


NOTHING_FOUND = FleetFindings()


def judge_fleet(seen: Observation, files: Files | None, replicas: Sequence[Replica]) -> FleetFindings:
    """Nothing without a table of ours, or before a sidecar has counted with the files that are stored now.

    `replicas`: those whose sidecars are to be heard.
    """
    spec = seen.draft.spec
    if files is None or files.table.table is None or not isinstance(spec, DraftTableSpec):
        return NOTHING_FOUND
    positions = len(files.acceptance.counts.drafted)
    known = _usable(files, positions)
    counted = _counted(replicas, files, positions)
    effects = design_effects([part.counts for part in files.acceptance.parts], positions)
    outliers = find_outliers({name: counts for name, (_, counts) in counted.items()}, effects)
    alike = [counted[name] for name in counted if name not in outliers]
    if not alike:
        return FleetFindings(known)
    total = sum((counts for _, counts in alike), start=Counts.zero(positions))
    before = known.estimate if known is not None else files.acceptance.estimate
    traffic = estimate(before, total, spec.controller.prior_weight)
    present = known.table if known is not None else None
    start = judge_start_table([state for state, _ in alike], files, traffic, present)
    has_news = start.table != present or has_moved(before, traffic, total, effects) or isinstance(files.fleet, Damage)
    if not has_news or not _is_due(seen, known):
        return FleetFindings(known, outliers, start.trial)
    written = FleetFile(files.tracked, traffic, total.drafted, len(alike), start.table, to_time(seen.now))
    return FleetFindings(written, outliers, start.trial, (ApplyFleet(_manifest(seen, files, written)),))


def has_moved(before: Estimate, now: Estimate, counts: Counts, effects: Sequence[float]) -> bool:
    """Whether an `a_i` or the coverage is another one by `MOVED` and by two standard errors: at most `sqrt(effect / n)`.

    Args:
        before: what is believed.
        now: the estimate from `counts`.
        counts: evidence since.
        effects: how many drafts are worth one independent draft, by position.
    """
    shares = [
        (before.coverage, now.coverage, counts.request_steps, effects[0]),
        *zip(before.acceptance, now.acceptance, counts.drafted, effects, strict=True),
    ]
    return any(n and abs(b - a) > max(MOVED, sqrt(effect / n)) for a, b, n, effect in shares)


def _usable(files: Files, positions: int) -> FleetFile | None:
    fleet = files.fleet
    if not isinstance(fleet, FleetFile) or fleet.files != files.tracked or len(fleet.estimate.acceptance) != positions:
        return None
    return fleet


def _counted(replicas: Sequence[Replica], files: Files, positions: int) -> Mapping[str, tuple[SidecarState, Counts]]:
    """By pod: sidecars that work from the files that are stored now, and what they counted."""
    return {
        r.pod.name: (r.sidecar, r.sidecar.evidence)
        for r in replicas
        if r.sidecar is not None
        and r.sidecar.files == files.tracked
        and r.sidecar.evidence is not None
        and len(r.sidecar.evidence.drafted) == positions
    }


def _is_due(seen: Observation, known: FleetFile | None) -> bool:
    """A time that lies ahead was written by another clock, and counts as long ago."""
    return known is None or not timedelta() <= seen.now - parse_time(known.updated_at) < timedelta(seconds=EVERY_SECONDS)


def _manifest(seen: Observation, files: Files, fleet: FleetFile) -> Mapping[str, object]:
    """One key. The uid makes it a conflict, and no new object, when the ConfigMap was deleted or made again meanwhile."""
    ref = seen.draft.ref
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(ref.name), "namespace": ref.namespace, "uid": files.uid},
        "data": {FLEET: to_fleet(fleet)},
    }
