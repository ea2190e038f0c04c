"""A namespace of its own for one test: what is put there, what the operator says of it, and a report when the test fails."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from kube_api import Api, ApiError, Body
from live_cluster import Cluster
from release import Release

POLL_SECONDS = 0.25
STEP_SECONDS = 90
"""For one step of the operator, on a machine that does much else."""
WORK_SECONDS = 300
"""For a profiling Job or a roll-out."""

OWN_DOMAIN = "tabletune.io/"

T = TypeVar("T")


class Place:
    """Used by one thread."""

    def __init__(self, api: Api, cluster: Cluster, namespace: str, operator: Release) -> None:
        self.api = api
        self.cluster = cluster
        self.namespace = namespace
        self.operator = operator
        self._as_created: dict[str, Body] = {}
        self._seen: list[str] = []  # every other reason of every condition, in the order in which it was seen
        self._started = time.monotonic()

    # What the user does

    def create(self, body: Mapping[str, Any]) -> Body:
        created = self.api.create({**body, "metadata": {**body["metadata"], "namespace": self.namespace}})
        if created["kind"] == "Deployment":
            self._as_created[created["metadata"]["name"]] = created["spec"]["template"]
        return created

    def edit(self, kind: str, name: str, change: Mapping[str, Any]) -> Body:
        """A merge patch."""
        return self.api.patch(kind, self.namespace, name, change)

    def edit_engine(self, workload: str = "decode", **fields: Any) -> Body:
        """Change fields of the engine's container (or of the one with the given name), as `kubectl edit` does."""
        change = {"spec": {"template": {"spec": {"containers": [{"name": "modelserver", **fields}]}}}}
        return self.api.patch("Deployment", self.namespace, workload, change, strategic=True)

    def scale(self, name: str, replicas: int) -> None:
        self.edit("Deployment", name, {"spec": {"replicas": replicas}})

    def delete(self, kind: str, name: str) -> None:
        self.api.delete(kind, self.namespace, name)

    def complete(self, prompt: str, service: str = "decode", max_tokens: int = 32, temperature: float = 0) -> int:
        """One request through the Service; the number of tokens that came back."""
        asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
        return int(self.api.post_to_service(self.namespace, f"{service}:http", "v1/completions", asked)["usage"]["completion_tokens"])

    # What is so

    def get(self, kind: str, name: str) -> Body:
        found = self.api.get(kind, self.namespace, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def list(self, kind: str, labels: str = "") -> list[Body]:
        return self.api.list(kind, self.namespace, labels)

    def template(self, name: str = "decode") -> Body:
        return self.get("Deployment", name)["spec"]["template"]

    def as_created(self, name: str = "decode") -> Body:
        """The pod template as the API server stored it first."""
        return self._as_created[name]

    def assert_untouched(self, name: str = "decode") -> None:
        """Nothing of ours is on the workload, not even half."""
        self.assert_given_back(name, self._as_created[name])

    def assert_given_back(self, name: str, template: Body) -> None:
        deployment = self.get("Deployment", name)
        assert to_bytes(deployment["spec"]["template"]) == to_bytes(template)
        ours = [key for key in deployment["metadata"].get("annotations", {}) if key.startswith(OWN_DOMAIN)]
        assert ours == []

    def revision(self, name: str = "decode") -> int:
        """How often the pod template changed."""
        return int(self.get("Deployment", name)["metadata"]["annotations"]["deployment.kubernetes.io/revision"])

    def replicas(self, service: str = "decode") -> list[Body]:
        """The pods that a Service selects and that nobody has deleted."""
        labels = ",".join(f"{key}={value}" for key, value in self.get("Service", service)["spec"]["selector"].items())
        return [pod for pod in self.list("Pod", labels) if "deletionTimestamp" not in pod["metadata"]]

    def restarts(self, service: str = "decode") -> dict[str, int]:
        """By uid of a replica: how often its containers were started again, ours too."""
        kinds = ("containerStatuses", "initContainerStatuses")
        return {
            pod["metadata"]["uid"]: sum(c["restartCount"] for kind in kinds for c in pod["status"].get(kind, ()))
            for pod in self.replicas(service)
        }

    def jobs_started(self) -> int:
        """Jobs that ever got a pod here, also those that are gone."""
        events = [e for e in self.list("Event") if e["involvedObject"]["kind"] == "Job" and e["reason"] == "SuccessfulCreate"]
        return len({event["involvedObject"]["uid"] for event in events})

    def leftovers(self) -> list[str]:
        """What TableTune made and has not removed."""
        made = [
            f"{kind} {item['metadata']['name']}"
            for kind in ("Job", "Pod", "ConfigMap", "Role", "RoleBinding")
            for item in self.list(kind, "app.kubernetes.io/managed-by=tabletune")
        ]
        return made + [f"DraftTable {table['metadata']['name']}" for table in self.list("DraftTable")]

    def conditions(self, name: str = "tuned") -> dict[str, Body]:
        """Those that are about the present spec."""
        table = self.api.get("DraftTable", self.namespace, name)
        if table is None:
            return {}
        found = {
            condition["type"]: condition
            for condition in table.get("status", {}).get("conditions", [])
            if condition["observedGeneration"] == table["metadata"]["generation"]
        }
        self._remember(name, found)
        return found

    # Waiting

    def until(self, check: Callable[[], T], what: str, seconds: float = STEP_SECONDS) -> T:
        """What `check` gives, once it gives something true."""
        deadline = time.monotonic() + seconds
        while True:
            found = check()
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(POLL_SECONDS)

    def wait(self, kind: str, reason: str, name: str = "tuned", *, says: str = "", seconds: float = STEP_SECONDS) -> Body:
        """The condition with this reason. `says` is the part of its message that tells what to do."""
        what = f"DraftTable {name}: {kind} has reason {reason}"
        condition = self.until(lambda: self._condition(name, kind, reason), what, seconds)
        assert says in condition["message"], f"{what}, but says: {condition['message']}"
        return condition

    def wait_ready(self, name: str = "decode", seconds: float = WORK_SECONDS) -> None:
        """All replicas of the Deployment are of its present template, and ready."""
        self.until(lambda: _is_settled(self.get("Deployment", name)), f"Deployment {name} is ready", seconds)

    def wait_proved(self, name: str = "tuned") -> None:
        """From wherever it is to the end of the whole way."""
        self.wait("Profiled", "Measured", name, seconds=WORK_SECONDS)
        self.wait("RolledOut", "Proved", name, seconds=WORK_SECONDS)
        self.until(lambda: self._is(name, "Tracking", "True"), f"DraftTable {name} is tracking")

    def delete_and_wait(self, name: str = "tuned") -> None:
        """Delete a DraftTable; afterwards nothing of it is there."""
        self.delete("DraftTable", name)
        self.wait_gone(name)

    def wait_gone(self, name: str = "tuned") -> None:
        self.until(lambda: self.api.get("DraftTable", self.namespace, name) is None, f"DraftTable {name} is gone")
        # What it owned is collected after it, by Kubernetes.
        self.until(lambda: not self._owned_by(name), f"nothing of DraftTable {name} is left")

    def clear(self) -> None:
        """Whatever state they are in, DraftTables go when they are deleted; then the workloads, whose GPUs and cores others need."""
        for table in self.list("DraftTable"):
            self.delete("DraftTable", table["metadata"]["name"])
        self.until(lambda: not self.list("DraftTable"), "all DraftTables are gone")
        self.until(lambda: not self.leftovers(), "nothing of them is left")
        for kind in ("Deployment", "StatefulSet"):
            for workload in self.list(kind):
                self.delete(kind, workload["metadata"]["name"])

    @contextlib.contextmanager
    def watched_endpoints(self) -> Iterator[set[str]]:
        """The names of all pods that any Service here ever sent traffic to."""
        found: set[str] = set()
        stop = threading.Event()

        def watch() -> None:
            for piece in self.api.watch("EndpointSlice", self.namespace, stop):
                found.update(endpoint["targetRef"]["name"] for endpoint in piece.get("endpoints") or () if "targetRef" in endpoint)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield found
        finally:
            stop.set()
            watcher.join(timeout=10)

    # When a test fails

    def report(self) -> str:
        """Everything that helps to see why."""
        parts = [f"--- {self.namespace}: conditions as seen", *self._seen]
        for title, command in (
            ("DraftTables", ("kubectl", "describe", "drafttables")),
            ("workloads", ("kubectl", "get", "deployments,replicasets,statefulsets,jobs,pods,configmaps", "-o", "wide")),
            ("pods that do not run", ("kubectl", "get", "pods", "--field-selector=status.phase!=Running", "-o", "yaml")),
            ("events", ("kubectl", "get", "events", "--sort-by=.lastTimestamp")),
        ):
            done = self.cluster.run(*command, "-n", self.namespace, check=False)
            parts += [f"--- {title}", *(done.out + done.err).splitlines()[-60:]]
        for job in self.list("Job"):
            for container in ("tuner", "modelserver"):
                name = f"job/{job['metadata']['name']}"
                log = self.cluster.kubectl("logs", name, "-c", container, "-n", self.namespace, "--tail=25", check=False)
                parts += [f"--- {name} {container}", log.out + log.err]
        parts += ["--- operator", *(line for line in self.operator.log().splitlines() if self.namespace in line or "rror" in line)]
        return "\n".join(parts)

    def _condition(self, name: str, kind: str, reason: str) -> Body | None:
        found = self.conditions(name).get(kind)
        return found if found is not None and found["reason"] == reason else None

    def _is(self, name: str, kind: str, status: str) -> bool:
        return self.conditions(name).get(kind, {}).get("status") == status

    def _owned_by(self, name: str) -> list[str]:
        labels = f"tabletune.io/drafttable={name}"
        return [item["metadata"]["name"] for kind in ("Job", "Pod", "ConfigMap", "Role", "RoleBinding") for item in self.list(kind, labels)]

    def _remember(self, name: str, found: Mapping[str, Body]) -> None:
        line = f"{name}: " + " ".join(f"{kind}={c['reason']}" for kind, c in found.items() if kind not in {"Reconciling", "Stalled"})
        if not self._seen or not self._seen[-1].endswith(line):
            self._seen.append(f"{time.monotonic() - self._started:6.1f} s {line}")


def to_bytes(template: Mapping[str, Any]) -> str:
    """Every byte that matters: the API server keeps no order of keys."""
    return json.dumps(template, sort_keys=True, indent=1)


def force_delete(api: Api, namespace: str) -> None:
    """A namespace of an earlier run: nobody may be left to remove the finalizers of its DraftTables."""
    if api.get("Namespace", None, namespace) is None:
        return
    with contextlib.suppress(ApiError):  # without the definition there are none
        for table in api.list("DraftTable", namespace):
            api.patch("DraftTable", namespace, table["metadata"]["name"], {"metadata": {"finalizers": None}})
    api.delete("Namespace", None, namespace)
    deadline = time.monotonic() + WORK_SECONDS
    while api.get("Namespace", None, namespace) is not None:
        assert time.monotonic() < deadline, f"namespace {namespace} of an earlier run does not go"
        time.sleep(POLL_SECONDS)


def _is_settled(deployment: Body) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration") == deployment["metadata"]["generation"] and counts == [wanted] * 3
