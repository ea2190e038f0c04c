"""What re-applying the user's manifest does to a roll-out, by tool and setting. docs/gitops-conflicts.md has these facts as a table."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import TOKEN, Api, cluster_binaries
from gitops_tools import GitOps, Round
from test_workloads import CONFIG, PYTHON_PATH, engine, engine_of, example, path, roll

from tabletune_operator.drift import read_drift
from tabletune_operator.owners import find_writer, is_loop
from tabletune_operator.restore import restore

FLUX_SSA, FLUX_RECONCILE = "kustomize.toolkit.fluxcd.io/ssa", "kustomize.toolkit.fluxcd.io/reconcile"
ARGS_JQ = '.spec.template.spec.containers[] | select(.name == "modelserver") | .args'
ARGS_POINTER = "/spec/template/spec/containers/0/args"

ENGINE = "modelserver"
KEPT, REVERTED = "kept", "reverted"


@pytest.fixture(scope="session")
def gitops(api: Api, tmp_path_factory: pytest.TempPathFactory) -> GitOps:
    if os.environ.get("KUBECONFIG"):
        return GitOps(os.environ)
    folder = tmp_path_factory.mktemp("gitops")
    (folder / "kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "tests",
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
                "clusters": [{"name": "tests", "cluster": {"server": api.address, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "tests", "user": {"token": TOKEN}}],
            }
        )
    )
    own = {"KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder), "PATH": f"{cluster_binaries()}:{os.environ['PATH']}"}
    return GitOps(os.environ | own)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with its settings. `annotated`: what the manifest says to it; `told`: what somebody writes on the object in the cluster."""

    name: str
    options: tuple[str, ...] = ()
    annotated: tuple[str, str] | None = None
    told: tuple[str, str] | None = None


def argo(name: str, *options: str, sync: str = "always") -> Tool:
    return Tool(name, ("--sync", sync, *options))


IGNORED = ("--ignore-jq", ARGS_JQ)
RESPECTED = (*IGNORED, "--respect-ignore-differences")

REVERTING = [
    pytest.param(Tool("kubectl"), id="kubectl apply"),
    pytest.param(Tool("kubectl-server-side-force"), id="kubectl apply --server-side --force-conflicts"),
    pytest.param(Tool("helm"), id="helm upgrade"),
    pytest.param(Tool("flux"), id="Flux"),
    pytest.param(Tool("flux", annotated=(FLUX_SSA, "Merge")), id="Flux, ssa: Merge"),
    pytest.param(argo("argo", sync="drift"), id="Argo CD, self-heal"),
    pytest.param(argo("argo"), id="Argo CD, sync"),
    pytest.param(argo("argo", *IGNORED), id="Argo CD, ignoreDifferences, sync"),
    pytest.param(argo("argo-server-side", sync="drift"), id="Argo CD, ServerSideApply, self-heal"),
    pytest.param(argo("argo-server-side"), id="Argo CD, ServerSideApply, sync"),
    pytest.param(argo("argo-server-side", *IGNORED), id="Argo CD, ServerSideApply, ignoreDifferences, sync"),
]

PEACEFUL = [
    pytest.param(Tool("flux", annotated=(FLUX_SSA, "IfNotPresent")), id="Flux, ssa: IfNotPresent"),
    pytest.param(Tool("flux", told=(FLUX_SSA, "Ignore")), id="Flux, ssa: Ignore on the object"),
    pytest.param(Tool("flux", told=(FLUX_RECONCILE, "disabled")), id="Flux, reconcile: disabled on the object"),
    pytest.param(Tool("flux", ("--ignore-pointer", ARGS_POINTER)), id="Flux, spec.ignore"),
    pytest.param(argo("argo", *IGNORED, sync="drift"), id="Argo CD, ignoreDifferences, self-heal"),
    pytest.param(argo("argo", *RESPECTED), id="Argo CD, RespectIgnoreDifferences, sync"),
    pytest.param(argo("argo-server-side", *IGNORED, sync="drift"), id="Argo CD, ServerSideApply, ignoreDifferences, self-heal"),
    pytest.param(argo("argo-server-side", *RESPECTED), id="Argo CD, ServerSideApply, RespectIgnoreDifferences, sync"),
]


@pytest.mark.parametrize("tool", REVERTING)
def test_takes_args_back_and_leaves_all_else(api: Api, namespace: str, gitops: GitOps, tmp_path: Path, tool: Tool) -> None:
    """One restart, and no second one: what is then on the Deployment is what the tool wants, with our containers beside it."""
    user = User(api, namespace, gitops, tmp_path, tool)
    before, rolled = user.install_and_roll()
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", True)
    after = user.read()
    assert engine_of(after)["args"] == engine_of(before)["args"]
    assert fates(before, rolled, after) == dict.fromkeys(PARTS, KEPT) | {"args": REVERTED}
    writer = find_writer(after, ENGINE, read_drift(after).arguments)
    assert writer is not None
    assert is_loop(writer.manager) == tool.name.startswith(("argo", "flux")), writer.manager

    (again,) = user.apply()
    assert (again.error, again.changed) == ("", False)
    # What deleting the DraftTable leaves is the manifest, with nothing of ours.
    assert restore(after)["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize("tool", PEACEFUL)
def test_leaves_the_whole_roll_out(api: Api, namespace: str, gitops: GitOps, tmp_path: Path, tool: Tool) -> None:
    user = User(api, namespace, gitops, tmp_path, tool)
    before, rolled = user.install_and_roll()
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", False)
    after = user.read()
    assert fates(before, rolled, after) == dict.fromkeys(PARTS, KEPT)

    # A later table is rolled out in the same way, and stays as well.
    rolled = roll(api, after, {**CONFIG, "num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 128, 2]]})
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", False)
    assert fates(before, rolled, user.read()) == dict.fromkeys(PARTS, KEPT)


@pytest.mark.parametrize(
    ("tool", "arrives", "args"),
    [
        pytest.param(Tool("flux", ("--ignore-pointer", ARGS_POINTER)), True, KEPT, id="Flux, spec.ignore"),
        pytest.param(Tool("flux", annotated=(FLUX_SSA, "IfNotPresent")), False, KEPT, id="Flux, ssa: IfNotPresent"),
        pytest.param(Tool("flux", told=(FLUX_RECONCILE, "disabled")), False, KEPT, id="Flux, reconcile: disabled on the object"),
        pytest.param(argo("argo", *RESPECTED), True, KEPT, id="Argo CD, RespectIgnoreDifferences"),
        pytest.param(argo("argo-server-side", *RESPECTED), True, KEPT, id="Argo CD, ServerSideApply, RespectIgnoreDifferences"),
        pytest.param(argo("argo", *IGNORED, sync="drift"), True, REVERTED, id="Argo CD, ignoreDifferences"),
        pytest.param(argo("argo-server-side", *IGNORED, sync="drift"), True, REVERTED, id="Argo CD, ServerSideApply, ignoreDifferences"),
    ],
)
def test_another_edit_in_git(api: Api, namespace: str, gitops: GitOps, tmp_path: Path, tool: Tool, *, arrives: bool, args: str) -> None:
    """What a setting that makes peace costs: does a new image in Git still arrive, and does it take the table with it?"""
    user = User(api, namespace, gitops, tmp_path, tool)
    before, rolled = user.install_and_roll()
    engine(user.manifest["spec"]["template"]["spec"])["image"] = "docker.io/vllm/vllm-openai:v0.33.0"
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", arrives)
    after = user.read()
    assert (engine_of(after)["image"] != engine_of(before)["image"]) == arrives
    assert fates(before, rolled, after) == dict.fromkeys(PARTS, KEPT) | {"args": args}


def test_refused_without_force(api: Api, namespace: str, gitops: GitOps, tmp_path: Path) -> None:
    """kubectl apply --server-side names us, and changes nothing."""
    user = User(api, namespace, gitops, tmp_path, Tool("kubectl-server-side"))
    before, rolled = user.install_and_roll()
    (applied,) = user.apply()
    assert not applied.changed
    assert 'conflict with "tabletune.io"' in applied.error
    assert '.spec.template.spec.containers[name="modelserver"].args' in applied.error
    assert fates(before, rolled, user.read()) == dict.fromkeys(PARTS, KEPT)


@pytest.mark.parametrize("name", ["kubectl", "kubectl-server-side-force", "helm", "flux", "argo", "argo-server-side"])
def test_a_variable_that_both_write_goes_back_too(api: Api, namespace: str, gitops: GitOps, tmp_path: Path, name: str) -> None:
    """PYTHONPATH of the manifest without our entry: the plugin is not loaded then, and the engine runs as the manifest says."""
    options = ("--sync", "always") if name.startswith("argo") else ()
    user = User(api, namespace, gitops, tmp_path, Tool(name, options))
    user.manifest["spec"]["template"]["spec"]["containers"][0]["env"].append(PYTHON_PATH)
    before, _ = user.install_and_roll()
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", True)
    after = user.read()
    assert next(e for e in engine_of(after)["env"] if e["name"] == "PYTHONPATH") == PYTHON_PATH
    assert restore(after)["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize("name", ["kubectl", "kubectl-server-side-force", "helm", "flux", "argo", "argo-server-side"])
def test_a_committed_setting_is_kept_by_every_tool(api: Api, namespace: str, gitops: GitOps, tmp_path: Path, name: str) -> None:
    """The way without any setting: args of the roll-out in Git."""
    options = ("--sync", "always") if name.startswith("argo") else ()
    user = User(api, namespace, gitops, tmp_path, Tool(name, options))
    before, rolled = user.install_and_roll()
    engine(user.manifest["spec"]["template"]["spec"])["args"] = engine_of(rolled)["args"]
    (applied,) = user.apply()
    assert (applied.error, applied.changed) == ("", False)
    assert fates(before, rolled, user.read()) == dict.fromkeys(PARTS, KEPT)


class User:
    """A manifest in Git, and the tool that applies it."""

    def __init__(self, api: Api, namespace: str, gitops: GitOps, folder: Path, tool: Tool) -> None:
        self._api, self._namespace, self._gitops, self._folder, self._tool = api, namespace, gitops, folder, tool
        self.manifest = example(namespace)
        if tool.annotated is not None:
            self.manifest["metadata"]["annotations"] = dict([tool.annotated])

    def install_and_roll(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The Deployment before and after the roll-out; the tool saw it settled before."""
        for _ in range(2):
            (applied,) = self.apply()
            assert applied.error == ""
        if self._tool.told is not None:
            metadata = {"name": self.manifest["metadata"]["name"], "annotations": dict([self._tool.told])}
            told = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
            self._api.apply(f"{path(self._namespace)}/{metadata['name']}", told, manager="somebody")
        before = self.read()
        return before, roll(self._api, before, CONFIG)

    def apply(self) -> Sequence[Round]:
        return self._gitops.apply(self._tool.name, self._namespace, self._folder, self.manifest, options=self._tool.options)

    def read(self) -> dict[str, Any]:
        return self._api.get(f"{path(self._namespace)}/{self.manifest['metadata']['name']}")


PARTS = ("args", "env", "volumeMounts", "initContainers", "volumes", "template annotations", "template labels", "annotations")


def parts(deployment: dict[str, Any]) -> dict[str, Any]:
    """What a roll-out touches."""
    template, container = deployment["spec"]["template"], engine_of(deployment)
    ours = {key: value for key, value in deployment["metadata"].get("annotations", {}).items() if key.startswith("tabletune.io/")}
    found = (
        container["args"], container.get("env"), container.get("volumeMounts"), template["spec"].get("initContainers"),
        template["spec"].get("volumes"), template["metadata"].get("annotations"), template["metadata"].get("labels"), ours,
    )  # fmt: skip
    return dict(zip(PARTS, copy.deepcopy(found), strict=True))


def fates(before: dict[str, Any], rolled: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Of each part of the roll-out."""
    was, is_rolled, now = parts(before), parts(rolled), parts(after)
    return {name: KEPT if now[name] == is_rolled[name] else REVERTED if now[name] == was[name] else json.dumps(now[name]) for name in PARTS}
