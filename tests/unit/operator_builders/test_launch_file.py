"""The file that engines read at their start: what is in it, whether a manifest names it, and what stands in its place when measuring."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from deployments import llm_d, spec
from server_side_apply import apply

from tabletune_operator.launch_file import (
    PATH,
    build_config_map,
    build_kept_map,
    config_template,
    launch_digest,
    names_launch_map,
    parse_launch_file,
    parse_setting,
    present_setting,
    read_use,
    to_launch_file,
    without_file,
)
from tabletune_operator.target import Target, parse_target

SETTING = {"method": "eagle3", "model": "d: #1", "num_speculative_tokens": 3, "nested": {"on": True, "text": "no"}}
TABLE = {**SETTING, "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]]}

EMPTY = {"chat-tabletune-config": {"vllm.yaml": "{}", "other.yaml": "{}"}, "mine": {"vllm.yaml": "{}"}}
"""ConfigMaps as they are read: what our own file says is not asked of it."""

FLAGS = ["--spec-method=ngram", "--spec-tokens=2"]


def target(*args: str, volume: dict[str, Any] | None = None, mount: dict[str, Any] | None = None) -> Target:
    """The example, started with these arguments; `--config` as the snippet says unless told otherwise."""
    deployment = llm_d()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["args"] = ["model", *args]
    source = {"name": "tabletune-config", "configMap": {"name": "chat-tabletune-config"}} if volume is None else volume
    pod["volumes"] = [*pod.get("volumes", []), source]
    container["volumeMounts"] = [
        *container.get("volumeMounts", []),
        {"name": "tabletune-config", "mountPath": "/etc/tabletune"} if mount is None else mount,
    ]
    return parse_target(deployment, None, EMPTY)


@pytest.mark.parametrize(
    "setting",
    [None, SETTING, TABLE, {"method": "ngram", "share": 1e-05}],
    ids=["none", "one length", "table", "JSON that YAML reads otherwise"],
)
def test_file_is_a_mapping_in_yaml_and_is_read_back(setting: dict[str, Any] | None) -> None:
    text = to_launch_file("chat", setting)
    assert yaml.safe_load(text) == ({} if setting is None else {"speculative-config": setting})  # never null: vLLM ends at that
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "speculative-config: text"])
def test_a_file_that_cannot_be_read_holds_no_setting(text: str) -> None:
    assert parse_setting(text) is None


def test_config_map_has_no_owner_and_says_what_was_before() -> None:
    manifest = build_config_map("llm", "chat", TABLE, SETTING, {"kustomization.yaml": "k"})
    assert "ownerReferences" not in manifest["metadata"]
    stored = parse_launch_file({**manifest, "metadata": {**manifest["metadata"], "uid": "u-1"}})
    assert (stored.before, stored.text, stored.is_labelled) == (SETTING, to_launch_file("chat", TABLE), True)
    assert stored.others == {"kustomization.yaml": "k"}


def test_what_outlives_a_drafttable_says_itself_what_was_before() -> None:
    kept = build_kept_map("llm", "chat", SETTING, "u-1")
    assert kept["data"].keys() == {"vllm.yaml"}
    stored = parse_launch_file(kept)
    assert (stored.before, stored.is_labelled) == (SETTING, False)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        pytest.param(target("--config", PATH), None, id="as the snippet says"),
        pytest.param(
            target(
                "--config",
                "/c/x.yml",
                volume={"name": "v", "configMap": {"name": "chat-tabletune-config", "items": [{"key": "vllm.yaml", "path": "x.yml"}]}},
                mount={"name": "v", "mountPath": "/c"},
            ),
            None,
            id="under another path",
        ),
        pytest.param(
            target("--config", PATH, mount={"name": "tabletune-config", "mountPath": PATH, "subPath": "vllm.yaml"}), None, id="by subPath"
        ),
        pytest.param(target("--config", PATH, *FLAGS), "Remove them", id="flags beside it"),
    ],
)
def test_a_manifest_that_names_the_file_is_seen(read: Target, says: str | None) -> None:
    reading = read_use(read, "chat")
    assert reading.is_read
    assert reading.problem is None if says is None else says in str(reading.problem)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        pytest.param(target(), "Add args --config, /etc/tabletune/vllm.yaml; volumeMounts", id="not named"),
        pytest.param(target("--config"), "names no file", id="without a value"),
        pytest.param(target(f"--config={PATH}"), "as two", id="with an equals sign, which vLLM passes over"),
        pytest.param(target("--config", PATH, "--config", "/other.yaml"), "stands 2 times", id="twice"),
        pytest.param(
            target(
                "--config",
                "/etc/tabletune/vllm.json",
                volume={
                    "name": "tabletune-config",
                    "configMap": {"name": "chat-tabletune-config", "items": [{"key": "vllm.yaml", "path": "vllm.json"}]},
                },
            ),
            ".yaml or .yml",
            id="not YAML by name",
        ),
        pytest.param(
            target("--config", PATH, volume={"name": "tabletune-config", "configMap": {"name": "mine"}}),
            "key vllm.yaml of ConfigMap mine",
            id="another ConfigMap",
        ),
        pytest.param(target("--config", "/etc/tabletune/other.yaml"), "key other.yaml", id="another key"),
    ],
)
def test_a_manifest_that_does_not_is_told_what_to_change(read: Target, says: str) -> None:
    reading = read_use(read, "chat")
    assert not reading.is_read
    assert says in str(reading.problem)


def test_what_is_measured_gets_its_speculation_from_the_tuner_alone() -> None:
    read = without_file(target("--config", PATH, "--max-num-seqs", "8"), SETTING)
    assert read.argv == ("vllm", "serve", "model", "--max-num-seqs", "8")
    assert read.speculation == SETTING


@pytest.mark.parametrize(
    ("speculation", "args", "present"),
    [
        pytest.param({"method": "eagle3", "model": "d", "maxDraftLength": 3}, (), {"method": "eagle3", "model": "d"}, id="the spec's"),
        pytest.param({"method": "ngram", "maxDraftLength": 3}, (), {"method": "ngram"}, id="without a model"),
        pytest.param({"maxDraftLength": 3}, tuple(FLAGS), {"method": "ngram", "num_speculative_tokens": 2}, id="the flags'"),
        pytest.param({"maxDraftLength": 3}, (), None, id="no drafter named"),
        pytest.param(None, (), None, id="nothing said"),
    ],
)
def test_before_anything_is_measured_engines_run_what_is_said(
    speculation: dict[str, Any] | None, args: tuple[str, ...], present: dict[str, Any] | None
) -> None:
    wanted = spec(**({"speculation": speculation} if speculation else {}))
    expected = {"num_speculative_tokens": 3, **present} if present is not None else None
    assert present_setting(target(*args), wanted) == expected


def test_restart_is_asked_for_when_engines_need_one() -> None:
    other = {**TABLE, "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 1]]}
    shorter = {**TABLE, "num_speculative_tokens_per_batch_size": [[1, 32, 2], [33, 128, 1]]}
    assert launch_digest(TABLE, tracked=True) == launch_digest(other, tracked=True), "a sidecar puts it in force"
    assert launch_digest(TABLE, tracked=False) != launch_digest(other, tracked=False), "nobody else would"
    assert launch_digest(TABLE, tracked=True) != launch_digest(shorter, tracked=True), "another length"
    assert len({launch_digest(setting, tracked=True) for setting in (None, SETTING, TABLE)}) == 3


@pytest.mark.parametrize("args", [FLAGS, ["--config", PATH], []], ids=["flags", "the file", "nothing"])
def test_overlay_makes_the_engine_read_the_file_and_nothing_beside_it(args: list[str]) -> None:
    deployment = llm_d()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["args"] = ["model", *args, "--max-num-seqs", "8"]
    pod = deployment["spec"]["template"]["spec"]
    if "--config" in args:
        container["volumeMounts"].append({"name": "tabletune-config", "mountPath": "/etc/tabletune"})
        pod["volumes"].append({"name": "tabletune-config", "configMap": {"name": "chat-tabletune-config"}})
    before = parse_target(deployment, None, EMPTY)
    patched = apply(copy.deepcopy(deployment), {"spec": {"template": config_template(before, "chat", None)}})
    after = parse_target(patched, None, EMPTY)
    reading = read_use(after, "chat")
    assert (reading.is_read, reading.problem) == (True, None)
    (engine,) = patched["spec"]["template"]["spec"]["containers"]
    assert engine["args"].count("--config") == 1
    assert names_launch_map(patched["spec"]["template"], "chat")
    assert not names_launch_map(llm_d()["spec"]["template"], "chat")
