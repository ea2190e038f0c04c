"""Changes of length tried in an engine that stalls, dies, hangs, or runs fewer requests than asked."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import CORE_DIED, FakeEngine, Story

from tabletune.acceptance import Estimate
from tabletune.profile import Cell, Transition
from tabletune.table import Range, Table
from tabletune.transitions import say_bad
from tabletune_tuner import engine as engine_module
from tabletune_tuner import transitions as transitions_module
from tabletune_tuner import verify
from tabletune_tuner.build import Built, build
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import FailedError
from tabletune_tuner.stages import Stages
from tabletune_tuner.transitions import Pauses, Trials

REAL = ((2, 10, 11, 12),)
CELLS = tuple(Cell(B, k, 1000 * (B + k), 0, 16) for B in range(1, 9) for k in (1, 3))
TABLE = Table((Range(1, 3, 3), Range(4, 8, 1)))


class FollowingFake(FakeEngine):
    """Follows a table when nothing is forced; a change of length stalls it for a while where told."""

    def __init__(self, largest: int = 64) -> None:
        super().__init__(largest)
        self.stalls: dict[tuple[int, int, int], float] = {}  # seconds, by lengths and batch size
        self.stalls_left = 99
        self.seen: list[tuple[int, int]] = []  # batch size and length, of each look with requests
        self._table: Table | None = None
        self._stalled = 0.0
        self._is_forced = False

    def table(self, fields: Any) -> dict[str, Any]:
        self._table = Table.parse(fields["ranges"])
        return {}

    def force(self, fields: Any) -> dict[str, Any]:
        assert fields["reject"] is False  # the engine serves as in production
        self._is_forced = fields["draftLength"] is not None
        return super().force(fields)

    def counts(self, fields: Any) -> dict[str, Any]:
        B = min(self.requests, self.largest)
        if B and not self._is_forced and self._table is not None:
            self._force = self._table.length_at(B)
        if B:
            at = (B, self._force or 0)
            stall = self.stalls.get((self.seen[-1][1], at[1], B), 0.0) if self.seen else 0.0
            if stall and self.stalls_left:
                self._stalled += stall
                self.stalls_left -= 1
            self.seen.append(at)
        return super().counts(fields)

    def _boot(self) -> dict[str, Any]:
        boot = super()._boot()
        return boot | {"uptimeSeconds": boot["uptimeSeconds"] + self._stalled}


@pytest.fixture
async def run_dir() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake hears of a request's end at once, and its steps pass when somebody looks."""
    monkeypatch.setattr(verify, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(verify, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(transitions_module, "LEAST_POLL_SECONDS", 0.001)
    monkeypatch.setattr(transitions_module, "MOST_POLL_SECONDS", 0.001)


async def tried(
    fake: FakeEngine, run_dir: Path, story: Story, table: Table = TABLE, *, on_gpu: bool = True
) -> tuple[Transition | None, tuple[Transition, ...]]:
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        client: Any = fake
        trials = Trials(engine, client, REAL, story.tracker, CELLS, max_model_len=None, on_gpu=on_gpu)
        return await trials.run(table, explored=(1, 3)), trials.transitions


def test_a_look_that_comes_late_is_no_pause() -> None:
    pauses = Pauses(0.1)
    for uptime, steps in ((5.0, 10), (5.1, 11), (6.1, 21), (6.2, 21), (6.3, 22)):
        pauses.look(uptime, steps)
    assert pauses.longest == pytest.approx(0.2)
    pauses.look(8.3, 22)  # still without a step
    assert pauses.longest == pytest.approx(2.0)


async def test_forces_both_ways_at_three_batch_sizes_and_crosses_the_edge_with_the_table(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    bad, transitions = await tried(fake, run_dir, story)
    assert bad is None
    assert [(t.from_length, t.to_length, t.batch_size, t.tries, t.failures) for t in transitions] == [
        (a, b, B, 6 if B == 4 else 5, 0) for a, b in ((1, 3), (3, 1)) for B in (3, 4, 5)
    ]
    assert max(t.worst_pause_micros for t in transitions) < 100_000
    forced = [k for k in fake.lengths if k is not None]
    assert forced == ([3] + [1, 3] * 6) * 3  # the first way there and back is not counted
    crossed = [B for B, _ in fake.seen[-40:]]
    assert {2, 3, 4, 5, 6} <= set(crossed)
    assert all(k == TABLE.length_at(B) for B, k in fake.seen[-20:])
    assert story.told()["warned"] == []


async def test_a_pause_in_one_direction_is_bad(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.stalls[3, 1, 3] = 0.6
    bad, transitions = await tried(fake, run_dir, story)
    assert bad is not None
    assert (bad.from_length, bad.to_length, bad.batch_size, bad.failures) == (3, 1, 3, 0)
    assert 550_000 < bad.worst_pause_micros < 650_000  # a step of the fake takes less than the profile says
    assert {t.batch_size for t in transitions} == {3}  # what would come later is not tried with a table that cannot be
    assert say_bad(bad) == "as k went from 3 to 1 at B=3, it was without a step for 0.6 s"


async def test_a_pause_that_does_not_come_again_is_the_machines(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.stalls[3, 1, 3], fake.stalls_left = 0.6, 2  # the first is in the way that is not counted
    bad, transitions = await tried(fake, run_dir, story)
    assert bad is None
    assert max(t.worst_pause_micros for t in transitions) < 100_000
    assert {t.tries for t in transitions if t.batch_size == 3} == {5}
    assert story.told()["warned"] == ["engine was without a step for 0.6 s at B=3 as k went from 3 to 1; tried again"]


async def test_a_pause_at_the_edge_is_found_with_the_table_in_force(run_dir: Path) -> None:
    class OnlyFollowing(FollowingFake):
        """Pauses as the table, not a force, goes from 3 to 1."""

        def counts(self, fields: Any) -> dict[str, Any]:
            self.stalls = {} if self._is_forced else {(3, 1, 4): 0.6}
            return super().counts(fields)

    bad, _ = await tried(OnlyFollowing(), run_dir, Story())
    assert bad is not None
    assert (bad.from_length, bad.to_length, bad.batch_size, bad.tries) == (3, 1, 4, 6)


async def test_a_cpu_may_be_without_a_step_for_longer(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.stalls[3, 1, 3] = 0.6
    bad, transitions = await tried(fake, run_dir, story, on_gpu=False)
    assert bad is None
    assert max(t.worst_pause_micros for t in transitions) > 550_000


async def test_an_engine_that_dies_in_a_change_is_restarted_and_the_change_is_bad(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.deaths[4, 1] = 2
    bad, _ = await tried(fake, run_dir, story)
    assert bad is not None
    assert (bad.from_length, bad.to_length, bad.batch_size, bad.failures) == (3, 1, 4, 2)
    assert fake.starts == 3
    warning = story.told()["warned"][0]
    assert warning == f"engine failed at B=4 as k went from 3 to 1 (exit code 1; its log says: {CORE_DIED}); restarted"
    assert say_bad(bad).endswith(", the engine failed 2 times")


async def test_one_death_is_enough(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.deaths[4, 1] = 1
    bad, _ = await tried(fake, run_dir, story)
    assert bad is not None
    assert (bad.tries, bad.failures) == (5, 1)
    assert fake.starts == 2


async def test_an_engine_that_hangs_is_restarted(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEAST_HANG_SECONDS", 0.3)
    monkeypatch.setattr(engine_module, "FIRST_STEP_SECONDS", 0.3)
    monkeypatch.setattr(engine_module, "HANG_FACTOR", 1)
    fake, story = FollowingFake(), Story()
    fake.hangs[3, 1] = 1
    bad, _ = await tried(fake, run_dir, story)
    assert bad is not None
    assert (bad.from_length, bad.to_length, bad.batch_size, bad.failures) == (3, 1, 3, 1)
    assert "the engine hangs: no step for" in story.told()["warned"][0]


async def test_gives_up_on_an_engine_that_does_not_come_back(run_dir: Path) -> None:
    class Stays(FollowingFake):
        def _die(self) -> None:
            self.refuses_to_start = 9
            super()._die()

    fake = Stays()
    fake.deaths[3, 1] = 1
    with pytest.raises(FailedError) as caught:
        await tried(fake, run_dir, Story())
    assert caught.value.reason == "EngineKeepsDying"


async def test_says_what_the_engine_cannot_hold(run_dir: Path) -> None:
    fake, story = FollowingFake(largest=4), Story()
    bad, transitions = await tried(fake, run_dir, story)
    assert bad is None
    assert {(t.batch_size, t.tries) for t in transitions} == {(3, 5), (4, 5), (5, 0)}
    assert story.told()["warned"] == ["B=5: the engine did not hold so many requests long enough to try k=3 to 1 5 times"]


async def test_requests_of_the_batch_size_before_are_waited_for(run_dir: Path) -> None:
    fake, story = FollowingFake(), Story()
    fake.lingers = 100  # looks that a request still runs after its client left
    _, transitions = await tried(fake, run_dir, story)
    assert story.told()["warned"] == []
    assert all(t.tries >= 5 for t in transitions)


async def test_requests_that_end_are_begun_again(run_dir: Path) -> None:
    class Short(FollowingFake):
        """Requests end in their 60th step."""

        async def complete(self, prompt: tuple[int, ...], max_tokens: int, temperature: float) -> str:
            begun = self._steps
            self.requests += 1
            try:
                while self._steps - begun < 60:
                    await asyncio.sleep(0.001)
                return ""
            finally:
                self.requests -= 1

    _, transitions = await tried(Short(), run_dir, Story())
    assert all(t.tries >= 5 for t in transitions)


@pytest.mark.parametrize(
    ("stalls", "table", "kept"),
    [
        pytest.param({}, TABLE, (1, 3), id="nothing is bad"),
        pytest.param({(3, 1, 3): 0.6}, Table.fixed(1, 8), (1,), id="the length that is worth less goes"),
    ],
)
async def test_a_table_is_built_again_without_a_bad_change(
    run_dir: Path, stalls: dict[tuple[int, int, int], float], table: Table, kept: tuple[int, ...]
) -> None:
    def build_of(cells: Sequence[Cell]) -> Built:
        return build(cells, Estimate((0.5, 0.4, 0.3), 1.0), 0.0, None)

    # 3 wins by a tenth up to B=3; above, 1 wins by two thirds
    cells = [Cell(B, k, 20_000 if k == 3 and B <= 3 else 16_000 if k == 1 else 40_000, 0, 16) for B in range(1, 9) for k in (1, 3)]
    fake, story = FollowingFake(), Story()
    fake.stalls = stalls
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        client: Any = fake
        trials = Trials(engine, client, REAL, story.tracker, cells, max_model_len=None, on_gpu=True)
        stages = Stages(Options(("vllm", "serve"), 3, 8), engine, story.tracker)
        decided = await stages._build(trials, (1, 3), 8, cells, build_of)
    assert (decided.built.table, decided.kept, decided.present) == (table, kept, None)
    warned = [w for w in story.told()["warned"] if "tried again" not in w]
    assert [w.split(":")[0] for w in warned] == (["Draft length 3 is left out of the table and the launch set"] if stalls else [])
    assert list(stages._judge.warnings) == warned  # the report says it too


@pytest.mark.parametrize(
    ("stalls", "kept", "compared"),
    [
        pytest.param({}, (1, 3), "1-3:3 4-16:1", id="the engine stands them"),
        # It is the only one to change its length here, yet a later table would change it too.
        pytest.param({(3, 1, 3): 0.6}, (3,), "1-3:3 4-16:1 (1 run as 3)", id="bad: neither it nor a later table makes it"),
    ],
)
async def test_the_present_tables_changes_are_tried_before_it_is_compared(
    run_dir: Path, stalls: dict[tuple[int, int, int], float], kept: tuple[int, ...], compared: str
) -> None:
    present = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    present["num_speculative_tokens_per_batch_size"] = [[1, 3, 3], [4, 16, 1]]
    options = Options(("vllm", "serve"), 3, 8, present=present)
    fake, story = FollowingFake(), Story()
    fake.stalls = stalls
    async with fake.serving(run_dir) as engine:
        await engine.start(["vllm", "serve"])
        client: Any = fake
        cells = [Cell(B, k, 16_000 if k == 3 else 15_000, 0, 16) for B in range(1, 9) for k in (1, 3)]
        trials = Trials(engine, client, REAL, story.tracker, cells, max_model_len=None, on_gpu=True)
        stages = Stages(options, engine, story.tracker)
        decided = await stages._build(trials, (1, 3), 8, cells, lambda of: build(of, Estimate((0.5, 0.4, 0.3), 1.0), 0.0, None))
    assert (decided.built.table, decided.kept) == (Table.fixed(3, 8), kept)
    assert decided.present is not None
    assert decided.present.setting == compared
    assert {(t.from_length, t.to_length) for t in decided.transitions} == {(1, 3), (3, 1)}
    seen = [w.split(":")[0] for w in stages._judge.warnings]
    left_out = ["Draft length 1 is left out of the table and the launch set", "The present setting is compared without draft length 1"]
    assert seen == (left_out if stalls else [])


async def test_a_table_that_changes_no_length_costs_nothing(run_dir: Path) -> None:
    fake = FollowingFake()
    assert await tried(fake, run_dir, Story(), Table.fixed(3, 8)) == (None, ())
    assert fake.seen == []


async def test_exploring_is_tried_where_no_edge_is(run_dir: Path) -> None:
    _, transitions = await tried(FollowingFake(), run_dir, Story(), Table.fixed(1, 8))
    assert [(t.from_length, t.to_length, t.batch_size, t.tries) for t in transitions] == [
        (a, b, B, 5) for a, b in ((1, 3), (3, 1)) for B in (1, 5, 8)
    ]
