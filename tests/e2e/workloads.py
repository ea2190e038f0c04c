"""Manifests: stand-in engines (dev/replay) in the shape of llm-d's guide, their Service, and DraftTables with small sweeps."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kube_api import Api

Body = dict[str, Any]

IMAGE = "tabletune.local/vllm-replay:1"
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
H200, A100 = "NVIDIA-H200", "NVIDIA-A100-SXM4-80GB"
REPROFILE = "tabletune.io/reprofile"

ALL_A100 = threading.Lock()
"""Held by a test that needs every GPU of that pool: two of them side by side would each wait for the other's."""
DRAFT = '{"method":"eagle3","model":"replay/eagle3","num_speculative_tokens":3}'
SPECULATION = {"method": "eagle3", "model": "replay/eagle3", "maxDraftLength": 3}
"""The same in a DraftTable's words."""

FAULTS = "faults"
"""A ConfigMap whose keys are fault variables of the stand-in: pods read them when they start, so that a test can switch a fault
on for the profiling Job or for new replicas only, and off again when its cause is to be gone."""

PROMPTS = "prompts"
"""A ConfigMap of code, which the stand-in guesses well: then speculation wins by far more than this machine's noise."""

# Steps take much longer than a busy machine is late, or measured gains would be noise and verdicts chance. A sweep takes long enough, too,
# for a test to do something meanwhile.
TIME_SCALE = "6"


FORWARD = """
import asyncio, os

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()

async def forward(reader, writer):
    try:
        onward, back = await asyncio.open_connection("127.0.0.1", int(os.environ["TO"]))
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, back), copy(onward, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(forward, "0.0.0.0", 8000) as server:
        await server.serve_forever()

asyncio.run(main())
"""
"""A proxy from port 8000 to port TO, in place of llm-d's routing proxy, whose image is not here."""

LEAVE_SECONDS = 15
"""The guides' own number."""


def stand_in(
    name: str = "decode",
    *,
    replicas: int = 1,
    gpu_product: str | None = None,
    args: Sequence[str] = ("--speculative-config", DRAFT),
    environment: Mapping[str, str] | None = None,
    faults: Sequence[str] = (),
) -> Body:
    """A Deployment. Without `gpu_product` it asks for no GPU: the pool of GPUs is small, and most tests are not about it."""
    labels = {"llm-d.ai/role": "decode", "llm-d.ai/guide": name, "llm-d.ai/model": "replay"}
    plain = {"REPLAY_START_SECONDS": "0.5", "REPLAY_TIME_SCALE": TIME_SCALE, **(environment or {})}
    gpus: Mapping[str, Any] = {GPU: 1} if gpu_product is not None else {}
    probe = {"httpGet": {"path": "/v1/models", "port": "modelserver"}, "periodSeconds": 1, "timeoutSeconds": 5}
    engine = {
        "name": "modelserver",
        "image": IMAGE,
        "command": ["vllm", "serve"],
        "args": ["replay/qwen3-4b", "--served-model-name=replay", "--max-num-seqs=16", "--max-model-len=2048", *args],
        "env": [
            *({"name": key, "value": value} for key, value in plain.items()),
            *({"name": key, "valueFrom": {"configMapKeyRef": {"name": FAULTS, "key": key, "optional": True}}} for key in faults),
        ],
        "ports": [{"name": "modelserver", "containerPort": 8000}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi", **gpus}, "limits": {"memory": "256Mi", **gpus}},
        "startupProbe": {**probe, "failureThreshold": 180},
        "readinessProbe": {**probe, "failureThreshold": 5},
    }
    pod: Body = {
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [engine],
    }
    if gpu_product is not None:
        pod["nodeSelector"] = {PRODUCT: gpu_product}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def with_container(deployment: Body, **fields: Any) -> Body:
    """The Deployment with these fields of its engine's container; None removes one."""
    changed = copy.deepcopy(deployment)
    container = changed["spec"]["template"]["spec"]["containers"][0]
    container.update(fields)
    for field in [field for field, value in fields.items() if value is None]:
        del container[field]
    return changed


def leaves_late(deployment: Body) -> Body:
    """As llm-d's guides have it: the engine is told to end when no proxy sends it requests any more and those it has are answered."""
    changed = with_container(deployment, lifecycle={"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}})
    changed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 2 * LEAVE_SECONDS
    return changed


def proxied(deployment: Body, engine_port: int) -> Body:
    """With a routing proxy as native sidecar, which has the port that the Service sends to."""
    changed = copy.deepcopy(deployment)
    pod = changed["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    engine["ports"] = [{"name": "engine", "containerPort": engine_port}]
    for probe in ("startupProbe", "readinessProbe"):
        engine[probe]["httpGet"]["port"] = "engine"
    proxy = {
        "name": "routing-proxy",
        "image": engine["image"],
        "restartPolicy": "Always",
        "command": ["python3", "-c"],
        "args": [FORWARD],
        "env": [{"name": "TO", "value": str(engine_port)}],
        "ports": [{"name": "modelserver", "containerPort": 8000}],
        "securityContext": engine["securityContext"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
    }
    pod["initContainers"] = [proxy]
    return changed


def reading_a_file(table: str, name: str = "decode") -> Body:
    """An engine that reads the file which the DraftTable of mode ConfigFile keeps, as that one's condition says."""
    target = stand_in(name, args=("--config", "/etc/tabletune/vllm.yaml"))
    pod = target["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] = [{"name": "tabletune-config", "mountPath": "/etc/tabletune"}]
    pod["volumes"] = [{"name": "tabletune-config", "configMap": {"name": f"{table}-tabletune-config"}}]
    return target


def gpus_of(api: Api, product: str) -> int:
    """How many the cluster has."""
    nodes = api.list("Node", None, f"{PRODUCT}={product}")
    return sum(int(node["status"]["allocatable"][GPU]) for node in nodes)


def service(name: str = "decode") -> Body:
    """Selects by one label, as an InferencePool does."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"llm-d.ai/guide": name}, "ports": [{"name": "http", "port": 8000, "targetPort": "modelserver"}]},
    }


def draft_table(name: str = "tuned", target: str = "decode", *, profile: Mapping[str, Any] | None = None, **spec: Any) -> Body:
    """Few cells and few steps a cell."""
    sweep = {"maxBatchSize": 4, "repeats": 1, "outputTokens": 8, "promptCount": 8, "windowSeconds": 0, "timeoutSeconds": 600}
    sweep |= {"prompts": {"configMapRef": {"name": PROMPTS}}, **(profile or {})}
    return {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name},
        "spec": {"targetRef": {"name": target}, "profile": sweep, **spec},
    }


def code_prompts() -> Body:
    return config_map(PROMPTS, {"prompts.txt": "\n".join(f"def add_{n}(a, b): return a + b + {n}" for n in range(8))})


def config_map(name: str, data: Mapping[str, str]) -> Body:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}
