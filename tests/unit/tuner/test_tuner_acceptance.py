"""Acceptance on real prompts: the counts of the whole wave, and what the answers tell about them."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import FakeEngine, Story

from tabletune.acceptance import Counts
from tabletune_tuner import acceptance
from tabletune_tuner.acceptance import count_acceptance, judge_answers, split_evenly

BASIL = (
    "Basil wants light more than it wants water. Put the pot on the brightest sill you have, turn it once a week, and let the soil dry "
    "between two fingers before you pour again. In winter a cold pane hurts the leaves, so leave a hand of air between them and the glass."
)
MEETING = (
    "The meeting runs late because nobody ends the first point. Give each of the two decisions ten minutes, name who decides, and write "
    "the result down while all are still in the room. What is left over goes into a note and not into next week's agenda."
)
LOOP = "The answer is four. I hope that this helps you. " * 12


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


class Writer(FakeEngine):
    """Answers at once; each answer is a request-step of its own, and every prompt above 0 keeps its draft."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[int] = []

    async def complete(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> str:
        self.answered.append(prompt[0])
        return f"{prompt[0]} at {temperature}"

    def counts(self, fields: Any) -> dict[str, Any]:
        steps = len(self.answered)
        kept = sum(n > 0 for n in self.answered)
        return {**super().counts(fields), "requestSteps": steps, "draftedSteps": steps, "drafted": [steps], "kept": [kept]}


async def test_every_prompt_is_answered_once_and_counted_in_its_part(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "POLL_SECONDS", 0.001)
    fake = Writer()
    client: Any = fake
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        parts, answers = await count_acceptance(
            engine,
            client,
            [(n,) for n in range(40)],
            draft_length=3,
            concurrency=4,
            max_tokens=8,
            temperature=0.7,
            steps_per_prompt=1.0,
            tracker=Story().tracker,
        )
    assert answers == tuple(f"{n} at 0.7" for n in range(40))
    assert fake.lengths == [3]
    assert parts == (Counts(20, 20, (20,), (19,)), Counts(20, 20, (20,), (20,)))


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        pytest.param(160, [16] * 10, id="the usual number"),
        pytest.param(40, [20, 20], id="not a multiple"),
        pytest.param(47, [23, 24], id="odd"),
        pytest.param(8, [8], id="too few for two parts"),
    ],
)
def test_parts_are_of_about_one_size(count: int, sizes: list[int]) -> None:
    parts = split_evenly([(n,) for n in range(count)], 16)
    assert [len(part) for part in parts] == sizes
    assert [prompt for part in parts for prompt in part] == [(n,) for n in range(count)]


@pytest.mark.parametrize(
    ("answers", "warned"),
    [
        pytest.param((BASIL, MEETING), False, id="prose"),
        pytest.param((LOOP,), True, id="a loop"),
        pytest.param((BASIL, MEETING, LOOP, LOOP), True, id="half of them loop"),
        pytest.param(("我不知道该说什么，" * 20,), True, id="a loop without spaces"),
        pytest.param(("x" * 600,), True, id="one letter for ever"),
        pytest.param(("Yes. Yes. Yes. Yes.", ""), False, id="too short to tell"),
        pytest.param((), False, id="none"),
    ],
)
def test_warns_of_answers_that_repeat_themselves(answers: tuple[str, ...], warned: bool) -> None:
    warnings = judge_answers(answers, 0.0)
    assert len(warnings) == warned
    assert all("acceptance is flattering. Measured at temperature 0; measure at the serving temperature" in w for w in warnings)
