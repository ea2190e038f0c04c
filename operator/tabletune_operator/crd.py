"""The spec of a DraftTable as Python classes (its status: status.py).

Both are the one source of the CRD's schema (schema.py) and of what the operator reads and writes. Bounds, defaults and enums are
pydantic's; what pydantic cannot say (list types, CEL rules) stands beside the field or class as `json_schema_extra`. Cross-field
rules are CEL only: the API server has checked every object that the operator reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "tabletune.io"
VERSION = "v1alpha1"
KIND = "DraftTable"
PLURAL = "drafttables"

METHODS_WITH_MODEL = ("draft_model", "dflash", "dspark", "eagle", "eagle3", "medusa", "mlp_speculator")
"""Methods of vLLM whose drafter is a model of its own."""

LONGEST_NAME = 63
"""The DraftTable's name is the value of the label `tabletune.io/drafttable`."""

Name = Annotated[str, Field(min_length=1, max_length=253)]
LONGEST_TEXT = 256
"""Of a short text in the status."""

ShortText = Annotated[str, Field(max_length=LONGEST_TEXT)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0, le=2**53)]


def rule(cel: str, message: str) -> dict[str, Any]:
    """One CEL rule, as `x-kubernetes-validations` wants it."""
    return {"rule": cel, "message": message}


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(each)}


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class TargetRef(Model):
    """The workload whose vLLM engines get the table. It cannot be changed."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self == oldSelf",
                "spec.targetRef cannot be changed: a roll-out belongs to one workload. "
                "Make another DraftTable, and delete this one to restore its workload.",
            ),
            rule(
                "self.kind != 'DisaggregatedSet'",
                "spec.targetRef.kind DisaggregatedSet is refused: it replaces prefill and decode together; a Job measures decode alone. "
                "Set one num_speculative_tokens in its decode role.",
            ),
            rule(
                "(self.kind == 'LeaderWorkerSet') == (self.apiVersion == 'leaderworkerset.x-k8s.io/v1')",
                "spec.targetRef: kind LeaderWorkerSet and apiVersion leaderworkerset.x-k8s.io/v1 go together.",
            ),
            rule(
                "(self.kind == 'LLMInferenceService') == self.apiVersion.startsWith('serving.kserve.io/')",
                "spec.targetRef: kind LLMInferenceService and apiVersion serving.kserve.io/v1alpha1 or v1alpha2 go together.",
            ),
        )
    )

    api_version: Literal[
        "apps/v1",
        "leaderworkerset.x-k8s.io/v1",
        "serving.kserve.io/v1alpha1",
        "serving.kserve.io/v1alpha2",
        "disaggregatedset.x-k8s.io/v1",
    ] = "apps/v1"
    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet", "LLMInferenceService", "DisaggregatedSet"] = Field(
        default="Deployment", description="A LeaderWorkerSet only with groups of one pod; a DisaggregatedSet is refused."
    )
    name: Name = Field(description="Name of the workload, in the namespace of this DraftTable.")
    container: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="Container that runs vLLM. Needed only if several do."
    )


class Toleration(Model):
    """As in a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.operator != 'Exists' || !has(self.value)",
                "A toleration with operator Exists takes no value: remove value, or set operator to Equal.",
            ),
            rule("self.operator == 'Exists' || has(self.key)", "A toleration with operator Equal needs key."),
        )
    )

    key: Annotated[str, Field(min_length=1, max_length=316)] | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class NodePool(Model):
    """Where the profiling Job runs, instead of nodes with the GPU product of the target's own nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.nodeSelector) || has(self.tolerations)",
                "spec.nodePool is empty: set nodeSelector or tolerations, or remove nodePool.",
            )
        )
    )

    node_selector: (
        Annotated[Mapping[str, Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=16), AfterValidator(MappingProxyType)]
        | None
    ) = Field(
        default=None, description="Labels that a node must have, instead of the target's own node selector, node affinity and GPU product."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(min_length=1, max_length=16)] | None = Field(
        default=None, description="Added to those of the target's pod template.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )


class Speculation(Model):
    """What to measure, where the target's own --speculative-config does not say it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"!has(self.method) || !(self.method in {list(METHODS_WITH_MODEL)}) || has(self.model)",
                "This spec.speculation.method drafts with a model of its own: set spec.speculation.model to it.",
            ),
            rule("!has(self.model) || has(self.method)", "spec.speculation.model needs spec.speculation.method, such as eagle3."),
            rule(
                "!has(self.method) || self.method != 'ngram' || !has(self.model)",
                "spec.speculation.method ngram drafts without a model: remove spec.speculation.model.",
            ),
        )
    )

    max_draft_length: Annotated[int, Field(ge=1, le=16)] | None = Field(default=None, description="The longest draft length K, in tokens.")
    method: Annotated[str, Field(max_length=32, pattern="^[a-z][a-z0-9_]*$")] | None = Field(
        default=None, description="vLLM's name of the method, such as eagle3 or ngram."
    )
    model: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="The drafter: a model name or a path in the engine's container."
    )


class ConfigMapRef(Model):
    """A key of a ConfigMap in the same namespace."""

    name: Name
    key: Name = "prompts.txt"


class Prompts(Model):
    """The prompts on which acceptance is counted; without it a shipped sample. Takes effect at the next measurement."""

    config_map_ref: ConfigMapRef = Field(description="One prompt a line, as your users write them.")


class PodTemplate(Model):
    """What the profiling pod gets besides the target's own template."""

    priority_class_name: Name | None = Field(default=None, description="So that the Job waits for serving, never the other way round.")


_AT_NEXT = "Takes effect at the next measurement; set the annotation tabletune.io/reprofile to a new value to measure now."
"""Of fields that the fingerprint does not hold: a stored profile stays valid when they change."""


class Profile(Model):
    """How step times and acceptance are measured."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.promptTokens + self.outputTokens <= 16384",
                "spec.profile.promptTokens and outputTokens together are more than 16384 tokens a request: lower one of them.",
            )
        )
    )

    policy: Literal["IfMissing", "Always", "Never"] = Field(
        default="IfMissing",
        description="When a Job measures. IfMissing: when the namespace holds no profile of equal fingerprint. Always: also when only "
        "another DraftTable's could be used. Never: only when the annotation tabletune.io/reprofile asks for it.",
    )
    placement: Literal["Spare", "BorrowReplica"] = Field(
        default="Spare",
        description="Where the Job gets its GPU. Spare: it waits for a free one. BorrowReplica: when none is free the target is scaled "
        "down by one meanwhile and up again after; never its last replica, nor one that an autoscaler or a PodDisruptionBudget keeps.",
    )
    max_batch_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Largest batch size measured; without it the engine's max_num_seqs."
    )
    repeats: Annotated[int, Field(ge=1, le=9)] = Field(
        default=3, description=f"Each cell is measured so often; the median counts. {_AT_NEXT}"
    )
    prompt_tokens: Annotated[int, Field(ge=1, le=16376)] = Field(default=32, description="Prompt length while step times are measured.")
    output_tokens: Annotated[int, Field(ge=8, le=4096)] = Field(default=64, description="Output length while step times are measured.")
    prompt_count: Annotated[int, Field(ge=8, le=1000)] = Field(
        default=160, description=f"Prompts on which acceptance is counted. {_AT_NEXT}"
    )
    temperature_milli: Annotated[int, Field(ge=0, le=2000)] = Field(
        default=700, description=f"Sampling temperature of your traffic, in thousandths: it decides acceptance. {_AT_NEXT}"
    )
    window_seconds: Annotated[int, Field(ge=0, le=600)] | None = Field(
        default=None,
        description=f"Shortest window of the live comparison; without it 10 on a GPU, and on a CPU what its steps take. {_AT_NEXT}",
    )
    context_tokens: Annotated[tuple[Annotated[int, Field(ge=64, le=131072)], ...], Field(min_length=1, max_length=2)] | None = Field(
        default=None,
        description=f"Prompts are lengthened to these context lengths, in tokens; without it they stay as they are. {_AT_NEXT}",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    wait_timeout_seconds: Annotated[int, Field(ge=60, le=604800)] = Field(
        default=86400, description="So long the Job's pod may wait for a GPU or a node; then the Job is stopped as a failed attempt."
    )
    timeout_seconds: Annotated[int, Field(ge=60, le=86400)] = Field(
        default=7200, description="So long the Job may run once its pod has a node, image pull and engine start included."
    )
    prompts: Prompts | None = None
    pod_template: PodTemplate | None = None


class Guard(Model):
    """What a roll-out may cost, and what becomes of one that disappoints."""

    free_gpus: Literal["Require", "Ignore"] = Field(
        default="Require",
        alias="freeGPUs",
        description="Require: a roll-out that starts new replicas before old ones end waits until their GPUs are free. Ignore: it starts "
        "all the same, as where nodes are added for pods that wait; a replica without a GPU at its start deadline brings the old setting "
        "back. A target whose strategy has maxSurge 0 needs no free GPU.",
    )
    after_rollout: Literal["RollBack", "Report"] = Field(
        default="RollBack",
        description="When new replicas crash, or do beyond doubt worse than the setting before. RollBack: it is given back, once. Report: "
        "a condition says so and nothing is changed.",
    )


class Rollout(Model):
    """What happens with the result."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.replace != 'Evict' || self.mode == 'Admission'",
                "spec.rollout.replace Evict belongs to spec.rollout.mode Admission: in other modes the target's own update strategy "
                "replaces replicas, or nothing does. Remove replace, or set mode to Admission.",
            )
        )
    )

    mode: Literal["Patch", "ConfigFile", "Admission", "Recommend"] = Field(
        default="Patch",
        description="Patch writes the table to the target. ConfigFile writes the file that the target's engine reads (--config, ConfigMap "
        "<name>-tabletune-config), and one annotation to its pod template by which replicas start again. Admission leaves the target as it "
        "is and adds the table to its new pods, by the operator's webhook (chart value admission.enabled). Recommend leaves the target "
        "alone and writes an overlay for it to the ConfigMap <name>-tabletune.",
    )
    replace: Literal["Wait", "Evict"] = Field(
        default="Wait",
        description="Mode Admission: how replicas that run already get the table. Wait: when something recreates them, such as kubectl "
        "rollout restart. Evict: the operator evicts them one at a time while all others are ready, as PodDisruptionBudgets allow; never "
        "the last one.",
    )
    approval: Literal["Auto", "Manual"] = Field(
        default="Auto",
        description="Manual: replicas are restarted for a table only when the annotation tabletune.io/approve of this DraftTable is "
        "status.table.digest. A later table that needs no restart needs no approval.",
    )
    ownership: Literal["Respect", "Override"] = Field(
        default="Respect",
        description="Respect: nothing is written to a target that Argo CD, Flux or another controller keeps as it is elsewhere. Override: "
        "it is, for that owner was told to leave our fields (Argo CD: ignoreDifferences and RespectIgnoreDifferences).",
    )
    guard: Guard = Guard()


class Controller(Model):
    """How each replica's sidecar follows the traffic."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.exploreEverySteps == 0 || self.exploreEverySteps >= 10",
                "spec.controller.exploreEverySteps below 10 would cost more than it finds: set 10 or more, or 0 to switch exploring off.",
            )
        )
    )

    mode: Literal["Track", "Observe"] = Field(
        default="Track", description="Track swaps tables in the running engine; Observe only reports."
    )
    prior_weight: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=2000, description="The measured acceptance counts as much as so many drafted tokens."
    )
    rebuild_every_steps: Annotated[int, Field(ge=50, le=1_000_000)] = Field(default=500, description="Most steps between two rebuilds.")
    explore_every_steps: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=50, description="At most one step in so many drafts the longest length, so that acceptance there stays known; 0 is never."
    )
    prior_decay: Literal["Keep", "Halve"] = Field(
        default="Keep", description="Halve lets the measured acceptance fade as live counts come in."
    )
    hysteresis: Annotated[int, Field(ge=0, le=64)] = Field(default=0, description="Batch sizes past an edge before the length changes.")


class DraftTableSpec(Model):
    """What is wanted."""

    target_ref: TargetRef
    state: Literal["Active", "Suspended"] = Field(
        default="Active", description="Suspended starts nothing new: no Job, no roll-out. What runs stays, and is watched."
    )
    node_pool: NodePool | None = None
    speculation: Speculation | None = None
    profile: Profile = Profile()
    rollout: Rollout = Rollout()
    controller: Controller = Controller()
