"""Mode Recommend: writes an overlay for the target's user, and notices when it was applied. Nothing of the target is changed.

What its user applied is watched as a roll-out of ours would be, but never put back: that is Git's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tabletune.recommendation_file import RecommendationFile, Setting
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import RolledOut, short
from tabletune_operator.decide.rollout import RollingOut, watch
from tabletune_operator.decide.stage import Stage
from tabletune_operator.decide.target import Wanted
from tabletune_operator.drift import is_in_place
from tabletune_operator.manifest import Manifest
from tabletune_operator.observation import Files, Observation, Workload
from tabletune_operator.overlay import KUSTOMIZATION, OverlayRequest, build_overlay, overlay_template
from tabletune_operator.plan import Action, ApplyRecommendation
from tabletune_operator.pods import config_map_name
from tabletune_operator.recommendation import build_files
from tabletune_operator.rollout import Rollout, RolloutRequest, build_rollout
from tabletune_operator.status import RolloutStatus
from tabletune_operator.target import Target, TargetError
from tabletune_operator.times import to_time


@dataclass(frozen=True, slots=True)
class _Case:
    """What is recommended, and to whom. `rollout` is what mode Patch would apply; None: it could not, or there is nothing to apply."""

    seen: Observation
    workload: Workload
    files: Files
    rollout: Rollout | None
    overlay: Mapping[str, str]  # what of it Git can take; empty: nothing

    @property
    def source(self) -> str:
        return short(config_map_name(self.seen.draft.ref.name))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What a user who follows us may have written: with the plugin or without."""
        if self.files.kind is VerdictKind.PRESENT:
            return ()
        with_plugin, bare = self.files.speculative_config, self.files.bare
        return (with_plugin,) if bare is None else (with_plugin, bare)


def judge_recommendation(seen: Observation, wanted: Wanted, workload: Workload, files: Files) -> RollingOut:
    """`files` hold a decision, and nothing of ours is rolled out."""
    rollout = _rollout(seen, wanted, files)
    case = _Case(seen, workload, files, rollout, _overlay(seen, wanted.target, rollout))
    manifest = workload.manifest
    known = seen.recommended or RecommendationFile(wanted.target.speculation, ())
    if manifest is not None and manifest.setting not in known.settings:
        known = RecommendationFile(manifest.setting, known.settings)  # its user's own choice, since
    rolling_out = RollingOut(_recommended(case), None) if manifest is None else _follow(case, manifest, known)
    stage, actions = rolling_out.stage, _write(case, known.adds(*case.settings))
    return RollingOut(Stage(stage.reason, stage.message, (*actions, *stage.actions)), rolling_out.status)


def _rollout(seen: Observation, wanted: Wanted, files: Files) -> Rollout | None:
    if files.kind is VerdictKind.PRESENT:
        return None
    try:
        return build_rollout(
            RolloutRequest(
                draft_table=seen.draft.ref.name,
                target=wanted.target,
                config=files.speculative_config,
                controller=wanted.spec.controller,
                image=seen.image,
                python_path=str(files.profile.engine.get("pythonPath") or ""),
            )
        )
    except TargetError:
        return None


def _overlay(seen: Observation, target: Target, rollout: Rollout | None) -> Mapping[str, str]:
    if rollout is None or target.kind.written_whole:
        return {}
    name, template = seen.draft.ref.name, target.kind.template_of(rollout.apply)
    return build_overlay(OverlayRequest(name, config_map_name(name), target, rollout.apply, overlay_template(template)))


def _write(case: _Case, known: RecommendationFile) -> tuple[Action, ...]:
    ref = case.seen.draft.ref
    manifest = build_files(case.seen.stored, ref.namespace, ref.name, case.overlay, known)
    return () if manifest is None else (ApplyRecommendation(manifest),)


def _follow(case: _Case, manifest: Manifest, known: RecommendationFile) -> RollingOut:
    if manifest.setting not in case.settings:
        # Also what was recommended once may be its user's own choice again: what it had before.
        if manifest.setting in known.settings and manifest.setting != known.before:
            return RollingOut(_outdated(case, manifest), _remembered(case.seen, "older"))
        return RollingOut(_recommended(case), None)
    if manifest.setting is None and known.before is None:
        said = f"{case.workload.called} runs without --speculative-config already. Nothing to do."
        return RollingOut(Stage(RolledOut.SPECULATION_REMOVED, said), None)
    digest = case.rollout.digest if case.rollout is not None else case.files.digest
    watched = watch(case.seen, case.workload, _remembered(case.seen, digest), ())
    return RollingOut(_applied(case, manifest, watched.stage), watched.status)


def _remembered(seen: Observation, digest: str) -> RolloutStatus:
    request, known = f"recommended-{digest}", seen.draft.status.rollout
    if known is not None and known.digest == request:
        return known
    return RolloutStatus(digest=request, started_at=to_time(seen.now))


def _applied(case: _Case, manifest: Manifest, watched: Stage) -> Stage:
    called = case.workload.called
    if watched.reason is RolledOut.PROVED:
        step = "Nothing to do."
        if case.rollout is not None and not is_in_place(case.workload.body, case.rollout):
            step = f"Plugin, sidecar or args differ from {KUSTOMIZATION} in ConfigMap {case.source} now: take its files anew when it suits."
        said = watched.message.removesuffix(" Nothing to do.")
        return Stage(RolledOut.APPLIED, f"The recommendation was applied to {called}. {said} {step}")
    if watched.reason is RolledOut.SPECULATION_REMOVED and manifest.setting is not None:
        said = f"{called} runs the recommended setting without plugin and sidecar, so nobody can prove or follow it."
        return Stage(RolledOut.NOT_PROVABLE, f"{said} To have both apply {KUSTOMIZATION} of ConfigMap {case.source}.")
    return watched


def _outdated(case: _Case, manifest: Manifest) -> Stage:
    if case.files.kind is VerdictKind.PRESENT:
        step = "What it had before is best now: remove the overlay from its manifest."
    elif not case.overlay:
        step = f"The present one is vllm.yaml in ConfigMap {case.source}: copy it into the target. Nothing was changed."
    else:
        step = f"The present one is in ConfigMap {case.source} ({KUSTOMIZATION}): take its files anew, which is 1 restart per replica."
    # Its sidecars are still to be heard.
    reason = RolledOut.RECOMMENDATION_OUTDATED if manifest.has_parts else RolledOut.RECOMMENDED
    return Stage(reason, f"{case.workload.called} runs an older recommendation. {step}")


def _recommended(case: _Case) -> Stage:
    called = case.workload.called
    if case.files.kind is VerdictKind.PRESENT:
        return Stage(
            RolledOut.PRESENT_KEPT, f"{called} keeps its present setting, the best one measured; nothing is recommended. Nothing to do."
        )
    if case.files.kind is VerdictKind.OFF:
        step = "remove --speculative-config from the target"
    elif not case.overlay:
        step = f"copy vllm.yaml of ConfigMap {case.source} into the target"
    else:
        step = f"apply {KUSTOMIZATION} of ConfigMap {case.source} over your own, or copy vllm.yaml there (the table alone)"
    return Stage(RolledOut.RECOMMENDED, f"Mode Recommend: {called} is not changed. To follow it {step}, or set spec.rollout.mode to Patch.")
