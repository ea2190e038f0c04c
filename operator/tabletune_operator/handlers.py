"""Wires kopf to the reconcile: every event that can matter to a DraftTable leads to the same call. No handler decides anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import kopf

from tabletune_operator.cluster import Cluster, ClusterError
from tabletune_operator.crd import GROUP, PLURAL, VERSION
from tabletune_operator.kinds import owner_of
from tabletune_operator.metrics import MetricsServer
from tabletune_operator.observation import ObjectRef
from tabletune_operator.observe import Observer, no_webhook, target_of
from tabletune_operator.pods import DRAFT_TABLE_LABEL, MANAGED_BY
from tabletune_operator.reconcile import Reconciler
from tabletune_operator.settings import OperatorSettings
from tabletune_operator.sidecars import build_client
from tabletune_operator.telemetry import Telemetry
from tabletune_operator.webhook import Webhook

DRAFT_TABLES = (GROUP, VERSION, PLURAL)
OURS: Mapping[str, Any] = {**MANAGED_BY, DRAFT_TABLE_LABEL: kopf.PRESENT}

INDEX = "drafttables_by_target"

DUE_EVERY_SECONDS = 1.0
RETRY_SECONDS = 5.0
DELETION_SECONDS = 2.0

Labels = Mapping[str, str]


def build_registry(settings: OperatorSettings) -> kopf.OperatorRegistry:
    """All handlers of one operator."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        # Single namespaces come with no right to follow namespaces and definitions: kopf would try nine times before it serves.
        settings.scanning.disabled = namespaced
        memo.cluster = await Cluster.connect()
        memo.http = build_client()
        telemetry = Telemetry(_now())
        memo.webhook = Webhook(admission, memo.cluster, _now) if admission is not None else None
        told = memo.webhook.state if memo.webhook is not None else no_webhook
        observer = Observer(memo.cluster, memo.http, image, _now, served, webhook=told)
        memo.reconciler = Reconciler(memo.cluster, observer, telemetry, memo.webhook)
        memo.metrics = MetricsServer(metrics_port, lambda: telemetry.view, _now)
        if memo.webhook is not None:
            await memo.webhook.start()

    image, served, namespaced, admission = settings.image, settings.namespaces, bool(settings.namespaces), settings.admission
    metrics_port = settings.metrics_port

    @kopf.on.cleanup(registry=registry)
    async def stop(memo: kopf.Memo, **_: Any) -> None:
        await asyncio.to_thread(memo.metrics.stop)
        if memo.webhook is not None:
            await memo.webhook.close()
        await memo.http.aclose()
        await memo.cluster.close()

    @kopf.on.login(registry=registry)
    def log_in(**arguments: Any) -> kopf.ConnectionInfo | None:
        pod = kopf.login_with_service_account(**arguments)
        if pod is None:
            return kopf.login_with_kubeconfig(**arguments)
        # The address that the kubelet gives, as other clients do: kopf's own name for it waits for the cluster's DNS.
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return replace(pod, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")

    @kopf.index(*DRAFT_TABLES, id=INDEX, registry=registry)
    def drafttables_by_target(namespace: str | None, name: str | None, body: kopf.Body, **_: Any) -> dict[tuple[str, str, str], str]:
        return {(str(namespace), *target_of(body)): str(name)}

    @kopf.on.resume(*DRAFT_TABLES, id="reconcile", registry=registry)
    @kopf.on.create(*DRAFT_TABLES, id="reconcile", registry=registry)
    @kopf.on.update(*DRAFT_TABLES, id="reconcile", field="spec", registry=registry)
    async def reconcile_drafttable(namespace: str | None, name: str | None, memo: kopf.Memo, **_: Any) -> None:
        await _reconcile(memo, namespace, name)

    @kopf.timer(*DRAFT_TABLES, id="reconcile-when-due", interval=DUE_EVERY_SECONDS, registry=registry)
    async def reconcile_when_due(namespace: str | None, name: str | None, memo: kopf.Memo, **_: Any) -> None:
        try:
            await memo.reconciler.reconcile_when_due(ObjectRef(str(namespace), str(name)))
        except ClusterError as error:
            raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error

    @kopf.on.delete(*DRAFT_TABLES, id="delete", registry=registry)
    async def on_drafttable_deleted(namespace: str | None, name: str | None, memo: kopf.Memo, **_: Any) -> None:
        while not await _reconcile(memo, namespace, name):
            await asyncio.sleep(DELETION_SECONDS)

    @kopf.on.event("batch", "v1", "jobs", labels=OURS, registry=registry)
    @kopf.on.event("", "v1", "configmaps", labels=OURS, registry=registry)
    async def on_owned_changed(namespace: str | None, labels: Labels, memo: kopf.Memo, **_: Any) -> None:
        await _reconcile(memo, namespace, labels[DRAFT_TABLE_LABEL])

    @kopf.on.event("apps", "v1", "deployments", registry=registry)
    @kopf.on.event("apps", "v1", "statefulsets", registry=registry)
    async def on_target_changed(namespace: str | None, body: kopf.Body, memo: kopf.Memo, **indices: Any) -> None:
        """Of a target, or of what its controller makes for it: kinds that not every cluster has are followed by that."""
        named = (str(body["kind"]), str(body["metadata"]["name"]))
        for kind, name in {named, owner_of(body) or named}:
            for draft_table in tuple(indices[INDEX].get((str(namespace), kind, name), ())):
                await _reconcile(memo, namespace, draft_table)

    return registry


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf's own storage under our domain, and watches that notice a dead connection (kopf #585, #1120)."""
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, key="last-handled-spec")
    settings.posting.enabled = False  # events are transitions (events.py), never log lines
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 301
    settings.watching.connect_timeout = 60
    settings.networking.connect_timeout = 60


def _now() -> datetime:
    return datetime.now(UTC)


async def _reconcile(memo: kopf.Memo, namespace: str | None, name: str | None) -> bool:
    try:
        finished: bool = await memo.reconciler.reconcile(ObjectRef(str(namespace), str(name)))
    except ClusterError as error:
        raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error
    return finished
