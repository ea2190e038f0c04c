"""Several processes as one client, against a real HTTP server: the same flow as from one, and none left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tabletune_tuner import clients
from tabletune_tuner.clients import Clients, processes_for
from tabletune_tuner.engine import EngineFailureError
from tabletune_tuner.load import Client, Flow, open_http
from tabletune_tuner.outcome import FailedError

ANSWER = '{"choices": [{"text": "said"}]}'
PROMPTS = tuple((n, n) for n in range(6))


class Server:
    """Answers completions after a moment, and aborts one whose client leaves, as vLLM does."""

    def __init__(self) -> None:
        self.status = 200
        self.url = ""
        self.running = 0
        self.most = 0
        self.asked: set[tuple[int, int]] = set()  # prompt, max_tokens
        self.keys: set[str] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        body: dict[str, Any] = json.loads(await reader.readexactly(length))
        self.keys.add(head.split("authorization: ")[1].split("\r\n")[0])
        self.asked.add((body["prompt"][0], body["max_tokens"]))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            left = asyncio.create_task(reader.read())  # the client says nothing more, unless it leaves
            done, _ = await asyncio.wait([left], timeout=0.005 * body["max_tokens"])
            left.cancel()
            if not done:
                writer.write(f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(ANSWER)}\r\nconnection: close\r\n\r\n{ANSWER}".encode())
                await writer.drain()
        finally:
            self.running -= 1
            writer.close()

    async def until(self, running: int) -> None:
        async with asyncio.timeout(60):
            while self.running != running:
                await asyncio.sleep(0.01)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serve = Server()
    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    serve.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield serve
    listening.close()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests are enough for two processes."""
    monkeypatch.setattr(clients, "REQUESTS_A_PROCESS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))


def clients_of(server: Server) -> Clients:
    return Clients(Client(open_http(server.url, "key"), "m"), PROMPTS, server.url, "key")


def children() -> set[int]:
    """Client processes of this one. Others may have been started by tests before, such as multiprocessing's tracker."""
    found = {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}
    return {pid for pid in found if b"load_worker" in _command(pid)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it may go meanwhile
        return b""


@pytest.mark.parametrize(
    ("concurrency", "cpus", "count"),
    [
        pytest.param(1, 64, 1, id="one request"),
        pytest.param(32, 64, 1, id="small"),
        pytest.param(33, 64, 2, id="just above"),
        pytest.param(256, 64, 8, id="large"),
        pytest.param(1024, 64, 8, id="no more than fit into the memory"),
        pytest.param(256, 2, 2, id="no more than CPUs"),
    ],
)
def test_a_process_for_each_32_requests(concurrency: int, cpus: int, count: int) -> None:
    assert processes_for(concurrency, cpus) == count


async def test_two_processes_hold_the_load_and_serve_window_after_window(server: Server, two: None) -> None:
    async with clients_of(server) as crowd:
        for _ in range(2):
            async with crowd.keep(Flow(4, 1, 40, 0.0)) as running:
                await server.until(running=4)
                pids = children()
                running.check()
            await server.until(running=0)
        assert children() == pids
        assert len(pids) == 2
    assert children() == set()
    assert (server.most, server.keys) == (4, {"bearer key"})


async def test_the_flow_is_the_same_however_many_share_it(server: Server, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(4, 1, 8, 0.0)
    wanted = {(PROMPTS[flow.prompt(slot, turn, 6)][0], flow.length(slot, turn)) for slot in range(4) for turn in range(3)}

    for requests in (2, 32):
        monkeypatch.setattr(clients, "REQUESTS_A_PROCESS", requests)
        server.asked.clear()
        async with clients_of(server) as crowd, crowd.keep(flow), asyncio.timeout(60):
            while not wanted <= server.asked:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "error"),
    [pytest.param(400, FailedError, id="refused"), pytest.param(500, EngineFailureError, id="the engine broke")],
)
async def test_tells_a_refusal_from_a_broken_engine_and_serves_on(server: Server, two: None, status: int, error: type[Exception]) -> None:
    async with clients_of(server) as crowd:
        server.status = status
        async with crowd.keep(Flow(4, 0, 1, 0.0)) as running:
            with pytest.raises(error, match=str(status)):
                async with asyncio.timeout(60):
                    while True:
                        await asyncio.sleep(0.01)
                        running.check()
        server.status = 200
        async with crowd.keep(Flow(4, 0, 100, 0.0)) as running:
            await server.until(running=4)
            running.check()


async def test_a_process_that_dies_is_not_the_engines_failure(server: Server, two: None) -> None:
    async with clients_of(server) as crowd:
        async with crowd.keep(Flow(4, 0, 1000, 0.0)) as running:
            await server.until(running=4)
            os.kill(min(children()), signal.SIGKILL)
            with pytest.raises(FailedError, match="killed by signal 9") as caught:
                async with asyncio.timeout(60):
                    while True:
                        await asyncio.sleep(0.01)
                        running.check()
        assert caught.value.reason == "LoadProcessDied"
    assert children() == set()
    await server.until(running=0)


async def test_a_cancelled_window_aborts_its_requests_and_leaves_no_process(server: Server, two: None) -> None:
    async def measure() -> None:
        async with clients_of(server) as crowd, crowd.keep(Flow(4, 0, 1000, 0.0)):
            await asyncio.Event().wait()

    task = asyncio.create_task(measure())
    await server.until(running=4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == set()
    await server.until(running=0)


HOLD = """
import asyncio, sys, httpx
from tabletune_tuner import clients
from tabletune_tuner.load import Client, Flow
clients.REQUESTS_A_PROCESS = 2
async def main():
    async with clients.Clients(Client(httpx.AsyncClient(), "m"), ((1, 1),), sys.argv[1], "key") as crowd, crowd.keep(Flow(4, 0, 1000, 0.0)):
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_tuner_that_is_ended_by_a_signal_leaves_no_process(server: Server, number: signal.Signals) -> None:
    hearing = ("env", "--default-signal=INT")  # as the tests do not, where a shell runs them in the background
    holder = subprocess.Popen([*hearing, sys.executable, "-c", HOLD, server.url], stderr=subprocess.DEVNULL)
    await server.until(running=4)
    workers = [int(pid) for pid in Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()]
    assert workers
    holder.send_signal(number)
    deadline = time.monotonic() + 60
    while holder.poll() is None or any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await server.until(running=0)
