"""KServe's own controller of LLMInferenceServices: built from its published module, run beside the embedded cluster's API server.

What is real: the controller with its webhooks, its definitions, its ConfigMap and its template of an engine. It runs as a process with
the cluster's kubeconfig instead of as a pod, so webhooks are called by URL. Gateway API and LeaderWorkerSet are not installed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from live_cluster import Cluster, CommandError, eventually, is_existing, load_images
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
MODULE, VERSION, DIGEST = "github.com/kserve/kserve", "v0.19.0", "h1:8Pbdm9Ekn1JEuHrobqJhZI4uRHyf5bk1ofb5+3kEI14="
PACKAGE = "cmd/llmisvc"
NAMESPACE = "kserve"
STORAGE_INITIALIZER = "tabletune.local/storage-initializer"
READY_SECONDS = 180
STOP_SECONDS = 30
TEMPLATES = ("config-llm-template.yaml", "config-llm-decode-template.yaml", "config-llm-prefill-template.yaml")
KINDS_OF_CALLS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

Body = dict[str, Any]


class Built(Protocol):
    """`embedded.build.Published`, which is imported only where it is needed."""

    @property
    def program(self) -> Path: ...
    @property
    def source(self) -> Path: ...


@dataclass(slots=True)
class Controller:
    """The process, which can be started anew."""

    built: Built
    kubeconfig: str
    folder: Path
    port: int
    health_port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Until its webhooks answer."""
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig, "POD_NAMESPACE": NAMESPACE, "TMPDIR": str(self.folder)}
        ports = (f"--webhook-port={self.port}", f"--health-probe-addr=127.0.0.1:{self.health_port}", "--metrics-addr=0")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen((str(self.built.program), *ports), env=environment, stdout=log, stderr=log)
        eventually(self._answers, "KServe's webhooks answer", READY_SECONDS)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self.folder / "controller.log"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"KServe's controller ended:\n{self.log()[-4000:]}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def build() -> Built:
    """The controller and its sources; 5 minutes of a core's time when it is first needed, then in the cache."""
    sys.path.insert(0, str(ROOT / "dev" / "cluster"))
    from embedded import build as of_cluster
    from embedded.settings import read_settings

    return of_cluster.published(read_settings(os.environ, existing=False), MODULE, VERSION, DIGEST, PACKAGE)


def prepare() -> None:
    """What takes long the first time, before a test's own time begins."""
    if is_existing():
        raise CommandError(
            "The API server calls KServe, which runs beside it, so this needs the embedded cluster: unset TABLETUNE_CLUSTER."
        )
    build()
    load_images("storage-initializer")


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Controller]:
    """KServe on a cluster that others use after it: from before its definitions are there to after they are gone."""
    remove(cluster)
    try:
        with started(cluster) as controller:
            try:
                yield controller
            finally:
                # They have a finalizer that the controller removes.
                cluster.kubectl("delete", "llminferenceservices", "-A", "--all", "--timeout=60s", check=False)
    finally:
        remove(cluster)


@contextlib.contextmanager
def started(cluster: Cluster) -> Iterator[Controller]:
    """KServe, whose definitions stay."""
    built = build()
    with tempfile.TemporaryDirectory(prefix="kserve-") as folder:
        port, health_port = free_ports(2)
        controller = Controller(built, cluster.environment["KUBECONFIG"], Path(folder), port, health_port)
        authority = _certificate(Path(folder) / "k8s-webhook-server" / "serving-certs")
        bodies = [_called_by_url(body, port, authority) for body in _bodies(cluster, built.source)]
        calls = [body for body in bodies if body["kind"] in KINDS_OF_CALLS]
        try:
            _apply(cluster, [body for body in bodies if body not in calls])
            cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in _definitions(bodies)))
            controller.start()
            _apply(cluster, calls)
            _apply(cluster, [_template(built.source, name) for name in TEMPLATES])
            yield controller
        except AssertionError as error:
            error.add_note(f"--- KServe\n{controller.log()[-8000:]}")
            raise
        finally:
            controller.stop()


def remove(cluster: Cluster) -> None:
    """All of it, also what an earlier run left behind; nobody need be there to answer."""
    for kind in KINDS_OF_CALLS:
        names = [name for name in cluster.names(kind) if name.endswith(".serving.kserve.io")]
        if names:
            cluster.kubectl("delete", *names, "--ignore-not-found")
    for name in cluster.names("customresourcedefinitions"):
        if name.endswith((".serving.kserve.io", ".inference.networking.x-k8s.io", ".inference.networking.k8s.io")):
            if "/llminferenceservices." in name:
                _drop_finalizers(cluster)
            cluster.kubectl("delete", name, "--ignore-not-found", "--timeout=60s")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def _drop_finalizers(cluster: Cluster) -> None:
    # No conversion: a webhook that is gone cannot be asked.
    change = '{"spec":{"conversion":{"strategy":"None","webhook":null}}}'
    cluster.kubectl("patch", "crd", "llminferenceservices.serving.kserve.io", "--type=merge", "-p", change)
    found = cluster.kubectl("get", "llminferenceservices", "-A", "-o", "json").json()["items"]
    for service in found:
        where = ("-n", service["metadata"]["namespace"], service["metadata"]["name"])
        cluster.kubectl("patch", "llminferenceservice", *where, "--type=merge", "-p", '{"metadata":{"finalizers":null}}', check=False)


def _bodies(cluster: Cluster, source: Path) -> list[Body]:
    """As KServe's charts make them, without what a pod or cert-manager would need."""
    charts = source / "charts"
    image = (f"--set=kserve.storage.image={STORAGE_INITIALIZER}", "--set-string=kserve.storage.tag=1")
    text = "\n---\n".join(
        cluster.helm("template", name, str(charts / name), "-n", NAMESPACE, *values).out
        for name, values in (("kserve-llmisvc-crd", ()), ("kserve-llmisvc-resources", image))
    )
    kinds = {"CustomResourceDefinition", "ConfigMap", *KINDS_OF_CALLS}
    made = [body for body in yaml.load_all(text, yaml.CSafeLoader) if body and body["kind"] in kinds]
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *made]


def _called_by_url(body: Body, port: int, authority: str) -> Body:
    """With the webhooks' Service replaced by the process."""
    callers = [*body.get("webhooks", ())]
    with contextlib.suppress(KeyError):
        callers.append(body["spec"]["conversion"]["webhook"])
    for caller in callers:
        path = caller["clientConfig"]["service"]["path"]
        caller["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    return body


def _template(source: Path, name: str) -> Body:
    body: Body = yaml.safe_load((source / "config" / "llmisvcconfig" / name).read_text())
    return {**body, "metadata": {**body["metadata"], "namespace": NAMESPACE}}


def _apply(cluster: Cluster, bodies: list[Body]) -> None:
    # Server-side: a definition is larger than an annotation may be.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.dump_all(bodies, Dumper=yaml.CSafeDumper))


def _definitions(bodies: list[Body]) -> list[str]:
    return [body["metadata"]["name"] for body in bodies if body["kind"] == "CustomResourceDefinition"]


def _certificate(folder: Path) -> str:
    """A certificate for 127.0.0.1, which is its own authority; its text as a caBundle takes it."""
    folder.mkdir(parents=True)
    crt, key = folder / "tls.crt", folder / "tls.key"
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    names = ("-subj", "/CN=kserve", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run((*command, *names, "-keyout", str(key), "-out", str(crt)), check=True, capture_output=True)
    return base64.b64encode(crt.read_bytes()).decode()
