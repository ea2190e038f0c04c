"""What is written for people who keep manifests in Git: built by the real Kustomize, and taken by a real API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api, cluster_binaries
from test_workloads import CONFIG, IMAGE, PYTHON_PATH, SHAPES, engine_of, example, path

from tabletune_operator.command import read_command
from tabletune_operator.crd import Controller, DraftTableSpec
from tabletune_operator.drift import is_in_place
from tabletune_operator.launch_file import build_config_map, build_kept_map, config_template, launch_map_name, present_setting, read_use
from tabletune_operator.loan import FIELD_MANAGER
from tabletune_operator.overlay import KUSTOMIZATION, PATCH, OverlayRequest, build_overlay, overlay_template
from tabletune_operator.parts import has_parts, without_parts
from tabletune_operator.rollout import Rollout, RolloutRequest, build_rollout
from tabletune_operator.target import Target, parse_target

Body = dict[str, Any]


@pytest.fixture
def kubectl() -> Path:
    return cluster_binaries() / "kubectl"


def rollout(target: Target) -> Rollout:
    return build_rollout(RolloutRequest("chat", target, CONFIG, Controller(), IMAGE, ""))


def overlay(target: Target, template: Mapping[str, Any]) -> Mapping[str, str]:
    return build_overlay(OverlayRequest("chat", "chat-tabletune", target, rollout(target).apply, template))


def kustomize(kubectl: Path, folder: Path, base: Body, files: Mapping[str, str]) -> Body:
    """The base with the overlay over it. The base names no namespace, as llm-d's guides do not."""
    plain = {**base, "metadata": {key: value for key, value in base["metadata"].items() if key != "namespace"}}
    (folder / "base").mkdir()
    (folder / "base" / "modelserver.yaml").write_text(yaml.safe_dump(plain))
    (folder / "base" / KUSTOMIZATION).write_text(yaml.safe_dump({"resources": ["modelserver.yaml"]}))
    (folder / "tuned").mkdir()
    for name in (KUSTOMIZATION, PATCH):
        (folder / "tuned" / name).write_text(files[name])
    done = subprocess.run([kubectl, "kustomize", folder / "tuned"], capture_output=True, text=True, check=True)
    return dict(yaml.safe_load(done.stdout))


def sorted_lists(template: Mapping[str, Any]) -> str:
    """A pod template without the order of lists that are maps by name."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in sorted(value.items())}
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return sorted((plain(item) for item in value), key=json.dumps)
        return value

    return json.dumps(plain(template), indent=1)


@pytest.mark.parametrize("edit", SHAPES)
def test_kustomize_makes_of_the_overlay_what_a_roll_out_makes(api: Api, namespace: str, kubectl: Path, tmp_path: Path, edit: Any) -> None:
    base = example(namespace, edit)
    before = api.create(path(namespace), base)
    target = parse_target(before, None)
    files = overlay(target, overlay_template(rollout(target).apply["spec"]["template"]))
    built = kustomize(kubectl, tmp_path, base, files)
    name = before["metadata"]["name"]
    applied = api.apply(f"{path(namespace)}/{name}", {**built, "metadata": {**built["metadata"], "namespace": namespace}}, manager="git")
    template = applied["spec"]["template"]
    assert read_command(engine_of(applied)).speculation == CONFIG
    assert has_parts(template)
    assert is_in_place(applied, rollout(parse_target({**applied, "spec": {**applied["spec"], "template": without_parts(template)}}, None)))
    plain = without_parts(template)
    container = next(c for c in plain["spec"]["containers"] if c["name"] == "modelserver")
    for field in ("command", "args", "env"):  # where the flag stands is what the overlay changes
        container.pop(field, None)
        if field in engine_of(before):
            container[field] = engine_of(before)[field]
    assert sorted_lists(plain) == sorted_lists(before["spec"]["template"])


def test_engine_that_names_the_file_is_made_by_its_overlay_too(api: Api, namespace: str, kubectl: Path, tmp_path: Path) -> None:
    base = example(namespace, lambda pod: pod["containers"][0]["env"].append(PYTHON_PATH))
    target = parse_target(api.create(path(namespace), base), None)
    parts = overlay_template(rollout(target).apply["spec"]["template"])
    built = kustomize(kubectl, tmp_path, base, overlay(target, config_template(target, "chat", parts)))
    applied = api.apply(
        f"{path(namespace)}/{target.name}", {**built, "metadata": {**built["metadata"], "namespace": namespace}}, manager="git"
    )
    after = parse_target(applied, None, {launch_map_name("chat"): {"vllm.yaml": "{}"}})
    reading = read_use(after, "chat")
    assert (reading.is_read, reading.problem, after.speculation) == (True, None, None)
    assert has_parts(applied["spec"]["template"])


def test_example_reads_the_file_of_its_drafttable(api: Api, namespace: str, kubectl: Path) -> None:
    done = subprocess.run([kubectl, "kustomize", ROOT / "examples" / "gitops" / "config-file"], capture_output=True, text=True, check=True)
    built = {body["kind"]: body for body in yaml.safe_load_all(done.stdout)}
    deployment = {**built["Deployment"], "metadata": {**built["Deployment"]["metadata"], "namespace": namespace}}
    name = built["DraftTable"]["metadata"]["name"]
    target = parse_target(api.create(path(namespace), deployment), None, {launch_map_name(name): {"vllm.yaml": "{}"}})
    reading = read_use(target, name)
    assert (reading.is_read, reading.problem) == (True, None)
    assert (
        present_setting(None, DraftTableSpec.model_validate(built["DraftTable"]["spec"]))
        == parse_target(
            api.create(path(namespace), example(namespace) | {"metadata": {"name": "as-before", "namespace": namespace}}), None
        ).speculation
    )


def mark(target: Body, digest: str | None) -> Body:
    """As decide/launch_file.py writes it."""
    metadata = {field: target["metadata"][field] for field in ("name", "namespace", "uid")}
    identity = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    annotations = {"tabletune.io/table-digest": digest}
    return identity if digest is None else {**identity, "spec": {"template": {"metadata": {"annotations": annotations}}}}


@pytest.mark.parametrize("manager", ["created", "applied"])
def test_mark_alone_is_ours_and_stays_when_git_is_applied_again(api: Api, namespace: str, manager: str) -> None:
    base = example(namespace)
    at = f"{path(namespace)}/{base['metadata']['name']}"
    before = api.create(path(namespace), base) if manager == "created" else api.apply(at, base, manager="git")
    marked = api.apply(at, mark(before, "abc123"), manager=FIELD_MANAGER)
    again = api.apply(at, {**base, "metadata": {**base["metadata"], "annotations": {"a": "b"}}}, manager="git")
    assert again["spec"]["template"]["metadata"]["annotations"] == {"tabletune.io/table-digest": "abc123"}
    assert again["spec"] == marked["spec"], "and only once"
    back = api.apply(at, mark(again, None), manager=FIELD_MANAGER)
    assert json.dumps(back["spec"], sort_keys=True) == json.dumps(before["spec"], sort_keys=True)


def test_mark_never_makes_a_workload_anew(api: Api, namespace: str) -> None:
    before = api.create(path(namespace), example(namespace))
    at = f"{path(namespace)}/{before['metadata']['name']}"
    api.delete(at)
    with pytest.raises(AssertionError):
        api.apply(at, mark(before, "abc123"), manager=FIELD_MANAGER)


def test_file_that_outlives_its_drafttable_is_nobodys(api: Api, namespace: str) -> None:
    at = f"/api/v1/namespaces/{namespace}/configmaps/{launch_map_name('chat')}"
    made = api.apply(at, build_config_map(namespace, "chat", CONFIG, {"method": "ngram"}, {KUSTOMIZATION: "k"}), manager=FIELD_MANAGER)
    kept = api.apply(at, build_kept_map(namespace, "chat", {"method": "ngram"}, made["metadata"]["uid"]), manager=FIELD_MANAGER)
    assert kept["data"].keys() == {"vllm.yaml"}
    assert "ngram" in kept["data"]["vllm.yaml"]
    assert "labels" not in kept["metadata"]
    assert "ownerReferences" not in kept["metadata"]
