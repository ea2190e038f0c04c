"""The workloads of examples/: each is read as its README says, measured without what routes traffic, and given back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune.profile import Fingerprint
from tabletune_operator.crd import Controller, DraftTableSpec
from tabletune_operator.kinds import KINDS, LLM_INFERENCE_SERVICE, template_of
from tabletune_operator.overlaying import lay_over
from tabletune_operator.pods import OwnImage
from tabletune_operator.profiling import JobRequest, build_job
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import Target, TargetError, parse_target, plan_speculation

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
IMAGE = OwnImage("tabletune.test/tabletune:1", "IfNotPresent")
CONFIG = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}


def workload(folder: str, file: str = "modelserver.yaml") -> dict[str, Any]:
    """As the API server would give it back."""
    (body,) = (o for o in yaml.safe_load_all((EXAMPLES / folder / file).read_text()) if o["kind"] in KINDS)
    body["metadata"] |= {"uid": "d-1", "generation": 1}
    return dict(body)


def job_of(target: Target) -> dict[str, Any]:
    spec = DraftTableSpec.model_validate({"targetRef": {"name": target.name}})
    fingerprint = Fingerprint.of({"gpuProduct": "NVIDIA-H200"})
    return build_job(JobRequest("chat", "t-1", spec, target, plan_speculation(target, spec), fingerprint, IMAGE, None, (), ()))


def argument(container: dict[str, Any], option: str) -> str:
    args: list[str] = container["args"]
    return args[args.index(option) + 1]


@pytest.mark.parametrize(
    ("folder", "file", "port"),
    [
        ("llm-d-optimized-baseline", "modelserver.yaml", 8000),
        ("llm-d-pd", "decode.yaml", 8200),
        ("stateful-set", "modelserver.yaml", 8000),
        ("leader-worker-set", "modelserver.yaml", 8000),
    ],
)
def test_examples_are_targets(folder: str, file: str, port: int) -> None:
    body = workload(folder, file)
    (table,) = yaml.safe_load_all((EXAMPLES / folder / "drafttable.yaml").read_text())
    ref = DraftTableSpec.model_validate(table["spec"]).target_ref
    assert (ref.api_version, ref.kind, ref.name) == (body["apiVersion"], body["kind"], body["metadata"]["name"])
    assert table["metadata"]["namespace"] == body["metadata"]["namespace"]
    target = parse_target(body, None)
    assert target.port == port
    assert target.speculation is not None
    job = job_of(target)["spec"]["template"]["spec"]
    assert argument(job["containers"][0], "--engine-url") == f"http://127.0.0.1:{port}"


def test_the_routing_proxy_is_left_alone() -> None:
    """llm-d's P/D shape: the proxy has 8000, the engine behind it 8200."""
    body = workload("llm-d-pd", "decode.yaml")
    target = parse_target(body, None)
    apply = build_rollout(RolloutRequest("chat", target, CONFIG, Controller(), IMAGE, "")).apply
    ours = {c["name"]: c for c in apply["spec"]["template"]["spec"]["initContainers"]}
    assert "routing-proxy" not in ours
    assert argument(ours["tabletune-sidecar"], "--engine-url") == "http://127.0.0.1:8200"
    assert not {8000, 8200} & {port["containerPort"] for port in ours["tabletune-sidecar"]["ports"]}
    job = job_of(target)["spec"]["template"]
    assert "routing-proxy" not in json.dumps(job)
    assert not [label for label in job["metadata"]["labels"] if label.startswith("llm-d.ai/")]


def test_prefill_is_refused_with_the_reason() -> None:
    body = copy.deepcopy(workload("llm-d-pd", "decode.yaml"))
    template_of(body)["metadata"]["labels"]["llm-d.ai/role"] = "prefill"
    with pytest.raises(TargetError) as refused:
        parse_target(body, None)
    assert refused.value.reason == "PrefillRole"
    assert "Name the decode workload." in refused.value.message


def test_claims_of_a_stateful_set_become_volumes_of_the_profiling_pod_alone() -> None:
    pod = job_of(parse_target(workload("stateful-set"), None))["spec"]["template"]["spec"]
    (cache,) = (v for v in pod["volumes"] if v["name"] == "model-cache")
    assert cache["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"] == {"requests": {"storage": "60Gi"}}
    mounted = {m["name"] for c in (*pod["initContainers"], *pod["containers"]) for m in c.get("volumeMounts", ())}
    assert mounted <= {v["name"] for v in pod["volumes"]}


def test_the_example_of_kserve_holds_flags_that_are_read_from_the_variable() -> None:
    service = workload("kserve", "llminferenceservice.yaml")
    (table,) = yaml.safe_load_all((EXAMPLES / "kserve" / "drafttable.yaml").read_text())
    ref = DraftTableSpec.model_validate(table["spec"]).target_ref
    assert (ref.api_version, ref.kind, ref.name) == (service["apiVersion"], service["kind"], service["metadata"]["name"])
    script = 'eval "exec vllm serve /mnt/models --port 8000 ${VLLM_ADDITIONAL_ARGS} $@"'
    pod = lay_over(
        {"containers": [{"name": "main", "image": "i", "command": ["/bin/bash", "-c", script, "--"]}]}, service["spec"]["template"]
    )
    owner = [{"uid": "d-1", "kind": service["kind"], "name": ref.name, "controller": True}]
    made = {
        "kind": "Deployment",
        "metadata": {"ownerReferences": owner},
        "spec": {"selector": {}, "template": {"metadata": {}, "spec": pod}},
    }
    running = LLM_INFERENCE_SERVICE.running(service, [made])
    assert running is not None
    target = parse_target(running, None)
    assert (target.container, target.max_num_seqs) == ("main", 128)
    assert target.speculation == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
