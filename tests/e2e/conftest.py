from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

import kserve
import pytest
from crowd import AT_ONCE, Crowd, Installed, start
from kube_api import Api, connect
from live_cluster import Cluster, load_images, running_cluster
from lws import leader_worker_sets
from place import Place

CROWD = pytest.StashKey[Crowd]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_operator: an operator for this test only, which may be killed")
    config.addinivalue_line("markers", "leader_worker_sets: needs LeaderWorkerSets and their controller")
    config.addinivalue_line("markers", "whole_pool: needs every GPU of the A100 pool at some time")
    config.addinivalue_line("markers", "early(by): done in this test's namespace while others still run, but none that is whole_pool")
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
    with ExitStack() as around:
        if any(item.get_closest_marker("kserve") for item in items):
            kserve.prepare()
        if any(item.get_closest_marker("leader_worker_sets") for item in items):
            around.enter_context(leader_worker_sets(cluster, api))
        yield around.enter_context(Installed(cluster, api, items))


@pytest.fixture(scope="session")
def crowd(request: pytest.FixtureRequest, installed: Installed) -> Iterator[Crowd]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and "place" in item.fixturenames]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="e2e") as pool:
        found = start(installed, items, pool)
        request.config.stash[CROWD] = found
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def begun_early(request: pytest.FixtureRequest, installed: Installed, crowd: Crowd) -> Iterator[Mapping[str, Future[None]]]:
    """What quiet tests need and what takes long."""
    whole = [crowd.results[item.nodeid] for item in request.session.items if item.get_closest_marker("whole_pool")]
    marked = {item.nodeid: item.get_closest_marker("early") for item in request.session.items}

    def begin(by: Callable[[Place], None], place: Place) -> None:
        wait(whole)
        by(place)

    with ThreadPoolExecutor(1, thread_name_prefix="early") as pool:
        yield {name: pool.submit(begin, marker.kwargs["by"], installed.places[name]) for name, marker in marked.items() if marker}
        for each in whole:
            each.cancel()  # the run was ended before their turn


@pytest.fixture
def place(request: pytest.FixtureRequest, crowd: Crowd, begun_early: Mapping[str, Future[None]]) -> Place:
    """A namespace for this test, which runs side by side with the others."""
    return crowd.places[request.node.nodeid]


@pytest.fixture
def quiet_place(request: pytest.FixtureRequest, installed: Installed, begun_early: Mapping[str, Future[None]]) -> Place:
    """A namespace for this test, which runs when no other does: it needs the whole machine."""
    if request.node.nodeid in begun_early:
        begun_early[request.node.nodeid].result()
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
