"""Files for people who keep manifests in Git: what they hold, that they can be read, and that our parts are found again in a manifest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from deployments import llm_d, with_container
from server_side_apply import apply

from tabletune.argv import fold_speculative_config
from tabletune.recommendation_file import RecommendationFile, parse_recommendation, to_recommendation
from tabletune_operator.crd import Controller
from tabletune_operator.overlay import (
    ARGO_CD,
    FLUX,
    HELM_VALUES,
    KUSTOMIZATION,
    MOST_BYTES,
    OVERLAY_FILES,
    PATCH,
    OverlayRequest,
    build_overlay,
    overlay_template,
)
from tabletune_operator.parts import has_parts, without_parts
from tabletune_operator.pods import OwnImage
from tabletune_operator.recommendation import Stored, build_files, parse_stored
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import parse_target

CONFIG = {
    "method": "eagle3",
    "model": "d'raft: #1",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}
NAME = "optimized-baseline-nvidia-gpu-vllm-decode"


def overlay(deployment: dict[str, Any] | None = None, config: dict[str, Any] | None = CONFIG) -> dict[str, str]:
    target = parse_target(llm_d() if deployment is None else deployment, None)
    request = RolloutRequest("chat", target, config, Controller(), OwnImage("tabletune.local/tabletune:dev", "IfNotPresent"), "")
    rollout = build_rollout(request).apply
    template = overlay_template(rollout["spec"]["template"])
    return dict(build_overlay(OverlayRequest("chat", "chat-tabletune", target, rollout, template)))


def patch_of(files: dict[str, str]) -> dict[str, Any]:
    return dict(yaml.safe_load(files[PATCH]))


def test_patch_holds_what_a_roll_out_would_apply_and_nothing_that_is_the_operators() -> None:
    patch = patch_of(overlay())
    assert patch["metadata"] == {"name": NAME}
    assert patch["spec"].keys() == {"template"}
    assert patch["spec"]["template"]["metadata"] == {"labels": {"tabletune.io/drafttable": "chat"}}
    patched = apply(llm_d(), patch)
    (engine,) = patched["spec"]["template"]["spec"]["containers"]
    assert fold_speculative_config(engine["args"]).config == CONFIG
    assert engine["args"][:5] == llm_d()["spec"]["template"]["spec"]["containers"][0]["args"][:5]
    assert has_parts(patched["spec"]["template"])


def test_kustomization_selects_the_target_by_kind_and_name() -> None:
    text = overlay()[KUSTOMIZATION]
    assert yaml.safe_load(text)["patches"] == [
        {"path": PATCH, "target": {"group": "apps", "version": "v1", "kind": "Deployment", "name": NAME}}
    ]
    assert "name your own" in text


def test_patch_says_that_it_is_to_be_taken_anew_when_args_change() -> None:
    comment = overlay()[PATCH].partition("apiVersion")[0].replace("\n# ", " ")
    assert "when you change args in your manifest, take this file anew from ConfigMap chat-tabletune" in comment


def test_off_takes_the_flag_away_and_brings_no_parts() -> None:
    patched = apply(llm_d(), patch_of(overlay(config=None)))
    (engine,) = patched["spec"]["template"]["spec"]["containers"]
    assert fold_speculative_config(engine["args"]).config is None
    assert not has_parts(patched["spec"]["template"])


def test_helm_values_are_lists_of_the_modelservice_chart() -> None:
    decode = yaml.safe_load(overlay()[HELM_VALUES])["decode"]
    assert decode.keys() == {"initContainers", "containers", "volumes"}
    assert fold_speculative_config(decode["containers"][0]["args"]).config == CONFIG


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        pytest.param({}, [".args"], id="arguments only"),
        pytest.param(
            {"env": [{"name": "PYTHONPATH", "value": "/theirs"}]},
            [".args", '.env[] | select(.name == "PYTHONPATH") | .value'],
            id="a variable that is theirs too",
        ),
        pytest.param({"command": ["vllm", "serve", "m", "--spec-tokens=2"], "args": []}, [".command"], id="flags in command"),
    ],
)
def test_gitops_tools_ignore_only_what_stands_in_the_manifest_too(fields: dict[str, Any], paths: list[str]) -> None:
    files = overlay(with_container(**fields) if fields else None)
    (rule,) = yaml.safe_load(files[ARGO_CD])["spec"]["ignoreDifferences"]
    assert rule["jqPathExpressions"] == [f'.spec.template.spec.containers[] | select(.name == "modelserver") | {path}' for path in paths]
    assert yaml.safe_load(files[ARGO_CD])["spec"]["syncPolicy"] == {"syncOptions": ["RespectIgnoreDifferences=true"]}
    kustomization, release = yaml.safe_load_all(files[FLUX])
    (ignored,) = kustomization["spec"]["ignore"]
    assert ignored["paths"] == [f"/spec/template/spec/containers/0/{path[1:].split('[')[0]}" for path in paths]
    assert release["spec"]["driftDetection"] == {"mode": "enabled", "ignore": [ignored]}


def test_all_files_or_none_and_never_too_large() -> None:
    assert overlay().keys() == set(OVERLAY_FILES)
    huge = with_container(args=["m", "--spec-method=ngram", "--spec-tokens=2", "x" * MOST_BYTES])
    assert overlay(huge) == {}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="as in the guide"),
        pytest.param({"env": [{"name": "PYTHONPATH", "value": "/theirs"}, {"name": "A", "value": "b"}]}, id="PYTHONPATH among others"),
        pytest.param({"env": [{"name": "VLLM_PLUGINS", "value": "lora"}]}, id="plugins"),
        pytest.param({"env": None, "volumeMounts": None}, id="nothing else in the container"),
    ],
)
def test_without_our_parts_a_template_is_what_it_was_before_the_overlay_but_for_args(fields: dict[str, Any]) -> None:
    before = with_container(**fields)
    patched = apply(before, patch_of(overlay(before)))
    plain = without_parts(patched["spec"]["template"])
    (engine,) = plain["spec"]["containers"]
    (engine_before,) = before["spec"]["template"]["spec"]["containers"]
    engine["args"] = engine_before["args"]
    assert json.dumps(plain, sort_keys=True) == json.dumps(before["spec"]["template"], sort_keys=True)


def test_a_template_without_our_parts_stays_as_it_is() -> None:
    template = llm_d()["spec"]["template"]
    assert without_parts(template) == template
    assert not has_parts(template)


def test_recommendation_keeps_the_newest_settings_and_is_read_back() -> None:
    file = RecommendationFile(CONFIG, ())
    for k in range(12):
        file = file.adds({"num_speculative_tokens": k}, None)
    assert file.settings[-1] is None
    assert file.settings[-2] == {"num_speculative_tokens": 11}
    assert len(file.settings) == 8
    assert parse_recommendation(to_recommendation(file)) == file


def test_files_are_written_once_and_only_into_a_config_map_with_room() -> None:
    file = RecommendationFile(None, (CONFIG,))
    stored = parse_stored({"profile.json": "p", "table.json": "t"}, "u-1")
    manifest = build_files(stored, "llm", "chat", overlay(), file)
    assert manifest is not None
    assert manifest["metadata"] == {"name": "chat-tabletune", "namespace": "llm", "uid": "u-1"}
    assert build_files(parse_stored({"profile.json": "p", **manifest["data"]}, "u-1"), "llm", "chat", overlay(), file) is None
    assert build_files(Stored("", {}, 1_000_000), "llm", "chat", overlay(), file) is None
    assert build_files(parse_stored({"profile.json": "p" * 999_000}, "u-1"), "llm", "chat", overlay(), file) is None
