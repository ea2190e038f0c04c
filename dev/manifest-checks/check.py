"""Are the manifests well formed and of the types that Kubernetes knows? Without a cluster; `make lint` runs it.

Checked: crds/, examples/ and the chart as helm renders it. Types are those of the Kubernetes client, a DraftTable's spec that of the
operator. What only an API server knows (admission, CEL rules) is for tests/api and tests/chart.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client
from pydantic import ValidationError
from yamllint import linter
from yamllint.config import YamlLintConfig

from tabletune_operator.crd import GROUP, VERSION, DraftTableSpec

ROOT = Path(__file__).resolve().parents[2]
CHART = Path("charts/tabletune")
WRITTEN = ("crds/*.yaml", "examples/**/*.yaml", "charts/tabletune/*.yaml")
RENDERINGS: Mapping[str, Sequence[str]] = {
    "defaults": (),
    "namespaced": ("--set", "scope=Namespaced", "--set", "watchNamespaces={one,two}"),
    "all kept": ("--set", "uninstall.drafttables=Keep,crds.install=Skip"),
    "placed": (
        "--set",
        "imagePullSecrets[0].name=registry,priorityClassName=high,nodeSelector.disk=ssd,tolerations[0].operator=Exists",
    ),
}
KUBERNETES = "1.34.0"
OTHERS = ("argoproj.io", "kustomize.config.k8s.io")
"""Groups of other tools' objects, of which only the form is checked; tests/api builds what is Kustomize's."""
PATCH = "-patch.yaml"
"""Kustomize's patches are parts of objects."""
TEMPLATES = {
    "LeaderWorkerSet": (client.V1PodTemplateSpec, ("leaderWorkerTemplate", "workerTemplate")),
    "LLMInferenceService": (client.V1PodSpec, ("template",)),
}
"""Kinds of others, of which the pod is checked."""
TRIED_BY_TESTS = ("kustomize.toolkit.fluxcd.io/v1",)
"""Kinds of other projects in our examples: tests/unit/gitops_health names their fields."""
QUANTITIES = ("limits", "requests")
"""Maps whose values the API server takes as a number too, which the client's types do not say."""


@dataclass(frozen=True, slots=True)
class Source:
    """One YAML text and where it is from."""

    name: str
    text: str


def list_written() -> Iterator[Source]:
    for pattern in WRITTEN:
        for path in sorted(ROOT.glob(pattern)):
            yield Source(str(path.relative_to(ROOT)), path.read_text())


def find_helm() -> str | None:
    """The user's, else the one that the development cluster has built."""
    environment = subprocess.run([ROOT / "dev/cluster/cluster", "env"], check=True, capture_output=True, text=True).stdout
    path = subprocess.run(["bash", "-c", f'{environment}\necho "$PATH"'], check=True, capture_output=True, text=True).stdout.strip()
    return shutil.which("helm", path=os.environ["PATH"]) or shutil.which("helm", path=path)


def render_chart(helm: str) -> Iterator[Source]:
    for name, values in RENDERINGS.items():
        command = [helm, "template", "tabletune", CHART, "-n", "tabletune-system", "--kube-version", KUBERNETES, *values]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{CHART} ({name}): helm template failed: {done.stderr}")
        yield Source(f"{CHART} ({name})", done.stdout)


def check_form(source: Source, config: YamlLintConfig) -> Iterator[str]:
    for problem in linter.run(source.text, config):
        yield f"{source.name}:{problem.line}: {problem.message}"


def check_types(source: Source) -> Iterator[str]:
    for body in yaml.safe_load_all(source.text) if not source.name.endswith(PATCH) else ():
        if not isinstance(body, dict) or "kind" not in body:
            continue  # Chart.yaml, values.yaml: helm's own
        where = f"{source.name}: {body['kind']} {body.get('metadata', {}).get('name', '')}"
        if body["apiVersion"].partition("/")[0] in OTHERS:
            continue
        if body["apiVersion"] == f"{GROUP}/{VERSION}":
            yield from _check_model(where, DraftTableSpec, body["spec"], ("spec",))
            continue
        if body["kind"] in TEMPLATES:
            model, path = TEMPLATES[body["kind"]]
            pod = body["spec"]
            for name in path:
                pod = pod[name]
            yield from _check_model(where, model, _with_text_quantities(pod), ("spec", *path))
            continue
        if body["apiVersion"] in TRIED_BY_TESTS:
            continue
        model = getattr(client, body["apiVersion"].rpartition("/")[2].capitalize() + body["kind"], None)
        if model is None:
            yield f"{where}: {body['apiVersion']} is unknown to the Kubernetes client: add how to check it to {Path(__file__).name}"
        else:
            yield from _check_model(where, model, _with_text_quantities(body), ())


def _check_model(where: str, model: Any, body: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    try:
        model.model_validate(body)  # both kinds of model refuse fields that they do not know
    except ValidationError as error:
        for each in error.errors():
            yield f"{where}: {'.'.join(str(part) for part in (*path, *each['loc']))}: {each['msg']}"


def _with_text_quantities(body: Any) -> Any:
    if isinstance(body, list):
        return [_with_text_quantities(item) for item in body]
    if isinstance(body, Mapping):
        return {key: _as_text(value) if key in QUANTITIES else _with_text_quantities(value) for key, value in body.items()}
    return body


def _as_text(quantities: Any) -> Any:
    return {name: str(amount) for name, amount in quantities.items()} if isinstance(quantities, Mapping) else quantities


def main() -> int:
    config = YamlLintConfig(file=str(Path(__file__).with_name("yamllint.yaml")))
    sources = list(list_written())
    helm = find_helm()
    if helm is not None:
        sources += render_chart(helm)
    findings = [finding for source in sources for finding in (*check_form(source, config), *check_types(source))]
    for finding in findings:
        print(finding)
    print(f"manifests: {len(sources)} texts, {len(findings)} findings")
    if helm is None:
        print(f"manifests: {CHART} is NOT checked as rendered: no helm on PATH and none built yet (dev/cluster/cluster up builds it)")
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main())
