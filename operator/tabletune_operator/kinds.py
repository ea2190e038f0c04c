"""The kinds of workload that can be a target, and all that differs between them. Pure; everybody who reads or writes a target asks here.

For each: where its pod template lies, which pods are its own and which of them have the newest template, how many replicas it is to
have, what people and `kubectl` call it, and how its controller replaces replicas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tabletune_operator.conditions import short

Body = Mapping[str, Any]

REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
"""Written by the controller of Deployments on them and on their ReplicaSets."""
REVISION_LABEL = "controller-revision-hash"
"""Written by the controller of StatefulSets on pods: the name of the revision that they were made from."""


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """One kind of workload. `api_version` and `name` are those of its objects, `short_name` is kubectl's."""

    api_version: str
    name: str
    short_name: str
    between: str | None  # kind of the objects between a workload and its pods, to be listed for `pods_of`

    def template_of(self, workload: Body) -> Mapping[str, Any]:
        """The pod template (`metadata`, `spec`), whole."""
        template: Mapping[str, Any] = workload["spec"]["template"]
        return template

    def with_template(self, workload: Body, template: Mapping[str, Any]) -> dict[str, Any]:
        """A copy with this pod template in place of its own; of an object without a spec, one that holds nothing else there."""
        return {**workload, "spec": {**workload.get("spec", {}), "template": template}}

    def selector_of(self, workload: Body) -> Mapping[str, Any]:
        """The LabelSelector that its pods match."""
        selector: Mapping[str, Any] = workload["spec"]["selector"]
        return selector

    def replicas_of(self, workload: Body) -> int:
        """How many it is to have."""
        return int(workload["spec"].get("replicas", 1))

    def claims_of(self, workload: Body) -> tuple[Mapping[str, Any], ...]:
        """Templates of PersistentVolumeClaims of which each pod gets its own, as a volume of the claim's name."""
        return tuple(workload["spec"].get("volumeClaimTemplates") or ())

    def is_seen(self, workload: Body) -> bool:
        """Has its controller seen the newest template, so that `pods_of` tells which pods have it?"""
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


DEPLOYMENT = _Deployment("apps/v1", "Deployment", "deploy", between="ReplicaSet")
STATEFUL_SET = _StatefulSet("apps/v1", "StatefulSet", "sts", between=None)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (DEPLOYMENT, STATEFUL_SET)}
"""By name: no two of them share one."""


def kind_of(workload: Body) -> Kind:
    """Of an object that was read as a target."""
    return KINDS[workload["kind"]]


def template_of(workload: Body) -> Mapping[str, Any]:
    """The pod template (`metadata`, `spec`), whole."""
    return kind_of(workload).template_of(workload)


def with_template(workload: Body, template: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with this pod template in place of its own."""
    return kind_of(workload).with_template(workload, template)


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
