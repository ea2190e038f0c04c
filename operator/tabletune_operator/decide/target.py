"""Accepted: do spec and target make sense together, and what is then to be measured?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.profile import Fingerprint
from tabletune.speculative_config import LONGEST_FIELD, TABLE_FIELD, Finding, parse_vllm_version, validate
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import Accepted, Reason, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.stage import Stage, listed
from tabletune_operator.fingerprint import build_fingerprint
from tabletune_operator.kinds import KINDS, owner_of
from tabletune_operator.observation import Damage, Files, Observation, Product, Replica, Rival, Workload
from tabletune_operator.profiling import JobRequest, build_job, find_matching_selectors
from tabletune_operator.target import Speculation, Target, TargetError, plan_speculation

_BY_NAME = {reason.name: reason for reason in vars(Accepted).values() if isinstance(reason, Reason)}

_BY_FINDING = {
    "EngineTooOld": Accepted.ENGINE_TOO_OLD,
    "EngineCrashes": Accepted.ENGINE_TOO_OLD,
    "TableIgnored": Accepted.TABLE_IGNORED,
    "MethodCannot": Accepted.METHOD_CANNOT,
    "MethodNeedsV2": Accepted.METHOD_CANNOT,
    "DataParallel": Accepted.DATA_PARALLEL,
    "LengthAboveLongest": Accepted.DRAFT_LENGTH_TOO_LARGE,
}
"""Findings of `tabletune validate` that have a reason of their own; the others are SpeculativeConfigRefused, with their code."""

_FILE_STAYS = "The file of --config stays as it is: a flag in args wins over it. "

_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_UNKNOWN_TO_FINGERPRINT = {"product": "gpuProduct", "image": "image", "version": "engineVersion"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an accepted DraftTable wants measured and rolled out.

    `unknown` names fingerprint fields that no running replica told: they say nothing against a profile or a Job that is there.
    """

    spec: DraftTableSpec
    target: Target
    speculation: Speculation
    engine_version: str | None
    product: Product | None
    fingerprint: Fingerprint
    unknown: frozenset[str]
    request: JobRequest

    def differs_from(self, files: Files) -> tuple[str, ...]:
        """In what the target is another one than the one that was measured.

        Step times do not depend on the present setting, but the decision to keep it does.
        """
        fields = tuple(name for name in files.profile.fingerprint.changed(self.fingerprint) if name not in self.unknown)
        kept = files.kind is not VerdictKind.PRESENT or files.speculative_config == self.target.speculation
        return fields if kept else (*fields, "presentSpeculativeConfig")


def judge_target(seen: Observation) -> tuple[Stage, Wanted | None]:  # noqa: PLR0911 - one for each case
    spec, workload = seen.draft.spec, seen.workload
    if isinstance(spec, Damage):
        return Stage(
            Accepted.SPEC_NOT_READABLE, f"{spec.message} Nothing was changed. Update the CRD and the operator to the same version."
        ), None
    named = f"{spec.target_ref.kind} {short(spec.target_ref.name)}"
    if workload is None:
        return Stage(
            Accepted.TARGET_NOT_FOUND,
            f"There is no {named} in namespace {short(seen.draft.ref.namespace)}{_definition(spec)}. Nothing was changed. "
            "Create it, or delete this DraftTable and name another; work starts by itself once it is there.",
        ), None
    first = _holder(seen, workload)
    if first is not None:
        return Stage(
            Accepted.TARGET_TAKEN,
            f"{named} belongs to DraftTable {short(first)}, which is older. Nothing was changed. "
            "Delete one of the two; the other goes on by itself.",
        ), None
    owner = owner_of(workload.body)
    if owner is not None:
        return _owned(workload, *owner), None
    if isinstance(workload.original, Damage):
        return Stage(Accepted.RECORD_DAMAGED, workload.original.message), None
    if isinstance(workload.original, TargetError):
        return _refused(workload.original), None
    hazard = workload.kind.restart_hazard(workload.body) if spec.rollout.mode != "Recommend" else None
    if hazard is not None:
        return Stage(Accepted.KIND_CANNOT, f"{workload.called} {hazard}"), None
    if any(arg.startswith("--ssl-") for arg in workload.original.argv):
        return Stage(
            Accepted.ENGINE_TLS,
            f"The engine of {workload.called} serves TLS (--ssl-certfile), and TableTune asks it over plain HTTP. Nothing was changed. "
            "Serve HTTP inside the pod, and end TLS before it (KServe: enableLLMInferenceServiceTLS false).",
        ), None
    return _judge_speculation(seen, spec, workload, workload.original)


def _owned(workload: Workload, kind: str, name: str) -> Stage:
    """Its owner's controller would write it back, so it is the owner that has the table, if any can."""
    cure = f"Make a DraftTable whose spec.targetRef names {kind} {short(name)}."
    if kind not in KINDS:
        cure = "That kind cannot have a table yet: set one num_speculative_tokens in it, by its own fields."
    return Stage(
        Accepted.TARGET_OWNED,
        f"{workload.called} belongs to {kind} {short(name)}, which would put back what is changed in it. Nothing was changed. {cure}",
    )


def _judge_speculation(seen: Observation, spec: DraftTableSpec, workload: Workload, target: Target) -> tuple[Stage, Wanted | None]:
    try:
        speculation = plan_speculation(target, spec)
    except TargetError as error:
        return _refused(error), None
    too_large = _too_large(target, speculation)
    if too_large is not None:
        return too_large, None
    running = _running(workload)
    version = running.engine_version if running is not None else None
    findings = _findings(target, speculation, version)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        return _stage_of(errors[0], target), None
    if not seen.prompts_found and spec.profile.prompts is not None:
        ref = spec.profile.prompts.config_map_ref
        return Stage(
            Accepted.PROMPTS_NOT_FOUND,
            f"spec.profile.prompts names key {ref.key} of ConfigMap {short(ref.name)}: not there, empty, or not UTF-8. Nothing was "
            "changed. Create it as UTF-8 text, or remove spec.profile.prompts to use the sample.",
        ), None
    if len(seen.products) > 1:
        return Stage(
            Accepted.MIXED_GPUS,
            f"Replicas and node pool have {listed(p.name or 'unlabelled' for p in seen.products)}; a profile is valid for one GPU product. "
            "Nothing was changed. Keep the target (nodeSelector in its pod template) and spec.nodePool on one product.",
        ), None
    return _judge_pod(seen, _wanted(seen, spec, target, speculation, running), findings)


def _judge_pod(seen: Observation, wanted: Wanted, findings: tuple[Finding, ...]) -> tuple[Stage, Wanted | None]:
    target = wanted.target
    labels = build_job(wanted.request)["spec"]["template"]["metadata"]["labels"]
    matching = find_matching_selectors(labels, seen.services, seen.inference_pools)
    settled = isinstance(seen.files, Files) and not wanted.differs_from(seen.files)
    if matching and not settled:  # with a valid profile there will be no such pod
        return Stage(
            Accepted.SELECTOR_WOULD_MATCH,
            f"{listed(short(name, 60) for name in matching)} would send traffic to the profiling pod. Nothing was changed. "
            "Make that selector name a label of your own pods that is not in every pod.",
        ), None
    if not _has_run(seen, wanted):
        return Stage(
            Accepted.WAITING_FOR_TARGET,
            f"No replica of {target.called} is ready, so its GPU and engine version are not known yet. "
            "Nothing was changed. Wait: profiling starts when one is ready (kubectl get pods).",
        ), None
    product = wanted.product.name if wanted.product is not None else ""
    engine = f"vLLM {wanted.engine_version}" if wanted.engine_version else "vLLM (version not told)"
    notes = listed(sorted({f.code for f in findings}))
    more = f"{_FILE_STAYS if target.explicit_off else ''}{f'Notes of tabletune validate: {notes}. ' if notes else ''}"
    return Stage(
        Accepted.SUPPORTED,
        f"{engine}, {wanted.speculation.method or 'a drafter'}, up to {wanted.speculation.max_draft_length} draft tokens, "
        f"on {target.replicas} {'replica' if target.replicas == 1 else 'replicas'}{f' with {product}' if product else ''}. "
        f"A measured table can be used here. {more}Nothing to do.",
    ), wanted


def _definition(spec: DraftTableSpec) -> str:
    """Of a kind that not every cluster has, the kind itself may be what is missing."""
    kind = spec.target_ref.kind
    return "" if spec.target_ref.api_version == "apps/v1" else f" (is the CRD of {kind} installed?)"


def _holder(seen: Observation, workload: Workload) -> str | None:
    """The DraftTable that has the target, if it is not this one: who rolled it out, else the oldest, else the first by name."""
    names = {rival.name for rival in seen.rivals}
    if workload.owner is not None and workload.owner != seen.draft.ref.name and workload.owner in names:
        return workload.owner
    if workload.owner == seen.draft.ref.name:
        return None
    own = Rival(seen.draft.ref.name, seen.draft.created)
    first = min((own, *seen.rivals), key=lambda rival: (rival.created, rival.name))
    return None if first is own else first.name


def _refused(error: TargetError) -> Stage:
    return Stage(_BY_NAME.get(error.reason, Accepted.CONFIG_REFUSED), error.message)


def _too_large(target: Target, speculation: Speculation) -> Stage | None:
    """The target's own drafter was started for so many tokens; only its user knows whether it can do more."""
    present = target.speculation or {}
    longest = present.get(LONGEST_FIELD)
    if not isinstance(longest, int) or present.get("method") != speculation.method or speculation.max_draft_length <= longest:
        return None
    return Stage(
        Accepted.DRAFT_LENGTH_TOO_LARGE,
        f"spec.speculation.maxDraftLength is {speculation.max_draft_length}; --speculative-config of {target.called} has "
        f"{LONGEST_FIELD} {longest}. Nothing was changed. Set {longest} or less, or raise {LONGEST_FIELD} in the target.",
    )


def _findings(target: Target, speculation: Speculation, version: str | None) -> tuple[Finding, ...]:
    """What `tabletune validate` says about a table of the longest length, the plainest one that the engine would get."""
    longest = speculation.max_draft_length
    named = {"method": speculation.method, "model": speculation.model}
    config: dict[str, Any] = {
        **{key: value for key, value in named.items() if value is not None},
        **speculation.options,
        LONGEST_FIELD: longest,
        TABLE_FIELD: [[1, target.max_num_seqs or 1, longest]],
    }
    return validate(
        config,
        vllm_version=version if version is not None and _is_readable(version) else None,
        max_num_seqs=target.max_num_seqs,
        data_parallel_size=target.data_parallel_size,
        model_runner=_runner(target),
    )


def _is_readable(version: str) -> bool:
    try:
        parse_vllm_version(version)
    except ValueError:
        return False
    return True


def _runner(target: Target) -> str | None:
    containers: list[Mapping[str, Any]] = target.template["spec"]["containers"]
    for container in containers:
        for entry in (container.get("env") or ()) if container["name"] == target.container else ():
            if entry["name"] == _RUNNER_VARIABLE:
                return {"0": "v1", "1": "v2"}.get(entry.get("value", ""))
    # Without a GPU vLLM has no Triton and takes the first runner.
    return "v1" if target.gpu_request == 0 else None


def _stage_of(finding: Finding, target: Target) -> Stage:
    reason = _BY_FINDING.get(finding.code, Accepted.CONFIG_REFUSED)
    code = f" ({finding.code})" if reason is Accepted.CONFIG_REFUSED else ""
    return Stage(reason, f"{target.called}, container {target.container}{code}: {finding.message} Nothing was changed, no GPU used.")


def _running(workload: Workload) -> Replica | None:
    """The replica that says what runs: a ready one, of the newest revision if there is one."""
    ready = [r for r in workload.replicas if r.pod.ready and not r.pod.terminating and r.pod.image_id is not None]
    return min(ready, key=lambda r: (not r.pod.current, r.engine_version is None, r.pod.name), default=None)


def _wanted(seen: Observation, spec: DraftTableSpec, target: Target, speculation: Speculation, running: Replica | None) -> Wanted:
    product = seen.products[0] if seen.products else None
    image_id = running.pod.image_id if running is not None else None
    version = running.engine_version if running is not None else None
    told = {"product": product is not None, "image": image_id is not None, "version": version is not None}
    fingerprint = build_fingerprint(
        target,
        speculation,
        spec.profile,
        gpu_product=product.name if product is not None else "",
        image_id=image_id,
        engine_version=version or "",
    )
    node_label = (product.label, product.name) if product is not None and product.label is not None else None
    request = JobRequest(
        draft_table=seen.draft.ref.name,
        uid=seen.draft.uid,
        spec=spec,
        target=target,
        speculation=speculation,
        fingerprint=fingerprint,
        image=seen.image,
        node_label=node_label,
        services=seen.services,
        pools=seen.inference_pools,
    )
    return Wanted(
        spec=spec,
        target=target,
        speculation=speculation,
        engine_version=version,
        product=product,
        fingerprint=fingerprint,
        unknown=frozenset(_missing(told)),
        request=request,
    )


def _missing(told: Mapping[str, bool]) -> Iterator[str]:
    return (_UNKNOWN_TO_FINGERPRINT[fact] for fact, known in told.items() if not known)


def _has_run(seen: Observation, wanted: Wanted) -> bool:
    """Is enough known to go on? What is there already (files, a Job, a roll-out) is not given up because replicas are restarting."""
    started = seen.files is not None or seen.job is not None or (seen.workload is not None and seen.workload.rolled is not None)
    return started or not wanted.unknown & {"gpuProduct", "image"}
