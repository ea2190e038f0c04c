"""What a real API server says to everything that the chart renders."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from live_cluster import Cluster

SCOPES = (
    pytest.param((), id="cluster-wide"),
    pytest.param(("--set", "scope=Namespaced"), id="namespaced"),
    pytest.param(("--set", "scope=Namespaced,crds.install=Skip,uninstall.drafttables=Keep"), id="namespaced, nothing deleted"),
    pytest.param(("--set", "admission.enabled=true"), id="mode Admission"),
    pytest.param(
        (
            "--set",
            "imagePullSecrets[0].name=registry,priorityClassName=system-cluster-critical,nodeSelector.disk=ssd",
            "--set",
            "tolerations[0].key=infra,tolerations[0].operator=Exists",
        ),
        id="placed",
    ),
)


@pytest.mark.parametrize("arguments", SCOPES)
def test_every_object_is_valid(cluster: Cluster, release_namespace: str, arguments: tuple[str, ...]) -> None:
    rendered = cluster.template(*arguments, namespace=release_namespace).out
    cluster.kubectl(
        "create", "--save-config", "serviceaccount", "tabletune-test", "-n", release_namespace
    )  # a dry-run pod needs a real one
    done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)
    # The namespace warns of pods that are not restricted, which an accepted Deployment or Job would only show much later.
    assert "Warning" not in done.err


def test_a_misspelt_field_would_be_found(cluster: Cluster, release_namespace: str) -> None:
    (deployment,) = (body for body in cluster.render(namespace=release_namespace) if body["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["serviceAcountName"] = "x"
    done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(deployment), check=False)
    assert done.code != 0
    assert 'unknown field "spec.template.spec.serviceAcountName"' in done.err


def _pods(bodies: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    specs = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "Pod"}
    return specs | {body["metadata"]["name"]: body["spec"]["template"]["spec"] for body in bodies if body["kind"] in {"Deployment", "Job"}}


@pytest.mark.parametrize("name", ["tabletune-operator", "tabletune-uninstall", "tabletune-test"])
def test_every_pod_is_restricted(cluster: Cluster, release_namespace: str, name: str) -> None:
    spec = _pods(cluster.render(namespace=release_namespace))[name]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": release_namespace}, "spec": spec}
    cluster.kubectl("create", "serviceaccount", spec["serviceAccountName"], "-n", release_namespace)
    cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    container["securityContext"]["allowPrivilegeEscalation"] = True
    refused = cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod), check=False)
    assert 'violates PodSecurity "restricted' in refused.err


def test_the_pods_are_exactly_these(cluster: Cluster) -> None:
    assert set(_pods(cluster.render())) == {"tabletune-operator", "tabletune-uninstall", "tabletune-test"}
