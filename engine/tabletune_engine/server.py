"""The serving side of a Unix socket (docs/protocol.md), for the engine plugin and the supervisor.

One daemon thread listens, and one serves each client, so that a slow, broken or silent client holds up nobody else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tabletune.channel import RECEIVE_BYTES, ChannelError, LineBuffer, parse_id, parse_request, to_answer, to_refusal

logger = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]

MAX_CLIENTS = 32
SOCKET_MODE = 0o666  # the engine, the sidecar and the tuner may run as different users of one pod
RECHECK_SECONDS = 2.0  # how soon a socket file that somebody removed is there again


class LineServer:
    """Answers requests on `path` with one handler for each operation, until the process ends or `close`."""

    def __init__(self, path: str, handlers: Mapping[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._bound_inode: int | None = None
        self._closed = threading.Event()
        self._slots = threading.BoundedSemaphore(MAX_CLIENTS)
        self._thread = threading.Thread(target=self._listen, name="tabletune-socket", daemon=True)

    def start(self) -> None:
        """Begin to listen, now or as soon as the path can be used."""
        self._thread.start()

    def close(self) -> None:
        """Remove the socket file and take no new client. Connected clients are served until they leave."""
        self._closed.set()
        if _inode(self._path) == self._bound_inode:
            Path(self._path).unlink(missing_ok=True)

    def _listen(self) -> None:
        complaint = ""
        while not self._closed.is_set():
            try:
                with _bind(self._path) as listener:
                    complaint = ""
                    self._accept_while_bound(listener)
            except OSError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    logger.warning("TableTune cannot listen on %s and keeps trying: %s", self._path, error)
                self._closed.wait(RECHECK_SECONDS)

    def _accept_while_bound(self, listener: socket.socket) -> None:
        self._bound_inode = Path(self._path).stat().st_ino
        listener.settimeout(RECHECK_SECONDS)
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = listener.accept()
                self._admit(client)
                continue
            if _inode(self._path) != self._bound_inode:
                return

    def _admit(self, client: socket.socket) -> None:
        if not self._slots.acquire(blocking=False):
            client.close()
            return
        try:
            threading.Thread(target=self._serve, args=(client,), name="tabletune-client", daemon=True).start()
        except RuntimeError:  # the pod has no thread left to give: this client goes, and the next one may find one
            self._slots.release()
            client.close()

    def _serve(self, client: socket.socket) -> None:
        lines = LineBuffer()
        with client, contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.callback(self._slots.release)
            client.settimeout(None)
            while data := client.recv(RECEIVE_BYTES):
                for line in lines.feed(data):
                    client.sendall(self._answer(line))

    def _answer(self, line: bytes | None) -> bytes:
        if line is None:
            return to_refusal(None, ChannelError("BadMessage", "The line is longer than 1 MiB. Send less at once."))
        try:
            return self._grant(line)
        except ChannelError as error:
            return to_refusal(parse_id(line), error)
        except Exception:
            logger.exception("TableTune could not answer a request")
            return to_refusal(parse_id(line), ChannelError("InternalError", "The request failed; see the log here."))

    def _grant(self, line: bytes) -> bytes:
        request = parse_request(line)
        handler = self._handlers.get(request.op)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise ChannelError("UnknownOperation", f'"op" is {request.op!r}; this side knows {known}.')
        return to_answer(request.id, handler(request.fields))


def _bind(path: str) -> socket.socket:
    """Listen on `path`, in place of a socket file that a dead process left; never in place of a live listener."""
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    if _is_live(path):
        raise OSError(f"another process listens on {path}")
    fresh = f"{path}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(fresh).unlink(missing_ok=True)
        listener.bind(fresh)
        # Renamed only when it listens and everybody may use it, so no client meets a half-made socket.
        Path(fresh).chmod(SOCKET_MODE)
        listener.listen(MAX_CLIENTS)
        Path(fresh).replace(path)
    except OSError:
        listener.close()
        raise
    return listener


def _is_live(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(RECHECK_SECONDS)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None
