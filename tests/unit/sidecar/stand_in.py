"""A stand-in for the engine's plugin on a real Unix socket, which can die, lie, and break off. A fake: it counts what it is told to.

The protocol's framing is the project's own (tabletune.channel); what is faked is the engine behind it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar_cases import counted

from tabletune.channel import RECEIVE_BYTES, ChannelError, LineBuffer, parse_id, parse_request, to_answer, to_refusal
from tabletune_sidecar.counters import Counters, to_counters

LENGTHS = (1, 3)
STEP_SECONDS = 0.005
LAUNCH = [[1, 127, 3], [128, 128, 1]]


class StandIn:
    """One engine over all of its starts. `mangle` may change the bytes of an answer; what then has no newline ends the connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counters = Counters()
        self.in_force: list[list[int]] = LAUNCH
        self.pushes: list[list[list[int]]] = []
        self.forget: Mapping[str, str] = {}  # field to leave out, by operation
        self.add: Mapping[str, Any] = {}  # fields to add to every answer
        self.refuse: Mapping[str, ChannelError] = {}  # by operation
        self.mangle: Callable[[str, bytes], bytes] | None = None
        self._uptime_seconds = 0.0
        self._starts = 0
        self._listener: socket.socket | None = None
        self._clients: set[socket.socket] = set()

    def start(self) -> None:
        """Another engine start: counters from 0, the launch table in force."""
        self._starts += 1
        self._uptime_seconds = 0.0
        self.counters, self.in_force, self.pushes = Counters(), LAUNCH, []
        self.listen()

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """As a killed process leaves it: connections gone, the socket's file still there."""
        for each in (self._listener, *self._clients):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._listener, self._clients = None, set()

    def run(self, steps: int, rates: Sequence[float]) -> None:
        """Steps of one kind of traffic, at 8 requests and the length in force there; one in twenty explores with the longest."""
        length = next(k for first, last, k in self.in_force if first <= 8 <= last)
        exploring = steps // 20
        self.counters = self.counters.plus(counted(steps - exploring, rates, 8, length)).plus(counted(exploring, rates, 8, max(LENGTHS)))
        self._uptime_seconds += steps * STEP_SECONDS

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._clients.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        lines = LineBuffer()
        with contextlib.suppress(OSError):
            while data := client.recv(RECEIVE_BYTES):
                for line in lines.feed(data):
                    assert line is not None
                    answer = self._answer(line)
                    client.sendall(answer)
                    if not answer.endswith(b"\n"):
                        client.shutdown(socket.SHUT_RDWR)

    def _answer(self, line: bytes) -> bytes:
        request = parse_request(line)
        if request.op in self.refuse:
            return to_refusal(parse_id(line), self.refuse[request.op])
        fields = {**self._fields(request.op, request.fields), **self.add}
        fields.pop(self.forget.get(request.op, ""), None)
        answer = to_answer(request.id, fields)
        return self.mangle(request.op, answer) if self.mangle is not None else answer

    def _fields(self, op: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        boot = {"bootId": f"boot-{self._starts}", "uptimeSeconds": self._uptime_seconds}
        match op:
            case "hello":
                engine = {"vllm": "0.33.0", "launchLengths": list(LENGTHS), "maxNumSeqs": 128, "launchTable": LAUNCH}
                return {**boot, "active": True, "inactiveReason": None, "engine": engine}
            case "counts":
                return {**boot, **to_counters(self.counters), "batchSizeLast": 8, "draftLengthLast": 3}
            case "steps":
                return {**boot, "cells": []}
            case "table":
                self.in_force = asked["ranges"]
                self.pushes.append(asked["ranges"])
                return {"inForce": self.in_force, "generation": len(self.pushes)}
            case "force":
                return {"draftLength": asked["draftLength"], "reject": False}
        raise ChannelError("UnknownOperation", op)
