"""The world with an API server that asks the operator's admission webhook about each new pod, and evicts.

The webhook's own answer is used; `reachable` and `budget` are what the tests play with.
"""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import httpx
from json_patch import patched
from world import IMAGE, NAMESPACE, Body, World, deployment, draft_table, stateful_set

from tabletune.verdict import VerdictKind
from tabletune_operator.act import act
from tabletune_operator.admission import answer
from tabletune_operator.decide import decide
from tabletune_operator.injection import InjectionTable
from tabletune_operator.observation import ObjectRef, Observation, Webhook
from tabletune_operator.observe import Observer
from tabletune_operator.plan import Inject, Plan, StopInjecting

HASH = "abc"


class AdmissionWorld(World):
    def __init__(self, *objects: Body, serves: bool = True) -> None:
        self.serves = serves  # the operator was started with its webhook
        self.table = InjectionTable()
        self.reachable = True
        self.problem: str | None = None  # of the webhook itself
        self.budget = True  # PodDisruptionBudgets allow an eviction
        self.evicted: list[str] = []
        super().__init__(*objects)

    def restart_operator(self) -> None:
        self.table = InjectionTable()

    def add_pod(self, name: str, template: Body, owner: str, *, ready: bool, labels: Body | None = None) -> Body:
        """As the API server admits it: the webhook sees the pod without status, and what it adds starts with the pod."""
        target = name.rpartition("-")[0]
        if ("StatefulSet", target) in self.objects:
            owned = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": target, "controller": True, "uid": owner}
        else:
            target = next((t for (k, t) in self.objects if k == "Deployment" and name.startswith(f"{t}-")), "decode")
            owned = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{target}-{HASH}", "controller": True, "uid": owner}
        labelled = {**template.get("metadata", {}).get("labels", {}), **(labels or {}), "pod-template-hash": HASH}
        pod = {"metadata": {**template.get("metadata", {}), "labels": labelled, "ownerReferences": [owned]}, "spec": template["spec"]}
        if self.reachable:
            pod = self._admitted(pod)
        made = super().add_pod(name, pod, owner, ready=ready, labels=pod["metadata"]["labels"])
        made["metadata"]["annotations"] = dict(pod["metadata"].get("annotations") or {})
        made["metadata"]["uid"] = f"uid-{name}-{self._serial}"
        return made

    def _admitted(self, pod: Body) -> Body:
        request = {"uid": "r", "operation": "CREATE", "resource": {"resource": "pods"}, "namespace": NAMESPACE, "object": pod}
        given = answer({"request": request}, self.table.by_workload)
        if given.injection is not None and given.refusal is not None:
            self.table.refuse(given.injection.draft_table, given.refusal)
        patch = given.review["response"].get("patch")
        return patched(pod, json.loads(base64.b64decode(patch))) if patch else pod

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        self._call("evict Pod")
        body = self.get("Pod", pod)
        assert body["metadata"]["uid"] == uid
        if not self.budget:
            return False
        self.evicted.append(pod)
        self.replace_pod(pod)
        return True

    def replace_pod(self, name: str, *, ready: bool = True) -> Body:
        """It ends, and its workload's controller makes another one from the template of now."""
        gone = self.objects.pop(("Pod", name))
        owner = gone["metadata"]["ownerReferences"][0]["uid"]
        stateful = self.objects.get(("StatefulSet", name.rpartition("-")[0]))
        if stateful is not None:
            labels = {"controller-revision-hash": gone["metadata"]["labels"]["controller-revision-hash"]}
            return self.add_pod(name, stateful["spec"]["template"], owner, ready=ready, labels=labels)
        target = next(t for (k, t) in self.objects if k == "Deployment" and name.startswith(f"{t}-"))
        return self.add_pod(f"{name}x", self.get("Deployment", target)["spec"]["template"], owner, ready=ready)

    async def observe(self, name: str = "chat") -> Observation | None:
        def state(ref: ObjectRef) -> Webhook | None:
            return Webhook(self.problem, self.table.refusal(ref)) if self.serves else None

        async with httpx.AsyncClient(transport=httpx.MockTransport(self.answer), trust_env=False) as http:
            observer = Observer(self, http, IMAGE, lambda: self.now, webhook=state)  # type: ignore[arg-type]
            return await observer.observe(ObjectRef(NAMESPACE, name))

    async def turn(self, name: str = "chat", seconds: float = 1.0) -> Plan | None:
        seen = await self.observe(name)
        if seen is None:
            return None
        plan = decide(seen)
        match plan.webhook:
            case Inject(injection):
                self.table.put(injection)
            case StopInjecting():
                self.table.remove(seen.draft.ref)
        await act(plan, seen.draft, seen.now, self)  # type: ignore[arg-type]
        if plan.finished:
            del self.objects["DraftTable", name]
        self.now += timedelta(seconds=seconds)
        return plan

    async def later(self, **time: float) -> Plan | None:
        self.now += timedelta(**time)
        return await self.turn()

    def settings(self) -> list[bool]:
        """Which of the target's pods run with a sidecar, by name."""
        return ["initContainers" in pod["spec"] for pod in sorted(self.pods(), key=lambda pod: str(pod["metadata"]["name"]))]


async def measured(
    *, serves: bool = True, replicas: int = 2, kind: VerdictKind = VerdictKind.TABLE, stateful: bool = False, **rollout: Any
) -> AdmissionWorld:
    """A target that serves, measured, in mode Admission, with the first decision about it."""
    table = draft_table(kind="StatefulSet" if stateful else "Deployment", rollout={"mode": "Admission", **rollout})
    target = stateful_set(replicas=replicas) if stateful else deployment(replicas=replicas)
    made = AdmissionWorld(target, table, serves=serves)
    if stateful:
        made.roll_stateful_set()
    else:
        made.roll()
    await made.turns(2)
    made.finish_profile(kind=kind)
    await made.turns(2)
    return made
