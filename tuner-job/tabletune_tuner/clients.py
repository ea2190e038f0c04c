"""The clients of the live comparison: one process sends a small load, several share a large one.

One asyncio process is itself the limit above about a hundred requests on a GPU. The processes are started at the first window that
needs them and serve every later one; they end with the comparison, and by themselves when the tuner is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from math import ceil
from types import TracebackType
from typing import Any, Protocol, Self

from tabletune_tuner.engine import EngineFailureError
from tabletune_tuner.load import Client, Flow, Prompt, keep
from tabletune_tuner.outcome import FailedError

REQUESTS_A_PROCESS = 32
MOST_PROCESSES = 8  # each takes about 50 MB of the tuner's memory
START_SECONDS = 60.0
STOP_SECONDS = 10.0  # to abort the requests of a window
TAIL_CHARACTERS = 300

Lost = EngineFailureError | FailedError


class Checked(Protocol):
    """Requests that run in the background."""

    def check(self) -> None:
        """Raises EngineFailureError or FailedError when one failed."""


def processes_for(concurrency: int, cpus: int) -> int:
    """How many processes share a load."""
    return max(1, min(ceil(concurrency / REQUESTS_A_PROCESS), cpus, MOST_PROCESSES))


class Clients:
    """Sends flows of requests with these prompts. A context: its processes end with it."""

    def __init__(self, client: Client, prompts: Sequence[Prompt], url: str, api_key: str | None) -> None:
        self.prompts = prompts
        self._client = client
        self._setup = {"url": url, "apiKey": api_key, "model": client.model, "prompts": prompts}
        self._cpus = len(os.sched_getaffinity(0))
        self._workers: list[_Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))

    @asynccontextmanager
    async def keep(self, flow: Flow) -> AsyncIterator[Checked]:
        """A flow, until the end of the context; what still runs then is aborted in the engine.

        Raises:
            FailedError: a process did not start or has ended: no fault of the engine.
        """
        count = processes_for(flow.concurrency, self._cpus)
        if count == 1:
            async with keep(self._client, self.prompts, flow) as running:
                yield running
            return
        await self._start(count)
        workers = self._workers[:count]
        try:
            for n, worker in enumerate(workers):
                await worker.begin(flow, range(n, flow.concurrency, count))
            yield _Together(workers)
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))

    async def _start(self, count: int) -> None:
        new = []
        line = json.dumps(self._setup).encode() + b"\n"
        for _ in range(count - len(self._workers)):
            worker = _Worker(await _spawn())
            self._workers.append(worker)  # at once, so that it is closed whatever happens next
            new.append(worker)
        await asyncio.gather(*(worker.set_up(line) for worker in new))


async def _spawn() -> Process:
    # A session of its own: Ctrl-C is for the tuner, which stops its processes in order.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tabletune_tuner.load_worker", stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )


class _Together:
    """The requests of several processes."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._workers = workers

    def check(self) -> None:
        for worker in self._workers:
            worker.check()


class _Worker:
    """One process; load_worker.py says what is spoken."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._in, self._out, self._err = process, process.stdin, process.stdout, process.stderr
        self._idle = asyncio.Event()
        self._lost: Lost | None = None
        self._ended: FailedError | None = None
        self._listening = asyncio.create_task(self._listen())

    async def set_up(self, line: bytes) -> None:
        await self._send(line)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._idle.wait()
        except TimeoutError as error:
            raise FailedError(
                "LoadProcessDied",
                f"A process that sends the requests was not ready within {START_SECONDS:.0f} s: give the tuner more CPU.",
            ) from error
        self.check()

    async def begin(self, flow: Flow, slots: Sequence[int]) -> None:
        self._lost = None
        self.check()
        self._idle.clear()
        await self._send(json.dumps({"flow": asdict(flow), "slots": list(slots)}).encode() + b"\n")

    def check(self) -> None:
        if (error := self._ended or self._lost) is not None:
            raise error

    async def stop(self) -> None:
        """End the window; return when its requests are aborted."""
        if self._idle.is_set():
            return
        await self._send(b"\n")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            await self._kill()

    async def close(self) -> None:
        """End the process, and its requests with it."""
        self._in.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self._kill()
        await self._listening

    async def _send(self, line: bytes) -> None:
        with suppress(ConnectionError):  # it ended: what listens says why
            self._in.write(line)
            await self._in.drain()

    async def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _listen(self) -> None:
        while line := await self._out.readline():
            said: dict[str, Any] = json.loads(line)
            if said["said"] != "failed":
                self._idle.set()
            elif said["reason"] is None:
                self._lost = EngineFailureError(said["message"])
            else:
                self._lost = FailedError(said["reason"], said["message"])
        words = (await self._err.read()).decode(errors="replace").strip()[-TAIL_CHARACTERS:]
        code = await self._process.wait()
        how = f"was killed by signal {-code} (lack of memory is the usual cause)" if code < 0 else f"ended with exit code {code}: {words}"
        self._ended = FailedError("LoadProcessDied", f"A process that sends the requests {how}. The engine is not to blame; measure again.")
        self._idle.set()
