"""Requests: how many at once, which prompts, and what a refusal means."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tabletune_tuner.engine import EngineFailureError
from tabletune_tuner.load import Client, Flow, Prompt, cut, drain, hold, keep, random_prompts, tokenize_all
from tabletune_tuner.outcome import FailedError


class Server:
    """Answers as vLLM does; a completion takes one turn of the loop for each token."""

    def __init__(self, begins: bool = False, knows: str | None = "<bos>", status: int = 200) -> None:
        self.begins, self.knows, self.status = begins, knows, status
        self.running = self.most = 0
        self.served: list[dict[str, Any]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": self._tokens(body)})
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(body["max_tokens"]):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        self.served.append(body)
        return httpx.Response(self.status, json={"choices": [{"text": f"of {body['prompt'][0]}"}]})

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        text = body["prompt"]
        tokens = [2] if text == self.knows else [100 + len(word) for word in text.split()] if " " in text else [7, 8, 9]
        return [2, *tokens] if self.begins and body["add_special_tokens"] else tokens

    def client(self) -> Client:
        return Client(httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://engine"), "m")


PROMPTS: tuple[Prompt, ...] = tuple((n, n) for n in range(10))


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        pytest.param(Server(begins=True), (2, 101, 102), id="the tokenizer adds it"),
        pytest.param(Server(begins=False), (2, 101, 102), id="a converted tokenizer does not: we do"),
        pytest.param(Server(begins=False, knows=None), (101, 102), id="a family without one"),
    ],
)
async def test_prompts_begin_with_the_token_that_texts_begin_with(server: Server, expected: Prompt) -> None:
    assert await tokenize_all(server.client(), ["a bb"]) == (expected,)


async def test_drains_each_prompt_once_with_a_bounded_number_at_once() -> None:
    server, answers = Server(), list[str]()
    async with drain(server.client(), PROMPTS, 3, 5, 0.7, done=answers.append) as running:
        while running.finished < 3:
            await asyncio.sleep(0)
            running.check()
    assert sorted(tuple(x["prompt"]) for x in server.served) == sorted(PROMPTS)
    assert server.most == 3
    assert sorted(answers) == [f"of {n}" for n in range(10)]
    assert all(x["ignore_eos"] and x["max_tokens"] == 5 and x["temperature"] == 0.7 for x in server.served)
    assert len({x["cache_salt"] for x in server.served}) == 10  # no prompt is cheaper for having been seen


async def test_keeps_the_same_number_running_until_it_is_told_to_stop() -> None:
    server = Server()
    async with keep(server.client(), PROMPTS, Flow(4, 0, 20, 0.0)) as running:
        for _ in range(400):
            await asyncio.sleep(0)
            running.check()
        assert server.running == server.most == 4
    assert server.running == 0
    assert len(server.served) > 10  # it went round
    assert {x["max_tokens"] for x in server.served[8:]} <= set(range(15, 26))


async def test_a_slot_asks_the_same_whoever_shares_the_flow() -> None:
    server, flow = Server(), Flow(4, 7, 20, 0.0)
    async with keep(server.client(), PROMPTS, flow, [2]):
        while len(server.served) < 4:
            await asyncio.sleep(0)
    assert [x["prompt"][0] for x in server.served] == [9, 6, 3, 0]  # 7 + 2, and from there on every seventh
    assert [x["max_tokens"] for x in server.served] == [flow.length(2, turn) for turn in range(4)]


@pytest.mark.parametrize(("concurrency", "count"), [(1, 7), (4, 10), (128, 160), (160, 160), (256, 24), (3, 1)])
def test_every_slot_comes_to_every_prompt(concurrency: int, count: int) -> None:
    flow = Flow(concurrency, 5, 20, 0.0)
    for slot in (0, concurrency - 1):
        assert {flow.prompt(slot, turn, count) for turn in range(count)} == set(range(count))
    at_first = [flow.prompt(slot, 0, count) for slot in range(concurrency)]
    assert len(set(at_first)) == min(concurrency, count)


async def test_aborts_what_it_held() -> None:
    server = Server()
    async with hold(server.client(), PROMPTS[:3], 10_000) as running:
        while server.running < 3:
            await asyncio.sleep(0)
        running.check()
    assert (server.running, server.served) == (0, [])


@pytest.mark.parametrize(
    ("status", "error"),
    [
        pytest.param(400, FailedError, id="refused: another try would not help"),
        pytest.param(500, EngineFailureError, id="broken: the engine may be started again"),
    ],
)
async def test_tells_a_refusal_from_a_broken_engine(status: int, error: type[Exception]) -> None:
    async with hold(Server(status=status).client(), PROMPTS[:1], 1) as running:
        while not running.finished:
            await asyncio.sleep(0)
        with pytest.raises(error):
            running.check()


async def test_a_lost_connection_is_the_engines_failure() -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    client = Client(httpx.AsyncClient(transport=httpx.MockTransport(lost), base_url="http://engine"), "m")
    with pytest.raises(EngineFailureError, match=r"a request failed \(ReadError\)"):
        await client.complete((1,), 1, 0.0)


def test_random_prompts_are_made_of_real_tokens_and_have_one_length() -> None:
    prompts = random_prompts([(2, 10, 11), (2, 12)], 5, 32)
    assert len(prompts) == 5
    assert all(len(p) == 32 and p[0] == 2 and set(p[1:]) <= {10, 11, 12} for p in prompts)
    assert len(set(prompts)) == 5


def test_cuts_long_prompts_only() -> None:
    assert cut([(1, 2, 3), (4,)], 2) == ((1, 2), (4,))
