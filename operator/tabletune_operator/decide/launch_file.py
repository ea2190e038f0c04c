"""Mode ConfigFile: the file that engines read at their start, and the mark on the pod template that has them started again.

The file is written first and the mark only when the file is seen to be there, so no new replica starts from an old file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tabletune.recommendation_file import Setting
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import LONGEST_MESSAGE, Condition, Reason, RolledOut, clipped, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.rollout import RollingOut, watch
from tabletune_operator.decide.served import sum_served
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.target import Wanted
from tabletune_operator.kinds import kind_of, put, template_of
from tabletune_operator.launch_file import (
    LaunchFile,
    build_config_map,
    build_kept_map,
    config_template,
    launch_digest,
    launch_map_name,
    names_launch_map,
    present_setting,
    to_launch_file,
)
from tabletune_operator.manifest import Manifest
from tabletune_operator.observation import Files, Observation, Workload
from tabletune_operator.overlay import PATCH, OverlayRequest, build_overlay, overlay_template
from tabletune_operator.plan import Action, ApplyConfigMap, ApplyLaunchFile, ApplyMark, EnsureConfigMapDeleted, Event
from tabletune_operator.restore import DIGEST_ANNOTATION, template_digest
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.status import RolloutStatus
from tabletune_operator.target import Target, TargetError
from tabletune_operator.times import to_time

CONFIG_FILE_KEPT = "ConfigFileKept"
"""Event: what engines read at their start outlives the DraftTable."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A target that is there, our file as it lies in the cluster, and `overlay`: the manifest's part of it (None: as it was written)."""

    seen: Observation
    workload: Workload
    manifest: Manifest
    file: LaunchFile
    overlay: Mapping[str, str] | None

    @property
    def source(self) -> str:
        return short(launch_map_name(self.seen.draft.ref.name))

    def holds(self, setting: Setting) -> bool:
        return self.file.text == to_launch_file(self.seen.draft.ref.name, setting)


def judge_launch_file(seen: Observation, spec: DraftTableSpec, wanted: Wanted | None, files: Files | None) -> RollingOut:
    """`wanted` and `files` are None while an earlier stage has no answer: engines get the file that they name all the same."""
    remembered, workload, file = seen.draft.status.rollout, seen.workload, seen.launch_file
    target = workload.original if workload is not None and isinstance(workload.original, Target) else None
    manifest = workload.manifest if workload is not None else None
    if file is None or file.text is None:
        is_read = manifest is not None and manifest.reading.is_read
        reason = RolledOut.AWAITS_VERIFIED if wanted is None or files is None else RolledOut.ROLLING_OUT
        before = file.before if file is not None and file.before is not None else present_setting(None if is_read else target, spec)
        return RollingOut(_first(seen, workload, before, reason), remembered)
    if workload is None or manifest is None or target is None:
        return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, "Nothing is rolled out before it is verified. Nothing to do."), remembered)
    case = _Case(seen, workload, manifest, file, _overlay(seen, spec, target, files))
    if not manifest.reading.is_read or manifest.reading.problem is not None:
        return _unread(case, present_setting(target, spec), verified=files is not None)
    if wanted is None or files is None or files.kind is VerdictKind.BLOCKED:
        if _has_mark(seen, workload):
            return _watched(case, remembered)
        return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, "Nothing is rolled out before it is verified. Nothing to do."), remembered)
    return _roll_out(case, wanted, files)


def _first(seen: Observation, workload: Workload | None, before: Setting, reason: Reason) -> Stage:
    ref, name = seen.draft.ref, short(launch_map_name(seen.draft.ref.name))
    what = "the present setting" if before is not None else "no speculation, for neither target nor spec.speculation names a drafter whole"
    engines = f"engines of {workload.called}" if workload is not None else "engines"
    action = ApplyConfigMap(build_config_map(ref.namespace, ref.name, before, before, {}))
    return Stage(reason, f"ConfigMap {name} gets {what}, so that {engines} start. Nothing to do.", (action,))


def _unread(case: _Case, present: Setting, *, verified: bool) -> RollingOut:
    """The engine goes by its arguments, and so does the file, as long as nobody reads it."""
    before = case.file.before if case.manifest.reading.is_read else present
    actions = _kept_right(case, before, before)
    remembered, problem = case.seen.draft.status.rollout, f"{case.workload.called}: {case.manifest.reading.problem}"
    if verified:
        return RollingOut(Stage(RolledOut.CONFIG_FILE_NOT_USED, clipped(problem, LONGEST_MESSAGE), actions), remembered)
    return RollingOut(Stage(RolledOut.AWAITS_VERIFIED, clipped(f"Meanwhile, {problem}", LONGEST_MESSAGE), actions), remembered)


def _kept_right(case: _Case, setting: Setting, before: Setting) -> tuple[ApplyConfigMap, ...]:
    """One write, if any, after which the ConfigMap says this."""
    ref, others = case.seen.draft.ref, case.file.others if case.overlay is None else case.overlay
    if case.holds(setting) and case.file.before == before and case.file.others == others:
        return ()
    return (ApplyConfigMap(build_config_map(ref.namespace, ref.name, setting, before, others)),)


def _overlay(seen: Observation, spec: DraftTableSpec, target: Target, files: Files | None) -> Mapping[str, str] | None:
    """The manifest's part; None: not known now. Plugin and sidecar come with the profile, for it saw the image's PYTHONPATH."""
    name, parts = seen.draft.ref.name, None
    if files is None and seen.files is not None:
        return None
    if files is not None:
        request = RolloutRequest(name, target, {}, spec.controller, seen.image, str(files.profile.engine.get("pythonPath") or ""))
        try:
            parts = overlay_template(target.kind.template_of(build_rollout(request).apply))
        except TargetError:
            parts = None
    identity = {"apiVersion": target.kind.api_version, "kind": target.kind.name}
    template = config_template(target, name, parts)
    return {} if template is None else build_overlay(OverlayRequest(name, launch_map_name(name), target, identity, template))


def _roll_out(case: _Case, wanted: Wanted, files: Files) -> RollingOut:
    remembered, manifest, before = case.seen.draft.status.rollout, case.manifest, case.file.before
    setting = _decided(files, before, has_parts=manifest.has_parts)
    digest, first = (launch_digest(each, tracked=manifest.has_parts) for each in (setting, before))
    mark = digest if digest != first else None
    request = f"config-{digest}-{template_digest(wanted.target.template)[:8]}"
    tried = remembered is not None and remembered.digest == request
    if tried and mark is not None and manifest.mark is None and not case.holds(setting):
        return RollingOut(_not_again(case, case.seen.draft.conditions.get("RolledOut")), remembered)
    before_it = sum_served(case.workload, case.workload.replicas)
    status = remembered if tried else RolloutStatus(digest=request, started_at=to_time(case.seen.now), before=before_it)
    # A mark that somebody took away was as good as another one: replicas started again, from the same file. And a sidecar that came since
    # asks for no restart by itself.
    marked = manifest.mark in {mark, launch_digest(setting, tracked=False)} or (tried and manifest.mark is None)
    if (not case.holds(setting) or not marked) and (waits := _waits(case)) is not None:
        return RollingOut(waits, remembered)
    actions = _kept_right(case, setting, before)
    if not case.holds(setting):
        then = "its sidecars follow it without a restart" if marked else f"{case.workload.called} starts again from it next"
        decided = tuple(ApplyLaunchFile(action.manifest) for action in actions)
        stage = Stage(RolledOut.ROLLING_OUT, f"ConfigMap {case.source} gets what was decided; {then}. Nothing to do.", decided)
        return RollingOut(stage, status if marked else remembered)
    if not marked:
        said = f"{case.workload.called} starts again from the new file: {case.workload.kind.replacing(case.workload.body)}"
        return RollingOut(Stage(RolledOut.ROLLING_OUT, said, (*actions, ApplyMark(_mark(case.workload.body, mark)))), status)
    if files.kind is VerdictKind.PRESENT:
        said = f"{case.workload.called} keeps its present setting, the best one measured; the file says it. Nothing to do."
        return RollingOut(Stage(RolledOut.PRESENT_KEPT, said, actions), None)
    watched = _watched(case, status)
    return RollingOut(replace(watched.stage, actions=(*actions, *watched.stage.actions)), watched.status)


def _decided(files: Files, before: Setting, *, has_parts: bool) -> Setting:
    if files.kind is VerdictKind.PRESENT:
        return before
    if files.kind is VerdictKind.OFF:
        return None
    if has_parts:
        return files.speculative_config
    # Without the plugin, only what is safe without its cure; should that be gone, nothing changes.
    return files.bare if files.bare is not None else before


def _not_again(case: _Case, ended: Condition | None) -> Stage:
    """The old file is back, and the mark gone: one try for each request."""
    for reason in (RolledOut.ROLLED_BACK, RolledOut.PUT_BACK):
        if ended is not None and ended.reason == reason.name:
            return Stage(reason, ended.message)
    return Stage(
        RolledOut.PUT_BACK,
        f"The old file of {case.workload.called} is back after our roll-out, by a roll-back that was cut short or by another writer. "
        f"Left as it is. To try again: {case.workload.kind.again(case.workload.body)}.",
    )


def _waits(case: _Case) -> Stage | None:
    """Why no replica may start again now."""
    if case.seen.job is not None:
        said = f"Profiling Job {short(case.seen.job.name)} is ending; new replicas may need its GPU, so they start after it. Nothing to do."
        return Stage(RolledOut.WAITING_FOR_JOB_POD, said)
    if case.workload.loan is not None:
        said = f"{case.workload.called} first gets the replica back that was lent to the Job. Nothing to do."
        return Stage(RolledOut.WAITING_FOR_JOB_POD, said)
    return None


def _watched(case: _Case, status: RolloutStatus | None) -> RollingOut:
    """What the replicas say, as after any roll-out; the way back is the old file, and no mark."""
    seen, workload, speculates = case.seen, case.workload, not case.holds(None)
    watched = watch(seen, workload if speculates else _unheard(workload), status, _give_back(seen, workload, case.file))
    if watched.stage.reason is RolledOut.SPECULATION_REMOVED and speculates:
        said = f"{workload.called} started with the file, without plugin and sidecar, so nobody can prove or follow its table. "
        said += f"To have both add the parts in {PATCH} of ConfigMap {case.source} to its manifest, once."
        return RollingOut(Stage(RolledOut.NOT_PROVABLE, said), watched.status)
    return watched


def _unheard(workload: Workload) -> Workload:
    """Sidecars beside engines without speculation have no plugin to hear."""
    replicas = tuple(replace(r, pod=replace(r.pod, has_sidecar=False), sidecar=None) for r in workload.replicas)
    return replace(workload, replicas=replicas)


def _give_back(seen: Observation, workload: Workload, file: LaunchFile) -> tuple[Action, ...]:
    """The old setting in the file, then no mark: replicas start again from it, if they ran another. Empty when it is so already."""
    ref, actions = seen.draft.ref, []
    if file.text != to_launch_file(ref.name, file.before):
        actions.append(ApplyConfigMap(build_config_map(ref.namespace, ref.name, file.before, file.before, file.others)))
    mark = (ApplyMark(_mark(workload.body, None)),) if _has_mark(seen, workload) else ()
    return (*actions, *mark)


def _has_mark(seen: Observation, workload: Workload) -> bool:
    """Is there a mark, and is it this DraftTable's? It holds no name, but another's target does not read our file."""
    manifest = workload.manifest
    return manifest is not None and manifest.mark is not None and (manifest.reading.is_read or not seen.rivals)


def judge_left_file(seen: Observation, mode: str) -> Stage | None:
    """In another mode: the file that was ours to write says what it said before; None when that is so and in nobody's way."""
    file, workload = seen.launch_file, seen.workload
    if file is None or workload is None:
        return None
    actions = _give_back(seen, workload, file)
    if actions:
        said = f"spec.rollout.mode is {mode} now: the file of {workload.called} says again what it said before, and it starts from that: "
        return Stage(RolledOut.GIVING_BACK, said + workload.kind.replacing(workload.body), actions)
    if mode != "Recommend" and workload.manifest is not None and workload.manifest.reading.is_read:
        source = short(launch_map_name(seen.draft.ref.name))
        said = (
            f"The engine of {workload.called} reads ConfigMap {source} (--config), and flags would override only half of it. Nothing was "
        )
        said += "changed. Remove --config from its manifest, or set spec.rollout.mode to ConfigFile."
        return Stage(RolledOut.CANNOT_ROLL_OUT, said)
    return None


def delete_launch_file(seen: Observation) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """Of a DraftTable that goes. Engines that name the file would not start without it, so it stays as long as the target does."""
    file, workload, ref = seen.launch_file, seen.workload, seen.draft.ref
    name = launch_map_name(ref.name)
    if file is None:
        return (), ()
    if workload is None or not names_launch_map(template_of(workload.body), ref.name):
        return ((EnsureConfigMapDeleted(name),) if file.is_labelled else ()), ()
    kept = (ApplyConfigMap(build_kept_map(ref.namespace, ref.name, file.before, file.uid)),) if file.is_labelled else ()
    mark = (ApplyMark(_mark(workload.body, None)),) if _has_mark(seen, workload) else ()
    said = f"ConfigMap {name} stays, with the old setting: engines of {workload.called} read it at every start. Delete it when no manifest "
    return (*kept, *mark), (Event("Normal", CONFIG_FILE_KEPT, f"{said}names it."),) if kept else ()


def _mark(workload: Mapping[str, Any], digest: str | None) -> dict[str, Any]:
    """Only our annotation; None: nothing of ours. What a manager stops applying is removed, so that takes it away.

    The uid makes it a conflict, and no new object, when the target was deleted or made again meanwhile.
    """
    metadata = {field: workload["metadata"][field] for field in ("name", "namespace", "uid")}
    identity = {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "metadata": metadata}
    if digest is None:
        return identity
    return put(identity, kind_of(workload).path_of(workload), {"metadata": {"annotations": {DIGEST_ANNOTATION: digest}}})
