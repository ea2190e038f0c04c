"""The line protocol of both Unix sockets (docs/protocol.md): the client, and the framing that client and servers share.

The tuner and the sidecar ask through `Channel`; the engine plugin and the supervisor answer with the functions below.
Also runs inside the user's engine image: standard library, Python 3.10.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 16


class ChannelError(Exception):
    """The other side understood the line and refused it; nothing has changed there."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ChannelClosedError(Exception):
    """Nobody answers: no listener, a connection closed half-way, no answer in time, or an answer that is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a client. `id` is echoed as it came, None if the client gave none."""

    id: int | str | None
    op: str
    fields: Mapping[str, Any]


class LineBuffer:
    """Cuts a byte stream into lines. A line above the limit is dropped up to its end and given as None, once."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Add received bytes; give every line that they complete, without its newline."""
        head, *rest = data.split(b"\n")
        lines: list[bytes | None] = []
        self._extend(head, lines)
        for part in rest:
            if not self._skipping:
                lines.append(bytes(self._pending))
            self._pending.clear()
            self._skipping = False
            self._extend(part, lines)
        return lines

    def _extend(self, part: bytes, lines: list[bytes | None]) -> None:
        if self._skipping:
            return
        self._pending += part
        if len(self._pending) > MAX_LINE_BYTES:
            self._pending.clear()
            self._skipping = True
            lines.append(None)


def parse_request(line: bytes) -> Request:
    """Read one line of a client. Raises `ChannelError` (`BadMessage`, `UnknownVersion`) for anything else."""
    message = _parse_object(line)
    if message is None or not isinstance(message.get("op"), str):
        raise ChannelError("BadMessage", 'The line is no JSON object with a text "op". Send {"v": 1, "id": 1, "op": "hello"}.')
    version = message.get("v")
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise ChannelError("UnknownVersion", f'"v" is {version!r}; this side speaks version {PROTOCOL_VERSION}.')
    return Request(parse_id(line), message["op"], {k: v for k, v in message.items() if k not in {"v", "id", "op"}})


def parse_id(line: bytes) -> int | str | None:
    """The `id` of a line that may be refused, so that even a refusal can name it."""
    message = _parse_object(line)
    found = None if message is None else message.get("id")
    return found if isinstance(found, (int, str)) else None


def to_answer(request_id: int | str | None, fields: Mapping[str, Any]) -> bytes:
    """The line that grants a request."""
    return _to_line({"v": PROTOCOL_VERSION, "id": request_id, "ok": True, **fields})


def to_refusal(request_id: int | str | None, error: ChannelError) -> bytes:
    """The line that refuses a request."""
    cause = {"code": error.code, "message": error.message}
    return _to_line({"v": PROTOCOL_VERSION, "id": request_id, "ok": False, "error": cause})


class Channel:
    """A client of one socket, for one thread at a time.

    Connects at the first question, and again after a failure, so that it outlives restarts of the other side.
    """

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self._path = path
        self._timeout_seconds = timeout
        self._socket: socket.socket | None = None
        self._lines = LineBuffer()
        self._last_id = 0

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer: the answer's own fields.

        Raises `ChannelError` when the other side refuses, `ChannelClosedError` when it is not there.
        """
        self._last_id += 1
        request = _to_line({**fields, "v": PROTOCOL_VERSION, "id": self._last_id, "op": op})
        if len(request) > MAX_LINE_BYTES:
            raise ChannelError("BadMessage", f"{op}: the request has {len(request)} bytes, more than {MAX_LINE_BYTES}.")
        try:
            answer = self._exchange(request)
        except OSError as error:
            self.close()
            raise ChannelClosedError(f"{self._path} does not answer {op}: {error or type(error).__name__}.") from error
        except ChannelClosedError:
            self.close()
            raise
        if answer.pop("ok", None) is True:
            return answer
        cause = answer.get("error")
        if not isinstance(cause, dict):
            self.close()
            raise ChannelClosedError(f"{self._path} answered {op} with neither a result nor an error.")
        raise ChannelError(str(cause.get("code")), str(cause.get("message")))

    def close(self) -> None:
        """Drop the connection; the next question makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _exchange(self, request: bytes) -> dict[str, Any]:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self._timeout_seconds)
            self._socket.connect(self._path)
            self._lines = LineBuffer()
        self._socket.sendall(request)
        while data := self._socket.recv(RECEIVE_BYTES):
            for line in self._lines.feed(data):
                answer = None if line is None else _parse_object(line)
                if answer is None or answer.pop("id", None) != self._last_id:
                    raise ChannelClosedError(f"{self._path} sent a line that answers no question of this client.")
                answer.pop("v", None)
                return answer
        raise ChannelClosedError(f"{self._path} closed the connection before it answered.")


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _to_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
