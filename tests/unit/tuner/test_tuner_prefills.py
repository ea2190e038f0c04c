"""Steps with a prefill: what is made of the engine's counters, and of an engine that dies meanwhile."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import FakeEngine, Story

from tabletune.profile import Cell
from tabletune.regimes import PrefillCell
from tabletune_tuner import prefills
from tabletune_tuner.prefills import summarise
from tabletune_tuner.sweep import Sweep
from tabletune_tuner.sweep_plan import Room, SweepPlan

WINDOW_SECONDS = 0.1
PLAN = SweepPlan(batch_sizes=(4,), lengths=(0, 3), repeats=1, steps=8, prompt_tokens=16)


class BusyFake(FakeEngine):
    """Every fourth step carries a prefill of 40 tokens, and takes 5 ms more; the two steps beside it take 1 ms less."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[float] = []  # at all cells, by its own clock

    def steps(self, fields: Any) -> dict[str, Any]:
        answer = super().steps(fields)
        self.looks.append(answer["uptimeSeconds"])
        for cell in list(answer["cells"]):
            n, usual = cell["count"] // 4, cell["medianMicros"]
            answer["cells"] += [
                cell | {"regime": "beside", "count": 2 * n, "medianMicros": usual - 1000},
                cell | {"regime": "prefill", "count": n, "medianMicros": usual + 5000, "promptTokens": 64, "totalPromptTokens": 40 * n},
            ]
        return answer


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefills, "LEAST_SECONDS", WINDOW_SECONDS)


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


def test_takes_what_the_steps_beside_differ_off_the_prefill() -> None:
    def cell(B: int, regime: str, count: int, middle: int, **more: int) -> dict[str, Any]:
        return {"batchSize": B, "draftLength": 3, "regime": regime, "count": count, "medianMicros": middle, "spreadMicros": 100, **more}

    cells = {
        (8, 3, "decode", 0): cell(8, "decode", 50, 5000),
        (8, 3, "beside", 0): cell(8, "beside", 20, 4000),
        (7, 3, "prefill", 64): cell(7, "prefill", 4, 15_000, totalPromptTokens=160),
        (8, 3, "prefill", 64): cell(8, "prefill", 6, 17_000, totalPromptTokens=240),
        (8, 3, "prefill", 256): cell(8, "prefill", 10, 20_000, totalPromptTokens=900),
        (3, 3, "prefill", 64): cell(3, "prefill", 99, 9000, totalPromptTokens=99),  # too few requests
        (8, 1, "prefill", 64): cell(8, "prefill", 99, 9000, totalPromptTokens=99) | {"draftLength": 1},
        (8, 3, "prefill", 1024): cell(8, "prefill", 2, 90_000, totalPromptTokens=1800),  # too few steps
    }
    before = {key: cells[key] | {"count": 0, "totalPromptTokens": 0} for key in [(8, 3, "prefill", 64)]}
    # 22 steps with a prefill, 20 beside them that took 1 ms less
    off = 20 * 1000 / 22
    assert summarise(8, 3, 5000, before, cells) == [
        PrefillCell(8, 3, 40, round((4 * 15_000 + 6 * 17_000) / 10 - off), 100, 10),
        PrefillCell(8, 3, 90, round(20_000 - off), 100, 10),
    ]
    assert summarise(8, 3, 5000, cells, cells) == []


async def run(fake: FakeEngine, run_dir: Path, story: Story) -> tuple[PrefillCell, ...]:
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        client: Any = fake
        sweep = Sweep(engine, client, PLAN, room=Room(None, None), real=((2, 10, 11, 12),), tracker=story.tracker)
        assert (await sweep.run()).cells == (Cell(4, 0, 4000, 0, 8), Cell(4, 3, 7000, 0, 8))
        return await sweep.run_prefills(64)


async def test_measures_the_shortest_and_the_longest_length(run_dir: Path) -> None:
    fake, story = BusyFake(), Story()
    cells = await run(fake, run_dir, story)
    # 5 ms more, and two steps that are 1 ms less
    assert [(c.batch_size, c.draft_length, c.prompt_tokens, c.step_time_micros) for c in cells] == [(4, 0, 40, 7000), (4, 3, 40, 10_000)]
    assert fake.lengths[-3:] == [0, 0, 3]
    # Each window lasts long enough, and all cells are asked for at its two ends only, as that takes time from the engine.
    *_, first, after_first, second, after_second = fake.looks
    assert min(after_first - first, after_second - second) >= WINDOW_SECONDS
    assert fake.requests == 0
    assert story.told()["moved"][-1].startswith("B=4 with a prefill: k=0 7.00 ms at 40 prompt tokens")


async def test_leaves_a_batch_size_out_whose_engine_dies(run_dir: Path) -> None:
    class Dying(BusyFake):
        def record(self, fields: Any) -> dict[str, Any]:
            self.deaths[4, 3] = len(self.lengths) > 4  # not in the sweep
            return super().record(fields)

    fake, story = Dying(), Story()
    assert await run(fake, run_dir, story) == ()
    assert fake.starts == 2
    assert "this batch size is left out" in story.told()["warned"][0]
