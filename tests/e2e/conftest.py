from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kserve
import pytest
from crowd import AT_ONCE, Crowd, Installed, start
from kube_api import Api, connect
from live_cluster import Cluster, load_images, running_cluster
from place import Place

CROWD = pytest.StashKey[Crowd]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_operator: an operator for this test only, which may be killed")
    config.addinivalue_line("markers", "kserve: with KServe's own controller, which is built first; `make test-kserve`")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        load_images("pause", "tabletune", "vllm-replay", "engine-cpu")
        yield found


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    with connect(cluster.environment["KUBECONFIG"]) as found:
        yield found


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, cluster: Cluster, api: Api) -> Iterator[Installed]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and "installed" in item.fixturenames]
    if any(item.get_closest_marker("kserve") for item in items):
        kserve.prepare()
    with Installed(cluster, api, items) as found:
        yield found


@pytest.fixture(scope="session")
def crowd(request: pytest.FixtureRequest, installed: Installed) -> Iterator[Crowd]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and "place" in item.fixturenames]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="e2e") as pool:
        found = start(installed, items, pool)
        request.config.stash[CROWD] = found
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, crowd: Crowd) -> Place:
    """A namespace for this test, which runs side by side with the others."""
    return crowd.places[request.node.nodeid]


@pytest.fixture
def quiet_place(request: pytest.FixtureRequest, installed: Installed) -> Place:
    """A namespace for this test, which runs when no other does: it needs the whole machine."""
    return installed.places[request.node.nodeid]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "place" not in pyfuncitem.fixturenames:
        return None
    pyfuncitem.config.stash[CROWD].results[pyfuncitem.nodeid].result()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    """A failure comes with all that the cluster says about the test's namespace."""
    try:
        return (yield)
    except AssertionError as error:
        place = item.funcargs.get("place") or item.funcargs.get("quiet_place")
        if isinstance(place, Place):
            error.add_note(place.report())
        raise
