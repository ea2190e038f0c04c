"""TableTune as its users install it: one Helm release that serves the namespaces of some tests and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kube_api import Api
from live_cluster import CHART, Cluster, CommandError

DEFINITION = "drafttables.tabletune.io"
OPERATOR = "app.kubernetes.io/name=tabletune-operator"


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    cluster: Cluster
    api: Api
    namespace: str

    def install(self, watched: Sequence[str], *, with_definition: bool) -> None:
        values = {
            "image": {"repository": "tabletune.local/tabletune", "tag": "dev", "pullPolicy": "IfNotPresent"},
            # On a cluster that others use too, their DraftTables are not ours to act on.
            "scope": "Namespaced",
            "watchNamespaces": list(watched),
            "admission": {"enabled": True},
            "crds": {"install": "Install", "onUninstall": "Delete"} if with_definition else {"install": "Skip"},
        }
        self.cluster.helm(
            "install", self.namespace, str(CHART), "-n", self.namespace, "--create-namespace", "--wait", "--timeout", "3m", "-f", "-",
            stdin=json.dumps(values),
        )  # fmt: skip

    def uninstall(self) -> None:
        """As a user does: gives every workload back, and fails if that hangs."""
        self.cluster.helm("uninstall", self.namespace, "-n", self.namespace, "--wait", "--timeout", "5m")
        self.api.delete("Namespace", None, self.namespace)

    def remove_remains(self) -> None:
        """Of an earlier run that was stopped."""
        self.cluster.helm("uninstall", self.namespace, "-n", self.namespace, "--no-hooks", "--ignore-not-found", "--wait")

    def kill(self) -> None:
        """End the operator at once, whatever it is doing; its Deployment starts another."""
        for pod in self.api.list("Pod", self.namespace, OPERATOR):
            self.api.delete("Pod", self.namespace, pod["metadata"]["name"], gracePeriodSeconds=0)

    def log(self) -> str:
        done = self.cluster.kubectl("logs", "-n", self.namespace, "-l", OPERATOR, "--tail=4000", check=False)
        return done.out + done.err


def assert_alone(cluster: Cluster, api: Api) -> None:
    """An operator that serves every namespace would act on the DraftTables of these tests too."""
    for deployment in cluster.kubectl("get", "deployments", "-A", "-l", OPERATOR, "-o", "json").json()["items"]:
        environment = [e["name"] for c in deployment["spec"]["template"]["spec"]["containers"] for e in c.get("env", ())]
        if "TABLETUNE_NAMESPACES" not in environment:
            metadata = deployment["metadata"]
            raise CommandError(
                f"The TableTune in namespace {metadata['namespace']} serves this whole cluster, so these tests cannot run beside it. "
                "Run `make demo-down`, or `helm uninstall` it, first."
            )
