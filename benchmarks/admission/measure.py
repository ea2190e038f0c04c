"""How long the admission webhook takes to answer: the operator's own server, and a client in a process of its own.

    python benchmarks/admission/measure.py --out FILE

Measured from the client, TLS included: over one connection as the API server keeps it, and with a new connection for each pod. Both with
the operator at rest, and with its main thread busy without a pause with what reconciles do most (reading lists of 500 pods).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import yaml

from tabletune_operator.admission import answer
from tabletune_operator.admission_process import AdmissionProcess
from tabletune_operator.admission_server import PATH
from tabletune_operator.certificates import renewed
from tabletune_operator.crd import Controller
from tabletune_operator.injection import Injection, InjectionTable, WorkloadKey
from tabletune_operator.observation import ObjectRef
from tabletune_operator.pods import OwnImage
from tabletune_operator.podstate import parse_pod
from tabletune_operator.target import parse_target

ROOT = Path(__file__).resolve().parents[2]
HOST, HASH = "127.0.0.1", "7d9c5b8f6"
WARM_UP = 50
CONFIG = {
    "method": "eagle3",
    "model": "drafter",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}

Body = dict[str, Any]


def _deployment() -> Body:
    texts = (ROOT / "examples" / "llm-d-optimized-baseline" / "modelserver.yaml").read_text()
    (found,) = (body for body in yaml.safe_load_all(texts) if body["kind"] == "Deployment")
    found["metadata"] |= {"uid": "u", "generation": 1}
    return dict(found)


def _pod(deployment: Body) -> Body:
    template, name = deployment["spec"]["template"], f"{deployment['metadata']['name']}-{HASH}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "r", "controller": True}
    labels = {**template["metadata"]["labels"], "pod-template-hash": HASH}
    return {"metadata": {"name": f"{name}-x", "labels": labels, "ownerReferences": [owner]}, "spec": template["spec"]}


def _table(deployment: Body, targets: int) -> InjectionTable:
    table, target = InjectionTable(), parse_target(deployment, None)
    for number in range(targets):
        name = target.name if number == 0 else f"other-{number}"
        table.put(
            Injection(
                draft_table=ObjectRef(target.namespace, name),
                workload=WorkloadKey(target.namespace, "Deployment", name),
                selector=target.selector,
                container=target.container,
                image=target.image,
                speculation=target.speculation,
                config=CONFIG,
                controller=Controller(),
                own_image=OwnImage("tabletune.local/tabletune:dev", "IfNotPresent"),
                python_path="",
            )
        )
    return table


def _be_busy(deployment: Body, until: threading.Event) -> None:
    pods = [
        {**_pod(deployment), "metadata": {**_pod(deployment)["metadata"], "creationTimestamp": "2026-12-01T09:00:00Z"}} for _ in range(500)
    ]
    text = json.dumps({"items": pods})
    while not until.is_set():
        for pod in json.loads(text)["items"]:
            parse_pod(pod, "modelserver", "tabletune-sidecar")


def _ask(port: int, authority: str, requests: int, *, keep: bool) -> None:
    """The client's process: times in milliseconds on stdout."""
    body = json.dumps(_review(_deployment()))
    context = ssl.create_default_context(cadata=authority)
    connection, times = HTTPSConnection(HOST, port, context=context), []
    for number in range(WARM_UP + requests):
        if not keep:
            connection.close()
        began = time.perf_counter()
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answered = json.loads(connection.getresponse().read())
        took = time.perf_counter() - began
        assert "patch" in answered["response"], answered
        if number >= WARM_UP:
            times.append(took * 1000)
        time.sleep(0.002)  # pods do not come back to back; the server's thread has to be woken each time
    print(json.dumps(sorted(times)))


def _computing(table: InjectionTable) -> dict[str, float]:
    """What the answer itself costs, in milliseconds of the thread's own time: neither network nor other work of the machine is in it."""
    review, times = _review(_deployment()), []
    for _ in range(WARM_UP + 500):
        began = time.thread_time()
        answer(review, table.by_workload)
        times.append((time.thread_time() - began) * 1000)
    return _figures(sorted(times[WARM_UP:]))


def _review(deployment: Body) -> Body:
    request = {
        "uid": "r",
        "operation": "CREATE",
        "resource": {"resource": "pods"},
        "namespace": deployment["metadata"]["namespace"],
        "object": _pod(deployment),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _figures(times: list[float]) -> dict[str, float]:
    def at(share: float) -> float:
        return round(times[min(len(times) - 1, int(share * len(times)))], 2)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": round(times[-1], 2)}


def measure(targets: int, requests: int) -> list[Body]:
    deployment = _deployment()
    server = AdmissionProcess(_table(deployment, targets), 0, HOST)
    certificates = renewed({}, (HOST,), datetime.now(UTC))
    server.use(certificates.certificate, certificates.key)
    found = []
    for busy in (False, True):
        for keep in (True, False):
            command = [sys.executable, __file__, "--client", str(server.port), "--requests", str(requests), *(["--keep"] if keep else [])]
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            done, told = threading.Event(), list[str]()

            def collect(client: subprocess.Popen[str] = client, done: threading.Event = done, told: list[str] = told) -> None:
                told.append(client.communicate(certificates.authorities)[0])
                done.set()

            threading.Thread(target=collect).start()
            if busy:
                _be_busy(deployment, done)
            done.wait()
            connection = "kept" if keep else "new for each pod"
            operator = "busy without a pause" if busy else "at rest"
            found.append({"operator": operator, "connection": connection, "milliseconds": _figures(json.loads(told[0]))})
    server.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1000, help="DraftTables in mode Admission")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        _ask(options.client, sys.stdin.read(), options.requests, keep=options.keep)
        return
    load_before = os.getloadavg()[0]
    result = {
        "measuredAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "conditions": {
            "cores": os.cpu_count(),
            "loadOfTheMachineBefore": round(load_before, 2),
            "python": platform.python_version(),
            "targets": options.targets,
            "requests": options.requests,
            "reviewBytes": len(json.dumps(_pod(_deployment()))),
        },
        "answerAlone": _computing(_table(_deployment(), options.targets)),
        "results": measure(options.targets, options.requests),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
