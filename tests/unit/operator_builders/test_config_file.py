"""The file of `--config`: found in its ConfigMap, and read as vLLM reads it."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune.argv import fold_speculative_config
from tabletune_operator.command import CommandError
from tabletune_operator.config_file import FileKey, find_file, merge_file

ARGV = ("vllm", "serve", "m", "--config", "/etc/vllm/serve.yaml", "--port", "8")
OBJECT = "speculative-config:\n  method: eagle3\n  num_speculative_tokens: 3\n"
EAGLE = {"method": "eagle3", "num_speculative_tokens": 3}


def pod(*volumes: dict[str, Any]) -> dict[str, Any]:
    return {"volumes": list(volumes)}


def mounted(path: str, name: str = "v", **more: str) -> dict[str, Any]:
    return {"name": "modelserver", "volumeMounts": [{"name": name, "mountPath": path, **more}]}


MAP = {"name": "v", "configMap": {"name": "serve"}}
ITEMS = {"name": "v", "configMap": {"name": "serve", "items": [{"key": "k", "path": "sub/serve.yaml"}]}}
PROJECTED = {"name": "v", "projected": {"sources": [{"configMap": {"name": "serve"}}]}}
SEVERAL = {
    "name": "v",
    "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "serve", "items": [{"key": "k", "path": "serve.yaml"}]}}]},
}
PVC = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("volume", "mount", "found"),
    [
        pytest.param(MAP, mounted("/etc/vllm"), FileKey("serve", "serve.yaml"), id="a folder"),
        pytest.param(MAP, mounted("/etc/vllm/serve.yaml", subPath="a.yaml"), FileKey("serve", "a.yaml"), id="one file"),
        pytest.param(ITEMS, mounted("/etc/vllm", subPath="sub"), FileKey("serve", "k"), id="items, and a folder of the volume"),
        pytest.param(PROJECTED, mounted("/etc"), None, id="no folder is a key"),
        pytest.param(PROJECTED, mounted("/etc/vllm/"), FileKey("serve", "serve.yaml"), id="projected"),
        pytest.param(SEVERAL, mounted("/etc/vllm"), FileKey("serve", "k"), id="one of several sources, named"),
        pytest.param(PVC, mounted("/etc/vllm"), None, id="a claim"),
        pytest.param(MAP, mounted("/etc/vllm-other"), None, id="mounted elsewhere"),
    ],
)
def test_finds_the_key_of_the_config_map(volume: dict[str, Any], mount: dict[str, Any], found: FileKey | None) -> None:
    assert find_file(pod(volume), mount, ARGV) == found


def test_the_deepest_mount_holds_the_file() -> None:
    container = {"volumeMounts": [{"name": "w", "mountPath": "/etc/vllm"}, {"name": "v", "mountPath": "/etc"}]}
    volumes = pod({"name": "w", "configMap": {"name": "deep"}}, MAP)
    assert find_file(volumes, container, ARGV) == FileKey("deep", "serve.yaml")


@pytest.mark.parametrize(
    ("argv", "text", "merged"),
    [
        pytest.param(
            ARGV, "port: 9\nenforce-eager: true\nx: false\n", ("m", "--port", "9", "--enforce-eager", "--no-x", "--port", "8"),
            id="after the model",
        ),
        pytest.param(
            ("vllm", "serve", "--config", "/etc/vllm/serve.yaml"), "model: m\nlora-modules: [a, b]\ne: []\n",
            ("--model", "m", "--lora-modules", "a", "b"), id="model in the file",
        ),
    ],
)  # fmt: skip
def test_the_files_options_come_before_the_command_lines(argv: tuple[str, ...], text: str, merged: tuple[str, ...]) -> None:
    found = merge_file(pod(MAP), mounted("/etc/vllm"), argv, {"serve": {"serve.yaml": text}})
    assert (found.argv, found.speculates) == (("vllm", "serve", *merged), False)


@pytest.mark.parametrize(
    "text", [OBJECT, OBJECT.replace("-", "_"), 'speculative-config: \'{"method":"eagle3","num_speculative_tokens":3}\'\n']
)
def test_a_speculative_config_in_the_file_is_the_present_one_and_a_flag_wins(text: str) -> None:
    files = {"serve": {"serve.yaml": text}}
    found = merge_file(pod(MAP), mounted("/etc/vllm"), ARGV, files)
    assert found.speculates
    assert fold_speculative_config(found.argv).config == EAGLE
    over = merge_file(pod(MAP), mounted("/etc/vllm"), (*ARGV, "--speculative-config", '{"method":"ngram"}'), files)
    assert fold_speculative_config(over.argv).config == {"method": "ngram"}
    off = merge_file(pod(MAP), mounted("/etc/vllm"), (*ARGV, "--speculative-config", "None"), files)
    assert fold_speculative_config(off.argv).config is None


def test_without_the_option_nothing_is_merged() -> None:
    assert merge_file(pod(), {}, ("vllm", "serve", "m"), {}).argv == ("vllm", "serve", "m")


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        pytest.param(None, "ConfigFileNotRead", "ConfigMap serve, which is not there", id="no such key"),
        pytest.param("a: [", "ConfigFileNotUnderstood", "is no YAML", id="no YAML"),
        pytest.param("- a", "ConfigFileNotUnderstood", "is no map", id="a list"),
        pytest.param(f"{OBJECT}speculative_config: {{}}", "ConfigFileNotUnderstood", "speculative-config and speculative_config", id="two"),
        pytest.param(
            f"{OBJECT}speculative_config: {{}}\nspeculative-config.model: d", "ConfigFileNotUnderstood",
            "speculative-config and speculative_config and speculative-config.model", id="three spellings",
        ),
        pytest.param("speculative-config.method: ngram", "ConfigFileNotUnderstood", "which no flag in args replaces", id="dotted"),
        pytest.param("spec-method: ngram", "ConfigFileNotUnderstood", "has spec-method", id="short"),
    ],
)  # fmt: skip
def test_refuses_a_file_with_a_cure(text: str | None, reason: str, words: str) -> None:
    files = {"serve": {"serve.yaml": text} if text is not None else {}}
    with pytest.raises(CommandError) as refused:
        merge_file(pod(MAP), mounted("/etc/vllm"), ARGV, files)
    assert refused.value.reason == reason
    assert words in refused.value.message


def test_a_file_from_elsewhere_may_speculate() -> None:
    with pytest.raises(CommandError, match="mount it from a ConfigMap") as refused:
        merge_file(pod(PVC), mounted("/etc/vllm"), ARGV, {})
    assert refused.value.reason == "ConfigFileNotRead"
