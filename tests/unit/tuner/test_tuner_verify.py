"""The live comparison: its windows hold the load that they are for, whatever ran before and beside them."""

import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import STEPS_A_LOOK, FakeEngine, Story

from tabletune.table import Range, Table
from tabletune.verdict import Load, Predicted
from tabletune_tuner import verify
from tabletune_tuner.build import OFF, Candidate
from tabletune_tuner.clients import Clients
from tabletune_tuner.verify import Comparison, Traffic, Window

TRAFFIC = Traffic(max_tokens=64, temperature=0.7, window_steps=8, window_seconds=0)
SETTINGS = {"table": "t", "fixed": "f", OFF: "no speculation"}
A_REQUEST = 1000.0  # tokens a second of one request: the fake's clock goes on by 1 ms a step


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(verify, "QUIET_SECONDS", 0.02)


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


async def compare(
    fake: FakeEngine, run_dir: Path, story: Story, *loads: int, repeats: int = 2, traffic: Traffic = TRAFFIC
) -> tuple[Load, ...]:
    candidates = [Candidate("table", Table((Range(1, 1, 3), Range(2, 8, 1))), "t"), Candidate("fixed", Table.fixed(3, 8), "f")]
    here = {8: Candidate("fixedHere", Table.fixed(1, 8), "k=1"), 2: Candidate("fixedHere", Table.fixed(2, 8), "k=2")}
    comparison = Comparison(traffic, loads, repeats, story.tracker)
    client: Any = fake
    async with fake.serving(run_dir) as engine, Clients(client, ((1, 2), (3, 4)), "http://none", None) as clients:
        await engine.start(["vllm", "serve"])
        await comparison.measure(engine, clients, {B: [*candidates, *([here[B]] if B in here else [])] for B in loads})
        await comparison.measure_as_is(engine, clients, OFF)
    return comparison.loads(SETTINGS, here, {("table", 8): Predicted(900, 8000.0)})


def rates(load: Load) -> list[float]:
    return [arm.tokens_per_second for arm in (load.table, load.fixed, load.off)]


async def test_requests_of_an_earlier_wave_are_in_no_window(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.lingers = 6
    large, small = await compare(fake, run_dir, story, 8, 1)
    assert rates(large) == pytest.approx([8 * A_REQUEST] * 3)
    assert rates(small) == pytest.approx([A_REQUEST] * 3)
    assert "warned" not in story.told()


async def test_the_length_of_a_load_is_measured_there_and_shares_windows_with_a_table_that_does_the_same(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    one, two, eight = await compare(fake, run_dir, story, 1, 2, 8)
    assert one.fixed_here is None
    assert two.fixed_here is not None
    assert (two.fixed_here.setting, two.fixed_here.tokens_per_second) == ("k=2", pytest.approx(2 * A_REQUEST))
    assert eight.fixed_here is not None
    assert eight.fixed_here.setting == "k=1"
    assert eight.fixed_here.tokens_per_second == eight.table.tokens_per_second
    worked = [line for line in story.told()["worked"] if line.startswith("B=8")]
    assert [line.split()[1] for line in worked] == ["table", "fixed", "fixed", "table", "off", "off"]  # in turn; k=1 is the table's


async def test_measured_steps_stand_beside_the_predicted_ones(run_dir: Path) -> None:
    (eight,) = await compare(FakeEngine(), run_dir, Story(), 8)
    assert (eight.table.step_time_micros, eight.table.predicted) == (1000, Predicted(900, 8000.0))
    assert (eight.off.step_time_micros, eight.off.predicted) == (1000, None)


async def test_a_window_is_as_long_as_its_seconds(run_dir: Path) -> None:
    fake, traffic = FakeEngine(), replace(TRAFFIC, window_seconds=0.1)  # of the fake's clock: 100 steps instead of 8
    await compare(fake, run_dir, Story(), 4, repeats=1, traffic=traffic)
    assert fake.steps_done >= 100
    assert traffic.planned_steps == 10


class Disturbed(FakeEngine):
    """Somebody else's request runs in it, while the looks with these numbers are taken at a batch."""

    def __init__(self, looks: range) -> None:
        super().__init__()
        self._looks, self._disturbed = 0, looks

    def counts(self, fields: Any) -> dict[str, Any]:
        self._looks += bool(self.requests)
        beside = bool(self.requests) and self._looks in self._disturbed
        self.requests += beside
        try:
            return super().counts(fields)
        finally:
            self.requests -= beside


async def test_a_window_with_a_request_too_many_is_measured_again(run_dir: Path) -> None:
    # The first look at the batch begins the window, the next two are in it.
    fake, story = Disturbed(range(2, 4)), Story()
    (load,) = await compare(fake, run_dir, story, 2, repeats=1)
    assert rates(load) == pytest.approx([2 * A_REQUEST] * 3)
    assert "warned" not in story.told()


async def test_an_engine_that_never_runs_the_load_is_measured_as_it_is_and_said(run_dir: Path) -> None:
    fake, story = FakeEngine(largest=4), Story()
    (load,) = await compare(fake, run_dir, story, 8, repeats=1)
    assert rates(load) == pytest.approx([4 * A_REQUEST] * 3)
    assert story.told()["warned"][-1] == "B=8 off: the engine ran 4.0 requests at once on average, in two tries"


async def test_a_window_is_measured_again_when_the_engine_died_in_it(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.deaths[2, 0] = 1
    _, load = await compare(fake, run_dir, story, 1, 2, repeats=1)
    assert rates(load) == pytest.approx([2 * A_REQUEST] * 3)
    assert fake.starts == 2
    assert "engine failed at B=2 table" in story.told()["warned"][0]


async def test_what_happens_in_the_first_window_of_an_engine_does_not_count(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.deaths[1, 0] = 1
    (load,) = await compare(fake, run_dir, story, 1, repeats=1)
    assert rates(load) == pytest.approx([A_REQUEST] * 3)
    assert "engine failed at B=1 warm-up" in story.told()["warned"][0]


@pytest.mark.parametrize(
    ("batch_size", "load", "right"),
    [
        pytest.param(1.0, 1, True, id="one"),
        pytest.param(1.1, 1, False, id="one and what is left of others"),
        pytest.param(2.2, 3, True, id="a request comes and goes"),
        pytest.param(1.9, 3, False, id="too few"),
        pytest.param(120.0, 128, True, id="several come and go"),
        pytest.param(110.0, 128, False, id="far fewer"),
        pytest.param(128.2, 128, False, id="more"),
    ],
)
def test_a_window_is_of_its_load(batch_size: float, load: int, right: bool) -> None:
    assert Window(1000.0, batch_size, 0.01).is_of(load) is right


def test_a_window_says_how_many_of_its_steps_carried_a_prefill() -> None:
    assert str(Window(6047.04, 15.9, 0.006, 0.144, 0.0131)) == "6,047.0 tokens/s (14% of steps with a prefill, 13.1 ms)"
    assert str(Window(6047.04, 15.9, 0.006)) == "6,047.0 tokens/s"


def test_a_window_is_a_few_looks_of_the_fake() -> None:
    assert TRAFFIC.window_steps == 2 * STEPS_A_LOOK
