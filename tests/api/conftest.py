"""One API server for all tests of this tier, with the definition that crds/ holds."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from api_server import ROOT, Api, RefusedError, existing_cluster, own_api_server

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kserve: with KServe's own controller, which is built first; `make test-kserve`")


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    given = existing_cluster() if os.environ.get("KUBECONFIG") else own_api_server(tmp_path_factory.mktemp("api"))
    with given as found:
        definition = yaml.safe_load(Path(ROOT / "crds" / "drafttables.yaml").read_text())
        path = f"{DEFINITIONS}/{definition['metadata']['name']}"
        found.apply(path, definition, manager="tests")
        _wait_until_served(found, path)
        yield found


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    name = f"tabletune-test-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    # No controller runs that would empty a namespace that goes.
    with contextlib.suppress(RefusedError):  # a server of a test's own has no definition of them
        api.delete(f"/apis/tabletune.io/v1alpha1/namespaces/{name}/drafttables")
    api.delete(f"/api/v1/namespaces/{name}")


def _wait_until_served(api: Api, path: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        conditions = api.get(path).get("status", {}).get("conditions") or []
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            try:
                api.get("/apis/tabletune.io/v1alpha1/drafttables")
            except RefusedError:
                time.sleep(0.1)
                continue
            return
        time.sleep(0.1)
    raise RuntimeError("the definition of DraftTable is not served after 30 s")
