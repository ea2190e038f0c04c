"""Keeps the webhook served and trusted: certificates out of a Secret (or, with cert-manager, out of files), renewed in time, and the
authority in the MutatingWebhookConfiguration, so that the API server trusts them. Whatever fails is tried again, and told in conditions.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tabletune_operator.certificates import Certificates, certificate_ends, renewed
from tabletune_operator.cluster import Cluster, ClusterError
from tabletune_operator.times import to_time

CHECK_SECONDS = 60.0
RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class KeeperError(Exception):
    """The webhook cannot be served, or is not trusted: why, and what to do."""


class Source(Protocol):
    """Where the serving certificate comes from."""

    async def read(self) -> tuple[str, str]:
        """Certificate and key (PEM), valid and trusted by the API server. Raises KeeperError, ClusterError."""


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """Made here. Secret and configuration are the chart's: we hold the right to write these two, and to create none."""

    cluster: Cluster
    namespace: str
    secret: str
    webhook: str
    names: Sequence[str]
    clock: Callable[[], datetime]

    async def read(self) -> tuple[str, str]:
        stored = await self._read("Secret", self.secret, self.namespace)
        data = {name: _decoded(value) for name, value in (stored.get("data") or {}).items()}
        now = self.clock()
        wanted = renewed(data, self.names, now)
        if wanted.to_data() != {name: data.get(name) for name in wanted.to_data()}:
            await self.cluster.apply(self._secret(stored, wanted))
            log.info("The webhook's certificate was renewed; it lasts until %s.", to_time(certificate_ends(wanted)))
        await self._trust(wanted)
        return wanted.certificate, wanted.key

    async def _trust(self, certificates: Certificates) -> None:
        configuration = await self._read("MutatingWebhookConfiguration", self.webhook)
        bundle = base64.b64encode(certificates.authorities.encode()).decode()
        webhooks = configuration.get("webhooks") or ()
        if any(each["clientConfig"].get("caBundle") != bundle for each in webhooks):
            metadata = {"name": self.webhook, "uid": configuration["metadata"]["uid"]}
            trusted = [{"name": each["name"], "clientConfig": {"caBundle": bundle}} for each in webhooks]
            await self.cluster.apply({**_head(configuration), "metadata": metadata, "webhooks": trusted})

    def _secret(self, stored: dict[str, Any], wanted: Certificates) -> dict[str, Any]:
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in wanted.to_data().items()}
        metadata = {"namespace": self.namespace, "name": self.secret, "uid": stored["metadata"]["uid"]}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}

    async def _read(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        found = await self.cluster.read(kind, namespace, name)
        if found is None:
            raise KeeperError(f"{kind} {name} is missing. Install the chart again with admission.enabled=true.")
        return dict(found)


@dataclass(frozen=True, slots=True)
class MountedCertificates:
    """cert-manager's, as the kubelet writes them into a volume; cert-manager also writes what the API server is to trust."""

    folder: Path

    async def read(self) -> tuple[str, str]:
        try:
            return (self.folder / "tls.crt").read_text(), (self.folder / "tls.key").read_text()
        except OSError as error:
            raise KeeperError(f"No certificate in {self.folder} ({error.strerror}). See kubectl describe certificate.") from error


class Server(Protocol):
    """Who serves with it. `use` may block, and raises OSError when it cannot be served."""

    @property
    def is_serving(self) -> bool: ...

    def use(self, certificate: str, key: str) -> None: ...


class CertificateKeeper:
    """`problem` is a sentence for conditions while the webhook cannot be served or trusted."""

    def __init__(self, source: Source, server: Server) -> None:
        self._source = source
        self._server = server
        self._served: tuple[str, str] | None = None
        self.problem: str | None = None

    async def keep(self) -> None:
        """Until cancelled. The first look has been."""
        while True:
            await asyncio.sleep(CHECK_SECONDS if self.problem is None else RETRY_SECONDS)
            await self.look()

    async def look(self) -> bool:
        """One turn. True: the webhook is served and, as far as can be known here, trusted."""
        try:
            found = await self._source.read()
            if found != self._served or not self._server.is_serving:
                await asyncio.to_thread(self._server.use, *found)
                self._served = found
        except (KeeperError, ClusterError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
            told = "The certificate cannot be used." if isinstance(error, ssl.SSLError) else str(error)
            if told != self.problem:
                log.warning("The admission webhook: %s", told)
            self.problem = told
            return False
        self.problem = None
        return True


def _head(body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": body["apiVersion"], "kind": body["kind"]}


def _decoded(value: str) -> str:
    """What is no text is damaged, and made anew."""
    try:
        return base64.b64decode(value).decode()
    except ValueError:
        return ""
