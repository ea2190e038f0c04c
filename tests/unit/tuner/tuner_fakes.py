"""A small supervisor and engine behind real sockets, for what a real engine does too rarely: die and hang where told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tabletune.channel import parse_request, to_answer
from tabletune_tuner.engine import Engine
from tabletune_tuner.progress import Event, Tracker

STEPS_A_LOOK = 4
CORE_DIED = "EngineCore died: CUDA error: an illegal memory access was encountered"


class FakeEngine:
    """Steps pass when somebody looks. A step time is 1000 µs times (B + k); every request is in the batch at once."""

    def __init__(self, largest: int = 64) -> None:
        self.largest = largest  # requests that it runs at once
        self.deaths: Counter[tuple[int, int]] = Counter()  # by cell: how often it dies there
        self.hangs: Counter[tuple[int, int]] = Counter()
        self.gpu_devices: list[str] = []
        self.refuses_to_start = 0
        self.starts = 0
        self.state = "stopped"
        self.requests = 0
        self.lengths: list[int] = []  # forced, in order
        self.argv: list[list[str]] = []  # of each start
        self.facts: dict[str, Any] = {"device": "cpu"}
        self.plugin_rejects = True
        self.lingers = 0  # looks that a request still runs after its client left
        self.step_micros: Callable[[int, int], int] = lambda B, k: 1000 * (B + k)
        self._leaving: list[int] = []
        self._tokens = 0
        self._force: int | None = 0
        self._steps = 0
        self._cells: Counter[tuple[int, int]] = Counter()
        self._hanging = False
        self._clients: set[asyncio.StreamWriter] = set()

    model = "m"

    @property
    def steps_done(self) -> int:
        """Since its last start."""
        return self._steps

    async def complete(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> str:
        """A request that never ends by itself."""
        self.requests += 1
        try:
            await asyncio.Event().wait()
            return ""
        finally:
            self.requests -= 1
            self._leaving += [self.lingers] * bool(self.lingers)

    # the supervisor

    def status(self, _: Any) -> dict[str, Any]:
        code = 1 if self.state == "exited" else None
        facts = {"pid": 1, "signal": None, "argv": [], "uptimeSeconds": 1.0, "pythonPath": "/theirs:/more", "starts": self.starts}
        return {"state": self.state, "exitCode": code, "gpuDevices": self.gpu_devices, **facts}

    def start(self, fields: Any) -> dict[str, Any]:
        self.starts += 1
        self.argv.append(fields["argv"])
        self.state = "exited" if self.refuses_to_start else "running"
        self.refuses_to_start = max(self.refuses_to_start - 1, 0)
        self._steps, self._tokens, self._cells, self._hanging = 0, 0, Counter(), False
        return {"pid": 1}

    def stop(self, _: Any) -> dict[str, Any]:
        self.state = "stopped"
        return self.status(None)

    def log(self, _: Any) -> dict[str, Any]:
        return {"lines": ["INFO loading", CORE_DIED]}

    # the plugin

    def hello(self, _: Any) -> dict[str, Any]:
        synthetic = any("synthetic" in word for word in self.argv[-1])
        reject_by = "engine" if synthetic else "plugin" if self.plugin_rejects else None
        return {**self._boot(), "active": True, "inactiveReason": None, "rejectBy": reject_by, "engine": self.facts}

    def force(self, fields: Any) -> dict[str, Any]:
        self._force = fields["draftLength"]
        self.lengths.append(fields["draftLength"])
        return {}

    def record(self, _: Any) -> dict[str, Any]:
        return {"on": True}

    def table(self, _: Any) -> dict[str, Any]:
        return {}

    def counts(self, _: Any) -> dict[str, Any]:
        B, k = min(self.requests + len(self._leaving), self.largest), self._force or 0
        self._leaving = [looks - 1 for looks in self._leaving if looks > 1]
        if B:
            if self.deaths[B, k]:
                self.deaths[B, k] -= 1
                self._die()
            if self.hangs[B, k]:
                self.hangs[B, k] -= 1
                self._hanging = True
            if not self._hanging:
                self._steps += STEPS_A_LOOK
                self._cells[B, k] += STEPS_A_LOOK
                self._tokens += STEPS_A_LOOK * B
        zero = {"requestSteps": 0, "draftedSteps": 0, "drafted": [0], "kept": [0]}
        chosen = [[B, k, steps] for (B, k), steps in self._cells.items()]
        return {**self._boot(), **zero, "tokens": self._tokens, "chosen": chosen, "steps": self._steps, "batchSizeLast": B}

    def steps(self, _: Any) -> dict[str, Any]:
        cells = [
            {"batchSize": B, "draftLength": k, "regime": "decode", "count": n, "medianMicros": self.step_micros(B, k), "spreadMicros": 0}
            for (B, k), n in self._cells.items()
        ]
        return {**self._boot(), "cells": cells}

    def _boot(self) -> dict[str, Any]:
        return {"bootId": str(self.starts), "uptimeSeconds": self._steps * 0.001}

    def _die(self) -> None:
        self.state = "exited"
        for client in self._clients:
            client.close()
        raise ConnectionError

    @asynccontextmanager
    async def serving(self, run_dir: Path) -> AsyncIterator[Engine]:
        """The real client of an engine, connected to this one."""
        health = await asyncio.start_server(self._health, "127.0.0.1", 0)
        supervisor = await asyncio.start_unix_server(self._lines(("status", "start", "stop", "log")), run_dir / "supervisor.sock")
        plugin = await asyncio.start_unix_server(
            self._lines(("hello", "force", "record", "table", "counts", "steps"), self._clients), run_dir / "engine.sock"
        )
        engine = Engine(run_dir, f"http://127.0.0.1:{health.sockets[0].getsockname()[1]}")
        try:
            yield engine
        finally:
            await engine.close()
            for server in (health, supervisor, plugin):
                server.close()

    async def _health(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    def _lines(
        self, names: tuple[str, ...], clients: set[asyncio.StreamWriter] | None = None
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.ExitStack() as stack:
                stack.callback(writer.close)
                stack.enter_context(contextlib.suppress(ConnectionError))
                if clients is not None:
                    clients.add(writer)
                    stack.callback(clients.discard, writer)
                while line := await reader.readline():
                    request = parse_request(line)
                    assert request.op in names
                    writer.write(to_answer(request.id, getattr(self, request.op)(request.fields)))

        return serve


class Story:
    """What a tracker tells, and by which kind."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tracker = Tracker(self.events.append)

    def told(self) -> dict[str, list[str]]:
        by_kind: dict[str, list[str]] = defaultdict(list)
        for event in self.events:
            by_kind[event.kind].append(event.message)
        return by_kind
