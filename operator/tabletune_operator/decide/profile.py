"""Profiled: is there a profile that is valid for the target as it is, and if not, what brings one about?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tabletune.formats import FILES
from tabletune_operator.conditions import LONGEST_MESSAGE, Profiled, clipped, short
from tabletune_operator.decide.job import Profiling, answers, asked_again, gpus, has_ended, judge_job
from tabletune_operator.decide.queue import judge_turn
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.decide.target import Wanted
from tabletune_operator.files import REUSED_FROM_ANNOTATION, parse_files
from tabletune_operator.jobs import REPROFILE_ANNOTATION, build_marked_job
from tabletune_operator.observation import Damage, Donor, Files, GpuPool, Observation
from tabletune_operator.plan import Action, ApplyConfigMap, EnsureJob, EnsureJobAccess, EnsureJobAccessDeleted, EnsureJobDeleted
from tabletune_operator.pods import DRAFT_TABLE_LABEL, MANAGED_BY, config_map_name, job_name, owner_reference
from tabletune_operator.profiling import FINGERPRINT_ANNOTATION, build_job_access
from tabletune_operator.times import spoken

LONGEST_VALUE = 24
"""Of a fingerprint's value in a message; both ends are kept."""


def judge_profile(seen: Observation, wanted: Wanted) -> Profiling:
    attempts, asked = _attempts(seen, wanted), asked_again(seen)
    running = seen.job is not None and not has_ended(seen.job)
    measured = asked is None or answers(seen.job, asked)
    if isinstance(seen.files, Files) and not running and measured and _is_valid(seen.files, wanted):
        return Profiling(_settled(seen, seen.files, wanted), seen.files, 0, answered=asked)
    if isinstance(seen.files, Damage) and not running and asked is None:
        table = "The table in force stays. " if seen.workload is not None and seen.workload.rolled is not None else ""
        return Profiling(Stage(Profiled.CONFIG_MAP_DAMAGED, f"{table}{seen.files.message}"), None, attempts)
    if asked is None and (seen.job is None or (has_ended(seen.job) and not seen.job.deleting)):
        reused = _reusable(seen, wanted)
        if reused is not None:
            donor, files = reused
            action = ApplyConfigMap(_copy(donor, seen, wanted))
            settled = _settled(seen, files, wanted)
            return Profiling(replace(settled, actions=(action,)), files, 0)
    if seen.job is None:
        return _without_job(seen, wanted, attempts)
    return judge_job(seen, wanted, seen.job, attempts)


def _attempts(seen: Observation, wanted: Wanted) -> int:
    known = seen.draft.status.profile
    measured = seen.job.fingerprint if seen.job is not None else wanted.fingerprint.digest
    if known is None or known.attempts is None or known.fingerprint != measured:
        return 0
    return known.attempts


def _is_valid(files: Files, wanted: Wanted) -> bool:
    if files.reused_from is not None and wanted.spec.profile.policy == "Always":
        return False  # the user asks for a measurement of its own
    return not wanted.differs_from(files)


def _settled(seen: Observation, files: Files, wanted: Wanted) -> Stage:
    """The result is there; the Job has done its work and goes, so that its GPU is free before the roll-out needs one."""
    measurement, digest = files.profile.measurement, files.profile.fingerprint.digest
    # A Job that was asked for by annotation stays until the status says so: were it gone, the same would be measured once more.
    told = seen.job is None or seen.job.reprofile != asked_again(seen) or seen.job.reprofile is None
    actions = _cleaned_up(seen) if seen.job is not None and told else ()
    later = _later(files, wanted)
    again = f"To measure again set annotation {REPROFILE_ANNOTATION} to a new value."
    if files.reused_from is not None:
        said = f"Profile of DraftTable {short(files.reused_from)} reused: same GPU, engine, models and settings (fingerprint {digest})."
        return Stage(Profiled.REUSED, f"{said} 0 GPU minutes spent. {later or again}", actions)
    skipped = f", {len(files.profile.skipped)} left out" if files.profile.skipped else ""
    spent = f"in {spoken(measurement.gpu_seconds)} on the GPU" if measurement.gpu_seconds else "without a GPU"
    return Stage(
        Profiled.MEASURED,
        f"{len(files.profile.cells)} cells measured{skipped} {spent}, noise "
        f"{files.profile.noise_ppm / 10_000:.1f} % (fingerprint {digest}). {later or f'Nothing to do. {again}'}",
        actions,
    )


def _later(files: Files, wanted: Wanted) -> str | None:
    """Fields of spec.profile that the profile does not depend on, and that were others when it was measured."""
    profile = wanted.spec.profile
    measured = {
        "repeats": (files.profile.measurement.repeats, profile.repeats),
        "temperatureMilli": (files.acceptance.temperature_milli, profile.temperature_milli),
    }
    changed = [f"{name} {new} (measured with {old})" for name, (old, new) in measured.items() if old != new]
    if not changed:
        return None
    verb = "takes" if len(changed) == 1 else "take"
    return f"spec.profile.{listed(changed)} {verb} effect at the next measurement; to measure now set annotation {REPROFILE_ANNOTATION}."


def _cleaned_up(seen: Observation) -> tuple[Action, ...]:
    name = job_name(seen.draft.ref.name)
    return EnsureJobDeleted(name), EnsureJobAccessDeleted((("RoleBinding", name), ("Role", name)))


def _reusable(seen: Observation, wanted: Wanted) -> tuple[Donor, Files] | None:
    if wanted.spec.profile.policy == "Always" or wanted.unknown:
        return None
    for donor in sorted(seen.donors, key=lambda d: d.draft_table):
        if donor.fingerprint == wanted.fingerprint.digest:
            files = parse_files(config_map_name(donor.draft_table), donor.data, donor.draft_table)
            if isinstance(files, Files) and not wanted.differs_from(files):
                return donor, files
    return None


def _copy(donor: Donor, seen: Observation, wanted: Wanted) -> Mapping[str, Any]:
    ref = seen.draft.ref
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(ref.name),
            "namespace": ref.namespace,
            "labels": {**MANAGED_BY, DRAFT_TABLE_LABEL: ref.name},
            "annotations": {FINGERPRINT_ANNOTATION: wanted.fingerprint.digest, REUSED_FROM_ANNOTATION: donor.draft_table},
            "ownerReferences": [owner_reference(ref.name, seen.draft.uid)],
        },
        # Not its fleet.json: that is of other replicas.
        "data": {name: text for name, text in donor.data.items() if name in FILES},
    }


def _without_job(seen: Observation, wanted: Wanted, attempts: int) -> Profiling:
    asked = asked_again(seen)
    if wanted.unknown & {"gpuProduct", "image"}:
        return Profiling(
            Stage(
                Profiled.WAITING_FOR_TARGET,
                f"No replica of {wanted.target.called} is ready, so what to measure is not known for sure. "
                "Wait: profiling starts when one is ready (kubectl get pods).",
            ),
            None,
            attempts,
        )
    if wanted.spec.profile.policy == "Never" and asked is None:
        return Profiling(_never(seen, wanted), None, attempts)
    if seen.pool is None:
        return Profiling(_no_node(wanted), None, attempts)
    queued = judge_turn(seen, seen.pool)
    if queued is not None:
        stage, queue = queued
        return Profiling(stage, None, attempts, queue=queue)
    return Profiling(_starts(seen, wanted, seen.pool, asked), None, attempts + 1)


def _starts(seen: Observation, wanted: Wanted, pool: GpuPool, asked: str | None) -> Stage:
    actions = (
        EnsureJobAccess(build_job_access(seen.draft.ref.name, seen.draft.uid, wanted.target)),
        EnsureJob(build_marked_job(wanted.request, pool.product.name, asked)),
    )
    job = short(job_name(seen.draft.ref.name))
    stays = f"A new profile is measured now (Job {job}). What replicas run stays until then. Nothing to do."
    if asked is not None:
        return Stage(Profiled.REPROFILE_ASKED, f"Annotation {REPROFILE_ANNOTATION} is {short(asked, 40)}. {stays}", actions)
    if isinstance(seen.files, Files):
        changed = listed(changes(seen.files, wanted), 3)
        what = f"Changed since the profile was measured: {changed}"
        if not changed:
            what = "spec.profile.policy is Always, and the present profile was measured for another DraftTable"
        return Stage(Profiled.STALE, f"{clipped(what, LONGEST_MESSAGE - 2 - len(stays))}. {stays}", actions)
    nodes = "1 node" if pool.nodes == 1 else f"{pool.nodes} nodes"
    return Stage(
        Profiled.STARTING, f"Job {job} is being started on {gpus(seen)} ({nodes}). Serving is not touched. Nothing to do.", actions
    )


def changes(files: Files, wanted: Wanted) -> tuple[str, ...]:
    """What the profile is no longer valid for: each field of the fingerprint, with what it was and what it is."""
    old, new = dict(files.profile.fingerprint.fields), dict(wanted.fingerprint.fields)

    def told(values: Mapping[str, str], name: str) -> str:
        return short(values.get(name) or "none", LONGEST_VALUE)

    return tuple(f"{name} ({told(old, name)}, now {told(new, name)})" if name in new else name for name in wanted.differs_from(files))


def _never(seen: Observation, wanted: Wanted) -> Stage:
    cure = (
        f"spec.profile.policy is Never, so none is measured; serving is not touched. Set it to IfMissing, or measure once: "
        f"kubectl annotate --overwrite dt {short(seen.draft.ref.name)} {REPROFILE_ANNOTATION}=$(date +%s)"
    )
    if isinstance(seen.files, Files):
        what = f"The profile is no longer valid: {listed(changes(seen.files, wanted), 2)}"
    else:
        what = f"No profile of fingerprint {wanted.fingerprint.digest} is stored in this namespace"
    return Stage(Profiled.POLICY_NEVER, f"{clipped(what, LONGEST_MESSAGE - 2 - len(cure))}. {cure}")


def _no_node(wanted: Wanted) -> Stage:
    chosen = wanted.spec.node_pool.node_selector if wanted.spec.node_pool is not None else None
    if chosen is not None:
        selector = listed(f"{key}={value}" for key, value in sorted(chosen.items()))
        what, cure = f"has the labels of spec.nodePool.nodeSelector ({clipped(selector, 90)})", "Correct the selector, or label a node"
    else:
        product = f"GPU {wanted.product.name}" if wanted.product is not None and wanted.product.name else "the target's GPU"
        what, cure = f"with {product} can be scheduled to", "Add one, or set spec.nodePool.nodeSelector to nodes with that GPU"
    return Stage(
        Profiled.NO_MATCHING_NODE,
        f"No node {what}. Nothing was changed, serving is not touched. {cure}; profiling then starts by itself.",
    )
