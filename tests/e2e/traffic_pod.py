"""Runs in a pod: completions through a Service, a number of them at a time, each on a connection of its own.

TRAFFIC_URL and TRAFFIC_AT_ONCE are its settings. Once a second it prints what was answered and what
failed so far, as one line of JSON.
"""

import asyncio
import collections
import json
import os
import signal

import httpx

ASKED = {"prompt": "def add(a, b):\n    return a + b\n", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
TIMEOUT_SECONDS = 120
SAY_SECONDS = 1
FAILED_SECONDS = 0.2  # before the next request of the same client: a client that is refused does not hammer

outcomes: collections.Counter[str] = collections.Counter()
ANSWERED = "answered"


async def ask_without_end(client: httpx.AsyncClient, url: str) -> None:
    while True:
        try:
            answer = await client.post(url, json=ASKED)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            outcomes[f"HTTP {error.response.status_code}"] += 1
        except httpx.HTTPError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes[ANSWERED] += 1
            continue
        await asyncio.sleep(FAILED_SECONDS)


async def main() -> None:
    url, at_once = os.environ["TRAFFIC_URL"], int(os.environ["TRAFFIC_AT_ONCE"])
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    # No connection is kept: kube-proxy chooses a replica for each connection.
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        asking = [asyncio.create_task(ask_without_end(client, url)) for _ in range(at_once)]
        while not leaving.is_set():
            failed = {kind: count for kind, count in outcomes.items() if kind != ANSWERED}
            print(json.dumps({"answered": outcomes[ANSWERED], "failed": failed}), flush=True)
            await asyncio.sleep(SAY_SECONDS)
        for task in asking:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
