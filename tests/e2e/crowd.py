"""Runs the tests of this tier side by side: most of their time is waiting, and each has a namespace of its own.

A test that takes the fixture `place` is started with all the others of the run (so `pytest -k` starts only what it selects);
when its turn comes, pytest waits for its result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from kube_api import Api
from live_cluster import Cluster
from place import Place, force_delete
from release import DEFINITION, Release, assert_alone
from workloads import code_prompts

SYSTEM = "tabletune-e2e"
AT_ONCE = 6
LONGEST_NAME = 53  # of a Helm release


@dataclass(frozen=True, slots=True)
class Crowd:
    places: Mapping[str, Place]
    results: Mapping[str, Future[None]]


class Installed:
    """The releases and namespaces of a run, from installation to uninstallation."""

    def __init__(self, cluster: Cluster, api: Api, items: Sequence[pytest.Function]) -> None:
        self._api = api
        assert_alone(cluster, api)
        own = {item.nodeid: _name("tabletune-e2e-of", item) for item in items if item.get_closest_marker("own_operator")}
        shared = Release(cluster, api, SYSTEM)
        operators = {item.nodeid: Release(cluster, api, own[item.nodeid]) if item.nodeid in own else shared for item in items}
        self.places = {item.nodeid: Place(api, cluster, _name("e2e", item), operators[item.nodeid]) for item in items}
        self._releases = tuple(dict.fromkeys(operators.values()))

    def __enter__(self) -> Installed:
        for release in self._releases:
            release.remove_remains()
        for place in self.places.values():
            force_delete(self._api, place.namespace)
            self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace}})
            place.create(code_prompts())
        # The first one brings the definition that all need; most of an installation is waiting.
        first, *others = self._releases
        is_there = self._api.get("CustomResourceDefinition", None, DEFINITION) is not None
        self._install(first, with_definition=not is_there)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda release: self._install(release, with_definition=False), others))
        return self

    def _install(self, release: Release, *, with_definition: bool) -> None:
        watched = [place.namespace for place in self.places.values() if place.operator is release]
        release.install(watched, with_definition=with_definition)

    def __exit__(self, *_: object) -> None:
        # The release that brought the definition takes it away, so it goes last.
        first, *others = self._releases
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(Release.uninstall, others))
        first.uninstall()
        for place in self.places.values():
            self._api.delete("Namespace", None, place.namespace)


def start(installed: Installed, items: Sequence[pytest.Function], pool: ThreadPoolExecutor) -> Crowd:
    """Start every test of `items`."""
    results = {item.nodeid: pool.submit(_run, item, installed.places[item.nodeid]) for item in items}
    return Crowd(installed.places, results)


def _run(item: pytest.Function, place: Place) -> None:
    item.function(place=place)
    place.clear()


def _name(prefix: str, item: pytest.Function) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", item.name.removeprefix("test_").lower()).strip("-")
    return f"{prefix}-{slug}"[:LONGEST_NAME].rstrip("-")
