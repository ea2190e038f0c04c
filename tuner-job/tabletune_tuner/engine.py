"""The engine under measurement: started and stopped through the supervisor's socket, asked through its own.

Whoever measures calls `Engine`; an engine that dies or hangs is an `EngineFailureError`, which callers may answer with `restart`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tabletune.acceptance import Counts
from tabletune.channel import Channel, ChannelClosedError, ChannelError
from tabletune_tuner.outcome import BlockedError, FailedError

POLL_SECONDS = 0.5
SUPERVISOR_SECONDS = 60.0  # for its socket to appear
STOP_GRACE_SECONDS = 20
STOP_SECONDS = 120.0  # for the answer to `stop`
SOCKET_SECONDS = 10.0  # for any other answer
PLUGIN_SECONDS = 30.0  # between an engine's first /health and the plugin's socket
TAIL_LINES = 40
CAUSE_CHARACTERS = 300
FIRST_STEP_SECONDS = 120.0  # a first step may compile
LEAST_HANG_SECONDS = 10.0
HANG_FACTOR = 50  # times the last step time


class EngineFailureError(Exception):
    """The engine died or hangs; it may be started again. The message is the cause in words, without a full stop."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What the plugin says of one engine start; `facts` as in docs/protocol.md."""

    boot_id: str
    active: bool
    inactive_reason: str | None
    reject_by: str | None
    facts: Mapping[str, Any]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths that may be put in force."""
        return tuple(self.facts.get("launchLengths") or ())

    @property
    def devices(self) -> int:
        """GPUs that the engine holds; 0 on a CPU."""
        if self.facts.get("device") == "cpu":
            return 0
        return int(self.facts.get("tensorParallelSize") or 1) * int(self.facts.get("pipelineParallelSize") or 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """The plugin's counters at one moment of the engine's own clock."""

    uptime_seconds: float
    steps: int
    tokens: int
    batch_size_last: int
    request_steps: int
    drafted_steps: int
    drafted: tuple[int, ...]
    kept: tuple[int, ...]
    steps_by_batch_size: Mapping[int, int]

    def mean_batch_size_since(self, earlier: Seen) -> float:
        """Over the steps since then; 0 without any."""
        steps = {B: n - earlier.steps_by_batch_size.get(B, 0) for B, n in self.steps_by_batch_size.items()}
        return sum(B * n for B, n in steps.items()) / max(sum(steps.values()), 1)

    def counts_since(self, earlier: Seen) -> Counts:
        """What was drafted and kept since then, in the same engine."""
        request_steps = self.request_steps - earlier.request_steps
        return Counts(
            request_steps,
            # Seen in the middle of a step, its drafts may be counted before its requests are.
            min(self.drafted_steps - earlier.drafted_steps, request_steps),
            tuple(a - b for a, b in zip(self.drafted, earlier.drafted, strict=True)),
            tuple(a - b for a, b in zip(self.kept, earlier.kept, strict=True)),
        )


class Watchdog:
    """Tells a hanging engine by its counter of steps: none for 10 s, or 50 times the last step time if that is longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: int | None = None
        self._limit = FIRST_STEP_SECONDS
        self._at = clock()

    def look(self, steps: int) -> None:
        """Raises EngineFailureError when the counter stood still for too long."""
        now = self._clock()
        if self._steps is None:
            self._steps = steps
        elif steps != self._steps:
            self._limit = max(LEAST_HANG_SECONDS, HANG_FACTOR * (now - self._at) / (steps - self._steps))
            self._steps, self._at = steps, now
        elif now - self._at > self._limit:
            raise EngineFailureError(f"the engine hangs: no step for {now - self._at:.0f} s")


class Engine:
    """One engine at a time. Not for two tasks at once, except `seen`."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self._url = url
        self._supervisor = _Asker(run_dir / "supervisor.sock", STOP_SECONDS)
        self._plugin = _Asker(run_dir / "engine.sock", SOCKET_SECONDS)
        self._argv: tuple[str, ...] = ()
        self._started_at: float | None = None
        self._spent_seconds = 0.0
        self._boot_id: str | None = None
        self._devices = 0
        self._python_path: str | None = None
        self._has_gpu = False

    @property
    def device_seconds(self) -> int:
        """GPU seconds used so far: time with an engine, times its GPUs."""
        running = time.monotonic() - self._started_at if self._started_at is not None else 0.0
        return round((self._spent_seconds + running) * self._devices)

    @property
    def python_path(self) -> str | None:
        """PYTHONPATH of the engine's image, without the plugin; known once the supervisor answered."""
        return self._python_path

    @property
    def has_gpu(self) -> bool:
        """Whether the engine's own container has one; known once the supervisor answered. The tuner's container has none."""
        return self._has_gpu

    async def wait_for_supervisor(self) -> None:
        """Raises FailedError when it does not answer in time."""
        deadline = time.monotonic() + SUPERVISOR_SECONDS
        while True:
            try:
                status = await self._supervisor.ask("status")
            except ChannelClosedError as error:
                if time.monotonic() > deadline:
                    raise FailedError(
                        "SupervisorMissing", f"The engine's supervisor does not answer ({error}). See the log of the engine's container."
                    ) from error
            else:
                self._python_path = status["pythonPath"]
                self._has_gpu = bool(status["gpuDevices"])
                return
            await asyncio.sleep(POLL_SECONDS)

    async def start(self, argv: Sequence[str]) -> Hello:
        """Start the engine and wait until it serves; whatever ran before is stopped.

        Raises:
            EngineFailureError: it ended before it served.
            BlockedError: it serves, but without the plugin.
        """
        await self.stop()
        self._argv = tuple(argv)
        self._started_at = time.monotonic()
        try:
            await self._supervisor.ask("start", argv=list(argv), env={}, plugin=True)
        except ChannelError as error:
            raise FailedError("EngineDoesNotStart", f"The engine's command was refused: {error.message}") from error
        healthy_at: float | None = None
        async with httpx.AsyncClient(timeout=5, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            while True:
                await self._check_running()
                if healthy_at is None and await self._is_healthy(http):
                    healthy_at = time.monotonic()
                if healthy_at is not None:
                    hello = await self._hello()
                    if hello is not None:
                        return hello
                    if time.monotonic() - healthy_at > PLUGIN_SECONDS:
                        raise BlockedError(
                            "PluginInactive",
                            "The engine serves, but TableTune's plugin was not loaded in it, so nothing can be measured. "
                            "Look for tabletune in the engine's log; VLLM_PLUGINS must name it if it is set.",
                        )
                await asyncio.sleep(POLL_SECONDS)

    async def restart(self) -> Hello:
        """The same engine again."""
        return await self.start(self._argv)

    async def stop(self) -> None:
        """Stop the engine, if one runs; return when all its processes are gone."""
        await self._supervisor.ask("stop", graceSeconds=STOP_GRACE_SECONDS)
        if self._started_at is not None:
            self._spent_seconds += time.monotonic() - self._started_at
            self._started_at = None
        self._boot_id = None

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question to the plugin.

        Raises:
            EngineFailureError: it does not answer, or another engine answers.
            ChannelError: it refuses.
        """
        try:
            answer = await self._plugin.ask(op, **fields)
        except ChannelClosedError as error:
            raise EngineFailureError(await self._cause(f"its socket does not answer {op}")) from error
        if answer.get("bootId", self._boot_id) != self._boot_id:
            raise EngineFailureError("another engine answers than the one that was started")
        return answer

    async def seen(self) -> Seen:
        """The counters now. Raises EngineFailureError."""
        answer = await self.ask("counts")
        by_batch_size: Counter[int] = Counter()
        for B, _, steps in answer["chosen"]:
            by_batch_size[B] += steps
        return Seen(
            uptime_seconds=answer["uptimeSeconds"],
            steps=answer["steps"],
            tokens=answer["tokens"],
            batch_size_last=answer["batchSizeLast"],
            request_steps=answer["requestSteps"],
            drafted_steps=answer["draftedSteps"],
            drafted=tuple(answer["drafted"]),
            kept=tuple(answer["kept"]),
            steps_by_batch_size=by_batch_size,
        )

    async def cause_of_death(self) -> str:
        """Why the engine is not there, in words, from its exit and its log."""
        return await self._cause("it does not answer")

    async def close(self) -> None:
        """Stop the engine and drop the connections."""
        try:
            await self.stop()
        except ChannelClosedError:
            pass  # the supervisor ends its engine when it ends itself
        finally:
            self._supervisor.close()
            self._plugin.close()

    async def _hello(self) -> Hello | None:
        try:
            answer = await self._plugin.ask("hello")
        except ChannelClosedError:
            return None
        hello = Hello(answer["bootId"], answer["active"], answer["inactiveReason"], answer["rejectBy"], answer["engine"])
        self._boot_id = hello.boot_id
        self._devices = hello.devices
        return hello

    async def _is_healthy(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get(f"{self._url}/health")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def _check_running(self) -> None:
        status = await self._supervisor.ask("status")
        if status["state"] != "running":
            raise EngineFailureError(await self._cause("it ended before it served"))

    async def _cause(self, otherwise: str) -> str:
        try:
            status = await self._supervisor.ask("status")
            lines = (await self._supervisor.ask("log", lines=TAIL_LINES))["lines"]
        except ChannelClosedError:
            return "the engine's container is gone"
        return describe_end(status, lines, otherwise)


def describe_end(status: Mapping[str, Any], lines: Sequence[str], otherwise: str) -> str:
    """How an engine ended: exit code or signal, and the line of its log that looks most like the cause."""
    if status["state"] == "running":
        end = otherwise
    elif status["signal"] is not None:
        end = f"killed by signal {status['signal']}"
    elif status["exitCode"] is not None:
        end = f"exit code {status['exitCode']}"
    else:
        end = otherwise
    errors = [line for line in lines if "Error" in line or "error:" in line]
    # An engine core's own error comes before those that it makes elsewhere.
    said = next((line for line in errors if "Engine core initialization failed" not in line), lines[-1] if lines else "")
    said = said.split(") ", 1)[-1] if said.startswith("(") else said
    cause = said.strip()[:CAUSE_CHARACTERS].rstrip(".")  # the sentence around it has its own full stop
    return f"{end}; its log says: {cause}" if cause else end


class _Asker:
    """A channel for asyncio: one thread of its own, so that questions never overlap, not even after a cancelled one."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self._channel = Channel(str(path), timeout_seconds)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.stem)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._channel.ask(op, **fields))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._channel.close()
