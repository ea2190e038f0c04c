"""A real API server without a cluster: etcd and kube-apiserver as processes of the test run, on free ports, in a temporary folder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from kubernetes import client, config
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60
TOKEN = "admin-of-the-tests"


class RefusedError(AssertionError):
    """The API server said no: its status and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """Requests with plain dictionaries, so that a test sees whole objects as they are stored."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @property
    def address(self) -> str:
        return str(self._http.base_url).rstrip("/")

    def get(self, path: str, *, accept: str = "application/json") -> dict[str, Any]:
        return self._send("GET", path, headers={"Accept": accept})

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Strict: a field that the API server does not know is refused, not dropped."""
        return self._send("POST", path, json=body, params={"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {}))

    def update(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False, manager: str = "tests") -> dict[str, Any]:
        parameters = {"fieldManager": manager, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._send("PUT", path, json=body, params=parameters)

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str) -> dict[str, Any]:
        """Server-side apply, forced."""
        parameters = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return self._send("PATCH", path, json=body, params=parameters, headers={"Content-Type": "application/apply-patch+yaml"})

    def delete(self, path: str) -> dict[str, Any]:
        return self._send("DELETE", path)

    def _send(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = self._http.request(method, path, **more)
        if answer.is_error:
            told = answer.json().get("message", "") if "json" in answer.headers.get("Content-Type", "") else answer.text
            raise RefusedError(answer.status_code, told)
        body: dict[str, Any] = answer.json()
        return body


@contextlib.contextmanager
def existing_cluster() -> Iterator[Api]:
    """The cluster of $KUBECONFIG."""
    settings = client.Configuration()
    config.load_kube_config(client_configuration=settings)
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    headers = {"Authorization": settings.api_key["authorization"]} if settings.api_key else {}
    with httpx.Client(base_url=settings.host, verify=context, headers=headers, timeout=30, trust_env=False) as http:
        yield Api(http)


@contextlib.contextmanager
def own_api_server(folder: Path) -> Iterator[Api]:
    """Started here, and ended when the tests are done."""
    binaries = cluster_binaries()
    etcd, peer, port = (f"127.0.0.1:{number}" for number in free_ports(3))
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
    with contextlib.ExitStack() as processes:
        processes.enter_context(
            _process(
                folder, binaries / "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls=http://{etcd}",
                f"--advertise-client-urls=http://{etcd}", f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}",
                f"--initial-cluster=default=http://{peer}",
            )
        )  # fmt: skip
        server = processes.enter_context(
            _process(
                folder, binaries / "kube-apiserver", f"--etcd-servers=http://{etcd}", "--bind-address=127.0.0.1",
                f"--secure-port={port.rpartition(':')[2]}", f"--cert-dir={folder}", f"--token-auth-file={tokens}",
                "--authorization-mode=RBAC", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://tests.invalid",
                f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                # No controllers run, so nobody would make the service accounts that this one waits for.
                "--disable-admission-plugins=ServiceAccount",
            )
        )  # fmt: skip
        certificate = folder / "apiserver.crt"
        _wait(certificate.exists, server, folder)
        context = ssl.create_default_context(cafile=certificate)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"https://{port}", verify=context, headers=headers, timeout=30, trust_env=False) as http:
            _wait(lambda: _is_ready(http), server, folder)
            yield Api(http)


def kubeconfig_of(api: Api, folder: Path) -> Path:
    """For programs that are told of the server that `own_api_server` started in this folder."""
    cluster = {"server": api.address, "certificate-authority": str(folder / "apiserver.crt")}
    named = {
        "clusters": ("cluster", cluster),
        "users": ("user", {"token": TOKEN}),
        "contexts": ("context", {"cluster": "it", "user": "it"}),
    }
    config = {key: [{"name": "it", field: value}] for key, (field, value) in named.items()}
    path = folder / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "it", **config}))
    return path


@functools.cache
def cluster_binaries() -> Path:
    """A folder with etcd, kube-apiserver and helm: the development cluster's, built into the cache if they are not there yet.

    The links to them are this run's own: the cluster may be stopped meanwhile, and takes its own with it.
    """
    sys.path.insert(0, str(ROOT / "dev" / "cluster"))
    from embedded import build
    from embedded.settings import read_settings

    folder = Path(tempfile.mkdtemp(prefix="tabletune-"))
    atexit.register(shutil.rmtree, folder)
    settings = replace(read_settings(os.environ, existing=False), root=folder)
    build.binaries(settings, lambda text: print(text, file=sys.stderr))
    return settings.bin


@contextlib.contextmanager
def _process(folder: Path, binary: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{binary.name}.log").open("wb") as log:
        process = subprocess.Popen([binary, *arguments], stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)  # nothing of it is kept
        process.wait()


def _wait(is_so: Any, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        if server.poll() is not None or time.monotonic() > deadline:
            tail = (folder / "kube-apiserver.log").read_text().splitlines()[-15:]
            raise RuntimeError("the API server does not start:\n" + "\n".join(tail))
        time.sleep(0.1)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").is_success
    except httpx.TransportError:
        return False
