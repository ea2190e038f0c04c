"""The small world with a scheduler that counts GPUs, and a Deployment's controller that scales up and down."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from world import Body, World, deployment, draft_table, node

from tabletune_operator.cluster import ClusterError
from tabletune_operator.nodes import gpu_request
from tabletune_operator.plan import Plan
from tabletune_operator.pods import job_name
from tabletune_operator.times import to_time

GPU = "nvidia.com/gpu"
REPLICAS = 3
BORROWED = "tabletune.io/borrowed"
FULL = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/1 nodes are available: 1 Insufficient {GPU}."}


class GpuWorld(World):
    """Nodes have as many GPUs as they say; a pod that finds none waits, and gets one as soon as it is free."""

    async def replace(self, body: Mapping[str, Any]) -> None:
        live = self.objects[body["kind"], body["metadata"]["name"]]
        if json.dumps(live["spec"]["template"]) != json.dumps(body["spec"]["template"]):
            await super().replace(body)
            return
        self._call("scale Deployment")
        if live["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ClusterError(409, "the object has been modified")
        before, after = ({**o["spec"], "replicas": None} for o in (live, body))
        assert before == after, "only replicas and annotations are written"
        annotation = body["metadata"].get("annotations", {}).get(BORROWED)
        if body["spec"]["replicas"] < live["spec"]["replicas"]:
            assert annotation is not None, "never less without the record of it"
        self.put(copy.deepcopy(dict(body)))
        self.settle()

    def add_job_pod(self, name: str = "chat") -> Body:
        pod = super().add_job_pod(name)
        self._wait(pod)
        self.settle()
        return pod

    async def turn(self, name: str = "chat", seconds: float = 1.0) -> Plan | None:
        try:
            return await super().turn(name, seconds)
        finally:
            self.settle()

    def scale(self, replicas: int, name: str = "decode") -> None:
        """As somebody else does."""
        target = self.get("Deployment", name)
        target["spec"]["replicas"] = replicas
        self.put(target)
        self.settle()

    def take_gpu_of_job(self, name: str = "chat") -> None:
        """Another pod, of another namespace, has it first."""
        self._wait(job_pod(self, name))
        self.nodes[0]["status"]["allocatable"][GPU] = "0"

    def settle(self) -> None:
        for kind, name in list(self.objects):
            if kind == "Deployment":
                self._scale_pods(self.objects[kind, name])
        for pod in [o for (kind, _), o in self.objects.items() if kind == "Pod" and o["spec"].get("nodeName") is None]:
            place = next((n for n in self.nodes if self._free(n) >= gpu_request(pod["spec"], GPU)), None)
            if place is not None:
                pod["spec"]["nodeName"] = place["metadata"]["name"]
                pod["status"]["startTime"] = to_time(self.now)
                is_replica = pod["metadata"]["name"].startswith("decode")
                ready = {"type": "Ready", "status": "True" if is_replica else "False"}
                pod["status"]["conditions"] = [ready, {"type": "PodScheduled", "status": "True"}]

    def _scale_pods(self, target: Body) -> None:
        name, wanted = target["metadata"]["name"], target["spec"]["replicas"]
        pods = self.pods(name, current=True)
        if not pods and wanted:
            return  # nothing has rolled yet
        for pod in pods[wanted:]:
            del self.objects["Pod", pod["metadata"]["name"]]
        for _ in range(wanted - len(pods)):
            owner = pods[0]["metadata"]["ownerReferences"][0]["uid"]
            pod = self.add_pod(f"{name}-more-{self._serial}", target["spec"]["template"], owner, ready=False)
            self._wait(pod)
        target.setdefault("status", {}).update({"replicas": wanted, "updatedReplicas": wanted})

    def _wait(self, pod: Body) -> None:
        pod["spec"]["nodeName"] = None
        pod["status"].pop("startTime", None)
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, FULL]

    def _free(self, place: Body) -> int:
        held = [o for (kind, _), o in self.objects.items() if kind == "Pod" and o["spec"].get("nodeName") == place["metadata"]["name"]]
        running = [pod for pod in held if pod["status"]["phase"] == "Running"]
        return int(place["status"]["allocatable"][GPU]) - sum(gpu_request(pod["spec"], GPU) for pod in running)


def full(replicas: int = REPLICAS, **profile: Any) -> GpuWorld:
    """Every GPU of the pool serves; the DraftTable may borrow one."""
    spec = {"placement": "BorrowReplica", **profile}
    target = deployment(replicas=replicas)
    # As it must be where no GPU is spare: an old replica makes room for the new one.
    target["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    made = GpuWorld(target, draft_table(profile=spec), nodes=(node(gpus=replicas),))
    made.roll()
    return made


def is_lent(made: World) -> bool:
    return BORROWED in made.get("Deployment", "decode")["metadata"].get("annotations", {})


def replicas(made: World) -> int:
    return int(made.get("Deployment", "decode")["spec"]["replicas"])


def job_pod(made: World, name: str = "chat") -> Body:
    (pod,) = (o for (kind, n), o in made.objects.items() if kind == "Pod" and n.startswith(job_name(name)))
    return pod
