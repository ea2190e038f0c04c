"""The status of a DraftTable: what the operator writes, and what people and tools read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tabletune_operator.crd import Count, Model, Name, ShortText, Time


class Condition(Model):
    """As metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Count
    last_transition_time: Time
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z][A-Za-z0-9]*$")]
    message: Annotated[str, Field(max_length=1024)]


class Display(Model):
    """What `kubectl get` shows. For eyes only: scripts read the conditions."""

    target: ShortText | None = None
    state: ShortText | None = None
    verdict: ShortText | None = None
    table: ShortText | None = None
    gain: ShortText | None = None
    gpu: ShortText | None = None
    replicas: ShortText | None = None
    noise: ShortText | None = None
    loads: ShortText | None = None
    profile: ShortText | None = None
    reason: ShortText | None = None
    message: ShortText | None = None


class Queue(Model):
    """The place among all that wait to measure on one GPU product."""

    pool: ShortText
    since: Time
    seen_at: Time = Field(description="When it was last seen to wait; who is silent for 3 min loses nothing but is passed over.")
    place: ShortText = Field(description="2nd of 3.")


class ProfileStatus(Model):
    """The profile, or the Job that measures it."""

    job_name: Name | None = None
    fingerprint: ShortText | None = None
    source: Literal["Measured", "Reused"] | None = None
    reused_from: Name | None = Field(default=None, description="The DraftTable whose profile is used.")
    stage: ShortText | None = None
    cells_done: Count | None = None
    cells_total: Count | None = None
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    finish_at: Time | None = Field(default=None, description="When the Job is expected to be done.")
    last_progress_at: Time | None = None
    gpu_minutes: Count | None = None
    attempts: Count | None = None
    reprofile: ShortText | None = Field(
        default=None,
        description="Value of the annotation tabletune.io/reprofile that was measured for; another value asks anew.",
    )
    queue: Queue | None = Field(default=None, description="While it waits for another DraftTable's Job.")
    borrowed_at: Time | None = Field(default=None, description="When a replica of the target was stopped for this Job, once at most.")
    changed: ShortText | None = Field(default=None, description="What the stored profile is no longer valid for: fields, then and now.")


class TableStatus(Model):
    """The table that the roll-out starts engines with."""

    ranges: ShortText | None = Field(
        default=None, description="Batch sizes and draft length: 1-95:3 96-128:1; off; or unchanged (the present setting stays)."
    )
    launch_lengths: Annotated[tuple[Annotated[int, Field(ge=0, le=16)], ...], Field(max_length=17)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    largest_measured_batch_size: Count | None = None
    generation: Count | None = None
    digest: ShortText | None = None


class VerdictStatus(Model):
    """What the measurement said."""

    kind: Literal["Table", "Fixed", "Present", "Off", "Blocked"] | None = None
    gain_vs_present: ShortText | None = None
    gain_vs_best_fixed: ShortText | None = None
    gain_vs_off: ShortText | None = None
    noise: ShortText | None = None


class RolloutQueue(Model):
    """The place among all DraftTables of the namespace that wait to roll out."""

    since: Time
    seen_at: Time = Field(description="When it was last seen to wait; who is silent for 3 min is passed over.")
    place: ShortText = Field(description="2nd of 3.")


class PutBack(Model):
    """Somebody wrote the old setting back over ours."""

    at: Time
    by: ShortText | None = Field(default=None, description="Field manager, as the target's managedFields name it.")


class ServedCounts(Model):
    """What several engines counted since their start, by vLLM's own metrics."""

    engine: ShortText = Field(description="Digest of their container as its user wrote it; another one is not compared with them.")
    finished_requests: Count = Field(description="That ended, but for those that their client ended.")
    failed_requests: Count = Field(description="Of these, those that the engine failed.")
    gaps: Count = Field(description="Between the tokens of a request.")
    stalls: Count = Field(description="Of these gaps, those longer than a second that no preemption explains.")
    steps: Count


class RolloutStatus(Model):
    """The roll-out of the target."""

    digest: ShortText | None = Field(default=None, description="Of what was rolled out.")
    started_at: Time | None = None
    completed_at: Time | None = Field(default=None, description="When every replica had proved that it honours the table.")
    target_uid: ShortText | None = Field(default=None, description="Of the object that was rolled out; one that was made again was not.")
    owner: ShortText | None = Field(default=None, description="Who writes the target elsewhere: Argo CD, Flux, Helm, a controller.")
    approved: ShortText | None = Field(default=None, description="What tabletune.io/approve said when the last roll-out began.")
    reprofile: ShortText | None = Field(default=None, description="What tabletune.io/reprofile said when the last roll-out began.")
    queue: RolloutQueue | None = Field(default=None, description="While it waits for the roll-out of another DraftTable.")
    put_backs: Annotated[tuple[PutBack, ...], Field(max_length=4)] | None = Field(
        default=None, description="The last times.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    before: ServedCounts | None = Field(default=None, description="Of the engines that were replaced: what the new ones are held against.")
    worse_since: Time | None = Field(default=None, description="Since when replicas do beyond doubt worse than with the setting before.")
    worse_counted: ServedCounts | None = Field(default=None, description="What they had counted then, where that shows it.")


class Replica(Model):
    """One pod of the target, as its sidecar reports."""

    pod: Name
    node: Name | None = None
    engine: ShortText | None = None
    table: ShortText | None = None
    honoured: Literal["Proved", "InForce", "NotHonoured", "Unknown"] = "Unknown"
    draft_length: Count | None = None
    batch_size: Count | None = None
    acceptance: ShortText | None = Field(default=None, description="By position: 0.69/0.40/0.22.")
    last_heard: Time | None = None
    problem: ShortText | None = None


class Fleet(Model):
    """All replicas."""

    heard: Count | None = None
    honoured: Count | None = None
    last_heard: Time | None = None
    tables: Annotated[tuple[ShortText, ...], Field(max_length=64)] | None = Field(
        default=None,
        description="Tables in force, one line each: 1-95:3 96-128:1 on 2 replicas.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    table_changed_at: Time | None = Field(default=None, description="When other tables came in force; moves every ten minutes at most.")
    acceptance: ShortText | None = Field(default=None, description="Kept of drafted over all replicas, by position: 0.69/0.40/0.22.")
    drafted_tokens: Count | None = None
    kept_tokens: Count | None = None
    prior: ShortText | None = Field(
        default=None,
        description="What new replicas believe of their traffic, and who counted it: 0.69/0.40/0.22 of 3 replicas.",
    )
    start_table: ShortText | None = Field(default=None, description="What new replicas start from, if it is not the rolled-out table.")
    trial: ShortText | None = Field(default=None, description="A better table that some replicas run already, and how it does there.")
    outliers: Annotated[tuple[Name, ...], Field(max_length=64)] | None = Field(
        default=None,
        description="Pods with another traffic mix than all others: they keep their own tables and are in no prior.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    replicas: Annotated[tuple[Replica, ...], Field(max_length=64)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]}
    )


NEVER_OBSERVED = -1
"""`observedGeneration` of an object that no operator has seen yet: tools that know no better would take one without a status for done."""


class DraftTableStatus(Model):
    """What is so."""

    observed_generation: Annotated[int, Field(ge=NEVER_OBSERVED, le=2**53)] | None = Field(
        default=None, description="The generation of the spec that this status is about; -1: not looked at yet."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    display: Display | None = None
    profile: ProfileStatus | None = None
    table: TableStatus | None = None
    verdict: VerdictStatus | None = None
    rollout: RolloutStatus | None = None
    fleet: Fleet | None = None
