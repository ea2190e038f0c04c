"""The kinds of workload that can be a target, and all that differs between them. Pure; everybody who reads or writes a target asks here.

For each: where its pod template lies, which pods are its own and which of them have the newest template, how many replicas it is to
have, what people and `kubectl` call it, and how its controller replaces replicas.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tabletune_operator.conditions import short
from tabletune_operator.crd import GROUP

Body = Mapping[str, Any]

RUNNING = "tabletune.io/running"
"""Marks what `Kind.running` composed of two objects: it is read, and never written."""

_KSERVE_FAILED = re.compile("Error$|NotFound$")
"""Reasons of KServe's conditions that tell of its own failure, and not of replicas that are not ready."""

_OWN_CONTAINERS = "tabletune-"

_BESIDE = ("labels", "annotations")
"""Of a pod, where its spec stands without metadata."""

REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
"""Written by the controller of Deployments on them and on their ReplicaSets."""
REVISION_LABEL = "controller-revision-hash"
"""Written by the controller of StatefulSets on pods: the name of the revision that they were made from."""
ROLE_LABEL = "llm-d.ai/role"
SET_DOMAIN = "leaderworkerset.sigs.k8s.io/"
SET_NAME_LABEL, SET_REVISION_LABEL = f"{SET_DOMAIN}name", f"{SET_DOMAIN}template-revision-hash"
"""Written by the controller of LeaderWorkerSets on pods, and on the template of the StatefulSet that makes them."""


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """One kind of workload. `api_version` and `name` are those of its objects, `short_name` is kubectl's."""

    api_version: str
    name: str
    short_name: str
    between: tuple[str, ...]  # kinds of the objects between a workload and its pods, to be listed for `pods_of`

    def path_of(self, workload: Body) -> tuple[str, ...]:
        """Where its pod template lies."""
        return ("spec", "template")

    def template_of(self, workload: Body) -> Mapping[str, Any]:
        """The pod template (`metadata`, `spec`), whole."""
        found: Any = workload
        for name in self.path_of(workload):
            found = found[name]
        template: Mapping[str, Any] = found
        return template

    def with_template(self, workload: Body, template: Mapping[str, Any]) -> dict[str, Any]:
        """A copy with this pod template in place of its own."""
        return put(workload, self.path_of(workload), template)

    def running(self, workload: Body, between: Iterable[Body]) -> Body | None:
        """The workload with the pod template that its replicas are made from, where its own is a part of that; None: not made yet."""
        return workload

    @property
    def written_whole(self) -> bool:
        """Is it written by an update of the whole object? Else by server-side apply of our fields."""
        return False

    @property
    def given(self) -> Mapping[str, str]:
        """Variables that its controller gives every container of a replica, as they are in a replica that is alone."""
        return {}

    def with_given(self, container: Body) -> dict[str, Any]:
        """The container of its pod template as it is in a pod: theirs come first, and win."""
        own = [entry for entry in container.get("env") or () if entry["name"] not in self.given]
        variables = [*({"name": name, "value": value} for name, value in self.given.items()), *own]
        return {**container, **({"env": variables} if variables else {})}

    @property
    def takes_labels(self) -> bool:
        """May its pods get a label that they did not have from the start?"""
        return True

    def refusal(self, workload: Body) -> str | None:
        """Why no table can be measured for it as it is, and what to do; None: nothing speaks against it."""
        return None

    def complaint(self, workload: Body) -> str | None:
        """Why its controller does not take up the newest template, in its own words; None: it says nothing against it."""
        return None

    def restart_hazard(self, workload: Body) -> str | None:
        """What a restart of one container would stop besides it, and what to do; None: nothing. A sidecar may restart."""
        return None

    def selector_of(self, workload: Body) -> Mapping[str, Any]:
        """The LabelSelector that its pods match."""
        selector: Mapping[str, Any] = workload["spec"].get("selector") or {}
        return selector

    def replicas_of(self, workload: Body) -> int:
        """How many it is to have."""
        return int(workload["spec"].get("replicas", 1))

    def claims_of(self, workload: Body) -> tuple[Mapping[str, Any], ...]:
        """Templates of PersistentVolumeClaims of which each pod gets its own, as a volume of the claim's name."""
        return tuple(workload["spec"].get("volumeClaimTemplates") or ())

    def is_seen(self, workload: Body, between: Iterable[Body]) -> bool:
        """Has its controller seen the newest template, so that `pods_of` tells which pods have it?"""
        return self.is_counted(workload)

    def is_counted(self, workload: Body) -> bool:
        """Are the counts in its status of what is wanted now?"""
        status = workload.get("status") or {}
        return int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 0))

    @abstractmethod
    def pods_of(self, workload: Body, between: Iterable[Body], pods: Iterable[Body]) -> Iterator[tuple[Body, bool]]:
        """Its pods, each with whether it is of the newest revision. `between` are the objects of that kind, of the namespace."""

    @abstractmethod
    def replacing(self, workload: Body) -> str:
        """How its controller replaces replicas, for a message that a roll-out begins: what stops, and who does it."""

    def held_back(self, workload: Body, old: Iterable[str]) -> str | None:
        """Why these replicas (by name) keep the old template until a person acts, and what to do; None: they are replaced."""
        return None

    def stuck(self, workload: Body, pod: str) -> str | None:
        """What a person must do about a new replica that did not start, once the old template is back; None: nothing."""
        return None

    def again(self, workload: Body) -> str:
        """What makes another try of a roll-out, for a message: a command where there is one."""
        return f"kubectl rollout restart {kubectl_name(workload)}"

    @property
    def surges(self) -> bool:
        """Does a new replica come before an old one stops, by default?"""
        return False


class _Deployment(Kind):
    __slots__ = ()

    def pods_of(self, workload: Body, between: Iterable[Body], pods: Iterable[Body]) -> Iterator[tuple[Body, bool]]:
        revision = _annotations(workload).get(REVISION_ANNOTATION)
        current: dict[str, bool] = {}
        for replica_set in between:
            if _is_owned_by(replica_set, workload["metadata"]["uid"]):
                its_revision = _annotations(replica_set).get(REVISION_ANNOTATION)
                current[replica_set["metadata"]["uid"]] = revision is not None and its_revision == revision
        for pod in pods:
            owner = next((r["uid"] for r in pod["metadata"].get("ownerReferences") or () if r["uid"] in current), None)
            if owner is not None:
                yield pod, current[owner]

    def replacing(self, workload: Body) -> str:
        return "1 restart per replica, by its own update strategy. Nothing to do."

    @property
    def surges(self) -> bool:
        return True


class _StatefulSet(Kind):
    """Replicas have names of their own, so an old one stops before its successor starts: never one more, always one less."""

    __slots__ = ()

    def pods_of(self, workload: Body, between: Iterable[Body], pods: Iterable[Body]) -> Iterator[tuple[Body, bool]]:
        newest = (workload.get("status") or {}).get("updateRevision")
        for pod in pods:
            if _is_owned_by(pod, workload["metadata"]["uid"]):
                revision = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL)
                yield pod, newest is not None and revision == newest

    def replacing(self, workload: Body) -> str:
        if _on_delete(workload):
            return "updateStrategy is OnDelete, so each replica gets it when you delete its pod: kubectl delete pod NAME."
        replicas = self.replicas_of(workload)
        if replicas == 1:
            return "its only replica restarts, and nothing serves until the new one is ready. Nothing to do."
        return f"1 restart per replica, one at a time; {replicas - 1} of {replicas} serve meanwhile. Nothing to do."

    def held_back(self, workload: Body, old: Iterable[str]) -> str | None:
        names = sorted(old, key=_ordinal)
        if names and _on_delete(workload):
            return f"updateStrategy is OnDelete: {_shown(names)} as before until deleted by you: kubectl delete pod {names[-1]}."
        below = _partition(workload)
        kept = [name for name in names if _ordinal(name) < below]
        if kept and len(kept) == len(names):
            return f"updateStrategy.rollingUpdate.partition is {below}: {_shown(kept)} as before until you lower it."
        return None

    def stuck(self, workload: Body, pod: str) -> str | None:
        """With ordered pods, Kubernetes waits for one that will never be ready before it replaces any, the broken one included."""
        if workload["spec"].get("podManagementPolicy", "OrderedReady") == "OrderedReady" or _on_delete(workload):
            return f"kubectl delete pod {short(pod)}"
        return None


class _LeaderWorkerSet(Kind):
    """Groups of pods, of which one pod alone is a replica like any other: the pod of a StatefulSet that has the set's name.

    Source: github.com/kubernetes-sigs/lws, api/leaderworkerset/v1 and pkg/controllers, August 2026. Its controller does not write
    `observedGeneration`, so what it has seen is read from that StatefulSet.
    """

    __slots__ = ()

    def path_of(self, workload: Body) -> tuple[str, ...]:
        """The leader's template where there is one: a group's first pod is its leader."""
        name = "leaderTemplate" if workload["spec"]["leaderWorkerTemplate"].get("leaderTemplate") else "workerTemplate"
        return ("spec", "leaderWorkerTemplate", name)

    @property
    def given(self) -> Mapping[str, str]:
        """Its webhook's, for a group of one pod. Replicas get the address of their own pod, and a profiling pod leads itself too."""
        return {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}

    def refusal(self, workload: Body) -> str | None:
        size = int(workload["spec"]["leaderWorkerTemplate"].get("size", 1))
        if size == 1:
            return None
        return (
            f"has groups of {size} pods (leaderWorkerTemplate.size) that are one engine together, and a profiling Job is one pod. "
            "Nothing was changed. Set one num_speculative_tokens in its --speculative-config, or groups of size 1."
        )

    def restart_hazard(self, workload: Body) -> str | None:
        policy = workload["spec"]["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
        if policy in {"None", "Default"}:
            return None
        return (
            f"has leaderWorkerTemplate.restartPolicy {policy}: with it a restart of the sidecar alone would end the engine. "
            "Nothing was changed. Set it to None, which for groups of size 1 changes nothing else, or spec.rollout.mode to Recommend."
        )

    def selector_of(self, workload: Body) -> Mapping[str, Any]:
        """Its controller gives pods this label; it is in no template."""
        return {"matchLabels": {SET_NAME_LABEL: workload["metadata"]["name"]}}

    def claims_of(self, workload: Body) -> tuple[Mapping[str, Any], ...]:
        return tuple(workload["spec"]["leaderWorkerTemplate"].get("volumeClaimTemplates") or ())

    def is_counted(self, workload: Body) -> bool:
        """Its controller counts without saying of which generation, up to 0.8."""
        status = workload.get("status") or {}
        return super().is_counted(workload) if "observedGeneration" in status or not status else True

    def is_seen(self, workload: Body, between: Iterable[Body]) -> bool:
        leaders = _leaders_of(workload, between)
        if leaders is None:
            return False
        return _is_made_from(leaders["spec"]["template"], self.template_of(workload))

    def pods_of(self, workload: Body, between: Iterable[Body], pods: Iterable[Body]) -> Iterator[tuple[Body, bool]]:
        leaders = _leaders_of(workload, between)
        if leaders is None:
            return
        newest = (leaders["spec"]["template"]["metadata"].get("labels") or {}).get(SET_REVISION_LABEL)
        for pod in pods:
            if _is_owned_by(pod, leaders["metadata"]["uid"]):
                revision = (pod["metadata"].get("labels") or {}).get(SET_REVISION_LABEL)
                yield pod, newest is not None and revision == newest

    def replacing(self, workload: Body) -> str:
        rolling = _rolling_of(workload)
        unavailable, surge = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
        return f"1 restart per replica, by its own rolloutStrategy (maxUnavailable {unavailable}, maxSurge {surge}). Nothing to do."

    def held_back(self, workload: Body, old: Iterable[str]) -> str | None:
        names, below = sorted(old, key=_ordinal), int(_rolling_of(workload).get("partition") or 0)
        if not names or _ordinal(names[-1]) >= below:
            return None
        return f"rolloutStrategy.rollingUpdateConfiguration.partition is {below}: {_shown(names)} as before until you lower it."

    def again(self, workload: Body) -> str:
        return "change an annotation of its pod template"


class _LLMInferenceService(Kind):
    """KServe's: its controller makes a Deployment from it and from the templates of the installation, and puts that back when changed.

    So what runs is read from the Deployment, and the resource itself is written. Source: github.com/kserve/kserve,
    pkg/apis/serving/v1alpha{1,2} and pkg/controller/v1alpha2/llmisvc, v0.19.0.
    """

    __slots__ = ()

    def template_of(self, workload: Body) -> Mapping[str, Any]:
        """A pod's spec, and its labels and annotations beside it, as one template."""
        spec = workload["spec"]
        metadata = {field: spec[field] for field in _BESIDE if field in spec}
        return {**({"metadata": metadata} if metadata else {}), "spec": spec.get("template") or {"containers": []}}

    def with_template(self, workload: Body, template: Mapping[str, Any]) -> dict[str, Any]:
        metadata = template.get("metadata") or {}
        spec = {field: value for field, value in (workload.get("spec") or {}).items() if field not in _BESIDE}
        return {**workload, "spec": {**spec, **{f: metadata[f] for f in _BESIDE if f in metadata}, "template": template["spec"]}}

    def running(self, workload: Body, between: Iterable[Body]) -> Body | None:
        deployment = _main_of(workload, between)
        if deployment is None or (any(_own_parts(DEPLOYMENT.template_of(deployment))) and not any(_own_parts(self.template_of(workload)))):
            return None  # the second: ours was taken away, and is still there for a moment
        made = {**self.with_template(workload, DEPLOYMENT.template_of(deployment)), RUNNING: True}
        made = put(made, ("spec", "replicas"), DEPLOYMENT.replicas_of(deployment))
        return put(made, ("spec", "selector"), DEPLOYMENT.selector_of(deployment))

    @property
    def written_whole(self) -> bool:
        """One of KServe's definitions calls the whole `spec` atomic: an apply of a part would take away all the rest."""
        return True

    @property
    def takes_labels(self) -> bool:
        """KServe puts spec.labels into the selector of its Deployment too, which cannot change: it then refuses every write."""
        return False

    def refusal(self, workload: Body) -> str | None:
        if not workload["spec"].get("worker"):
            return None
        return (
            "has spec.worker: its groups of pods are one engine each, and a profiling Job is one pod. Nothing was changed. "
            "Set one num_speculative_tokens in its --speculative-config, or remove spec.worker."
        )

    def is_seen(self, workload: Body, between: Iterable[Body]) -> bool:
        deployment = _main_of(workload, between)
        if deployment is None or not DEPLOYMENT.is_seen(deployment, ()):
            return False
        return _own_parts(DEPLOYMENT.template_of(deployment)) == _own_parts(self.template_of(workload))

    def complaint(self, workload: Body) -> str | None:
        status = workload.get("status") or {}
        if status.get("observedGeneration") != workload["metadata"].get("generation"):
            return None
        failed = (c for c in status.get("conditions") or () if c.get("status") == "False" and _KSERVE_FAILED.search(c.get("reason") or ""))
        return next((f"KServe: {c.get('message') or c['reason']}" for c in failed), None)

    def pods_of(self, workload: Body, between: Iterable[Body], pods: Iterable[Body]) -> Iterator[tuple[Body, bool]]:
        made = tuple(between)
        deployment = _main_of(workload, made)
        if deployment is not None:
            yield from DEPLOYMENT.pods_of(deployment, (b for b in made if b["kind"] == "ReplicaSet"), pods)

    def replacing(self, workload: Body) -> str:
        return "KServe restarts each replica once, by its spec.rolloutStrategy. Nothing to do."

    def again(self, workload: Body) -> str:
        return "change one of its spec.annotations"

    @property
    def surges(self) -> bool:
        return True


DEPLOYMENT = _Deployment("apps/v1", "Deployment", "deploy", between=("ReplicaSet",))
STATEFUL_SET = _StatefulSet("apps/v1", "StatefulSet", "sts", between=())
LEADER_WORKER_SET = _LeaderWorkerSet("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "lws", between=("StatefulSet",))

LLM_INFERENCE_SERVICE = _LLMInferenceService(
    "serving.kserve.io/v1alpha2", "LLMInferenceService", "llmisvc", between=("Deployment", "ReplicaSet")
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, LLM_INFERENCE_SERVICE)}
"""By name: no two of them share one."""

OWNERS = frozenset({*KINDS, "DisaggregatedSet"})
"""Kinds whose controllers write the workloads that they own, ours included: it is the owner that must be named, or nothing."""


def kind_of(workload: Body) -> Kind:
    """Of an object that was read as a target."""
    return KINDS[workload["kind"]]


def template_of(workload: Body) -> Mapping[str, Any]:
    """The pod template (`metadata`, `spec`), whole."""
    return kind_of(workload).template_of(workload)


def with_template(workload: Body, template: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with this pod template in place of its own."""
    return kind_of(workload).with_template(workload, template)


def put(body: Body, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with this value at the path; what is not there yet is made."""
    name, *rest = path
    return {**body, name: put(body.get(name) or {}, tuple(rest), value) if rest else value}


def owner_of(workload: Body) -> tuple[str, str] | None:
    """Kind and name of the object whose controller writes this workload, where that is of a kind that is known here."""
    for reference in workload["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") in OWNERS:
            return str(reference["kind"]), str(reference["name"])
    return None


def replicas_of(workload: Body) -> int:
    """How many it is to have."""
    return kind_of(workload).replicas_of(workload)


def called(workload: Body) -> str:
    """For messages: `Deployment chat`."""
    return f"{workload['kind']} {short(workload['metadata']['name'])}"


def kubectl_name(workload: Body) -> str:
    """For commands: `deploy/chat`. The name is whole, so that the command can be copied."""
    return f"{kind_of(workload).short_name}/{workload['metadata']['name']}"


def _annotations(body: Body) -> Mapping[str, str]:
    annotations: Mapping[str, str] = body["metadata"].get("annotations") or {}
    return annotations


def _is_owned_by(body: Body, uid: str) -> bool:
    return any(reference["uid"] == uid for reference in body["metadata"].get("ownerReferences") or ())


def _main_of(service: Body, between: Iterable[Body]) -> Body | None:
    """The Deployment that decodes: all of it, or beside one that only prefills."""
    for body in between:
        labels = body["spec"]["template"]["metadata"].get("labels") or {} if body["kind"] == "Deployment" else {}
        if body["kind"] == "Deployment" and _is_owned_by(body, service["metadata"]["uid"]) and labels.get(ROLE_LABEL) != "prefill":
            return body
    return None


def _own_annotations(template: Body) -> dict[str, str]:
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {key: value for key, value in annotations.items() if key.startswith(f"{GROUP}/")}


def _own_parts(template: Body) -> tuple[dict[str, str], set[str]]:
    """Annotations and containers. KServe 0.16 has no annotations in its spec, so there the containers alone tell."""
    containers = {str(container.get("name", "")) for container in template["spec"].get("initContainers") or ()}
    return _own_annotations(template), {name for name in containers if name.startswith(_OWN_CONTAINERS)}


def _leaders_of(leader_worker_set: Body, stateful_sets: Iterable[Body]) -> Body | None:
    """The StatefulSet of the groups' first pods. Those of a group's other pods have other names, and the leader as owner."""
    uid, name = leader_worker_set["metadata"]["uid"], leader_worker_set["metadata"]["name"]
    return next((s for s in stateful_sets if s["metadata"]["name"] == name and _is_owned_by(s, uid)), None)


def _is_made_from(made: Body, template: Body) -> bool:
    """By all that tells two roll-outs apart. Not whole: each was stored by another definition, which fills in other defaults."""
    theirs, ours = (dict((t.get("metadata") or {}).get("annotations") or {}) for t in (made, template))
    return (
        ours.items() <= theirs.items()
        and _own_annotations(made) == _own_annotations(template)
        and _started_by(made) == _started_by(template)
    )


def _started_by(template: Body) -> list[tuple[Any, ...]]:
    pod = template["spec"]
    containers = (*(pod.get("initContainers") or ()), *pod["containers"])
    return [(c["name"], c.get("image"), c.get("command") or [], c.get("args") or []) for c in containers]


def _rolling_of(leader_worker_set: Body) -> Mapping[str, Any]:
    strategy = leader_worker_set["spec"].get("rolloutStrategy") or {}
    rolling: Mapping[str, Any] = strategy.get("rollingUpdateConfiguration") or {}
    return rolling


def _on_delete(stateful_set: Body) -> bool:
    return (stateful_set["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"


def _partition(stateful_set: Body) -> int:
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    return int((strategy.get("rollingUpdate") or {}).get("partition") or 0)


def _ordinal(pod: str) -> int:
    number = pod.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _shown(names: list[str]) -> str:
    if len(names) > 2:
        return f"{', '.join(short(name) for name in names[:2])} and {len(names) - 2} more stay"
    return f"{' and '.join(short(name) for name in names)} {'stays' if len(names) == 1 else 'stay'}"
