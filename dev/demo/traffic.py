"""Real prompts through the Service, at a constant number of requests in flight, turning from code to prose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx


@dataclass(frozen=True, slots=True)
class Talk:
    """Prompts of one kind, and the temperature at which people ask for such answers."""

    prompts: Sequence[str]
    temperature: float


CODE = Talk(
    temperature=0.0,
    prompts=(
        (
            "def read_settings(path):\n    with open(path) as file:\n        settings = json.load(file)\n    return settings\n\n"
            "def write_settings(path, settings):\n    with open(path, 'w') as file:\n        json.dump(settings, file)\n\n"
        ),
        (
            "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
            "    def push(self, item):\n        self.items.append(item)\n\n"
            "    def pop(self):\n        return self.items.pop()\n\nclass Queue:\n    def __init__(self):\n        self.items = []\n\n"
        ),
        "for name in names:\n    print('name:', name)\nfor age in ages:\n    print('age:', age)\nfor town in towns:\n",
        (
            "SELECT id, name, town FROM people WHERE town = 'Oslo';\nSELECT id, name, town FROM people WHERE town = 'Rome';\n"
            "SELECT id, name, town FROM people WHERE town = 'Lima';\n"
        ),
    ),
)
# A small model's greedy prose repeats itself, and text that repeats itself is easy to guess.
PROSE = Talk(
    temperature=1.0,
    prompts=(
        "The old lighthouse keeper had not spoken to anyone for three winters when the letter came. It said",
        "Bread was once the measure of a good year. In the valley, people remember the summer when",
        "What nobody tells you about learning to sail is how much of it happens on land. First",
        "My grandmother kept a jar of buttons on the window sill, and each of them had a story. The green one",
        "The city wakes in layers: first the bakers, then the trams, and last of all",
    ),
)


@dataclass(slots=True)
class Tally:
    """Requests so far; `failures` keeps the reasons of the failed ones."""

    answered: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)


class Traffic:
    """`in_flight` requests at a time until cancelled; `talk` may be replaced while it runs."""

    def __init__(self, url: str, model: str, in_flight: int) -> None:
        self.talk = CODE
        self.tally = Tally()
        self._url = url
        self._model = model
        self._in_flight = in_flight
        self._random = random.Random(7)

    async def run(self) -> None:
        # The engine closes idle connections after 5 s, so none is kept.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            await asyncio.gather(*(self._one_after_the_other(client) for _ in range(self._in_flight)))

    async def _one_after_the_other(self, client: httpx.AsyncClient) -> None:
        while True:
            talk = self.talk
            request = {
                "model": self._model,
                "prompt": "<bos>" + self._random.choice(talk.prompts),
                "max_tokens": 96,
                "temperature": talk.temperature,
                "ignore_eos": True,
            }
            try:
                response = await client.post(f"{self._url}/v1/completions", json=request)
                response.raise_for_status()
                self.tally.tokens += response.json()["usage"]["completion_tokens"]
                self.tally.answered += 1
            except httpx.HTTPError as error:
                self.tally.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(1)
