"""Bad input: each has a stable reason, a message that names what was found, and changes nothing; and its accepted twin goes on."""

from __future__ import annotations

from typing import Any

import pytest
from world import World, deployment, draft_table

SPECULATIVE = "--speculative-config"
EAGLE = '{"method":"eagle3","model":"draft","num_speculative_tokens":3}'


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "second", "image": "vllm/vllm-openai:v0.33.0", "command": ["vllm", "serve"], "args": ["model"], **fields}


def with_file(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A target that reads its options from a ConfigMap, and that."""
    made = deployment(args=["model", "--config", "/etc/vllm/serve.yaml"], volumeMounts=[{"name": "serve", "mountPath": "/etc/vllm"}])
    made["spec"]["template"]["spec"].setdefault("volumes", []).append({"name": "serve", "configMap": {"name": "serve"}})
    return made, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "serve"}, "data": {"serve.yaml": text}}


CASES = [
    pytest.param(deployment("other"), {}, "TargetNotFound", "Deployment decode", id="no such target"),
    pytest.param(
        deployment(command=["/bin/sh", "-c"], args=["vllm serve a & vllm serve b"]),
        {},
        "TargetShellString",
        "in 2 places",
        id="a script with two engines",
    ),
    pytest.param(
        deployment(command=["/bin/sh", "-c"], args=["vllm serve m -sc $X"]), {}, "ArgumentFromEnvironment", "not in the pod", id="unknown"
    ),
    pytest.param(deployment(args=["model", "--config", "/a.yaml"]), {}, "ConfigFileNotRead", "/a.yaml", id="a file of the image"),
    pytest.param(deployment(image="nginx", command=["nginx"], args=[]), {}, "NoEngine", "modelserver", id="no container runs vLLM"),
    pytest.param(
        deployment(), {"targetRef": {"name": "decode", "container": "web"}}, "NoSuchContainer", "spec.targetRef.container", id="container"
    ),
    pytest.param(deployment(args=["model"]), {}, "NoSpeculativeConfig", "spec.speculation", id="nobody says how to draft"),
    pytest.param(deployment(args=["model", SPECULATIVE, "{"]), {}, "ArgumentNotUnderstood", SPECULATIVE, id="config is no JSON"),
    pytest.param(
        deployment(), {"speculation": {"maxDraftLength": 5}}, "DraftLengthTooLarge", "num_speculative_tokens 3", id="longer than the target"
    ),
    pytest.param(
        deployment(args=["model", "-dp", "2", SPECULATIVE, EAGLE]), {}, "DataParallel", "data parallel size 2", id="data parallel"
    ),
    pytest.param(
        deployment(args=["model", SPECULATIVE, '{"method":"suffix","num_speculative_tokens":3}']), {}, "MethodCannot", "suffix", id="method"
    ),
    pytest.param(
        deployment(), {"profile": {"prompts": {"configMapRef": {"name": "none"}}}}, "PromptsNotFound", "ConfigMap none", id="no prompts"
    ),
    pytest.param(deployment(), {"speculation": {"maxDraftLength": 0}}, "SpecNotReadable", "maxDraftLength", id="a spec of another version"),
]


@pytest.mark.parametrize(("target", "spec", "reason", "named"), CASES)
async def test_refuses(target: dict[str, Any], spec: dict[str, Any], reason: str, named: str) -> None:
    body = draft_table(**{key: value for key, value in spec.items() if key != "targetRef"})
    body["spec"].update({key: value for key, value in spec.items() if key == "targetRef"})
    made = World(target, body)
    made.roll(target["metadata"]["name"])
    await made.turns(2)
    assert made.condition("Accepted") == ("False", reason)
    assert named in made.message("Accepted")
    assert made.condition("Ready") == ("False", reason)
    assert made.condition("Stalled") == ("True", reason)
    assert made.state() == "Blocked"
    assert made.writes == []
    assert [(event["type"], event["reason"]) for event in made.events] == [("Warning", reason)]

    # The cause goes; the object stays, and goes on.
    made.put(deployment())
    made.get("DraftTable", "chat")["spec"] = draft_table()["spec"]
    made.roll()
    await made.turns(2)
    assert made.condition("Accepted") == ("True", "TargetSupported")
    assert ("Job", "chat-profile") in made.objects


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param({"data": {"prompts.txt": "Wie spät ist es?\n"}}, "TargetSupported", id="text"),
        pytest.param({"data": {"prompts.txt": ""}}, "PromptsNotFound", id="empty"),
        pytest.param({"data": {"prompts.txt": " \n\n"}}, "PromptsNotFound", id="blank"),
        pytest.param({"binaryData": {"prompts.txt": "TmHvdmU="}}, "PromptsNotFound", id="Latin-1, so in binaryData"),
        pytest.param({"data": {"other.txt": "What time is it?"}}, "PromptsNotFound", id="another key"),
        pytest.param({"data": None}, "PromptsNotFound", id="no keys"),
    ],
)
async def test_takes_prompts_that_are_text_and_wastes_no_gpu_on_others(content: dict[str, Any], reason: str) -> None:
    made = World(deployment(), draft_table(profile={"prompts": {"configMapRef": {"name": "traffic"}}}))
    made.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "traffic"}, **content})
    made.roll()
    await made.turns(2)
    assert made.condition("Accepted")[1] == reason
    assert (("Job", "chat-profile") in made.objects) is (reason == "TargetSupported")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(f"max-num-seqs: 8\nspeculative_config: {EAGLE}\n", "TargetSupported", id="understood"),
        pytest.param("speculative-config.method: ngram", "ConfigFileNotUnderstood", id="dotted keys win over a flag"),
        pytest.param(f"speculative_config: {EAGLE}\nspeculative-config: {EAGLE}\n", "ConfigFileNotUnderstood", id="two spellings"),
        pytest.param("port: 8000\n", "NoSpeculativeConfig", id="nothing about it"),
        pytest.param(None, "ConfigFileNotRead", id="not there"),
    ],
)
async def test_reads_the_file_of_a_config_map(text: str | None, reason: str) -> None:
    target, config_map = with_file(text or "")
    made = World(target, draft_table(), *([config_map] if text is not None else []))
    made.roll()
    await made.turns(2)
    assert made.condition("Accepted")[1] == reason
    assert ("The file of --config stays as it is" in made.message("Accepted")) is (reason == "TargetSupported")
    assert (("Job", "chat-profile") in made.objects) is (reason == "TargetSupported")


async def test_refuses_two_engines_until_one_is_named() -> None:
    target = deployment()
    target["spec"]["template"]["spec"]["containers"].append(container())
    made = World(target, draft_table())
    made.roll()
    await made.turn()
    assert made.condition("Accepted") == ("False", "TwoEngines")
    made.get("DraftTable", "chat")["spec"]["targetRef"]["container"] = "modelserver"
    await made.turn()
    assert made.condition("Accepted") == ("True", "TargetSupported")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param("0.23.0", "EngineTooOld", id="before there was a table"),
        pytest.param("0.30.0", "TableIgnored", id="the table is ignored"),
        pytest.param("0.33.0", "TargetSupported", id="supported"),
        pytest.param("nightly", "TargetSupported", id="a version that nobody can read is left to the Job"),
        pytest.param(None, "TargetSupported", id="a server without /version is left to the Job"),
    ],
)
async def test_judges_the_version_that_runs(version: str | None, reason: str) -> None:
    made = World(deployment(), draft_table())
    made.roll()
    for address in made.versions:
        made.versions[address] = version  # type: ignore[assignment]
    await made.turn()
    assert made.condition("Accepted")[1] == reason
