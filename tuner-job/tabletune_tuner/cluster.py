"""The cluster as a sink: the ConfigMap in one write, and the Job's progress annotation, not too often."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from tabletune_tuner.options import Target
from tabletune_tuner.outcome import FailedError

logger = logging.getLogger(__name__)

FIELD_MANAGER = "tabletune.io"
PROGRESS = "tabletune.io/progress"
FINGERPRINT = "tabletune.io/fingerprint"
MAX_DATA_BYTES = 1_000_000  # of a ConfigMap; the server refuses 1 MiB with everything in it
WRITE_EVERY_SECONDS = 10.0
WRITE_EVERY_PERCENT = 5
LOOK_SECONDS = 1.0
TRIES = 6
FIRST_PAUSE_SECONDS = 2.0


def is_due(last: Mapping[str, Any] | None, new: Mapping[str, Any], seconds_since: float) -> bool:
    """Whether progress is worth a write: never seen, another stage, 5 % more, or 10 s old."""
    if last is None or last["stage"] != new["stage"] or last["outcome"] != new["outcome"]:
        return True
    return new["percent"] - last["percent"] >= WRITE_EVERY_PERCENT or (seconds_since >= WRITE_EVERY_SECONDS and new != last)


def build_config_map(target: Target, files: Mapping[str, str], fingerprint: str) -> dict[str, Any]:
    """The ConfigMap that belongs to the DraftTable."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": target.config_map,
            "namespace": target.namespace,
            "labels": {"app.kubernetes.io/managed-by": "tabletune", "tabletune.io/drafttable": target.owner["name"]},
            "annotations": {FINGERPRINT: fingerprint},
            "ownerReferences": [dict(target.owner)],
        },
        "data": dict(files),
    }


class ClusterSink:
    """Writes as field manager `tabletune.io`; `running` flushes progress meanwhile."""

    def __init__(self, target: Target, core: client.CoreV1Api, batch: client.BatchV1Api) -> None:
        self._target = target
        self._core = core
        self._batch = batch
        self._noted: Mapping[str, Any] | None = None
        self._written: Mapping[str, Any] | None = None
        self._written_at = 0.0

    def note(self, progress: Mapping[str, Any]) -> None:
        self._noted = progress

    async def publish(self, files: Mapping[str, str]) -> None:
        """Server-side apply: one write makes the ConfigMap or replaces all that we own of it."""
        size = sum(len(name) + len(text.encode()) for name, text in files.items())
        if size > MAX_DATA_BYTES:
            raise FailedError(
                "ResultTooLarge", f"The files have {size:,} bytes; a ConfigMap holds {MAX_DATA_BYTES:,}. Lower spec.profile.maxBatchSize."
            )
        fingerprint = json.loads(files["profile.json"])["fingerprint"]["digest"]
        body = build_config_map(self._target, files, fingerprint)
        pause = FIRST_PAUSE_SECONDS
        for tries_left in reversed(range(TRIES)):
            try:
                await self._core.patch_namespaced_config_map(
                    self._target.config_map,
                    self._target.namespace,
                    body,
                    field_manager=FIELD_MANAGER,
                    force=True,
                    _content_type="application/apply-patch+yaml",
                )
            except (ApiException, aiohttp.ClientError, TimeoutError) as error:
                cause = _cause(error)
                if not tries_left or (isinstance(error, ApiException) and error.status in range(400, 409)):
                    raise FailedError("CannotPublish", f"ConfigMap {self._target.config_map} cannot be written: {cause}.") from error
                logger.warning("ConfigMap %s is not written yet: %s", self._target.config_map, cause)
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return

    async def finish(self, progress: Mapping[str, Any]) -> None:
        """Keeps trying for a while: without the outcome the operator would take the Job for one that died."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(TRIES):
            if await self._write(progress):
                return
            await asyncio.sleep(pause)
            pause *= 2

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write progress in the background, for as long as the context lasts."""
        task = asyncio.create_task(self._flush())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            noted = self._noted
            if noted is not None and is_due(self._written, noted, time.monotonic() - self._written_at):
                await self._write(noted)

    async def _write(self, progress: Mapping[str, Any]) -> bool:
        """Progress that cannot be written must not end a measurement."""
        self._written, self._written_at = progress, time.monotonic()
        try:
            await self._batch.patch_namespaced_job(
                self._target.job,
                self._target.namespace,
                {"metadata": {"annotations": {PROGRESS: json.dumps(progress, separators=(",", ":"))}}},
                field_manager=FIELD_MANAGER,
                _content_type="application/merge-patch+json",
            )
        except (ApiException, aiohttp.ClientError, TimeoutError) as error:
            logger.warning("progress of Job %s is not written: %s", self._target.job, _cause(error))
            return False
        return True


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[ClusterSink]:
    """The sink of a pod in the cluster."""
    config.load_incluster_config()  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api:
        sink = ClusterSink(target, client.CoreV1Api(api), client.BatchV1Api(api))
        async with sink.running():
            yield sink


def _cause(error: Exception) -> str:
    if not isinstance(error, ApiException):
        return str(error) or type(error).__name__
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
