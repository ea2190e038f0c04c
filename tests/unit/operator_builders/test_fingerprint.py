"""The fingerprint: equal for what step times do not depend on, and a change names its field."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import llm_d, spec, with_container

from tabletune.profile import Fingerprint
from tabletune_operator.fingerprint import build_fingerprint, model_of
from tabletune_operator.target import parse_target, plan_speculation

ARGS = llm_d()["spec"]["template"]["spec"]["containers"][0]["args"]


def fingerprint(
    deployment: dict[str, Any] | None = None,
    wanted: dict[str, Any] | None = None,
    gpu: str = "NVIDIA-H200",
    image_id: str | None = "sha256:1",
) -> Fingerprint:
    target, draft = parse_target(deployment or llm_d(), None), spec(**(wanted or {}))
    return build_fingerprint(
        target, plan_speculation(target, draft), draft.profile, gpu_product=gpu, image_id=image_id, engine_version="0.32.0"
    )


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        pytest.param({"gpu": "NVIDIA-A100"}, ("gpuProduct",), id="GPU"),
        pytest.param({"image_id": "sha256:2"}, ("image",), id="image digest"),
        pytest.param({"deployment": with_container(args=[*ARGS, "--dtype=float16"])}, ("dtype",), id="dtype"),
        pytest.param({"deployment": with_container(args=[*ARGS, "-tp", "4"])}, ("tensorParallelSize",), id="the last flag wins"),
        pytest.param({"deployment": with_container(args=[*ARGS, "--max-num-seqs=64"])}, ("maxNumSeqs",), id="sequences"),
        pytest.param({"deployment": with_container(args=[*ARGS, "--enforce-eager"])}, ("graphs",), id="eager"),
        pytest.param({"deployment": with_container(args=[*ARGS, "-O3"])}, ("graphs",), id="optimization level"),
        pytest.param({"deployment": with_container(args=[*ARGS, "--compilation-config.level", "3"])}, ("graphs",), id="dotted key"),
        pytest.param(
            {"deployment": with_container(env=[{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}])}, ("environment",), id="runner"
        ),
        pytest.param({"wanted": {"speculation": {"maxDraftLength": 5}}}, ("maxDraftLength",), id="K"),
        pytest.param({"wanted": {"profile": {"promptTokens": 512}}}, ("profilePromptTokens",), id="how it is measured"),
        pytest.param({"deployment": with_container(args=[*ARGS, "--port=8200", "--api-key=x"])}, (), id="what step times do not depend on"),
        pytest.param({"deployment": with_container(env=[{"name": "VLLM_API_KEY", "value": "s"}])}, (), id="no secret enters"),
        pytest.param({"wanted": {"profile": {"repeats": 5}}}, (), id="more repeats of the same"),
    ],
)
def test_a_change_names_its_field(changed: dict[str, Any], fields: tuple[str, ...]) -> None:
    assert fingerprint().changed(fingerprint(**changed)) == fields


def test_reads_what_the_guide_serves() -> None:
    found = dict(fingerprint().fields)
    assert found["model"] == "Qwen/Qwen3-32B"
    assert (found["method"], found["drafter"]) == ("eagle3", "RedHatAI/Qwen3-32B-speculator.eagle3")
    assert (found["tensorParallelSize"], found["maxNumSeqs"], found["gpusPerReplica"]) == ("2", "128", "2")


@pytest.mark.parametrize(
    ("command", "args", "model"),
    [
        (["vllm", "serve"], ["m"], "m"),
        (["vllm", "serve"], ["--port=1", "--model", "m"], "m"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model=m"], "m"),
        (["vllm", "serve"], ["--port", "1"], None),
        (["/bin/bash", "-c"], ["exec vllm serve m --port 1"], "m"),
    ],
)
def test_finds_the_model(command: list[str], args: list[str], model: str | None) -> None:
    assert model_of(parse_target(with_container(command=command, args=args), None)) == model
