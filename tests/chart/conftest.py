from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from live_cluster import Cluster, CommandError, load_images, running_cluster

_numbers = count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


@pytest.fixture(scope="session")
def image(cluster: Cluster, no_other_operator: None) -> tuple[str, ...]:
    """The project's image on every node, and the values that name it."""
    load_images("tabletune")
    return ("--set", "image.repository=tabletune.local/tabletune,image.tag=dev,image.pullPolicy=IfNotPresent")


@contextmanager
def _namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that refuses every pod that is not restricted."""
    name = f"tabletune-chart-{next(_numbers)}"
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found")
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl(
        "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted"
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def release_namespace(cluster: Cluster) -> Iterator[str]:
    with _namespace(cluster) as name:
        yield name


@pytest.fixture
def other_namespace(cluster: Cluster) -> Iterator[str]:
    with _namespace(cluster) as name:
        yield name


@pytest.fixture(scope="session")
def no_other_operator(cluster: Cluster) -> None:
    """Installing takes the cluster-wide definition, and a second operator would act on the first one's DraftTables."""
    others = cluster.kubectl("get", "deployments", "-A", "-l", "app.kubernetes.io/name=tabletune-operator", "-o", "name").out
    defined = any(name.endswith("/drafttables.tabletune.io") for name in cluster.names("crd"))
    tables = cluster.names("drafttables", "-A") if defined else ()
    if others or tables:
        raise CommandError(
            "This cluster has a TableTune operator or DraftTables, and these tests would take them over. "
            "Run `make demo-down`, or `helm uninstall` it, first."
        )


@pytest.fixture
def bare_cluster(cluster: Cluster, no_other_operator: None) -> Iterator[Cluster]:
    with _without_definition(cluster):
        yield cluster


@pytest.fixture(scope="class")
def shared_namespace(cluster: Cluster, no_other_operator: None) -> Iterator[str]:
    """For a release that several tests look at, on a cluster that is bare before and after."""
    with _without_definition(cluster), _namespace(cluster) as name:
        yield name


@contextmanager
def _without_definition(cluster: Cluster) -> Iterator[None]:
    """A cluster without the DraftTable definition, before and after."""
    cluster.kubectl("delete", "crd", "drafttables.tabletune.io", "--ignore-not-found")
    yield
    # A failed test may leave a finalizer that nobody would remove any more.
    for found in cluster.kubectl("get", "drafttables", "-A", "-o", "name", check=False).out.split():
        namespace = cluster.kubectl(
            "get", "drafttables", "-A", "-o", f"jsonpath={{.items[?(@.metadata.name=='{found.split('/')[1]}')].metadata.namespace}}"
        ).out
        cluster.kubectl("patch", found, "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    cluster.kubectl("delete", "crd", "drafttables.tabletune.io", "--ignore-not-found")
