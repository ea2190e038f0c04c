"""HTTP for people, Prometheus and the operator: `/healthz`, `/metrics`, `/state`. Reads the loop's last view, changes nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tabletune_sidecar.metrics import ViewCollector
from tabletune_sidecar.view import View, to_json

HEALTHY_SECONDS = 60.0
"""A turn may wait for a proof request; no turn at all for so long means that the loop hangs."""

CLIENT_TIMEOUT_SECONDS = 10


class Board:
    """Where the loop leaves its view for the threads of the server. A view is replaced as a whole, so no lock is needed."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._turned_at = time.monotonic()

    @property
    def view(self) -> View:
        return self._view

    @property
    def healthy(self) -> bool:
        return time.monotonic() - self._turned_at < HEALTHY_SECONDS

    def show(self, view: View) -> None:
        self._view = view
        self._turned_at = time.monotonic()


class StatusServer(ThreadingHTTPServer):
    """Serves in a daemon thread; IPv6 and IPv4 alike where the system has both."""

    daemon_threads = True
    block_on_close = False
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, port: int, board: Board) -> None:
        super().__init__(("", port), _Handler)
        self.board = board
        self.registry = CollectorRegistry()
        self.registry.register(ViewCollector(lambda: board.view))

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name="status-server", daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = CLIENT_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            healthy = self.server.board.healthy
            self._send(200 if healthy else 503, "text/plain", b"ok\n" if healthy else b"the loop does not turn\n")
        elif path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        elif path == "/state":
            self._send(200, "application/json", json.dumps(to_json(self.server.board.view)).encode() + b"\n")
        else:
            self._send(404, "text/plain", b"There is /healthz, /metrics and /state.\n")

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Probes and scrapes are no news."""
