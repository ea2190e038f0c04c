"""Requests to the engine: prompts as token ids, a chosen number of them at the same time.

No connection is used twice: the server closes idle ones after 5 s, and a client that meets this sees a read error.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import gcd
from typing import Any

import httpx

from tabletune_tuner.engine import EngineFailureError
from tabletune_tuner.outcome import FailedError

BEGIN_TOKENS = ("<bos>", "<s>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>")
"""How families of models write the token that every text begins with. A converted tokenizer may not add it: nonsense follows."""
CONNECT_SECONDS = 10.0
REFUSED = range(400, 500)
REASON_CHARACTERS = 300

Prompt = tuple[int, ...]


class Client:
    """Completions of one engine."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self.model = model

    async def tokenize(self, text: str, *, special: bool = True) -> Prompt:
        """Token ids of a text; `special`: with what the tokenizer adds by itself."""
        answer = await self._post("/tokenize", {"prompt": text, "add_special_tokens": special})
        return tuple(answer["tokens"])

    async def complete(self, prompt: Prompt, max_tokens: int, temperature: float) -> str:
        """Let the engine write exactly `max_tokens`; what it wrote."""
        answer = await self._post(
            "/v1/completions",
            {
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "temperature": temperature,
                "ignore_eos": True,
                # Prompts that come again must cost what they cost the first time.
                "cache_salt": secrets.token_urlsafe(16),
            },
        )
        return str(answer["choices"][0]["text"])

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._http.post(path, json={"model": self.model, **body})
        except httpx.HTTPError as error:
            raise EngineFailureError(f"a request failed ({type(error).__name__})") from error
        if answer.status_code in REFUSED:
            raise FailedError("RequestRefused", f"The engine refused {path} with {answer.status_code}: {answer.text[:REASON_CHARACTERS]}")
        if answer.status_code != httpx.codes.OK:
            raise EngineFailureError(f"{path} was answered with {answer.status_code}")
        value: dict[str, Any] = answer.json()
        return value


def open_http(url: str, api_key: str | None) -> httpx.AsyncClient:
    """Connections to the engine at `url`, as many as there are requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)  # how long a request may take, the watchdog decides
    return httpx.AsyncClient(base_url=url, limits=limits, headers=headers, timeout=timeout)


@asynccontextmanager
async def connect(url: str, api_key: str | None) -> AsyncIterator[Client]:
    """A client of the engine at `url`, for the model that it serves. Raises EngineFailureError, FailedError."""
    async with open_http(url, api_key) as http:
        try:
            answer = await http.get("/v1/models")
        except httpx.HTTPError as error:
            raise EngineFailureError(f"/v1/models failed ({type(error).__name__})") from error
        if answer.status_code != httpx.codes.OK:
            raise FailedError("RequestRefused", f"The engine refused /v1/models with {answer.status_code}: does it want an API key?")
        yield Client(http, answer.json()["data"][0]["id"])


class Running:
    """Requests that run in the background."""

    def __init__(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        self._tasks = tasks

    @property
    def finished(self) -> int:
        return sum(task.done() for task in self._tasks)

    def check(self) -> None:
        """Raises what a request raised."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def until(self, other: asyncio.Task[Any]) -> None:
        """Wait until `other` is done, or a request is."""
        await asyncio.wait([other, *self._tasks], return_when=asyncio.FIRST_COMPLETED)


@dataclass(frozen=True, slots=True)
class Flow:
    """Always `concurrency` requests, each slot one after the other, from prompt `first` on and again from the beginning.

    Which prompts a slot asks, and in which order, does not depend on who is faster, nor on how many processes share the slots.
    Lengths differ by a quarter around `max_tokens`, so that requests do not end together and the batch has prefills as it has in service.
    """

    concurrency: int
    first: int
    max_tokens: int
    temperature: float

    def prompt(self, slot: int, turn: int, count: int) -> int:
        """Which of `count` prompts a slot's request number `turn` asks.

        Every slot comes to every prompt: with few of its own, those that are guessed well would be asked more often than the others,
        as their slots are faster, and speculation would seem to win more than it does.
        """
        stride = next(n for n in itertools.count(self.concurrency) if gcd(n, count) == 1)
        return (self.first + slot + turn * stride) % count

    def length(self, slot: int, turn: int) -> int:
        """Tokens to write in a slot's request number `turn`; the first ones end one after the other."""
        share = 1.0 if turn else (slot + 1) / self.concurrency
        return max(1, round(self.max_tokens * share * (0.75 + 0.5 * _fraction(slot + turn * self.concurrency))))


@asynccontextmanager
async def hold(client: Client, prompts: Sequence[Prompt], max_tokens: int) -> AsyncIterator[Running]:
    """All prompts at the same time, greedily; what still runs at the end is aborted in the engine."""
    async with _running([client.complete(prompt, max_tokens, 0.0) for prompt in prompts]) as running:
        yield running


@asynccontextmanager
async def keep(client: Client, prompts: Sequence[Prompt], flow: Flow, slots: Sequence[int] | None = None) -> AsyncIterator[Running]:
    """A flow, or only these slots of it."""

    async def work(slot: int) -> None:
        for turn in itertools.count():
            prompt = prompts[flow.prompt(slot, turn, len(prompts))]
            await client.complete(prompt, flow.length(slot, turn), flow.temperature)

    async with _running([work(slot) for slot in (range(flow.concurrency) if slots is None else slots)]) as running:
        yield running


@asynccontextmanager
async def drain(
    client: Client, prompts: Sequence[Prompt], concurrency: int, max_tokens: int, temperature: float, *, done: Callable[[str], None]
) -> AsyncIterator[Running]:
    """Each prompt once, `concurrency` at a time; `done` is called after each, with its answer."""
    waiting = iter(prompts)

    async def work() -> None:
        for prompt in waiting:
            done(await client.complete(prompt, max_tokens, temperature))

    async with _running([work() for _ in range(concurrency)]) as running:
        yield running


@asynccontextmanager
async def _running(work: Sequence[Any]) -> AsyncIterator[Running]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield Running(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _fraction(n: int) -> float:
    """A sequence in [0, 1) that looks irregular and is the same for every candidate."""
    return (n * 0.618033988749895) % 1.0


async def tokenize_all(client: Client, texts: Sequence[str]) -> tuple[Prompt, ...]:
    """Token ids of the prompts, each with the token that begins a text if the model has one."""
    begin = await _begin_token(client, texts[0])
    return tuple([begin + await client.tokenize(text) for text in texts])


async def _begin_token(client: Client, text: str) -> Prompt:
    """The token to put before a prompt; empty when the tokenizer adds it, or the model knows none."""
    if await client.tokenize(text) != await client.tokenize(text, special=False):
        return ()
    for name in BEGIN_TOKENS:
        tokens = await client.tokenize(name, special=False)
        if len(tokens) == 1 and tokens != await client.tokenize("<tabletune-no-such-token>", special=False):
            return tokens
    return ()


def random_prompts(real: Sequence[Prompt], count: int, tokens: int) -> tuple[Prompt, ...]:
    """Prompts of one length for timing: tokens of real prompts in random order, so that all are valid and none was seen before."""
    begin = real[0][:1]
    pool = [token for prompt in real for token in prompt[1:]] or list(begin)
    return tuple((*begin, *random.choices(pool, k=tokens - 1)) for _ in range(count))


def cut(prompts: Sequence[Prompt], most: int) -> tuple[Prompt, ...]:
    """Prompts without what is above `most` tokens."""
    return tuple(prompt[:most] for prompt in prompts)
