"""All that a decision may know, read at one moment (observe.py). None and empty mean: not in the cluster.

A thing that is there but cannot be used (a spec, a file, an annotation that somebody damaged) is a `Damage`: an observed value
like any other, never an exception, so that a decision can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tabletune.acceptance import Counts
from tabletune.formats import AcceptanceFile, FleetFile, TableFile
from tabletune.profile import Profile
from tabletune.recommendation_file import RecommendationFile
from tabletune.table import Table
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import Condition
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.kinds import Kind, called, kind_of
from tabletune_operator.launch_file import LaunchFile
from tabletune_operator.loan import Loan
from tabletune_operator.manifest import Manifest
from tabletune_operator.owners import Owner, Writer
from tabletune_operator.pods import OwnImage
from tabletune_operator.progress import Progress
from tabletune_operator.recommendation import NOTHING_STORED, Stored
from tabletune_operator.status import DraftTableStatus
from tabletune_operator.target import Target, TargetError


@dataclass(frozen=True, slots=True)
class ObjectRef:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Damage:
    """There, but not usable: a full sentence that names the field and the cure."""

    message: str


@dataclass(frozen=True, slots=True)
class Draft:
    """The DraftTable itself. `spec` is Damage when this operator cannot read it (another version's definition)."""

    ref: ObjectRef
    uid: str
    generation: int
    created: datetime
    deleting: bool
    has_finalizer: bool
    spec: DraftTableSpec | Damage
    reprofile: str | None  # value of the annotation that asks for a new measurement
    approve: str | None  # value of the annotation that approves a table for its roll-out
    status: DraftTableStatus  # as last written by us; fields that cannot be read are absent
    conditions: Mapping[str, Condition]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another DraftTable of the namespace that names the same target."""

    name: str
    created: datetime


@dataclass(frozen=True, slots=True)
class Goodput:
    """Output tokens since a table came in force, and those predicted for the rolled-out table in the same step time (docs/protocol.md)."""

    steps: int
    tokens: int
    expected_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine counted since it started (engine_counts.py); zeros where its vLLM does not say.

    `gaps` are those between a request's tokens, `stalls` the long ones among them; requests that the client ended are not counted.
    """

    requests: int = 0
    errors: int = 0
    gaps: int = 0
    stalls: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SidecarState:
    """What a sidecar answers on `/state` (docs/protocol.md); `in_force` is None while its engine is not reached."""

    reachable: bool
    active: bool
    inactive_reason: str | None
    vllm: str | None
    in_force: Table | None
    generation: int
    honoured: str  # Proved, InForce, NotHonoured or Unknown
    honoured_steps: int
    violations: int
    acceptance: tuple[float, ...]  # in use, by position
    drafted: tuple[int, ...]
    kept: tuple[int, ...]
    evidence: Counts | None  # counted lately; old counts fade
    goodput: Goodput | None
    files: str | None  # digest of the files that it works from
    batch_size: int | None
    draft_length: int | None
    slowdown: float | None  # live decode steps over the profile's, common to all lengths; None: not known yet
    prompt_tokens: float | None  # mean of live requests; None: not known yet
    tracks: bool  # its table follows its traffic now; else it keeps the last one
    problems: tuple[str, ...]  # code and message, those that stop the tracking first


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the target or of the profiling Job, as far as decisions need it. The container is the engine's."""

    name: str
    node: str | None
    created: datetime
    started: datetime | None  # on its node, by the kubelet
    current: bool  # has the target's newest template; a Job's pod always is
    ready: bool
    terminating: bool
    finished: bool  # its containers have ended
    failure: str | None  # why, when they ended badly
    image_id: str | None  # digest of the engine's image, once the container has run
    waits_for_gpu: bool  # unschedulable, and the scheduler names a GPU resource
    unschedulable: str | None  # the scheduler's message
    image_error: str | None  # container, reason and message
    crash: str | None  # container, exit code and count, once the kubelet backs off
    out_of_memory: str | None  # container and its limit, when the kernel ended it for memory
    restarts: int
    has_sidecar: bool
    digest: str | None = None  # of the roll-out that it was made with
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of the target, with what its engine and its sidecar answered. `silence` says why the sidecar did not."""

    pod: Pod
    engine_version: str | None
    sidecar: SidecarState | None
    silence: str | None
    served: Served | None = None  # None: its engine was not asked, or did not answer


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget that covers the target's pods, and how many of them may stop now."""

    name: str
    allowed: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What goes on around the target (surroundings.py)."""

    scaling: str | None = None  # the scale or roll-out that is under way, as a clause
    budgets: tuple[Budget, ...] = ()
    room: int | None = None  # pods of the target that fit on GPUs free now; None: not known, or no GPU
    next_taker: str | None = None  # another pod of the namespace that waits for such GPUs, and takes the next that is free


NOTHING_AROUND = Surroundings()


@dataclass(frozen=True, slots=True)
class Workload:
    """The target as it is in the cluster.

    `original` is the target as its user wrote it, our roll-out undone; Damage when the record on it cannot be read.
    `revised` says whether its controller has seen the newest template.
    """

    body: Mapping[str, Any]  # as the API server gives it
    desired: int  # how many replicas it is to have
    original: Target | TargetError | Damage
    owner: str | None  # DraftTable that rolled it out
    rolled: str | None  # digest of our roll-out, empty when its mark was removed; None: not rolled out
    loan: Loan | Damage | None  # one of its replicas is lent to a profiling Job
    keepers: tuple[str, ...]  # what keeps its replicas, as sentences; looked for only where one may be borrowed
    foreign: str | None  # what somebody else wrote in place of our speculative config
    put_back: bool  # and it is what was there before us
    managed_by: Owner | None  # the tool that keeps it as it is written elsewhere
    writer: Writer | None  # who else wrote the engine's arguments last
    revised: bool
    replicas: tuple[Replica, ...]
    launched: Mapping[str, Any] | None  # speculative config that we rolled out; None: not rolled out, or speculation off
    manifest: Manifest | None = None  # what of ours its user wrote into it; None: `original` is no Target

    @property
    def kind(self) -> Kind:
        return kind_of(self.body)

    @property
    def called(self) -> str:
        """For messages: `Deployment chat`."""
        return called(self.body)


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU product by its node label. An empty name: nodes that do not say; no label: nothing to select nodes by."""

    name: str
    label: str | None


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Nodes on which the profiling Job can run. `free` counts whole GPUs that nobody requests."""

    product: Product
    nodes: int
    total: int
    free: int
    holds_target: bool  # every node with a replica of the target is one of them


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another DraftTable that waits for its turn on a pool."""

    ref: ObjectRef
    since: datetime


@dataclass(frozen=True, slots=True)
class Queue:
    """The other DraftTables on this one's pool: whose Job runs, and who waits, the oldest request first."""

    running: ObjectRef | None
    waiting: tuple[Waiting, ...]


NO_QUEUE = Queue(None, ())


@dataclass(frozen=True, slots=True)
class Job:
    """Our profiling Job. `failure` is the Job controller's own word when it gave up."""

    name: str
    uid: str
    request: str | None  # digest of what it was asked to do
    fingerprint: str | None
    reprofile: str | None  # value of the DraftTable's annotation that it was made for
    created: datetime
    deleting: bool
    failure: str | None
    stopped: str | None  # why we stopped it, if we did
    complete: bool
    ended_at: datetime | None
    progress: Progress | Damage | None
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """The ConfigMap's files, all read and in agreement with each other."""

    profile: Profile
    acceptance: AcceptanceFile
    table: TableFile
    speculative_config: Mapping[str, Any] | None  # None: the engine is to run without speculation; verdict Present: the user's own
    digest: str
    reused_from: str | None
    tracked: str  # digest of the files that sidecars work from
    fleet: FleetFile | Damage | None
    uid: str  # of the ConfigMap
    bare: Mapping[str, Any] | None = None  # what an engine without the plugin gets; None: nothing, or its file cannot be read

    @property
    def kind(self) -> VerdictKind:
        return self.table.verdict.kind


@dataclass(frozen=True, slots=True)
class Donor:
    """Another DraftTable's ConfigMap. `data` is as it lies there; whoever copies it reads it first."""

    draft_table: str
    fingerprint: str
    data: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Webhook:
    """The operator's admission webhook. `refusal`: why a new pod of this target was last left as it is."""

    problem: str | None  # why it cannot be served or is not trusted; None: it is
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Observation:
    draft: Draft
    now: datetime
    image: OwnImage
    rivals: tuple[Rival, ...]
    workload: Workload | None
    pool: GpuPool | None  # None: no node fits
    products: tuple[Product, ...]  # GPU products of the nodes that the target's pods run on and that the pool holds
    services: tuple[Mapping[str, Any], ...]
    inference_pools: tuple[Mapping[str, Any], ...]
    prompts_found: bool  # text that is not empty; True when spec names no prompts
    job: Job | None
    queue: Queue
    files: Files | Damage | None
    donors: tuple[Donor, ...]
    around: Surroundings = NOTHING_AROUND
    rollouts: Queue = NO_QUEUE  # the other DraftTables of the namespace: who rolls out now, and who waits to
    stored: Stored = NOTHING_STORED  # our own files beside the Job's
    recommended: RecommendationFile | None = None  # what was recommended before; a file that cannot be read is none
    launch_file: LaunchFile | None = None  # the ConfigMap of mode ConfigFile
    webhook: Webhook | None = None  # None: the operator runs without one
