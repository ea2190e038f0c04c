"""The sweep against an engine that dies, hangs, or runs fewer requests than asked."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import CORE_DIED, FakeEngine, Story

from tabletune.profile import Cell, SkippedCell
from tabletune_tuner import engine as engine_module
from tabletune_tuner.outcome import FailedError
from tabletune_tuner.sweep import Sweep
from tabletune_tuner.sweep_plan import Room, Sample, SweepPlan, SweepResult, lengths_at_once, noise_ppm, order_of, summarise

PLAN = SweepPlan(batch_sizes=(1, 2), lengths=(0, 3), repeats=2, steps=8, prompt_tokens=16)
REAL = ((2, 10, 11, 12),)
NO_LIMIT = Room(None, None)


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


async def sweep(fake: FakeEngine, run_dir: Path, story: Story, plan: SweepPlan = PLAN) -> SweepResult:
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        client: Any = fake
        return await Sweep(engine, client, plan, room=NO_LIMIT, real=REAL, tracker=story.tracker).run()


def cell(B: int, k: int) -> Cell:
    """What the fake engine gives: 1000 µs times (B + k), the same in each of two repeats of 8 steps."""
    return Cell(B, k, 1000 * (B + k), 0, 16)


async def test_measures_every_cell_with_the_lengths_up_and_down(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    result = await sweep(fake, run_dir, story)
    assert (result.cells, result.skipped) == ((cell(1, 0), cell(1, 3), cell(2, 0), cell(2, 3)), ())
    assert story.tracker.progress.cells_done == 4
    # Each batch of requests begins with its own first length already in force.
    assert fake.lengths == [0, 0, 3, 3, 3, 0, 0, 0, 3, 3, 3, 0]


async def test_measures_a_length_that_cannot_win_once(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.step_micros = lambda B, k: 1000 * B * (1 + 4 * k)  # k = 3 takes 13 times as long, for at most 4 times the tokens
    result = await sweep(fake, run_dir, story)
    assert [(c.batch_size, c.draft_length, c.samples) for c in result.cells] == [(1, 0, 16), (1, 3, 8), (2, 0, 16), (2, 3, 8)]
    assert (result.steps_planned, result.steps_saved) == (64, 16)


async def test_measures_the_engine_without_speculation_without_forcing(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    off = SweepPlan((1, 2), None, 2, 8, 16)
    assert (await sweep(fake, run_dir, story, off)).cells == (cell(1, 0), cell(2, 0))
    assert fake.lengths == []


class Hasty(FakeEngine):
    """The first requests that it gets end at once."""

    def __init__(self, hasty: int) -> None:
        super().__init__()
        self.hasty = hasty

    async def complete(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> str:
        self.hasty -= 1
        return "" if self.hasty >= 0 else await super().complete(prompt, max_tokens, temperature)


async def test_measures_a_cell_again_whose_requests_ended_before_it_looked(run_dir: Path) -> None:
    fake, story = Hasty(1), Story()
    result = await sweep(fake, run_dir, story)
    assert (result.cells, result.skipped) == ((cell(1, 0), cell(1, 3), cell(2, 0), cell(2, 3)), ())


async def test_leaves_a_cell_out_whose_requests_end_too_early_twice(run_dir: Path) -> None:
    fake, story = Hasty(2), Story()
    result = await sweep(fake, run_dir, story)
    assert result.cells == (cell(1, 3), cell(2, 0), cell(2, 3))
    assert result.skipped == (SkippedCell(1, 0, "requests ended after 0 of 8 steps with this draft length"),)


async def test_measures_a_cell_again_when_the_engine_died_in_it(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.deaths[2, 3] = 1
    result = await sweep(fake, run_dir, story)
    assert (result.cells, result.skipped) == ((cell(1, 0), cell(1, 3), cell(2, 0), cell(2, 3)), ())
    assert fake.starts == 2
    (warning,) = story.told()["warned"]
    assert warning == f"engine failed at B=2 k=3 (exit code 1; its log says: {CORE_DIED}); restarted, cell is measured again, sweep goes on"


async def test_leaves_a_cell_out_where_the_engine_dies_twice(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.deaths[2, 0] = 2
    result = await sweep(fake, run_dir, story)
    why = f"the engine failed here 2 times: exit code 1; its log says: {CORE_DIED}"
    assert (result.cells, result.skipped) == ((cell(1, 0), cell(1, 3), cell(2, 3)), (SkippedCell(2, 0, why),))
    assert fake.starts == 3
    assert story.tracker.progress.cells_done == 4  # a cell that is left out is done too


async def test_restarts_an_engine_that_hangs(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEAST_HANG_SECONDS", 0.3)
    monkeypatch.setattr(engine_module, "FIRST_STEP_SECONDS", 0.3)
    monkeypatch.setattr(engine_module, "HANG_FACTOR", 1)
    fake, story = FakeEngine(), Story()
    fake.hangs[1, 3] = 1
    result = await sweep(fake, run_dir, story)
    assert len(result.cells) == 4
    assert fake.starts == 2
    assert "the engine hangs: no step for" in story.told()["warned"][0]


async def test_gives_up_on_an_engine_that_does_not_come_back(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        fake.deaths[1, 0] = 1
        fake.refuses_to_start = 99
        client: Any = fake
        with pytest.raises(FailedError) as caught:
            await Sweep(engine, client, PLAN, room=NO_LIMIT, real=REAL, tracker=story.tracker).run()
    assert caught.value.reason == "EngineKeepsDying"
    assert CORE_DIED in caught.value.message


async def test_leaves_batch_sizes_out_that_the_engine_never_reaches(run_dir: Path) -> None:
    fake, story = FakeEngine(largest=1), Story()
    result = await sweep(fake, run_dir, story)
    why = "the engine ran at most 1 requests at once with this draft length"
    assert (result.cells, result.skipped) == ((cell(1, 0), cell(1, 3)), (SkippedCell(2, 0, why), SkippedCell(2, 3, why)))


async def test_a_length_whose_requests_are_used_up_is_tried_with_new_ones(run_dir: Path) -> None:
    class Short(FakeEngine):
        """Requests end in their 20th step: one length has enough of them, two have not."""

        async def complete(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> None:
            begun = self._steps
            self.requests += 1
            try:
                while self._steps - begun < 20:
                    await asyncio.sleep(0.001)
            finally:
                self.requests -= 1

    fake, story = Short(), Story()
    plan = SweepPlan(batch_sizes=(2,), lengths=(0, 3), repeats=1, steps=16, prompt_tokens=16)
    result = await sweep(fake, run_dir, story, plan)
    assert (result.cells, result.skipped) == ((Cell(2, 0, 2000, 0, 16), Cell(2, 3, 5000, 0, 16)), ())


async def test_measures_between_points_of_the_grid_where_the_best_length_changes(run_dir: Path) -> None:
    # B tau / (B + k): no guess is best alone, three are from a few requests on. A fifth of five batch sizes may be added.
    fake, story = FakeEngine(), Story()
    plan = SweepPlan(batch_sizes=(1, 9, 10, 11, 12), lengths=(0, 3), repeats=1, steps=8, prompt_tokens=16)
    result = await sweep(fake, run_dir, story, plan)
    assert [c.batch_size for c in result.cells if c.draft_length == 3] == [1, 5, 9, 10, 11, 12]


async def test_ends_a_cell_as_soon_as_it_is_known(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()  # its steps all take the same time
    result = await sweep(fake, run_dir, story, SweepPlan((1,), (0, 3), 4, 64, 16))
    assert [c.samples for c in result.cells] == [48, 48]  # 16 of 64 steps, 3 of 4 repeats
    assert (result.steps_planned, result.steps_saved) == (512, 512 - 96)


async def test_says_why_when_nothing_could_be_measured(run_dir: Path) -> None:
    with pytest.raises(FailedError) as caught:
        await sweep(FakeEngine(largest=1), run_dir, Story(), SweepPlan((4,), (0,), 1, 8, 16))
    assert caught.value.reason == "NoCells"
    assert "at most 1 requests at once" in caught.value.message


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        pytest.param(Room(None, None), 2, id="no limit: all at once"),
        # 16 prompt tokens, 3 drafts and 1; 4 + 32 tokens until all decode; 8 + 16 for each length
        pytest.param(Room(20 + 36 + 48, None), 2, id="context: just enough for both"),
        pytest.param(Room(20 + 36 + 47, None), 1, id="context: one too few"),
        pytest.param(Room(4096, 4 * (20 + 36 + 24)), 1, id="KV cache, shared by the batch"),
        pytest.param(Room(4096, 4 * (20 + 36)), 0, id="KV cache: not even one"),
    ],
)
def test_asks_no_more_of_a_batch_than_the_engine_holds(room: Room, expected: int) -> None:
    assert lengths_at_once(PLAN, 4, room) == expected


def test_summarises_repeats_by_their_median() -> None:
    # medians 100, 110, 200: one repeat in which the machine was busy
    assert summarise(8, 2, [Sample(110, 8), Sample(200, 9), Sample(100, 8)]) == Cell(8, 2, 110, 10, 25)


def test_a_cell_of_one_repeat_has_that_ones_standard_error() -> None:
    assert summarise(8, 2, [Sample(110, 8, 3.2)]) == Cell(8, 2, 110, 3, 8)


def test_noise_is_the_median_relative_spread() -> None:
    assert noise_ppm([Cell(1, 0, 1000, 10, 8), Cell(2, 0, 1000, 30, 8), Cell(3, 0, 1000, 20, 8)]) == 20_000
    assert noise_ppm([]) == 0


def test_turns_the_order_of_lengths_around_in_every_second_repeat() -> None:
    assert (order_of((0, 1, 3), 0), order_of((0, 1, 3), 1)) == ((0, 1, 3), (3, 1, 0))
