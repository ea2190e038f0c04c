"""The real API server asks the operator's webhook about new pods: the chart's configuration, its rights, and own certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api, RefusedError, cluster_binaries
from chart_rights import chart_rights, namespaces
from kubernetes.aio import client
from ports import free_port
from test_workloads import CONFIG, IMAGE, example, roll

from tabletune_operator.admission_server import PATH, AdmissionServer
from tabletune_operator.certificate_keeper import CertificateKeeper, OwnCertificates
from tabletune_operator.cluster import Cluster, ClusterError
from tabletune_operator.crd import Controller
from tabletune_operator.injection import Injection, InjectionTable, WorkloadKey
from tabletune_operator.observation import ObjectRef
from tabletune_operator.restore import restore
from tabletune_operator.target import parse_target

RELEASE = "tabletune-admitting"
CONFIGURATION = f"tabletune.{RELEASE}"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SECRETS = f"/api/v1/namespaces/{RELEASE}/secrets"
HASH = "7d9c5b8f6"
SECONDS = 60
HOST = "127.0.0.1"

Body = dict[str, Any]


@dataclass(slots=True)
class Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True, slots=True)
class Made:
    """A served webhook and who looks after it. `port` is where the API server is told to ask."""

    table: InjectionTable
    server: AdmissionServer
    keeper: CertificateKeeper
    cluster: Cluster
    clock: Clock


@pytest.fixture(scope="module", autouse=True)
def release(api: Api) -> Iterator[None]:
    """The release's namespace with the chart's rights for mode Admission."""
    with namespaces(api, RELEASE), chart_rights(api, RELEASE, "--set", "admission.enabled=true"):
        yield


def rendered(kind: str) -> Body:
    helm = shutil.which("helm") or str(cluster_binaries() / "helm")
    values = ("--kube-version", "1.34.0", "--set", "admission.enabled=true")
    command = [helm, "template", "tt", ROOT / "charts" / "tabletune", "-n", RELEASE, *values]
    bodies = yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (found,) = (body for body in bodies if body and body["kind"] == kind)
    return dict(found)


@pytest.fixture
def port(api: Api, namespace: str) -> Iterator[int]:
    """The chart's webhook configuration and Secret; the API server is told to ask this port of this machine."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("the API server of a cluster that is given may not reach a process of this machine")
    free = free_port()
    configuration = rendered("MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["clientConfig"]["service"]["path"] == PATH
    webhook["clientConfig"] = {"url": f"https://{HOST}:{free}{PATH}"}
    webhook["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": namespace}  # other tests make pods too
    api.apply(f"{CONFIGURATIONS}/{CONFIGURATION}", configuration, manager="helm")
    api.apply(f"{SECRETS}/tabletune-admission", rendered("Secret"), manager="helm")
    yield free
    api.delete(f"{CONFIGURATIONS}/{CONFIGURATION}")
    api.delete(f"{SECRETS}/tabletune-admission")


def token(api: Api) -> str:
    """Of the operator's service account, so that all it does here it does with the chart's rights."""
    accounts = f"/api/v1/namespaces/{RELEASE}/serviceaccounts"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tabletune-operator", "namespace": RELEASE}}
    api.apply(f"{accounts}/tabletune-operator", body, manager="tests")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    given: str = api.create(f"{accounts}/tabletune-operator/token", request)["status"]["token"]
    return given


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[Cluster]:
    configuration = client.Configuration()
    configuration.host, configuration.verify_ssl = api.address, False
    configuration.api_key = {"BearerToken": f"Bearer {token(api)}"}
    cluster = Cluster(client.ApiClient(configuration))
    yield cluster
    await cluster.close()


@asynccontextmanager
async def webhook(api: Api, port: int, now: datetime | None = None) -> AsyncIterator[Made]:
    """Served, not yet looked after: the first `look` brings the certificates. `now`: what the operator takes the time for."""
    async with connected(api) as cluster:
        table, clock = InjectionTable(), Clock(now or datetime.now(UTC))
        server = AdmissionServer(table, port, HOST)
        source = OwnCertificates(cluster, RELEASE, "tabletune-admission", CONFIGURATION, (HOST,), clock)
        yield Made(table, server, CertificateKeeper(source, server), cluster, clock)
        await asyncio.to_thread(server.close)


def injection(deployment: Body, config: Body | None = CONFIG) -> Injection:
    target = parse_target(restore(deployment), None)
    return Injection(
        draft_table=ObjectRef(target.namespace, "chat"),
        workload=WorkloadKey(target.namespace, "Deployment", target.name),
        selector=target.selector,
        container=target.container,
        image=target.image,
        speculation=target.speculation,
        config=config,
        controller=Controller(),
        own_image=IMAGE,
        python_path="",
    )


def pod_of(deployment: Body, name: str = "decode-x", **metadata: Any) -> Body:
    template = deployment["spec"]["template"]
    owner_name = f"{deployment['metadata']['name']}-{HASH}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner_name, "uid": "11111111-2222-3333-4444-555555555555"}
    about = {
        "name": name,
        "labels": {**template["metadata"]["labels"], "pod-template-hash": HASH},
        "annotations": template["metadata"].get("annotations", {}),
        "ownerReferences": [{**owner, "controller": True}],
        **metadata,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


def create(api: Api, namespace: str, pod: Body, *, dry_run: bool = True) -> Body:
    return api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=dry_run)


def is_ours(pod: Body) -> bool:
    return any(each["name"] == "tabletune-sidecar" for each in pod["spec"].get("initContainers", ()))


async def until(check: Callable[[], bool], what: str) -> None:
    """The API server learns of configurations a little later than it stores them."""
    deadline = time.monotonic() + SECONDS
    while not await asyncio.to_thread(check):
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        await asyncio.sleep(0.1)


async def served(made: Made) -> None:
    assert await made.keeper.look(), made.keeper.problem
    assert made.keeper.problem is None


async def test_a_new_pod_gets_what_patch_would_give_it_and_the_deployment_is_untouched(api: Api, namespace: str, port: int) -> None:
    deployment = api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", example(namespace))
    other = example(namespace)
    other["metadata"]["name"] = "rolled"
    rolled = roll(api, api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", other), CONFIG)
    async with webhook(api, port) as made:
        made.table.put(injection(deployment))
        await served(made)
        await until(lambda: is_ours(create(api, namespace, pod_of(deployment))), "a pod with our sidecar")
        admitted = await asyncio.to_thread(create, api, namespace, pod_of(deployment), dry_run=False)
        for name, changed in {
            "no-owner": {"ownerReferences": []},
            "other-labels": {"labels": {"pod-template-hash": HASH}},
        }.items():
            left = await asyncio.to_thread(create, api, namespace, pod_of(deployment, name, **changed))
            assert not is_ours(left)
    wanted = create(api, namespace, pod_of(rolled, "wanted"))  # nobody answers any more: this is the template of mode Patch
    for part in ("containers", "initContainers", "volumes"):
        assert _by_name(admitted["spec"][part]) == _by_name(wanted["spec"][part]), part
    assert admitted["metadata"]["labels"]["tabletune.io/drafttable"] == "chat"
    assert admitted["metadata"]["annotations"] == {"tabletune.io/table-digest": injection(deployment).digest}
    assert api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment['metadata']['name']}") == deployment
    stored = api.get(f"/api/v1/namespaces/{namespace}/pods/decode-x")
    assert stored["spec"] == admitted["spec"]


def _by_name(items: list[Body]) -> dict[str, Body]:
    """Server-side apply and a JSON patch may put what they add at other places of a list; only the order of variables may matter."""
    return {
        item["name"]: {field: sorted(value, key=str) if field in {"env", "volumeMounts"} else value for field, value in item.items()}
        for item in items
    }


async def test_a_pod_starts_without_us_when_the_webhook_is_down(api: Api, namespace: str, port: int) -> None:
    deployment = api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", example(namespace))
    async with webhook(api, port) as made:
        made.table.put(injection(deployment))
        await served(made)
        await until(lambda: is_ours(create(api, namespace, pod_of(deployment))), "a pod with our sidecar")
    started = create(api, namespace, pod_of(deployment), dry_run=False)
    assert not is_ours(started)
    assert started["spec"]["containers"][0]["args"] == deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    async with webhook(api, port) as made:
        made.table.put(injection(deployment))
        await served(made)
        await until(lambda: is_ours(create(api, namespace, pod_of(deployment, "again"))), "a pod with our sidecar, served again")


async def test_an_expired_certificate_costs_no_pod_and_is_renewed(api: Api, namespace: str, port: int) -> None:
    deployment = api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", example(namespace))
    async with webhook(api, port, datetime.now(UTC) - timedelta(days=200)) as made:
        made.table.put(injection(deployment))
        await served(made)
        bundle = trusted(api)
        assert bundle
        started = await asyncio.to_thread(create, api, namespace, pod_of(deployment), dry_run=False)
        assert not is_ours(started)
        made.clock.now = datetime.now(UTC)
        await served(made)
        assert trusted(api) == bundle  # the same authority, so the API server has nothing to learn
        await until(lambda: is_ours(create(api, namespace, pod_of(deployment, "again"))), "a pod with our sidecar")


def trusted(api: Api) -> str | None:
    (webhook,) = api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["webhooks"]
    bundle: str | None = webhook["clientConfig"].get("caBundle")
    return bundle


async def test_certificates_outlive_the_operator_and_what_helm_resets_is_written_again(api: Api, namespace: str, port: int) -> None:
    async with webhook(api, port) as made:
        await served(made)
        bundle, secret = trusted(api), api.get(f"{SECRETS}/tabletune-admission")
        assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    configuration = api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")
    del configuration["webhooks"][0]["clientConfig"]["caBundle"]
    api.update(f"{CONFIGURATIONS}/{CONFIGURATION}", configuration, manager="helm")
    async with webhook(api, port) as made:
        await served(made)
        assert trusted(api) == bundle
        assert api.get(f"{SECRETS}/tabletune-admission")["data"] == secret["data"]
        version = api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["metadata"]["resourceVersion"]
        await served(made)
        assert api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["metadata"]["resourceVersion"] == version
        (webhook_now,) = api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")["webhooks"]
        assert (webhook_now["failurePolicy"], webhook_now["timeoutSeconds"]) == ("Ignore", 2)


async def test_a_configuration_that_is_missing_is_not_made_by_us(api: Api, namespace: str, port: int) -> None:
    api.delete(f"{CONFIGURATIONS}/{CONFIGURATION}")
    async with webhook(api, port) as made:
        assert not await made.keeper.look()
        assert made.keeper.problem is not None
        assert "admission.enabled=true" in made.keeper.problem
    with pytest.raises(RefusedError):
        api.get(f"{CONFIGURATIONS}/{CONFIGURATION}")
    api.apply(f"{CONFIGURATIONS}/{CONFIGURATION}", {**rendered("MutatingWebhookConfiguration"), "webhooks": []}, manager="helm")


async def test_the_rights_reach_these_two_objects_only(api: Api, namespace: str, port: int) -> None:
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": RELEASE}, "data": {}}
    api.apply(f"{SECRETS}/other", other, manager="tests")
    async with connected(api) as cluster:
        for call in (cluster.read("Secret", RELEASE, "other"), cluster.list("Secret", RELEASE), cluster.apply(other)):
            await _is_forbidden(call)
        await _is_forbidden(cluster.read("Secret", namespace, "tabletune-admission"))
        await _is_forbidden(cluster.read("MutatingWebhookConfiguration", "", "other"))
        await _is_forbidden(cluster.apply({**rendered("MutatingWebhookConfiguration"), "metadata": {"name": "another"}}))


async def _is_forbidden(call: Awaitable[Any]) -> None:
    with pytest.raises(ClusterError) as refused:
        await call
    assert refused.value.status == 403


async def test_an_eviction_ends_this_very_pod_unless_a_budget_holds_it(api: Api, namespace: str) -> None:
    deployment = example(namespace)
    path = f"/api/v1/namespaces/{namespace}/pods"
    first = create(api, namespace, pod_of(deployment, "one"), dry_run=False)
    create(api, namespace, pod_of(deployment, "two"), dry_run=False)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "two"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"pod-template-hash": HASH}}},
    }
    async with connected(api) as cluster:
        assert await cluster.evict(namespace, "one", "00000000-0000-0000-0000-000000000000")  # it was another pod of that name
        assert api.get(f"{path}/one")["metadata"]["uid"] == first["metadata"]["uid"]
        assert await cluster.evict(namespace, "gone", "00000000-0000-0000-0000-000000000000")
        assert await cluster.evict(namespace, "one", first["metadata"]["uid"])
        await until(lambda: _is_gone(api, f"{path}/one"), "the pod goes")
        api.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
        two = _run(api, f"{path}/two")
        await until(lambda: _is_held(api, f"{path}/two"), "the budget holds")
        assert not await cluster.evict(namespace, "two", two["metadata"]["uid"])
        assert not _is_gone(api, f"{path}/two")


def _run(api: Api, path: str) -> Body:
    """As the kubelet would; a pod that does not run may always go."""
    pod = api.get(path)
    ready = {"type": "Ready", "status": "True"}
    return api.update(f"{path}/status", {**pod, "status": {"phase": "Running", "conditions": [ready]}})


def _is_held(api: Api, path: str) -> bool:
    """By a dry run, so that the first eviction that counts comes when the API server knows the budget."""
    *_, namespace, _, name = path.split("/")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}
    try:
        api.create(f"{path}/eviction", eviction, dry_run=True)
    except RefusedError as error:
        return error.status == 429
    return False


def _is_gone(api: Api, path: str) -> bool:
    try:
        return bool(api.get(path)["metadata"].get("deletionTimestamp"))
    except RefusedError as error:
        return error.status == 404


def test_the_operators_process_serves_it_and_ends_with_it(api: Api, namespace: str, port: int, tmp_path: Path) -> None:
    kubeconfig, log = tmp_path / "kubeconfig", tmp_path / "operator.log"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": api.address, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token(api)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "tabletune_operator.main", "--image", IMAGE.name, "--liveness", f"http://{HOST}:{free_port()}/healthz"]
    flags = [
        "--metrics-port=0",
        "--namespace",
        namespace,
        f"--admission={CONFIGURATION}",
        f"--admission-namespace={RELEASE}",
        f"--admission-port={port}",
    ]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "POD_ID": "test"}
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *flags], stdout=out, stderr=out, env=environment)
    try:
        deadline = time.monotonic() + SECONDS
        while not _answers(api, port):
            assert time.monotonic() < deadline, f"not within {SECONDS} s: an answer\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(SECONDS)
    assert "orbidden" not in log.read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=5)


def _answers(api: Api, port: int) -> bool:
    """As the API server asks: it trusts what the configuration holds, and wants the Service's name."""
    bundle = trusted(api)
    if bundle is None:
        return False
    context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    request = {"uid": "r", "operation": "CREATE", "resource": {"resource": "pods"}, "namespace": "n", "object": {"metadata": {}}}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    try:
        plain = socket.create_connection((HOST, port), timeout=5)
    except ConnectionRefusedError:
        return False
    with plain, context.wrap_socket(plain, server_hostname=f"tabletune-admission.{RELEASE}.svc") as connection:
        connection.sendall((head + body).encode())
        answered = b""
        while piece := connection.recv(65536):
            answered += piece
    response: Body = json.loads(answered.partition(b"\r\n\r\n")[2])["response"]
    return response == {"uid": "r", "allowed": True}
