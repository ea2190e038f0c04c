"""Which engine step times are measured on: the first guess, and what follows when it was wrong."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import CORE_DIED, FakeEngine, Story

from tabletune.argv import fold_speculative_config
from tabletune_tuner.engine import Engine, Hello
from tabletune_tuner.judge import Judge
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import BlockedError, FailedError
from tabletune_tuner.preflight import Judgement
from tabletune_tuner.stages import Stages
from tabletune_tuner.starts import Starts, TimingEngine

GPU, CPU = ["/dev/nvidia0"], list[str]()
FACTS = {
    "vllm": "0.32.0",
    "runner": "v2",
    "device": "cuda",
    "maxNumSeqs": 8,
    "maxModelLen": 1024,
    "dataParallelSize": 1,
    "launchLengths": [0, 1, 2, 3],
}


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


PRESENT = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
SERVE = ("vllm", "serve", "m", "--max-num-seqs", "8")


async def start(fake: FakeEngine, run_dir: Path, story: Story, devices: list[str]) -> Hello:
    fake.gpu_devices = devices
    options = Options(SERVE, 3, 8, present=PRESENT, prompt_tokens=16, output_tokens=8)
    async with fake.serving(run_dir) as engine:
        await engine.wait_for_supervisor()
        return (await Starts(options, engine, story.tracker, Judge(story.tracker)).for_timing()).hello


def synthetic(fake: FakeEngine) -> list[bool]:
    """Of each start: did the engine have to reject every guess by itself?"""
    return [any("synthetic" in word for word in argv) for argv in fake.argv]


async def test_a_gpu_engine_rejects_by_itself_at_the_first_start(run_dir: Path) -> None:
    fake = FakeEngine()
    fake.facts, fake.plugin_rejects = FACTS, False
    assert (await start(fake, run_dir, Story(), GPU)).reject_by == "engine"
    assert synthetic(fake) == [True]


async def test_a_cpu_engine_is_started_as_in_service_and_the_plugin_rejects(run_dir: Path) -> None:
    fake = FakeEngine()
    fake.facts = {**FACTS, "device": "cpu"}
    assert (await start(fake, run_dir, Story(), CPU)).reject_by == "plugin"
    assert synthetic(fake) == [False]


async def test_an_engine_that_does_not_take_synthetic_rejection_is_started_without(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.facts, fake.refuses_to_start = FACTS, 1
    assert (await start(fake, run_dir, story, GPU)).reject_by == "plugin"
    assert synthetic(fake) == [True, False]
    assert "trying without" in story.told()["warned"][0]


async def test_an_engine_where_the_plugin_cannot_reject_is_started_again_to_do_it_itself(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.facts, fake.plugin_rejects = FACTS, False
    assert (await start(fake, run_dir, story, CPU)).reject_by == "engine"
    assert synthetic(fake) == [False, True]


async def test_no_second_start_is_spent_on_an_engine_that_cannot_take_a_table(run_dir: Path) -> None:
    fake = FakeEngine()
    fake.facts, fake.plugin_rejects = {**FACTS, "vllm": "0.30.0"}, False
    with pytest.raises(BlockedError) as caught:
        await start(fake, run_dir, Story(), CPU)
    assert caught.value.reason == "TableIgnored"
    assert len(fake.argv) == 1


async def test_an_engine_that_does_not_start_is_told_with_its_own_words(run_dir: Path) -> None:
    fake = FakeEngine()
    fake.refuses_to_start = 9
    with pytest.raises(FailedError) as caught:
        await start(fake, run_dir, Story(), CPU)
    assert caught.value.reason == "EngineDoesNotStart"
    assert CORE_DIED in caught.value.message


async def test_an_engine_that_rejected_by_itself_is_followed_by_one_as_in_service(run_dir: Path) -> None:
    fake, story = FakeEngine(), Story()
    fake.facts, fake.plugin_rejects, fake.gpu_devices = FACTS, False, GPU
    options = Options(SERVE, 3, 8, present=PRESENT, prompt_tokens=16, output_tokens=8)
    async with fake.serving(run_dir) as engine:
        await engine.wait_for_supervisor()
        assert engine.python_path == "/theirs:/more"
        starts = Starts(options, engine, story.tracker, Judge(story.tracker))
        timing = await starts.for_timing()
        await starts.serving(timing)
        assert synthetic(fake) == [True, False]
        assert await starts.serving(TimingEngine(timing.hello, is_synthetic=False)) is timing.hello
    assert len(fake.argv) == 2


class FakeComparison:
    """Notes what was to be measured as it is."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def measure_as_is(self, engine: Engine, clients: Any, name: str) -> None:
        assert engine.device_seconds >= 0
        self.asked.append(name)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        pytest.param({}, {}, id="lengths of the engine that is measured anyway"),
        pytest.param({"enable_adaptive_verification": True}, {"present": "eagle3, k=3, adaptive verification"}, id="verifies adaptively"),
    ],
)
async def test_a_present_setting_that_is_more_than_lengths_runs_as_it_is(
    run_dir: Path, changes: dict[str, Any], setting: dict[str, str]
) -> None:
    fake, story, present = FakeEngine(), Story(), {**PRESENT, **changes}
    comparison: Any = FakeComparison()
    async with fake.serving(run_dir) as engine:
        await engine.wait_for_supervisor()
        stages = Stages(Options(SERVE, 3, 8, present=present), engine, story.tracker)
        assert await stages._compare_present(comparison, None) == setting  # type: ignore[arg-type]
    assert comparison.asked == list(setting)
    assert [fold_speculative_config(argv).config for argv in fake.argv] == ([present] if setting else [])


def test_what_may_not_stop_a_run_is_said_once() -> None:
    story = Story()
    judge = Judge(story.tracker)
    judge.warn("prompts were cut")
    judge.take(Judgement(None, None, ("prompts were cut", "random tokens")))
    assert judge.warnings == ("prompts were cut", "random tokens")
    assert story.told()["warned"] == ["prompts were cut", "random tokens"]
    with pytest.raises(BlockedError) as caught:
        judge.take(Judgement("TableIgnored", "This engine ignores it."))
    assert (caught.value.reason, caught.value.message) == ("TableIgnored", "This engine ignores it.")
