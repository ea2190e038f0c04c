"""The operator works with exactly the chart's rights: the real process, as its service account, on a real API server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from api_server import Api, RefusedError
from chart_rights import chart_rights, namespaces
from ports import free_port
from test_workloads import example

ACCOUNT = "tabletune-operator"
RELEASE, SERVED, OTHER = "tabletune-rights", "tabletune-rights-served", "tabletune-rights-other"
GOING = "tabletune-rights-going"
TABLES = "/apis/tabletune.io/v1alpha1/namespaces/{}/drafttables"
SECONDS = 60
NO_TARGET = {"targetRef": {"name": "none"}}


def _eventually(check: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}\n{log.read_text()[-3000:]}"
        time.sleep(0.2)


@pytest.fixture(scope="module", autouse=True)
def all_namespaces(api: Api) -> Iterator[None]:
    with namespaces(api, RELEASE, SERVED, OTHER):
        yield


@pytest.fixture
def kubeconfig(api: Api, tmp_path: Path) -> Path:
    """For the operator's service account, by a token as its pod would get."""
    accounts = f"/api/v1/namespaces/{RELEASE}/serviceaccounts"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": RELEASE}}
    api.apply(f"{accounts}/{ACCOUNT}", body, manager="tests")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = api.create(f"{accounts}/{ACCOUNT}/token", request)["status"]["token"]
    path = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": api.address, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def operator(kubeconfig: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The operator of one scope, running; its log."""
    values, flags = request.param
    api: Api = request.getfixturevalue("api")
    log = tmp_path / "operator.log"
    command = [sys.executable, "-m", "tabletune_operator.main", "--image", "tabletune.local/tabletune:dev", *flags]
    # With port 0 kopf takes port 80, which may be in use.
    command += ["--liveness", f"http://127.0.0.1:{free_port()}/healthz", "--metrics-port", "0"]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "POD_ID": "test"}
    with chart_rights(api, RELEASE, *values):
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        yield log
        process.terminate()
        process.wait(30)


def _create(api: Api, namespace: str, spec: Mapping[str, Any] = NO_TARGET) -> str:
    body = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "metadata": {"name": "one"}, "spec": spec}
    api.create(TABLES.format(namespace), body)
    return f"{TABLES.format(namespace)}/one"


def _is_served(api: Api, path: str) -> bool:
    body: dict[str, Any] = api.get(path)
    return bool(body["metadata"].get("finalizers")) and bool(body.get("status", {}).get("conditions"))


def _is_gone(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except RefusedError as error:
        return error.status == 404
    return False


PORT = re.compile(r"Metrics are served on port (\d+)\.")
CLUSTER = pytest.param(((), ()), id="cluster-wide")
NAMESPACED = pytest.param(
    (("--set", "scope=Namespaced", "--set", f"watchNamespaces={{{SERVED}}}"), ("--namespace", SERVED)), id="namespaced"
)


@pytest.mark.parametrize("operator", [CLUSTER, NAMESPACED], indirect=True)
def test_it_takes_and_lets_go_of_a_drafttable(api: Api, operator: Path) -> None:
    path = _create(api, SERVED)
    _eventually(lambda: _is_served(api, path), "finalizer and conditions", operator)
    api.delete(path)
    _eventually(lambda: _is_gone(api, path), "the DraftTable goes", operator)
    assert "orbidden" not in operator.read_text()


@pytest.mark.parametrize("operator", [CLUSTER, NAMESPACED], indirect=True)
def test_it_may_see_who_keeps_the_replicas_of_a_target(api: Api, operator: Path) -> None:
    """Asked for with BorrowReplica only, from three groups of which one (KEDA's) is not installed here."""
    deployments = f"/apis/apps/v1/namespaces/{SERVED}/deployments"
    name = api.create(deployments, example(SERVED))["metadata"]["name"]
    path = _create(api, SERVED, {"targetRef": {"name": name}, "profile": {"placement": "BorrowReplica"}})
    _eventually(lambda: _is_served(api, path), "finalizer and conditions", operator)
    (accepted,) = (c for c in api.get(path)["status"]["conditions"] if c["type"] == "Accepted")
    assert accepted["reason"] in {"WaitingForTarget", "NoSpeculativeConfig"}
    for each in (path, f"{deployments}/{name}"):
        api.delete(each)
    _eventually(lambda: _is_gone(api, path), "the DraftTable goes", operator)
    assert "orbidden" not in operator.read_text()


@pytest.mark.parametrize("operator", [CLUSTER, NAMESPACED], indirect=True)
@pytest.mark.parametrize(
    ("version", "kind"),
    [("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("serving.kserve.io/v1alpha1", "LLMInferenceService"), ("apps/v1", "StatefulSet")],
)
def test_a_target_that_is_missing_or_of_a_kind_that_is_missing_is_said_to_be(api: Api, operator: Path, version: str, kind: str) -> None:
    path = _create(api, SERVED, {"targetRef": {"apiVersion": version, "kind": kind, "name": "none"}})
    _eventually(lambda: _is_served(api, path), "finalizer and conditions", operator)
    (accepted,) = (c for c in api.get(path)["status"]["conditions"] if c["type"] == "Accepted")
    assert accepted["reason"] == "TargetNotFound"
    assert ("is the CRD" in accepted["message"]) is (version != "apps/v1")
    api.delete(path)
    _eventually(lambda: _is_gone(api, path), "the DraftTable goes", operator)
    assert "orbidden" not in operator.read_text()


@pytest.mark.parametrize("operator", [CLUSTER], indirect=True)
def test_it_lets_go_in_a_namespace_that_goes(api: Api, operator: Path) -> None:
    """Nothing new is accepted there, events neither; a DraftTable that kept its finalizer would keep the namespace for ever."""
    with namespaces(api, GOING):
        path = _create(api, GOING)
    _eventually(lambda: _is_served(api, path), "finalizer and conditions", operator)
    api.delete(path)
    _eventually(lambda: _is_gone(api, path), "the DraftTable goes", operator)


@pytest.mark.parametrize("operator", [CLUSTER], indirect=True)
def test_cluster_wide_it_serves_every_namespace(api: Api, operator: Path) -> None:
    paths = [_create(api, namespace) for namespace in (SERVED, OTHER)]
    for path in paths:
        _eventually(lambda path=path: _is_served(api, path), path, operator)
        api.delete(path)
        _eventually(lambda path=path: _is_gone(api, path), path, operator)


@pytest.mark.parametrize("operator", [NAMESPACED], indirect=True)
def test_namespaced_it_leaves_other_namespaces_alone(api: Api, operator: Path) -> None:
    served, other = _create(api, SERVED), _create(api, OTHER)
    _eventually(lambda: _is_served(api, served), served, operator)
    assert not _is_served(api, other)
    for path in (served, other):
        api.delete(path)
        _eventually(lambda path=path: _is_gone(api, path), path, operator)


@pytest.mark.parametrize("operator", [NAMESPACED], indirect=True)
def test_it_tells_its_metrics(api: Api, operator: Path) -> None:
    path = _create(api, SERVED)
    _eventually(lambda: PORT.search(operator.read_text()) is not None, "it says where", operator)
    found = PORT.search(operator.read_text())
    assert found is not None

    def page() -> str:
        return httpx.get(f"http://127.0.0.1:{found[1]}/metrics", timeout=30, trust_env=False).raise_for_status().text

    labels = f'drafttable="one",namespace="{SERVED}",reason="TargetNotFound",status="False",type="Accepted"'
    condition = f"tabletune_drafttable_condition{{{labels}}} 1.0"
    _eventually(lambda: condition in page(), "the state of the DraftTable is told", operator)
    assert "tabletune_operator_build_info{" in page()
    assert 'tabletune_reconcile_errors_total{cause="Unexpected"} 0.0' in page()
    api.delete(path)
    _eventually(lambda: 'drafttable="one"' not in page(), "what is gone is not told any more", operator)
