"""Reads everything that a decision may know about one DraftTable, at one moment: the cluster, then the replicas over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import httpx
from pydantic import ValidationError

from tabletune.formats import FormatError
from tabletune.recommendation_file import RECOMMENDATION, RecommendationFile, parse_recommendation
from tabletune_operator.cluster import Cluster
from tabletune_operator.conditions import clipped, parse_conditions, short
from tabletune_operator.crd import LONGEST_TEXT, DraftTableSpec
from tabletune_operator.drift import Drift, as_applied, read_drift
from tabletune_operator.files import REUSED_FROM_ANNOTATION, parse_files
from tabletune_operator.jobs import REPROFILE_ANNOTATION, REQUEST_ANNOTATION, STOPPED_ANNOTATION
from tabletune_operator.keepers import find_keepers
from tabletune_operator.kinds import DEPLOYMENT, KINDS, called, kind_of, template_of, with_template
from tabletune_operator.launch_file import KEY, LaunchFile, launch_map_name, parse_launch_file
from tabletune_operator.loan import Loan, LoanError, read_loan
from tabletune_operator.manifest import Manifest, as_before, read_manifest
from tabletune_operator.nodes import CPU, gpu_pool, matching_nodes, product_of
from tabletune_operator.observation import (
    NOTHING_AROUND,
    Damage,
    Donor,
    Draft,
    Files,
    GpuPool,
    Job,
    ObjectRef,
    Observation,
    Pod,
    Product,
    Replica,
    Rival,
    Served,
    Surroundings,
    Webhook,
    Workload,
)
from tabletune_operator.owners import find_owner, find_writer
from tabletune_operator.parts import without_parts
from tabletune_operator.pods import DRAFT_TABLE_LABEL, MANAGED_BY, OwnImage, config_map_name, job_name
from tabletune_operator.podstate import parse_pod
from tabletune_operator.pool_queue import read_queue
from tabletune_operator.profiling import FINGERPRINT_ANNOTATION
from tabletune_operator.progress import PROGRESS_ANNOTATION, Progress, ProgressError, parse_progress
from tabletune_operator.recommendation import NOTHING_STORED, parse_stored
from tabletune_operator.restore import OWNER_ANNOTATION, RECORD_ANNOTATION, RecordError, restore, rolled_digest
from tabletune_operator.rollout import APPROVE_ANNOTATION, SIDECAR_CONTAINER
from tabletune_operator.rollout_queue import read_rollouts
from tabletune_operator.sidecars import Silence, read_engine_version, read_served, read_sidecar
from tabletune_operator.status import DraftTableStatus
from tabletune_operator.surroundings import find_budgets, find_next_taker, find_room, find_scaling
from tabletune_operator.target import Target, TargetError, config_map_of, parse_target
from tabletune_operator.times import parse_time

MANAGED_SELECTOR = ",".join(f"{label}={value}" for label, value in MANAGED_BY.items())

NODES_KEPT_SECONDS = 5.0
"""Nodes and GPUs in use are the same for all DraftTables and the largest thing read, so they are read this often at most."""

SERVED_KEPT_SECONDS = 60.0
"""An engine's page of metrics is long, and what counts are sums of hours."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Nodes:
    nodes: tuple[Body, ...]
    pods: tuple[Body, ...] | None  # None: only those of our own namespaces may be seen


def no_webhook(_: ObjectRef) -> None:
    """The operator runs without an admission webhook."""


@dataclass(frozen=True, slots=True)
class _Around:
    """What keeps or moves the replicas of a namespace's workloads."""

    autoscalers: tuple[Body, ...]
    scaled: tuple[Body, ...]
    budgets: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class _Own:
    """What we wrote before for a target that its user writes himself."""

    recommended: RecommendationFile | None
    launch_file: LaunchFile | None


class Observer:
    """Reads for all DraftTables of one operator."""

    def __init__(
        self,
        cluster: Cluster,
        http: httpx.AsyncClient,
        image: OwnImage,
        clock: Callable[[], datetime],
        namespaces: Sequence[str] = (),
        *,
        webhook: Callable[[ObjectRef], Webhook | None] = no_webhook,
    ) -> None:
        """`namespaces` are those that the operator serves; none: all."""
        self._namespaces = tuple(namespaces)
        self._cluster = cluster
        self._http = http
        self._image = image
        self._webhook = webhook
        self._clock = clock
        self._nodes: _Nodes | None = None
        self._nodes_read_at = 0.0
        self._served: dict[str, tuple[float, Served | None]] = {}  # by a pod's uid, and when it was read

    async def observe(self, ref: ObjectRef) -> Observation | None:
        """None: there is no such DraftTable (any more). Raises ClusterError."""
        namespace = ref.namespace
        every_table, every_job, pods, config_maps, services, inference_pools = await asyncio.gather(
            self._cluster.list_all("DraftTable", self._namespaces),
            self._cluster.list_all("Job", self._namespaces, MANAGED_SELECTOR),
            self._cluster.list("Pod", namespace),
            self._cluster.list("ConfigMap", namespace, MANAGED_SELECTOR),
            self._cluster.list("Service", namespace),
            self._cluster.list_inference_pools(namespace),
        )
        tables, jobs = ([o for o in every if o["metadata"]["namespace"] == namespace] for every in (every_table, every_job))
        own = next((t for t in tables if t["metadata"]["name"] == ref.name), None)
        if own is None:
            return None
        draft, now = parse_draft(own), self._clock()
        own_map = _named(config_maps, config_map_name(ref.name))
        launch_file, (body, between), around = await asyncio.gather(
            self._launch_file(draft, config_maps), self._read_target(own), self._around(draft)
        )
        ours = _Own(_recommended(own_map), launch_file)
        workload = await self._workload(body, between, pods, draft, own=ours, around=around) if body is not None else None
        pool, products, room = await self._pool(draft, workload, pods)
        job = next((_parse_job(j, pods, _engine_of(workload)) for j in jobs if j["metadata"]["name"] == job_name(ref.name)), None)
        return Observation(
            draft=draft,
            now=now,
            image=self._image,
            rivals=_rivals(tables, own),
            workload=workload,
            pool=pool,
            products=products,
            services=services,
            inference_pools=inference_pools,
            prompts_found=await self._prompts_found(draft),
            job=job,
            queue=read_queue(every_table, every_job, ref, pool, now),
            files=_files(own_map),
            donors=tuple(_donors(config_maps, ref)),
            around=_surroundings(workload, around, room, pods),
            rollouts=read_rollouts(tables, ref, now),
            stored=parse_stored(own_map.get("data") or {}, own_map["metadata"]["uid"]) if own_map is not None else NOTHING_STORED,
            recommended=ours.recommended,
            launch_file=ours.launch_file,
            webhook=self._webhook(ref),
        )

    async def _read_target(self, table: Body) -> tuple[Body | None, tuple[Body, ...]]:
        """The target, and the objects that stand between it and its pods."""
        kind, name = target_of(table)
        namespace = table["metadata"]["namespace"]
        if kind not in KINDS:
            return None, ()  # of another version's definition; the spec says so
        version = str(table["spec"]["targetRef"].get("apiVersion", KINDS[kind].api_version))
        lists = asyncio.gather(*(self._cluster.list(each, namespace) for each in KINDS[kind].between))
        body, between = await asyncio.gather(self._cluster.read(kind, namespace, name, version), lists)
        return body, tuple(each for found in between for each in found)

    async def _launch_file(self, draft: Draft, config_maps: Iterable[Body]) -> LaunchFile | None:
        """One that outlived another DraftTable of this name has no labels, and is of use in its mode only."""
        name = launch_map_name(draft.ref.name)
        found: Body | None = _named(config_maps, name)
        if found is None and not isinstance(draft.spec, Damage) and draft.spec.rollout.mode == "ConfigFile":
            found = await self._cluster.read("ConfigMap", draft.ref.namespace, name)
        return parse_launch_file(found) if found is not None else None

    async def _workload(
        self, body: Body, between: tuple[Body, ...], pods: Iterable[Body], draft: Draft, *, own: _Own, around: _Around
    ) -> Workload:
        running, revised = kind_of(body).running(body, between), kind_of(body).is_seen(body, between)
        original, drift, manifest = await self._original(body, running, draft, own, revised=revised)
        annotations = body["metadata"].get("annotations") or {}
        engine = original.container if isinstance(original, Target) else ""
        port = original.port if isinstance(original, Target) else None
        seen = _target_pods(body, between, pods, engine)
        # Mode Recommend changes nothing, so nothing needs to be compared.
        counted = not isinstance(draft.spec, Damage) and draft.spec.rollout.mode != "Recommend"
        return Workload(
            body=body,
            desired=kind_of(body).replicas_of(body if running is None else running),
            original=original,
            owner=annotations.get(OWNER_ANNOTATION),
            rolled=(rolled_digest(body) or "") if RECORD_ANNOTATION in annotations else None,
            loan=_loan(body),
            keepers=_keepers(body, draft, around),
            foreign=drift.foreign,
            put_back=drift.put_back,
            launched=drift.launched,
            managed_by=find_owner(body),
            writer=find_writer(body, engine, drift.arguments),
            revised=revised,
            replicas=tuple(await asyncio.gather(*(self._replica(pod, ip, port, counted=counted) for pod, ip in seen))),
            manifest=manifest,
        )

    async def _original(
        self, body: Body, running: Body | None, draft: Draft, own: _Own, *, revised: bool
    ) -> tuple[Target | TargetError | Damage, Drift, Manifest | None]:
        """The target as its user wrote it, what somebody else wrote in place of our speculative config, and what of ours is the user's."""
        if running is None:
            why = kind_of(body).complaint(body)
            because = "" if why is None else f" ({short(why, 120)})"
            told = f"The controller of {called(body)} has not made a workload of its newest setting{because}."
            return TargetError("WaitingForTarget", f"{told} Nothing was changed. Wait for it."), Drift(), None
        container = None if isinstance(draft.spec, Damage) else draft.spec.target_ref.container
        drift = Drift()
        try:
            # What runs may lag behind what is written, and then tells nothing of who wrote it.
            drift = read_drift(running)
            if not revised and kind_of(body).written_whole:
                drift = replace(drift, foreign=None, put_back=False)
            # Somebody else's speculative config is no wish of ours to measure: until it is settled, the target is what it was.
            wanted = restore(as_applied(running) if drift.foreign is not None and not drift.put_back else running)
            written = template_of(wanted)
            if not kind_of(body).written_whole:
                wanted = with_template(wanted, without_parts(written))
            target = parse_target(wanted, container, await self._config_maps(draft.ref, config_map_of(wanted, container)))
            manifest = read_manifest(target, written, draft.ref.name)
            target = as_before(target, manifest, own.recommended, own.launch_file)
            return (replace(target, base=restore(body)) if target.kind.written_whole else target), drift, manifest
        except TargetError as error:
            return error, drift, None
        except RecordError as error:
            return Damage(str(error)), drift, None

    async def _config_maps(self, ref: ObjectRef, name: str | None) -> dict[str, Mapping[str, str]]:
        """That which holds the target's --config file. Ours says nothing: what it said before we wrote it is what counts (as_before)."""
        if name == launch_map_name(ref.name):
            return {name: {KEY: "{}"}}
        found = await self._cluster.read("ConfigMap", ref.namespace, name) if name is not None else None
        return {} if found is None or name is None else {name: found.get("data") or {}}

    async def _around(self, draft: Draft) -> _Around:
        """Only where a roll-out or a loan may need it: a namespace can hold many of these."""
        spec = draft.spec
        if isinstance(spec, Damage) or (spec.profile.placement != "BorrowReplica" and spec.rollout.mode == "Recommend"):
            return _Around((), (), ())
        namespace = draft.ref.namespace
        return _Around(
            *await asyncio.gather(
                self._cluster.list("HorizontalPodAutoscaler", namespace),
                self._cluster.list_scaled_objects(namespace),
                self._cluster.list("PodDisruptionBudget", namespace),
            )
        )

    async def _replica(self, pod: Pod, ip: str | None, port: int | None, *, counted: bool) -> Replica:
        """Ready pods are asked for the engine's version, and what it counted; pods with our sidecar for its state, as soon as they
        have an address.
        """
        if ip is None or pod.terminating or pod.finished:
            return Replica(pod, None, None, "has no address")
        asked = port if pod.ready else None
        version, served, sidecar = await asyncio.gather(
            read_engine_version(self._http, ip, asked) if asked is not None else _nothing(),
            self._read_served(pod.uid, ip, asked) if asked is not None and counted else _nothing(),
            read_sidecar(self._http, ip) if pod.has_sidecar else _nothing(),
        )
        if isinstance(sidecar, Silence):
            return Replica(pod, version, None, sidecar.why, served)
        return Replica(pod, version, sidecar, None if sidecar else "has no sidecar", served)

    async def _read_served(self, uid: str, ip: str, port: int) -> Served | None:
        now = time.monotonic()
        known = self._served.get(uid)
        if known is not None and now - known[0] <= SERVED_KEPT_SECONDS:
            return known[1]
        self._served = {pod: kept for pod, kept in self._served.items() if now - kept[0] <= SERVED_KEPT_SECONDS}  # gone, or read again
        served = await read_served(self._http, ip, port)
        self._served[uid] = now, served
        return served

    async def _pool(
        self, draft: Draft, workload: Workload | None, pods: Iterable[Body]
    ) -> tuple[GpuPool | None, tuple[Product, ...], int | None]:
        """Where the Job may run; which GPUs that and the target have; and how many more pods of the target find their GPUs now."""
        if isinstance(draft.spec, Damage) or workload is None or not isinstance(workload.original, Target):
            return None, (), None
        target = workload.original
        seen = await self._read_nodes()
        used_by = seen.pods if seen.pods is not None else tuple(pods)
        chosen = draft.spec.node_pool.node_selector if draft.spec.node_pool is not None else None
        own = matching_nodes(seen.nodes, target.template["spec"].get("nodeSelector") or {})
        fits = own if chosen is None else matching_nodes(seen.nodes, chosen)
        if target.gpu_request == 0:
            return gpu_pool(fits, used_by, CPU, None, set()), (CPU,), None
        own_nodes = {r.pod.node for r in workload.replicas if r.pod.node is not None}
        products = {product_of(node) for node in seen.nodes if node["metadata"]["name"] in own_nodes}
        own = tuple(node for node in own if product_of(node) in products)
        # In single namespaces other tenants' pods are not seen: then it is the most that there can be, and the scheduler's word decides.
        room = find_room(own, used_by, target.gpu_resource, target.gpu_request) if own_nodes else None
        if chosen is not None:
            products |= {product_of(node) for node in fits}
        else:
            fits = own
        if not products:
            return None, (), room
        product = min(products, key=_by_name)
        return gpu_pool(fits, used_by, product, target.gpu_resource, own_nodes), tuple(sorted(products, key=_by_name)), room

    async def _read_nodes(self) -> _Nodes:
        if self._nodes is None or time.monotonic() - self._nodes_read_at > NODES_KEPT_SECONDS:
            nodes, pods = await asyncio.gather(self._cluster.list_nodes(), self._cluster.list_scheduled_pods())
            self._nodes, self._nodes_read_at = _Nodes(nodes, pods), time.monotonic()
        return self._nodes

    async def _prompts_found(self, draft: Draft) -> bool:
        prompts = None if isinstance(draft.spec, Damage) else draft.spec.profile.prompts
        if prompts is None:
            return True
        found = await self._cluster.read("ConfigMap", draft.ref.namespace, prompts.config_map_ref.name)
        # What is not UTF-8 is in binaryData: no prompts, and better said now than by a Job that took a GPU first.
        return found is not None and bool((found.get("data") or {}).get(prompts.config_map_ref.key, "").strip())


def _keepers(deployment: Body, draft: Draft, around: _Around) -> tuple[str, ...]:
    if isinstance(draft.spec, Damage) or draft.spec.profile.placement != "BorrowReplica":
        return ()
    return find_keepers(deployment, (*around.autoscalers, *around.scaled), around.budgets)


def _surroundings(workload: Workload | None, around: _Around, room: int | None, pods: Iterable[Body]) -> Surroundings:
    if workload is None or not isinstance(workload.original, Target):
        return NOTHING_AROUND
    budgets = find_budgets(workload.original.pod_labels, around.budgets)
    taker = find_next_taker(pods, {replica.pod.name for replica in workload.replicas}, workload.original.gpu_resource)
    return Surroundings(find_scaling(workload.body, around.autoscalers), budgets, room, taker)


def _by_name(product: Product) -> tuple[str, str]:
    return product.name, product.label or ""


async def _nothing() -> None:
    return None


def parse_draft(body: Body) -> Draft:
    metadata = body["metadata"]
    spec: DraftTableSpec | Damage
    try:
        spec = DraftTableSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        spec = Damage(f"spec.{field} cannot be read by this operator ({first['msg']}).")
    status = body.get("status") or {}
    try:
        known = DraftTableStatus.model_validate(status)
    except ValidationError:
        known = DraftTableStatus()  # of another version: written anew from what is seen
    return Draft(
        ref=ObjectRef(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=parse_time(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        has_finalizer=bool(metadata.get("finalizers")),
        spec=spec,
        reprofile=_text(metadata, REPROFILE_ANNOTATION),
        approve=_text(metadata, APPROVE_ANNOTATION),
        status=known,
        conditions=parse_conditions(status),
    )


def _loan(body: Body) -> Loan | Damage | None:
    try:
        return read_loan(body)
    except LoanError as error:
        return Damage(str(error))


def _text(metadata: Body, annotation: str) -> str | None:
    """An annotation, as far as the status can remember it."""
    value = (metadata.get("annotations") or {}).get(annotation)
    return clipped(value, LONGEST_TEXT) if value else None


def target_of(table: Body) -> tuple[str, str]:
    """Kind and name of the workload that a DraftTable names."""
    ref = (table.get("spec") or {}).get("targetRef") or {}
    return str(ref.get("kind", DEPLOYMENT.name)), str(ref.get("name", ""))


def _rivals(tables: Iterable[Body], own: Body) -> tuple[Rival, ...]:
    return tuple(
        Rival(t["metadata"]["name"], parse_time(t["metadata"]["creationTimestamp"]))
        for t in tables
        if t["metadata"]["name"] != own["metadata"]["name"] and target_of(t) == target_of(own)
    )


def _target_pods(workload: Body, between: Iterable[Body], pods: Iterable[Body], engine: str) -> tuple[tuple[Pod, str | None], ...]:
    """The target's pods with their addresses, by name."""
    found = [
        (parse_pod(pod, engine, SIDECAR_CONTAINER, current=current), (pod.get("status") or {}).get("podIP"))
        for pod, current in kind_of(workload).pods_of(workload, between, pods)
    ]
    return tuple(sorted(found, key=lambda seen: seen[0].name))


def _is_owned_by(metadata: Body, uid: str) -> bool:
    return any(reference["uid"] == uid for reference in metadata.get("ownerReferences") or ())


def _engine_of(workload: Workload | None) -> str:
    return workload.original.container if workload is not None and isinstance(workload.original, Target) else ""


def _parse_job(body: Body, pods: Iterable[Body], engine: str) -> Job:
    metadata, status = body["metadata"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
    failed = conditions.get("Failed")
    return Job(
        name=metadata["name"],
        uid=metadata["uid"],
        request=annotations.get(REQUEST_ANNOTATION),
        fingerprint=annotations.get(FINGERPRINT_ANNOTATION),
        reprofile=annotations.get(REPROFILE_ANNOTATION),
        created=parse_time(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        failure=f"{failed['reason']}: {failed.get('message', '')}" if failed is not None else None,
        ended_at=_ended_at(conditions),
        stopped=annotations.get(STOPPED_ANNOTATION),
        complete="Complete" in conditions,
        progress=_progress(annotations.get(PROGRESS_ANNOTATION)),
        pods=tuple(parse_pod(pod, engine, SIDECAR_CONTAINER) for pod in pods if _is_owned_by(pod["metadata"], metadata["uid"])),
    )


def _ended_at(conditions: Mapping[str, Body]) -> datetime | None:
    times = [c["lastTransitionTime"] for kind, c in conditions.items() if kind in {"Complete", "Failed"} and "lastTransitionTime" in c]
    return parse_time(times[0]) if times else None


def _progress(text: str | None) -> Progress | Damage | None:
    try:
        return None if text is None else parse_progress(text)
    except ProgressError as error:
        return Damage(str(error))


def _named(bodies: Iterable[Body], name: str) -> Body | None:
    return next((body for body in bodies if body["metadata"]["name"] == name), None)


def _recommended(config_map: Body | None) -> RecommendationFile | None:
    text = (config_map.get("data") or {}).get(RECOMMENDATION) if config_map is not None else None
    try:
        return parse_recommendation(text) if text is not None else None
    except FormatError:
        return None  # written anew


def _files(config_map: Body | None) -> Files | Damage | None:
    if config_map is None:
        return None
    metadata = config_map["metadata"]
    reused_from = (metadata.get("annotations") or {}).get(REUSED_FROM_ANNOTATION)
    return parse_files(metadata["name"], config_map.get("data") or {}, reused_from, metadata["uid"])


def _donors(config_maps: Iterable[Body], ref: ObjectRef) -> Iterable[Donor]:
    for config_map in config_maps:
        metadata = config_map["metadata"]
        owner = (metadata.get("labels") or {}).get(DRAFT_TABLE_LABEL, ref.name)
        annotations = metadata.get("annotations") or {}
        # A copy is no donor: its original may have been measured again since.
        if owner != ref.name and FINGERPRINT_ANNOTATION in annotations and REUSED_FROM_ANNOTATION not in annotations:
            yield Donor(owner, annotations[FINGERPRINT_ANNOTATION], config_map.get("data") or {})
