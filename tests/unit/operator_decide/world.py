"""A small world for the operator: objects as the API server gives them, a Deployment's and a Job's controller, and replicas.

The operator's own observe, decide and act run on it unchanged. `fail_after` stops it in the middle, as a kill would.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from world_files import files, sidecar_state

from tabletune.formats import FLEET
from tabletune.profile import Fingerprint
from tabletune.verdict import VerdictKind
from tabletune_operator.act import act
from tabletune_operator.cluster import ClusterError
from tabletune_operator.decide import decide
from tabletune_operator.kinds import KINDS, LEADER_WORKER_SET, template_of
from tabletune_operator.loan import FIELD_MANAGER
from tabletune_operator.observation import ObjectRef, Observation
from tabletune_operator.observe import Observer
from tabletune_operator.overlaying import lay_over
from tabletune_operator.plan import Plan
from tabletune_operator.pods import OwnImage, config_map_name, job_name
from tabletune_operator.restore import template_digest
from tabletune_operator.times import to_time

NOW = datetime(2026, 11, 30, 14, 30, tzinfo=UTC)
NAMESPACE = "llm"
IMAGE = OwnImage("tabletune.test/tabletune:1", "IfNotPresent")
PRODUCT = "NVIDIA-H200"
ENGINE = "modelserver"
LABELS = {"llm-d.ai/role": "decode", "llm-d.ai/guide": "demo"}

Body = dict[str, Any]


class StoppedError(Exception):
    """The operator was killed here."""


def draft_table(name: str = "chat", *, target: str = "decode", kind: str = "Deployment", created: datetime = NOW, **spec: Any) -> Body:
    return {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": to_time(created),
            "finalizers": ["tabletune.io/finalizer"],
        },
        "spec": {"targetRef": {"apiVersion": KINDS[kind].api_version, "kind": kind, "name": target}, **spec},
    }


def deployment(name: str = "decode", *, replicas: int = 2, args: list[str] | None = None, **container: Any) -> Body:
    speculative = '{"method":"eagle3","model":"draft","num_speculative_tokens":3}'
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "containers": [
                        {
                            "name": ENGINE,
                            "image": "vllm/vllm-openai:v0.33.0",
                            "command": ["vllm", "serve"],
                            "args": ["model", "--max-num-seqs=128", "--speculative-config", speculative] if args is None else args,
                            "resources": {"limits": {"nvidia.com/gpu": 1}},
                            "startupProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, "failureThreshold": 60},
                            **container,
                        }
                    ]
                },
            },
        },
    }


def stateful_set(name: str = "decode", *, replicas: int = 2, **spec: Any) -> Body:
    """The same, with names of its own for replicas."""
    made = deployment(name, replicas=replicas)
    return {**made, "kind": "StatefulSet", "spec": {**made["spec"], "serviceName": name, **spec}}


def leader_worker_set(name: str = "decode", *, replicas: int = 2, **groups: Any) -> Body:
    """The same, as groups of one pod."""
    made = deployment(name, replicas=replicas)
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"workerTemplate": made["spec"]["template"], "restartPolicy": "None", **groups}}
    return {**made, "apiVersion": LEADER_WORKER_SET.api_version, "kind": "LeaderWorkerSet", "spec": spec}


def kserve_template() -> Body:
    """What an installation of KServe brings: a script that ends in vLLM, with a variable and arguments for the user's own flags."""
    (engine,) = deployment(args=[])["spec"]["template"]["spec"]["containers"]
    script = 'ARGS="--shutdown-timeout 45"\neval "exec vllm serve /mnt/models --port 8000 ${ARGS} ${VLLM_ADDITIONAL_ARGS} $@"\n'
    proxy = {"name": "llm-d-routing-sidecar", "image": "proxy", "restartPolicy": "Always", "command": ["/app/pd-sidecar", "--port=8080"]}
    fields = {"name": "main", "command": ["/bin/bash", "-c", script, "--"], "env": [{"name": "HOME", "value": "/home"}]}
    kept = {key: value for key, value in engine.items() if key != "args"}
    return {"initContainers": [proxy], "containers": [{**kept, **fields}], "volumes": [{"name": "home", "emptyDir": {}}]}


SELECTOR_REFUSED = {
    "type": "MainWorkloadReady",
    "status": "False",
    "reason": "ReconcileSingleNodeWorkloadError",
    "message": 'failed to reconcile main workload: Deployment.apps "decode-kserve" is invalid: spec.selector: field is immutable',
}

SPECULATION = '--max-num-seqs=128 --speculative-config \'{"method":"eagle3","model":"draft","num_speculative_tokens":3}\''


def llm_inference_service(name: str = "decode", *, version: str = "v1alpha2", **spec: Any) -> Body:
    """KServe's resource for the same engine, whose flags stand in a variable."""
    main = {"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": SPECULATION}]}
    return {
        "apiVersion": f"serving.kserve.io/{version}",
        "kind": "LLMInferenceService",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {"model": {"uri": "hf://m"}, "replicas": 2, "template": {"containers": [main]}, **spec},
    }


def node(name: str = "node1", *, product: str = PRODUCT, gpus: int = 8) -> Body:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, "kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}},
    }


class World:
    """Objects by kind and name in one namespace, and who acts on them besides the operator."""

    def __init__(self, *objects: Body, nodes: tuple[Body, ...] | None = None) -> None:
        self.now = NOW
        self.image = IMAGE
        self.objects: dict[tuple[str, str], Body] = {}
        self.nodes = list(nodes if nodes is not None else (node(),))
        self.versions: dict[str, str] = {}
        self.states: dict[str, Body | None] = {}  # what sidecars answer, by pod; None: silent
        self.pages: dict[str, str] = {}  # what engines answer on /metrics, by pod
        self.calls = 0
        self.fail_after: int | None = None
        self.events: list[Body] = []
        self.status_writes = 0
        self.writes: list[str] = []
        self._serial = 0
        self._applied: dict[tuple[tuple[str, str], str], Body] = {}  # by object and field manager
        for body in objects:
            self.put(body)

    # What the operator calls (cluster.Cluster).

    async def read(self, kind: str, namespace: str, name: str, group_version: str = "") -> Body | None:
        assert namespace == NAMESPACE
        return copy.deepcopy(self.objects.get((kind, name)))

    async def list(self, kind: str, namespace: str, selector: str = "") -> tuple[Body, ...]:
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        found = (o for o in await self.list_all(kind, ()) if o["metadata"]["namespace"] == namespace)
        return tuple(copy.deepcopy(o) for o in found if wanted.items() <= (o["metadata"].get("labels") or {}).items())

    async def list_all(self, kind: str, namespaces: tuple[str, ...], selector: str = "") -> tuple[Body, ...]:
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        found = (o for (k, _), o in sorted(self.objects.items()) if k == kind)
        return tuple(copy.deepcopy(o) for o in found if wanted.items() <= (o["metadata"].get("labels") or {}).items())

    async def list_inference_pools(self, namespace: str) -> tuple[Body, ...]:
        return await self.list("InferencePool", namespace)

    async def list_scaled_objects(self, namespace: str) -> tuple[Body, ...]:
        return await self.list("ScaledObject", namespace)

    async def list_nodes(self) -> tuple[Body, ...]:
        return tuple(self.nodes)

    async def list_scheduled_pods(self) -> tuple[Body, ...]:
        return await self.list("Pod", NAMESPACE)

    async def create(self, body: Mapping[str, Any]) -> None:
        self._call(f"create {body['kind']}")
        if body["kind"] == "Event":
            self.events.append(dict(body))
        elif (body["kind"], body["metadata"]["name"]) not in self.objects:
            self.put(copy.deepcopy(dict(body)))
            if body["kind"] == "Job":
                self.add_job_pod(body["metadata"]["name"].removesuffix("-profile"))

    async def apply(self, body: Mapping[str, Any], subresource: str = "", manager: str = FIELD_MANAGER) -> None:
        self._call(f"apply {body['kind']}{subresource}")
        # What a manager stops applying is deleted, so one that writes a single key must not be the one that wrote the others.
        assert list(body.get("data") or ()) != [FLEET] or manager != FIELD_MANAGER
        key = (body["kind"], body["metadata"]["name"])
        live = self.objects.get(key)
        uid = body["metadata"].get("uid")
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise ClusterError(409, "uid mismatch")
        if subresource:
            assert live is not None
            live["status"] = copy.deepcopy(dict(body["status"]))
            self.status_writes += 1
            return
        merged = _merged(live or {"metadata": {"uid": f"uid-{key[1]}", "creationTimestamp": to_time(self.now)}}, body)
        _prune(merged, self._applied.get((key, manager), {}), body)
        self._applied[key, manager] = copy.deepcopy(dict(body))
        self.put(merged)
        if body["kind"] == "Job" and body["spec"].get("activeDeadlineSeconds") is not None:
            self.end_job(body["metadata"]["name"].removesuffix("-profile"), failed=True)
        if body["kind"] in KINDS:
            assert "replicas" not in body.get("spec", {}), "replicas belongs to whoever scales"
            merged["metadata"]["generation"] += 1
            self._controllers[key[0]](key[1])

    async def replace(self, body: Mapping[str, Any]) -> None:
        self._call(f"replace {body['kind']}")
        live = self.objects[body["kind"], body["metadata"]["name"]]
        if live["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ClusterError(409, "the object has been modified")
        assert live["spec"].get("replicas") == body["spec"].get("replicas")
        self.put(copy.deepcopy(dict(body)))
        self.objects[body["kind"], body["metadata"]["name"]]["metadata"]["generation"] += 1
        self._controllers[body["kind"]](body["metadata"]["name"])

    async def delete(self, kind: str, namespace: str, name: str, propagation: str = "Background") -> None:
        self._call(f"delete {kind}")
        if kind == "Job":
            assert propagation == "Foreground"
            for key in [k for k, o in self.objects.items() if k[0] == "Pod" and _owner(o) == f"uid-{name}"]:
                del self.objects[key]
        self.objects.pop((kind, name), None)

    def _call(self, what: str) -> None:
        self.calls += 1
        if self.fail_after is not None and self.calls > self.fail_after:
            raise StoppedError(what)
        if "Event" not in what and "/status" not in what:
            self.writes.append(what)

    # What others do.

    def put(self, body: Body) -> Body:
        self._serial += 1
        body["metadata"].setdefault("namespace", NAMESPACE)
        body["metadata"].setdefault("uid", f"uid-{body['metadata']['name']}")
        body["metadata"].setdefault("creationTimestamp", to_time(self.now))
        body["metadata"]["resourceVersion"] = str(self._serial)
        self.objects[body["kind"], body["metadata"]["name"]] = body
        return body

    def get(self, kind: str, name: str) -> Body:
        return self.objects[kind, name]

    def pods(self, target: str = "decode", *, current: bool | None = None) -> list[Body]:
        found = [o for (k, _), o in self.objects.items() if k == "Pod" and f"{_owner(o)}-".startswith(f"uid-{target}-")]
        return found if current is None else [o for o in found if o["current"] == current]

    @property
    def _controllers(self) -> Mapping[str, Callable[[str], None]]:
        return {
            "Deployment": self.roll,
            "StatefulSet": self.roll_stateful_set,
            "LeaderWorkerSet": self.roll_leader_worker_set,
            "LLMInferenceService": self.roll_llm_inference_service,
        }

    def roll(self, name: str = "decode", *, ready: bool = True) -> None:
        """The Deployment's controller: a ReplicaSet for the template, its pods beside or (when ready) instead of the old ones."""
        target = self.get("Deployment", name)
        annotations = target["metadata"].setdefault("annotations", {})
        revision = str(int(annotations.get("deployment.kubernetes.io/revision", "0")) + 1)
        annotations["deployment.kubernetes.io/revision"] = revision
        generation, wanted = target["metadata"]["generation"], target["spec"]["replicas"]
        target["status"] = {"observedGeneration": generation, "replicas": wanted, "updatedReplicas": wanted}
        replica_set = {
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{name}-{revision}",
                "annotations": {"deployment.kubernetes.io/revision": revision},
                "ownerReferences": [{"uid": target["metadata"]["uid"]}],
            },
        }
        self.put(replica_set)
        for pod in self.pods(name):
            pod["current"] = False
        for at in range(target["spec"]["replicas"]):
            self.add_pod(f"{name}-{revision}-{at}", target["spec"]["template"], f"uid-{name}-{revision}", ready=ready)
        if ready:
            self.remove_old_pods(name)
        target["status"]["replicas"] = len(self.pods(name))

    def roll_stateful_set(self, name: str = "decode", *, ready: bool = True) -> None:
        """The StatefulSet's controller. Replicas keep their names; those below the partition, and with OnDelete all, their template."""
        target = self.get("StatefulSet", name)
        strategy = target["spec"].get("updateStrategy") or {}
        revision = f"{name}-{template_digest(target['spec']['template'])[:10]}"
        generation, wanted = target["metadata"]["generation"], target["spec"]["replicas"]
        target["status"] = {"observedGeneration": generation, "updateRevision": revision, "replicas": wanted}
        kept = strategy.get("rollingUpdate", {}).get("partition", 0) if strategy.get("type") != "OnDelete" else target["spec"]["replicas"]
        for at in range(target["spec"]["replicas"]):
            there = self.objects.get(("Pod", f"{name}-{at}"))
            if there is None or (at >= kept and there["metadata"]["labels"]["controller-revision-hash"] != revision):
                labels = {**LABELS, "controller-revision-hash": revision}
                self.add_pod(f"{name}-{at}", target["spec"]["template"], target["metadata"]["uid"], ready=ready, labels=labels)

    def roll_leader_worker_set(self, name: str = "decode", *, ready: bool = True) -> None:
        """The LeaderWorkerSet's controller, for groups of one: a StatefulSet of its name makes the pods. No observedGeneration."""
        template = copy.deepcopy(dict(template_of(self.get("LeaderWorkerSet", name))))
        hashed, revision = "leaderworkerset.sigs.k8s.io/template-revision-hash", template_digest(template)[:10]
        template.setdefault("metadata", {}).setdefault("labels", {})[hashed] = revision
        uid, owner = f"uid-{name}-leaders", self.get("LeaderWorkerSet", name)["metadata"]["uid"]
        metadata = {"name": name, "uid": uid, "ownerReferences": [{"uid": owner, "kind": "LeaderWorkerSet", "name": name}]}
        self.put({"kind": "StatefulSet", "metadata": metadata, "spec": {"template": template}})
        for at in range(self.get("LeaderWorkerSet", name)["spec"]["replicas"]):
            self.add_pod(f"{name}-{at}", template, uid, ready=ready, labels={**LABELS, hashed: revision})

    def roll_llm_inference_service(self, name: str = "decode", *, ready: bool = True) -> None:
        """KServe: a Deployment from the installation's template and the resource laid over it, with the pods' labels as its selector.

        So a label that comes later is refused for good: a selector cannot change.
        """
        service = self.get("LLMInferenceService", name)
        spec = service["spec"]
        metadata = {"labels": {**LABELS, **spec.get("labels", {})}, "annotations": dict(spec.get("annotations", {}))}
        template = {"metadata": metadata, "spec": lay_over(kserve_template(), spec.get("template") or {})}
        made = deployment(f"{name}-kserve", replicas=spec.get("replicas", 1))
        known = self.objects.get(("Deployment", f"{name}-kserve"), {**made, "spec": {"selector": {"matchLabels": metadata["labels"]}}})
        if known["spec"]["selector"]["matchLabels"] != metadata["labels"]:
            service["status"] = {"conditions": [SELECTOR_REFUSED], "observedGeneration": service["metadata"].get("generation")}
            return
        made["spec"]["selector"] = known["spec"]["selector"]
        owner = {"kind": "LLMInferenceService", "name": name, "uid": service["metadata"]["uid"], "controller": True}
        made["metadata"] = {**known["metadata"], "ownerReferences": [owner], "generation": known["metadata"]["generation"] + 1}
        self.put({**made, "spec": {**made["spec"], "template": copy.deepcopy(template)}})
        self.roll(f"{name}-kserve", ready=ready)

    def remove_old_pods(self, target: str = "decode") -> None:
        for pod in self.pods(target, current=False):
            del self.objects["Pod", pod["metadata"]["name"]]
        self.get("Deployment", target)["status"]["replicas"] = len(self.pods(target))

    def add_pod(self, name: str, template: Body, owner: str, *, ready: bool, labels: Body | None = None) -> Body:
        self._serial += 1
        names = [c["name"] for c in template["spec"]["containers"]]
        inits = copy.deepcopy(template["spec"].get("initContainers") or [])
        pod = {
            "kind": "Pod",
            "current": True,
            "metadata": {"name": name, "labels": dict(LABELS if labels is None else labels), "ownerReferences": [{"uid": owner}]},
            "spec": {**copy.deepcopy(template["spec"]), "nodeName": self.nodes[0]["metadata"]["name"] if self.nodes else "gone"},
            "status": {
                "phase": "Running",
                "startTime": to_time(self.now),
                "podIP": f"10.0.0.{self._serial}",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}, {"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [{"name": n, "imageID": "vllm/vllm-openai@sha256:aa11", "restartCount": 0} for n in names],
                "initContainerStatuses": [{"name": c["name"], "imageID": "sha256:bb22", "restartCount": 0} for c in inits],
            },
        }
        self.versions[pod["status"]["podIP"]] = "0.33.0"
        if any(c["name"] == "tabletune-sidecar" for c in inits):
            self.states[pod["status"]["podIP"]] = sidecar_state()
        return self.put(pod)

    def add_job_pod(self, name: str = "chat") -> Body:
        job = self.get("Job", job_name(name))
        template = job["spec"]["template"]
        pod = self.add_pod(f"{job_name(name)}-x", template, job["metadata"]["uid"], ready=False, labels=template["metadata"]["labels"])
        pod["status"]["containerStatuses"] = [{"name": "tuner", "restartCount": 0}]
        return pod

    def progress(self, name: str = "chat", **fields: Any) -> None:
        """The tuner writes its annotation."""
        written = {
            "formatVersion": 1, "stage": "Sweeping", "cellsDone": 27, "cellsTotal": 72, "percent": 37, "message": "now B=32 k=3",
            "finishAt": to_time(self.now + timedelta(minutes=6)), "updatedAt": to_time(self.now), "gpuSeconds": 300,
            "outcome": None, "reason": None,
            **fields,
        }  # fmt: skip
        self.get("Job", job_name(name))["metadata"]["annotations"]["tabletune.io/progress"] = json.dumps(written)

    def end_job(self, name: str = "chat", *, failed: bool = False) -> None:
        kind, reason = ("Failed", "BackoffLimitExceeded") if failed else ("Complete", "Completed")
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": to_time(self.now)}
        self.get("Job", job_name(name))["status"] = {"conditions": [condition]}
        for pod in [o for o in self.objects.values() if o["kind"] == "Pod" and _owner(o) == f"uid-{job_name(name)}"]:
            pod["status"]["phase"] = "Failed" if failed else "Succeeded"

    def finish_profile(self, name: str = "chat", kind: VerdictKind = VerdictKind.TABLE) -> None:
        """The tuner writes its files, says so, and ends."""
        job = self.get("Job", job_name(name))
        args = job["spec"]["template"]["spec"]["containers"][0]["args"]
        fingerprint = Fingerprint.of(json.loads(args[args.index("--fingerprint-json") + 1]))
        self.store(name, files(fingerprint, kind), fingerprint)
        self.progress(name, percent=100, cellsDone=72, outcome="Succeeded")
        self.end_job(name)

    def store(self, name: str, data: dict[str, str], fingerprint: Fingerprint) -> None:
        labels = {"app.kubernetes.io/managed-by": "tabletune", "tabletune.io/drafttable": name}
        annotations = {"tabletune.io/fingerprint": fingerprint.digest}
        self.put(
            {"kind": "ConfigMap", "metadata": {"name": config_map_name(name), "labels": labels, "annotations": annotations}, "data": data}
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/version":
            version = self.versions.get(request.url.host)
            return httpx.Response(200, json={"version": version}) if version else httpx.Response(404)
        if request.url.path == "/metrics":
            page = self.pages.get(request.url.host)
            return httpx.Response(200, text=page) if page is not None else httpx.Response(404)
        state = self.states.get(request.url.host)
        if state is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=state)

    # The operator.

    async def observe(self, name: str = "chat") -> Observation | None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.answer), trust_env=False) as http:
            return await Observer(self, http, self.image, lambda: self.now).observe(ObjectRef(NAMESPACE, name))  # type: ignore[arg-type]

    async def turn(self, name: str = "chat", seconds: float = 1.0) -> Plan | None:
        """One reconcile, then time goes on. A deleted object that may go is gone, and what it owned with it."""
        seen = await self.observe(name)
        if seen is None:
            return None
        plan = decide(seen)
        await act(plan, seen.draft, seen.now, self)  # type: ignore[arg-type]
        if plan.finished:
            del self.objects["DraftTable", name]
            for key in [k for k, o in self.objects.items() if _owner(o) == f"uid-{name}"]:
                del self.objects[key]
        self.now += timedelta(seconds=seconds)
        return plan

    async def turns(self, count: int, name: str = "chat") -> Plan | None:
        plan = None
        for _ in range(count):
            plan = await self.turn(name)
        return plan

    async def until_rolling_out(self, kind: VerdictKind = VerdictKind.TABLE) -> None:
        """From a new DraftTable to a roll-out that is on the target."""
        await self.turns(2)
        self.finish_profile(kind=kind)
        await self.turns(2)

    def state(self, name: str = "chat") -> str:
        return str(self.get("DraftTable", name)["status"]["display"]["state"])

    def condition(self, kind: str, name: str = "chat") -> tuple[str, str]:
        (found,) = (c for c in self.get("DraftTable", name)["status"]["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind: str, name: str = "chat") -> str:
        (found,) = (c for c in self.get("DraftTable", name)["status"]["conditions"] if c["type"] == kind)
        return str(found["message"])


def _owner(body: Mapping[str, Any]) -> str | None:
    references = body["metadata"].get("ownerReferences") or ()
    return references[0]["uid"] if references else None


def _merged(live: Any, applied: Any) -> Any:
    """Server-side apply, as far as these objects need it: maps by key, lists of named things by name, other lists whole."""
    if isinstance(applied, Mapping):
        merged = dict(live) if isinstance(live, Mapping) else {}
        return {**merged, **{key: _merged(merged.get(key), value) for key, value in applied.items()}}
    if isinstance(applied, list) and applied and isinstance(applied[0], Mapping) and "name" in applied[0]:
        by_name = {item["name"]: item for item in live or []}
        for item in applied:
            by_name[item["name"]] = _merged(by_name.get(item["name"]), item)
        return list(by_name.values())
    return copy.deepcopy(applied)


def _prune(live: Any, before: Any, applied: Any) -> None:
    """What a manager applied before and does not now is deleted: here only out of maps of texts, such as annotations and data."""
    for key, value in before.items():
        if isinstance(value, Mapping):
            _prune(live.get(key) or {}, value, applied.get(key) or {})
        elif isinstance(value, str) and key not in applied:
            live.pop(key, None)


def serving(*more: Any, target: Body | None = None, **spec: Any) -> World:
    """A target that serves, and a DraftTable for it."""
    target = deployment() if target is None else target
    made = World(target, draft_table(kind=target["kind"], **spec), *more)
    made._controllers[target["kind"]](target["metadata"]["name"])
    return made


async def rolled_out(kind: VerdictKind = VerdictKind.TABLE, **spec: Any) -> World:
    made = serving(**spec)
    await made.until_rolling_out(kind)
    await made.turns(2)
    return made
