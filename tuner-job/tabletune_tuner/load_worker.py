"""One of the processes that send a window's requests: `python -m tabletune_tuner.load_worker`, started by `clients.Clients`.

One JSON object a line. On stdin first {url, apiKey, model, prompts}, then for each window {flow, slots} and, to stop it, any line.
On stdout {said: "ready" | "stopped"}, and {said: "failed", reason, message} at once when a request fails: `reason` is null when
the engine broke. The end of stdin ends the process, and what it asked of the engine is aborted: no tuner leaves one behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tabletune_tuner.engine import EngineFailureError
from tabletune_tuner.load import Client, Flow, Running, keep, open_http
from tabletune_tuner.outcome import FailedError


def main() -> None:
    """Serve the process that holds our pipes."""
    # Nothing follows this line until we said that we are ready, so nothing of it is read ahead.
    if line := sys.stdin.buffer.readline():
        asyncio.run(_serve(json.loads(line)))


async def _serve(told: dict[str, Any]) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    async with open_http(told["url"], told["apiKey"]) as http:
        client = Client(http, told["model"])
        _say("ready")
        while line := await lines.readline():
            order = json.loads(line)
            stop = asyncio.create_task(lines.readline())
            async with keep(client, told["prompts"], Flow(**order["flow"]), order["slots"]) as running:
                await running.until(stop)
                _report(running)
                ended = not await stop
            if ended:
                return
            _say("stopped")


def _report(running: Running) -> None:
    try:
        running.check()
    except FailedError as error:
        _say("failed", reason=error.reason, message=error.message)
    except EngineFailureError as error:
        _say("failed", reason=None, message=str(error))


def _say(what: str, **more: str | None) -> None:
    print(json.dumps({"said": what, **more}), flush=True)


if __name__ == "__main__":
    main()
