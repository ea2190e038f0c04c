"""The development cluster with an operator of its own for a benchmark, made of the tests' parts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "e2e")]

from kube_api import connect  # noqa: E402 - these are the tests' own parts
from live_cluster import load_images, running_cluster  # noqa: E402
from place import Place, force_delete  # noqa: E402
from release import DEFINITION, Release, assert_alone  # noqa: E402
from workloads import code_prompts  # noqa: E402


@contextlib.contextmanager
def installed(name: str) -> Iterator[Place]:
    """Namespace NAME, with prompts in it and an operator that serves it alone; both go afterwards."""
    with running_cluster() as cluster, connect(cluster.environment["KUBECONFIG"]) as api:
        load_images("pause", "tabletune", "vllm-replay")
        assert_alone(cluster, api)
        operator = Release(cluster, api, f"{name}-operator")
        operator.remove_remains()
        force_delete(api, name)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        place = Place(api, cluster, name, operator)
        place.create(code_prompts())
        operator.install([name], with_definition=api.get("CustomResourceDefinition", None, DEFINITION) is None)
        try:
            yield place
        finally:
            operator.uninstall()
            api.delete("Namespace", None, name)
