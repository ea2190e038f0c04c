"""The target: which container of a workload runs vLLM, how it is started, and what it says about speculation.

Pure; reads a workload (kinds.py) as the API server gives it. `parse_target(restore(workload))` (restore.py) is the target as its user
wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.argv import ArgvError, fold_speculative_config, option
from tabletune_operator.command import Command, CommandError, read_command, runs_vllm
from tabletune_operator.conditions import LONGEST_MESSAGE, clipped, short
from tabletune_operator.config_file import Files, find_file, merge_file
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.kinds import ROLE_LABEL, Kind, called, kind_of

DEFAULT_PORT = 8000
"""Where vLLM listens unless told otherwise."""

DEFAULT_START_DEADLINE_SECONDS = 3600
"""For a target without a startup probe: llm-d's guides allow an hour for download, compilation and graphs."""

_PLANNED_KEYS = frozenset({"method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"})


class TargetError(ValueError):
    """The workload cannot be a target as it is: a stable reason for the condition, and a message that says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Target:
    """A workload with one vLLM container, as seen at one moment."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    generation: int
    container: str
    image: str
    start: Command  # how it is written
    argv: tuple[str, ...]  # what the engine gets, of a --config file too: variables resolved as far as known, no speculative flags
    explicit_off: bool  # a --config file speculates, so only a flag that says None stops it
    speculation: Mapping[str, Any] | None  # the present speculative config, folded
    max_num_seqs: int | None  # None: the engine's default
    data_parallel_size: int
    port: int
    gpu_resource: str | None  # such as nvidia.com/gpu; None: no GPU, or one by a resource claim
    gpu_request: int
    service_account: str
    replicas: int
    selector: Mapping[str, Any]  # LabelSelector
    pod_labels: Mapping[str, str]
    start_deadline_seconds: int
    template: Mapping[str, Any]  # the pod template, whole
    template_path: tuple[str, ...]  # where it lies in the workload
    claims: tuple[Mapping[str, Any], ...]  # templates of claims of which each pod gets its own, as a volume
    base: Mapping[str, Any] | None = None  # the object without anything of ours, where it is written whole

    @property
    def called(self) -> str:
        """For messages: `Deployment chat`."""
        return f"{self.kind.name} {short(self.name)}"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What is measured: the target's own speculative config with the DraftTable's fields over it."""

    method: str | None  # None: vLLM finds it in the drafter
    model: str | None
    max_draft_length: int
    options: Mapping[str, Any]  # the other keys of the config, without any table


def parse_target(workload: Mapping[str, Any], container: str | None, config_maps: Files | None = None) -> Target:
    """Find the engine's container (`container` if given, else the only one that runs vLLM) and read how it is started.

    `config_maps` has the data of those that `config_map_of` names.

    Raises:
        TargetError: none or several containers run vLLM, or it is not certain what its arguments are.
    """
    metadata, kind = workload["metadata"], kind_of(workload)
    obstacle = kind.refusal(workload)
    if obstacle is not None:
        raise TargetError("TargetKindCannot", f"{called(workload)} {obstacle}")
    template = kind.template_of(workload)
    labels = template.get("metadata", {}).get("labels") or {}
    where = called(workload)
    if labels.get(ROLE_LABEL) == "prefill":
        raise TargetError(
            "PrefillRole",
            f"{where} is a prefill workload ({ROLE_LABEL}): it does not decode. Nothing was changed. Name the decode workload.",
        )
    found = _engine_container(template["spec"]["containers"], container, where)
    try:
        start = read_command(kind.with_given(found))
        merged = merge_file(template["spec"], found, start.words, config_maps or {})
        folded = fold_speculative_config(merged.argv)
    except CommandError as error:
        raise refusal(where, found["name"], error) from error
    except ArgvError as error:
        raise refusal(where, found["name"], CommandError("ArgumentNotUnderstood", str(error))) from error
    resource, count = _gpu(found)
    return Target(
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        container=found["name"],
        image=found.get("image", ""),
        start=start,
        argv=folded.args,
        explicit_off=merged.speculates,
        speculation=folded.config,
        max_num_seqs=_number(folded.args, where, "--max-num-seqs"),
        data_parallel_size=_number(folded.args, where, "--data-parallel-size", "-dp") or 1,
        port=_port(found, folded.args, where),
        gpu_resource=resource,
        gpu_request=count,
        service_account=template["spec"].get("serviceAccountName") or "default",
        replicas=kind.replicas_of(workload),
        selector=kind.selector_of(workload),
        pod_labels=labels,
        start_deadline_seconds=_start_deadline_seconds(found),
        template=template,
        template_path=kind.path_of(workload),
        claims=kind.claims_of(workload),
    )


def refusal(where: str, container: str, error: CommandError) -> TargetError:
    """The condition's words for a command that is not understood, or cannot be written."""
    return TargetError(
        error.reason, f"{clipped(f'{where}, container {container}: {error.message}', LONGEST_MESSAGE - 21)} Nothing was changed."
    )


def config_map_of(workload: Mapping[str, Any], container: str | None) -> str | None:
    """The ConfigMap that holds the engine's --config file, if there is one; None also where `parse_target` refuses."""
    pod = kind_of(workload).template_of(workload)["spec"]
    try:
        found = _engine_container(pod["containers"], container, called(workload))
        place = find_file(pod, found, read_command(kind_of(workload).with_given(found)).argv)
    except (TargetError, CommandError):
        return None
    return None if place is None else place.config_map


def plan_speculation(target: Target, spec: DraftTableSpec) -> Speculation:
    """What the profile measures.

    Raises:
        TargetError: neither the target nor the DraftTable says how to draft, or how long at most.
    """
    present = dict(target.speculation or {})
    wanted = spec.speculation
    if wanted is not None and wanted.method is not None and wanted.method != present.get("method"):
        present = {key: value for key, value in present.items() if key == "num_speculative_tokens"}  # the rest belonged to the other method
    method = (wanted.method if wanted else None) or present.get("method")
    model = (wanted.model if wanted else None) or present.get("model")
    if method is None and model is None:
        raise TargetError(
            "NoSpeculativeConfig",
            f"Container {target.container} of {target.called} has no --speculative-config. Nothing was changed. "
            "Set spec.speculation: method and maxDraftLength, and model for a drafter that is one.",
        )
    longest = (wanted.max_draft_length if wanted else None) or present.get("num_speculative_tokens")
    if not isinstance(longest, int):
        raise TargetError(
            "NoDraftLength",
            f"--speculative-config of {target.called} has no num_speculative_tokens. Nothing was changed. "
            "Set spec.speculation.maxDraftLength.",
        )
    options = {key: value for key, value in present.items() if key not in _PLANNED_KEYS}
    return Speculation(method, model, longest, options)


def _engine_container(containers: Sequence[Mapping[str, Any]], wanted: str | None, where: str) -> Mapping[str, Any]:
    if wanted is not None:
        named = [c for c in containers if c["name"] == wanted]
        if not named:
            raise TargetError(
                "NoSuchContainer",
                f"spec.targetRef.container is {wanted}; {where} has {_list(containers)}. Nothing was changed. Name one of them.",
            )
        engines = named if runs_vllm(named[0]) else []
    else:
        engines = [c for c in containers if runs_vllm(c)]
    if len(engines) > 1:
        raise TargetError(
            "TwoEngines",
            f"Containers {_list(engines)} of {where} run vLLM. Nothing was changed. Name one in a DraftTable's spec.targetRef.container.",
        )
    if engines:
        return engines[0]
    raise TargetError(
        "NoEngine",
        f"{f'Container {wanted}' if wanted else 'No container'} of {where} {'does not run' if wanted else 'runs'} vLLM "
        f"(found {_list(containers)}). Nothing was changed. Start it with command [vllm, serve].",
    )


def _list(containers: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(c["name"] for c in containers)


def _number(argv: Sequence[str], where: str, *names: str) -> int | None:
    text = option(argv, *names)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise TargetError(
            "ArgumentNotUnderstood", f"{where}: {names[0]} is {text!r}. Nothing was changed. Give a whole number of 1 or more."
        )
    return int(text)


def _port(container: Mapping[str, Any], argv: Sequence[str], where: str) -> int:
    """The flag decides; then the probes, which are sent to the API; then the first port that is declared."""
    if "$" not in (option(argv, "--port") or ""):  # else only a shell knows it
        flag = _number(argv, where, "--port")
        if flag is not None:
            return flag
    ports = container.get("ports") or ()
    by_name = {port["name"]: port["containerPort"] for port in ports if "name" in port}
    for probe in ("readinessProbe", "startupProbe", "livenessProbe"):
        found = container.get(probe, {}).get("httpGet", {}).get("port")
        number = by_name.get(found, found)
        if isinstance(number, int):
            return number
    return ports[0]["containerPort"] if ports else DEFAULT_PORT


def _gpu(container: Mapping[str, Any]) -> tuple[str | None, int]:
    """The first extended resource that counts whole GPUs (`nvidia.com/gpu`, `amd.com/gpu`)."""
    limits = container.get("resources", {}).get("limits") or {}
    for name, count in sorted(limits.items()):
        if name.endswith("/gpu"):
            return name, int(count)
    return None, 0


def _start_deadline_seconds(container: Mapping[str, Any]) -> int:
    """The startup probe's budget: after it the kubelet itself gives up. Not `progressDeadlineSeconds`, which is 600 s by default."""
    probe = container.get("startupProbe")
    if not probe:
        return DEFAULT_START_DEADLINE_SECONDS
    return int(probe.get("initialDelaySeconds", 0)) + int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))
