"""The webhook's HTTPS server, on a thread with an event loop of its own. The operator runs it in a process (admission_process.py).

It asks nobody: the table of injections is in memory (injection.py), and admission.py computes the answer. kopf has a server for webhooks
too; it shares the operator's event loop and keeps the certificate that it started with, and both would be felt here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import threading
from collections.abc import Callable

from aiohttp import web

from tabletune_operator.admission import ReviewError, answer
from tabletune_operator.injection import InjectionTable

PATH = "/pods"
START_SECONDS = 10.0
LARGEST_REVIEW_BYTES = 8 * 2**20
"""An object in etcd is smaller than 2 MiB, and a review holds it once."""

log = logging.getLogger(__name__)


class AdmissionServer:
    """Started with the first certificate; each later one holds for all connections that begin after it."""

    def __init__(self, table: InjectionTable, port: int, host: str | None = None) -> None:
        """`host` None: all addresses of the pod. Port 0: any free one, see `port`."""
        self._table = table
        self._host = host
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_serving(self) -> bool:
        return self._loop is not None

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return self._port

    def use(self, certificate: str, key: str) -> None:
        """Serve with this certificate (PEM) from now on. Raises OSError: the port is taken; ssl.SSLError: the two do not fit."""
        if self._loop is None:
            _load(self._context, certificate, key)
            self._start()
        else:
            # In the thread that shakes hands with it: OpenSSL allows no change of a context while it is in use elsewhere.
            self._run(lambda: _load(self._context, certificate, key))

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_SECONDS)

    def _start(self) -> None:
        loop, started = asyncio.new_event_loop(), threading.Event()
        problem: list[OSError] = []

        def serve() -> None:
            asyncio.set_event_loop(loop)
            runner = web.AppRunner(build_app(self._table), access_log=None, shutdown_timeout=1)
            try:
                loop.run_until_complete(self._listen(runner))
            except OSError as error:
                problem.append(error)
            finally:
                started.set()
            if not problem:
                loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=serve, name="admission", daemon=True)
        thread.start()
        started.wait(START_SECONDS)
        if problem:
            raise problem[0]
        self._loop, self._thread = loop, thread

    async def _listen(self, runner: web.AppRunner) -> None:
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, ssl_context=self._context)
        await site.start()
        self._port = int(runner.addresses[0][1])

    def _run(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()

        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(changed(), self._loop).result(START_SECONDS)


def build_app(table: InjectionTable) -> web.Application:
    async def admit(request: web.Request) -> web.Response:
        try:
            review = await request.json()
            given = answer(review, table.by_workload)
        except (ReviewError, ValueError, TypeError, AttributeError) as error:
            return web.Response(status=400, text=f"{error}")
        if given.injection is not None and given.refusal is not None and not review["request"].get("dryRun"):
            log.warning("A new pod of %s was left as it is: %s", given.injection.workload.name, given.refusal)
            table.refuse(given.injection.draft_table, given.refusal)
        return web.json_response(text=json.dumps(given.review))

    app = web.Application(client_max_size=LARGEST_REVIEW_BYTES)
    app.router.add_post(PATH, admit)
    return app


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """The ssl module reads files only. This one is in memory: the container's file system is read-only, and a key has no place on it."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
