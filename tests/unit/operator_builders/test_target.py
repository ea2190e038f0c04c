"""Which container is the engine, and what its arguments say."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import llm_d, spec, with_container

from tabletune_operator.target import TargetError, parse_target, plan_speculation

EAGLE = {"method": "eagle3", "model": "RedHatAI/Qwen3-32B-speculator.eagle3", "num_speculative_tokens": 3}
NO_PROBES = {"startupProbe": None, "readinessProbe": None, "livenessProbe": None}
SHELL = {"command": ["/bin/bash", "-c"], "args": ["vllm serve a & vllm serve b"]}
FROM_MAP = {"args": ["$(MODEL)"], "envFrom": [{"configMapRef": {"name": "c"}}]}


def test_reads_the_deployment_of_the_guide() -> None:
    target = parse_target(llm_d(), None)
    assert (target.namespace, target.name, target.uid, target.generation) == (
        "llm-d-optimized-baseline",
        "optimized-baseline-nvidia-gpu-vllm-decode",
        "d-1",
        4,
    )
    assert target.container == "modelserver"
    assert target.speculation == EAGLE
    assert target.argv == (
        "vllm", "serve", "Qwen/Qwen3-32B", "--disable-access-log-for-endpoints=/health,/metrics,/v1/models", "--tensor-parallel-size=2",
        "--max-num-seqs=128", "--shutdown-timeout=45",
    )  # fmt: skip
    assert (target.max_num_seqs, target.data_parallel_size, target.port) == (128, 1, 8000)
    assert (target.gpu_resource, target.gpu_request) == ("nvidia.com/gpu", 2)
    assert target.service_account == "optimized-baseline-nvidia-gpu-vllm-sa"
    assert target.replicas == 2
    assert target.start_deadline_seconds == 15 + 30 * 120


@pytest.mark.parametrize(
    ("fields", "argv"),
    [
        pytest.param({"command": ["vllm", "serve", "m"], "args": None}, ("vllm", "serve", "m"), id="all in command"),
        pytest.param({"command": ["/opt/venv/bin/vllm", "serve"], "args": ["m"]}, ("/opt/venv/bin/vllm", "serve", "m"), id="path"),
        pytest.param(
            {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ["--model", "m"]},
            ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"),
            id="module",
        ),
        pytest.param({"command": None, "args": ["m"]}, ("vllm", "serve", "m"), id="the image's entry point"),
        pytest.param(
            {"command": ["tini", "--", "vllm", "serve"], "args": ["m", "--spec-method=ngram", "--spec-tokens", "2"]},
            ("tini", "--", "vllm", "serve", "m"),
            id="wrapper",
        ),
        pytest.param(
            {"args": ["$(MODEL)", "$$(MODEL)"], "env": [{"name": "ORG", "value": "qwen"}, {"name": "MODEL", "value": "$(ORG)/q"}]},
            ("vllm", "serve", "qwen/q", "$(MODEL)"),
            id="variables, resolved as the kubelet does",
        ),
        pytest.param(
            {"command": ["/bin/bash", "-c"], "args": ["exec vllm serve \\\n m --port $P -sc '{}'"]},
            ("exec", "vllm", "serve", "m", "--port", "$P"),
            id="a script",
        ),
    ],
)
def test_argv_is_what_runs_without_speculative_flags(fields: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert parse_target(with_container(**fields), None).argv == argv


@pytest.mark.parametrize(
    ("fields", "port"),
    [
        pytest.param({"args": ["m", "--port=8200"]}, 8200, id="the flag"),
        pytest.param({"args": ["m"]}, 8000, id="a probe's named port"),
        pytest.param({"ports": [{"containerPort": 7000}], **NO_PROBES}, 7000, id="declared"),
        pytest.param({"ports": None, **NO_PROBES}, 8000, id="vLLM's own"),
        pytest.param({"command": ["sh", "-c"], "args": ["vllm serve m --port $P"]}, 8000, id="only a shell knows the flag's"),
    ],
)
def test_finds_the_port(fields: dict[str, Any], port: int) -> None:
    assert parse_target(with_container(**fields), None).port == port


def test_start_deadline_without_a_probe_is_an_hour() -> None:
    assert parse_target(with_container(startupProbe=None), None).start_deadline_seconds == 3600


def two_engines() -> dict[str, Any]:
    deployment = llm_d()
    containers = deployment["spec"]["template"]["spec"]["containers"]
    containers.append({**containers[0], "name": "second"})
    return deployment


def prefill() -> dict[str, Any]:
    deployment = llm_d()
    deployment["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] = "prefill"
    return deployment


@pytest.mark.parametrize(
    ("deployment", "container", "reason", "words"),
    [
        pytest.param(two_engines(), None, "TwoEngines", "modelserver, second", id="two run vLLM"),
        pytest.param(llm_d(), "other", "NoSuchContainer", "has modelserver", id="named one is not there"),
        pytest.param(with_container(command=["sleep", "9"], args=None), None, "NoEngine", "found modelserver", id="none runs vLLM"),
        pytest.param(with_container(command=["sleep"], args=None), "modelserver", "NoEngine", "does not run vLLM", id="nor the named one"),
        pytest.param(with_container(**SHELL), None, "TargetShellString", "as a list", id="two engines in one script"),
        pytest.param(with_container(args=["m", "--config", "c.yaml"]), None, "ConfigFileNotRead", "no file of a ConfigMap", id="a file"),
        pytest.param(
            with_container(args=["m", "--speculative-config", "{"]), None, "ArgumentNotUnderstood", "is not JSON", id="broken JSON"
        ),
        pytest.param(with_container(args=["m", "--max-num-seqs=many"]), None, "ArgumentNotUnderstood", "'many'", id="no number"),
        pytest.param(with_container(args=["m", "$(HF_TOKEN)"]), None, "ArgumentFromEnvironment", "$(HF_TOKEN)", id="secret in an argument"),
        pytest.param(with_container(**FROM_MAP), None, "ArgumentFromEnvironment", "$(MODEL)", id="envFrom"),
        pytest.param(prefill(), None, "PrefillRole", "does not decode", id="prefill workers do not decode"),
    ],
)
def test_refuses_with_a_reason_and_a_cure(deployment: dict[str, Any], container: str | None, reason: str, words: str) -> None:
    with pytest.raises(TargetError) as refused:
        parse_target(deployment, container)
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "Nothing was changed." in refused.value.message
    assert len(refused.value.message) <= 300


def test_named_container_decides_between_two() -> None:
    assert parse_target(two_engines(), "second").container == "second"


@pytest.mark.parametrize(
    ("speculation", "planned"),
    [
        pytest.param(None, ("eagle3", EAGLE["model"], 3, {}), id="the target's own"),
        pytest.param({"maxDraftLength": 5}, ("eagle3", EAGLE["model"], 5, {}), id="longer"),
        pytest.param({"method": "ngram"}, ("ngram", None, 3, {}), id="another method leaves the old drafter behind"),
        pytest.param({"method": "eagle3", "model": "d", "maxDraftLength": 2}, ("eagle3", "d", 2, {}), id="all of it"),
    ],
)
def test_spec_goes_over_the_targets_config(speculation: dict[str, Any] | None, planned: tuple[Any, ...]) -> None:
    found = plan_speculation(parse_target(llm_d(), None), spec(**({"speculation": speculation} if speculation else {})))
    assert (found.method, found.model, found.max_draft_length, found.options) == planned


def test_other_keys_are_kept_and_a_table_is_not() -> None:
    config = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"num_speculative_tokens_per_batch_size":[[1,8,3]]}'
    found = plan_speculation(parse_target(with_container(args=["m", "--speculative-config", config]), None), spec())
    assert found.options == {"prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("args", "reason"),
    [(["m"], "NoSpeculativeConfig"), (["m", "--spec-method=mtp"], "NoDraftLength")],
)
def test_without_a_method_or_a_length_nothing_can_be_planned(args: list[str], reason: str) -> None:
    with pytest.raises(TargetError) as refused:
        plan_speculation(parse_target(with_container(args=args), None), spec())
    assert refused.value.reason == reason
