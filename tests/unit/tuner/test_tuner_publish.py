"""The folder and the ConfigMap that results go to."""

from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client.exceptions import ApiException

from tabletune_tuner import cluster
from tabletune_tuner.cluster import ClusterSink, build_config_map
from tabletune_tuner.options import Target
from tabletune_tuner.outcome import FailedError
from tabletune_tuner.publish import FolderSink

OWNER = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "name": "chat", "uid": "u-1"}
TARGET = Target("llm", "chat-tabletune", "chat-profile", OWNER)
FILES = {"profile.json": '{"fingerprint": {"digest": "abc"}}', "report.md": "# done\n"}


async def test_writes_files_into_a_folder_that_it_makes(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "a"
    await FolderSink(folder).publish(FILES)
    await FolderSink(folder).publish({**FILES, "report.md": "# again\n"})
    assert {p.name: p.read_text() for p in folder.iterdir()} == {**FILES, "report.md": "# again\n"}


async def test_says_when_a_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedError) as caught:
        await FolderSink(tmp_path / "file").publish(FILES)
    assert caught.value.reason == "CannotPublish"


def test_the_config_map_belongs_to_the_draft_table() -> None:
    assert build_config_map(TARGET, FILES, "abc") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "chat-tabletune",
            "namespace": "llm",
            "labels": {"app.kubernetes.io/managed-by": "tabletune", "tabletune.io/drafttable": "chat"},
            "annotations": {"tabletune.io/fingerprint": "abc"},
            "ownerReferences": [OWNER],
        },
        "data": FILES,
    }


class Core:
    """The API server, as far as one ConfigMap goes."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.written: list[dict[str, Any]] = []

    async def patch_namespaced_config_map(self, name: str, namespace: str, body: dict[str, Any], **_: Any) -> None:
        if self.failures:
            raise ApiException(status=self.failures.pop(0), reason="because")
        self.written.append(body)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_PAUSE_SECONDS", 0.001)


def sink(core: Any) -> ClusterSink:
    no_jobs: Any = None
    return ClusterSink(TARGET, core, no_jobs)


async def test_tries_again_when_the_api_server_is_away() -> None:
    core = Core(500, 503)
    await sink(core).publish(FILES)
    assert core.written == [build_config_map(TARGET, FILES, "abc")]


async def test_does_not_try_again_what_is_forbidden() -> None:
    core = Core(403, 403)
    with pytest.raises(FailedError, match="403 because"):
        await sink(core).publish(FILES)
    assert core.failures == [403]


async def test_refuses_files_that_no_config_map_holds() -> None:
    with pytest.raises(FailedError) as caught:
        await sink(Core()).publish({**FILES, "report.md": "x" * 1_000_000})
    assert caught.value.reason == "ResultTooLarge"
    assert "spec.profile.maxBatchSize" in caught.value.message
