"""The real LeaderWorkerSet: the definition, controller and webhooks of its own project, at the version that dev/images/lws pins.

The image holds the project's program, built from its Go module; the chart that installs it is the module's too, with small requests.
A cluster that has the kind already keeps what it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from kube_api import Api
from live_cluster import Cluster, load_images
from lws_module import DEFINITION, chart
from place import force_delete

NAMESPACE, RELEASE = "tabletune-e2e-lws", "lws"
IMAGE = {"repository": "tabletune.local/lws", "tag": "1", "pullPolicy": "IfNotPresent"}
VALUES = {"image": {"manager": IMAGE}, "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}


@contextmanager
def leader_worker_sets(cluster: Cluster, api: Api) -> Iterator[None]:
    """Installed until the end of the block. Its webhooks answer a while later: who creates a LeaderWorkerSet tries again until then."""
    _remove(cluster, api)
    if api.get("CustomResourceDefinition", None, DEFINITION) is not None:
        yield
        return
    load_images("lws")
    cluster.helm("install", RELEASE, str(chart()), "-n", NAMESPACE, "--create-namespace", "-f", "-", stdin=json.dumps(VALUES))
    try:
        yield
    finally:
        _remove(cluster, api)


def _remove(cluster: Cluster, api: Api) -> None:
    """Ours, also what is left of an earlier run that was stopped; helm leaves a chart's definitions where they are."""
    if api.get("Namespace", None, NAMESPACE) is None:
        return
    cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found", "--wait")
    api.delete("CustomResourceDefinition", None, DEFINITION)
    force_delete(api, NAMESPACE)
