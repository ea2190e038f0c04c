"""`kubectl rollout undo` itself, on a workload that is rolled out: what it leaves of ours, so that decide() can tell.

The ReplicaSets are made here, as the Deployment's controller makes them: the template, and the annotations that the Deployment had.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from typing import Any

import pytest
from api_server import TOKEN, Api, cluster_binaries
from test_workloads import CONFIG, example, give_back, path, roll

from tabletune_operator.drift import read_drift
from tabletune_operator.owners import find_writer, is_loop
from tabletune_operator.restore import OWNER_ANNOTATION, RECORD_ANNOTATION, is_intact, rolled_digest

REVISION = "deployment.kubernetes.io/revision"
HASH = "pod-template-hash"
ENGINE = "modelserver"


def kubectl(api: Api, namespace: str, *arguments: str) -> str:
    if os.environ.get("KUBECONFIG"):
        command = [shutil.which("kubectl") or "kubectl"]
    else:
        command = [str(cluster_binaries() / "kubectl"), f"--server={api.address}", "--insecure-skip-tls-verify", f"--token={TOKEN}"]
    done = subprocess.run([*command, "-n", namespace, *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def keep_revision(api: Api, deployment: dict[str, Any], number: int) -> dict[str, Any]:
    """As the Deployment's controller: a ReplicaSet of this revision, and its number on the Deployment. Gives the Deployment."""
    metadata, template = deployment["metadata"], copy.deepcopy(deployment["spec"]["template"])
    labels = {**template["metadata"]["labels"], HASH: f"of-{number}"}
    template["metadata"]["labels"] = labels
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{number}",
            "labels": labels,
            "annotations": {**(metadata.get("annotations") or {}), REVISION: str(number)},
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {**deployment["spec"]["selector"]["matchLabels"], HASH: f"of-{number}"}},
            "template": template,
        },
    }
    api.create(path(metadata["namespace"]).replace("deployments", "replicasets"), replica_set)
    live = api.get(f"{path(metadata['namespace'])}/{metadata['name']}")
    live["metadata"].setdefault("annotations", {})[REVISION] = str(number)
    return api.update(f"{path(metadata['namespace'])}/{metadata['name']}", live)


@pytest.fixture
def revisions(api: Api, namespace: str) -> list[dict[str, Any]]:
    """The Deployment at each of its revisions: the user's, our table, another table of ours."""
    wanted = example(namespace)
    wanted["spec"]["replicas"] = 0
    found = [keep_revision(api, api.create(path(namespace), wanted), 1)]
    for number, config in ((2, CONFIG), (3, {"method": "ngram", "num_speculative_tokens": 2})):
        found.append(keep_revision(api, roll(api, found[-1], config), number))
    return found


def undo(api: Api, namespace: str, name: str, to: int) -> dict[str, Any]:
    kubectl(api, namespace, "rollout", "undo", f"deployment/{name}", f"--to-revision={to}")
    return api.get(f"{path(namespace)}/{name}")


def test_undoing_everything_leaves_no_mark_of_ours(api: Api, namespace: str, revisions: list[dict[str, Any]]) -> None:
    before, *_ = revisions
    after = undo(api, namespace, before["metadata"]["name"], 1)
    assert after["spec"] == before["spec"]
    assert not {RECORD_ANNOTATION, OWNER_ANNOTATION} & after["metadata"]["annotations"].keys()
    assert rolled_digest(after) is None
    writer = find_writer(after, ENGINE)
    assert writer is not None
    assert not is_loop(writer.manager), "a person's word, which nothing is tried against"


def test_undoing_to_an_earlier_table_brings_its_own_record_back(api: Api, namespace: str, revisions: list[dict[str, Any]]) -> None:
    before, first, second = revisions
    after = undo(api, namespace, before["metadata"]["name"], 2)
    assert rolled_digest(after) == rolled_digest(first) != rolled_digest(second)
    assert is_intact(after)
    assert read_drift(after).foreign is None
    assert give_back(api, after)["spec"] == before["spec"], "and from there the way back is still known"


def test_undoing_the_undo_is_our_roll_out_again(api: Api, namespace: str, revisions: list[dict[str, Any]]) -> None:
    before, _, second = revisions
    undo(api, namespace, before["metadata"]["name"], 1)
    after = undo(api, namespace, before["metadata"]["name"], 3)
    assert rolled_digest(after) == rolled_digest(second)
    assert is_intact(after)
    assert after["metadata"]["annotations"][OWNER_ANNOTATION] == "chat"
