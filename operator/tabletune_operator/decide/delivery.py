"""RolledOut, by spec.rollout.mode: who brings what was decided to the replicas, and what is left of another mode."""

from __future__ import annotations

from dataclasses import replace

from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import RolledOut
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.admission import judge_admission, with_left_running
from tabletune_operator.decide.launch_file import judge_launch_file, judge_left_file
from tabletune_operator.decide.put_back import owner_text
from tabletune_operator.decide.recommend import judge_recommendation
from tabletune_operator.decide.rollout import RollingOut, judge_rollout
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.target import Wanted
from tabletune_operator.observation import Damage, Files, Observation, Workload
from tabletune_operator.plan import StopInjecting
from tabletune_operator.status import RolloutStatus


def judge_delivery(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:
    """`wanted` and `files` are None while an earlier stage has no answer. Who keeps the target is told in every mode."""
    rolling, owner = _judge(seen, wanted, files), None if seen.workload is None else owner_text(seen.workload.managed_by)
    if isinstance(seen.draft.spec, DraftTableSpec) and seen.draft.spec.rollout.mode != "Admission":
        rolling = replace(rolling, webhook=StopInjecting())
    if isinstance(rolling.webhook, StopInjecting):
        rolling = replace(rolling, stage=with_left_running(rolling.stage, seen.workload))
    if rolling.status is not None:
        return replace(rolling, status=rolling.status.model_copy(update={"owner": owner}))
    return replace(rolling, status=RolloutStatus(owner=owner)) if owner is not None else rolling


def _judge(seen: Observation, wanted: Wanted | None, files: Files | None) -> RollingOut:  # noqa: PLR0911 - one for each mode
    spec, workload = seen.draft.spec, seen.workload
    # What mode Patch rolled out is given back first, whatever is wanted now.
    patched = workload is not None and (workload.rolled is not None or isinstance(workload.original, Damage))
    if isinstance(spec, DraftTableSpec) and spec.rollout.mode == "Admission":
        return _admit(seen, spec, wanted, files, patched=patched)
    if not isinstance(spec, DraftTableSpec) or patched:
        return judge_rollout(seen, wanted, files)
    if spec.rollout.mode == "ConfigFile":
        refused = _without_mark(workload)
        return judge_launch_file(seen, spec, wanted, files) if refused is None else RollingOut(refused, seen.draft.status.rollout)
    blocked = judge_left_file(seen, spec.rollout.mode)
    if blocked is not None:
        return RollingOut(blocked, seen.draft.status.rollout)
    if workload is None or wanted is None or files is None or files.kind is VerdictKind.BLOCKED:
        return judge_rollout(seen, wanted, files)
    if spec.rollout.mode == "Recommend":
        return judge_recommendation(seen, wanted, workload, files)
    blocked = _overlaid(workload) if files.kind is not VerdictKind.PRESENT else None
    return RollingOut(blocked, seen.draft.status.rollout) if blocked is not None else judge_rollout(seen, wanted, files)


def _admit(seen: Observation, spec: DraftTableSpec, wanted: Wanted | None, files: Files | None, *, patched: bool) -> RollingOut:
    refused = judge_left_file(seen, spec.rollout.mode) if not patched else None
    if refused is None and not patched and seen.workload is not None and files is not None and files.kind is not VerdictKind.PRESENT:
        refused = _overlaid(seen.workload)
    return judge_admission(seen, wanted, files) if refused is None else RollingOut(refused, seen.draft.status.rollout, StopInjecting())


def _without_mark(workload: Workload | None) -> Stage | None:
    """Of a kind that is written whole, one annotation cannot be written alone."""
    if workload is None or not workload.kind.written_whole:
        return None
    said = f"{workload.called} is written as a whole, so mode ConfigFile cannot have its replicas start again. Nothing was changed. "
    return Stage(RolledOut.CANNOT_ROLL_OUT, f"{said}Set spec.rollout.mode to Patch or Recommend.")


def _overlaid(workload: Workload) -> Stage | None:
    """There is no record of what was there before an overlay, so what it brought could not be given back."""
    if workload.manifest is None or not workload.manifest.has_parts:
        return None
    said = f"The manifest of {workload.called} holds plugin and sidecar already, from an overlay of ours. Nothing was changed. "
    said += "Set spec.rollout.mode to Recommend, or remove the overlay from the manifest."
    return Stage(RolledOut.CANNOT_ROLL_OUT, said)
