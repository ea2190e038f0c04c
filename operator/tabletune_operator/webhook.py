"""The operator's admission webhook as a whole: its table, its server, its certificates. Made once, when the operator starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tabletune_operator.admission_process import AdmissionProcess
from tabletune_operator.certificate_keeper import CertificateKeeper, MountedCertificates, OwnCertificates, Source
from tabletune_operator.cluster import Cluster
from tabletune_operator.injection import InjectionTable
from tabletune_operator.observation import ObjectRef
from tabletune_operator.observation import Webhook as WebhookState
from tabletune_operator.plan import Inject, StopInjecting


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`folder` holds cert-manager's certificate; None: the operator makes its own, and keeps it in the Secret `secret`."""

    port: int
    namespace: str  # of the operator
    service: str
    secret: str
    configuration: str  # name of the MutatingWebhookConfiguration
    folder: Path | None

    @property
    def names(self) -> tuple[str, ...]:
        """What the API server may ask the Service for."""
        return f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local"


class Webhook:
    def __init__(self, settings: AdmissionSettings, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._table = InjectionTable()
        self._server = AdmissionProcess(self._table, settings.port)
        self._keeper = CertificateKeeper(_source(settings, cluster, clock), self._server)
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, if there is a certificate; whatever is missing is tried again, and told in conditions."""
        await self._keeper.look()
        self._keeping = asyncio.create_task(self._keeper.keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await asyncio.to_thread(self._server.close)

    def state(self, draft_table: ObjectRef) -> WebhookState:
        return WebhookState(self._keeper.problem, self._table.refusal(draft_table))

    def take(self, decided: Inject | StopInjecting | None, draft_table: ObjectRef) -> None:
        """What a decision says of the new pods of a target; None: it goes on as it did."""
        match decided:
            case Inject(injection):
                self._table.put(injection)
            case StopInjecting():
                self._table.remove(draft_table)


def _source(settings: AdmissionSettings, cluster: Cluster, clock: Callable[[], datetime]) -> Source:
    if settings.folder is not None:
        return MountedCertificates(settings.folder)
    return OwnCertificates(cluster, settings.namespace, settings.secret, settings.configuration, settings.names, clock)
