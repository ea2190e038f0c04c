"""What runs in an engine before its first request, what it leaves behind, and when nothing is run.

The engine here is a fake; `tests/engine/test_warm_up.py` has vLLM's.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tabletune_engine.graph_report import GraphState
from tabletune_engine.warm_up import batch_sizes, find_hindrance, seconds_asked, warm_up

LAUNCH = [[1, 7, 3], [8, 8, 1]]
SAFE = GraphState((), cured=True, cures=0)
WRAPPED = ("schedule",)


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list[int]
    sampling_params: Any
    pooling_params: None
    block_hasher: Any


@dataclass
class Scheduler:
    dynamic_sd_lookup: Any
    room: int = 64  # requests that run at once
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    connector: Any = None

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def get_kv_connector(self) -> Any:
        return self.connector


@dataclass
class Core:
    """Keeps the methods that vLLM's busy loop calls, and `in_flight` steps under way as an engine that schedules ahead does."""

    scheduler: Scheduler
    in_flight: int = 0
    fails_at: int | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)  # requests and length of each
    prefixes_dropped: int = 0
    request_block_hasher: Any = None
    drafts_taken: int = 0
    _queue: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        speculation = SimpleNamespace(num_speculative_tokens_per_batch_size=LAUNCH)
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            parallel_config=SimpleNamespace(data_parallel_size=1),
            model_config=SimpleNamespace(max_model_len=1024),
            speculative_config=speculation,
            num_speculative_tokens=3,
        )

    def add_request(self, request: Request) -> None:
        self.scheduler.waiting.append(request)

    def abort_requests(self, ids: list[str]) -> None:
        for requests in (self.scheduler.waiting, self.scheduler.running):
            self.scheduler.finished |= {r.request_id for r in requests if r.request_id in ids}
            requests[:] = [r for r in requests if r.request_id not in ids]

    def step_fn(self) -> tuple[None, bool]:
        s = self.scheduler
        if self.fails_at == len(self.steps):
            self.fails_at = None
            raise RuntimeError("CUDA error")
        admitted = s.room - len(s.running)
        s.running += s.waiting[:admitted]
        del s.waiting[:admitted]
        s.finished.clear()
        self.steps.append((len(s.running), s.dynamic_sd_lookup[len(s.running)]))
        if s.running:
            self._queue.append(len(s.running))
        if len(self._queue) > self.in_flight or not s.running:
            self._queue.popleft() if self._queue else None
        return None, bool(s.running)

    def post_step(self, executed: bool) -> None:
        self.drafts_taken += executed

    def has_work(self) -> bool:
        s = self.scheduler
        return bool(s.running or s.waiting or s.finished or self._queue)

    def reset_prefix_cache(self) -> bool:
        self.prefixes_dropped += 1
        return True


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, members in (("vllm", {"SamplingParams": SimpleNamespace}), ("vllm.v1", {}), ("vllm.v1.request", {"Request": Request})):
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)


def make_core(**changes: Any) -> Core:
    scheduler = Scheduler([3] * 8 + [1])
    scheduler.__dict__["schedule"] = "the plugin's"
    return Core(scheduler, **changes)


def is_as_before(core: Core) -> bool:
    s = core.scheduler
    return (s.dynamic_sd_lookup, s.__dict__["schedule"], core.has_work(), core.prefixes_dropped) == (
        [3] * 8 + [1],
        "the plugin's",
        False,
        1,
    )


@pytest.mark.parametrize("in_flight", [0, 1])
def test_runs_every_length_at_several_batch_sizes_and_leaves_nothing(in_flight: int, caplog: pytest.LogCaptureFixture) -> None:
    core = make_core(in_flight=in_flight)
    with caplog.at_level("INFO"):
        warm_up(core, WRAPPED, seconds=10)
    ran = {cell for cell in core.steps if core.steps.count(cell) >= 4}
    assert ran == {(B, k) for B in (1, 2, 4, 8) for k in (1, 3)}
    assert core.drafts_taken == sum(B > 0 for B, _ in core.steps)
    assert is_as_before(core)
    assert "before its first request, in 0.0 s: B=1 k=1, B=1 k=3, B=2 k=1" in caplog.text


def test_its_steps_are_not_those_of_the_plugin() -> None:
    core = make_core()
    seen: list[bool] = []
    step = core.step_fn

    def look() -> tuple[None, bool]:
        seen.append("schedule" in core.scheduler.__dict__)
        return step()

    core.step_fn = look  # type: ignore[method-assign]
    warm_up(core, WRAPPED, seconds=10)
    assert seen
    assert not any(seen)


def test_stops_when_its_time_is_over() -> None:
    core, now = make_core(), iter(range(1000))
    warm_up(core, WRAPPED, seconds=5, clock=lambda: float(next(now)))
    assert len([B for B, _ in core.steps if B]) == 5
    assert is_as_before(core)


def test_an_engine_with_room_for_fewer_requests_is_asked_for_no_more_steps() -> None:
    core = make_core()
    core.scheduler.room = 3
    warm_up(core, WRAPPED, seconds=10)
    assert {B for B, _ in core.steps} == {0, 1, 2, 3}
    assert is_as_before(core)


def test_a_step_that_fails_ends_it_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core(fails_at=7)
    warm_up(core, WRAPPED, seconds=10)
    assert "CUDA error" in caplog.text
    assert is_as_before(core)


def test_an_engine_that_cannot_even_end_the_requests_does_not_say_that_it_is_ready() -> None:
    core = make_core()

    def fail() -> tuple[None, bool]:
        raise RuntimeError("CUDA error")

    core.step_fn = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="CUDA error"):
        warm_up(core, WRAPPED, seconds=10)
    assert core.scheduler.__dict__["schedule"] == "the plugin's"


def test_batch_sizes_end_at_the_largest() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(8) == (1, 2, 4, 8)
    assert batch_sizes(200) == (1, 2, 4, 8, 16, 32, 64, 128, 200)


def without_a_table(core: Core) -> None:
    core.scheduler.dynamic_sd_lookup = None


def data_parallel(core: Core) -> None:
    core.vllm_config.parallel_config.data_parallel_size = 2


def connected(core: Core) -> None:
    core.scheduler.connector = "NixlConnector"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(without_a_table, "launched without a table", id="no table"),
        pytest.param(data_parallel, "data parallelism", id="several engines in step"),
        pytest.param(connected, "a KV connector would offer our requests", id="KV connector"),
    ],
)
def test_nothing_is_run_where_it_would_not_be_safe(change: Any, why: str) -> None:
    core = make_core()
    assert find_hindrance(core, SAFE) is None
    change(core)
    assert why in (find_hindrance(core, SAFE) or "")


def test_nothing_is_run_in_an_engine_that_is_not_known() -> None:
    core = SimpleNamespace(scheduler=SimpleNamespace(get_kv_connector=None), add_request=None)
    said = find_hindrance(core, SAFE)
    assert said is not None
    assert said.startswith("this vLLM's engine has no abort_requests, step_fn,")
    assert said.endswith("dynamic_sd_lookup, get_request_counts")


@pytest.mark.parametrize(
    ("graphs", "may"),
    [
        pytest.param(GraphState(None, cured=False, cures=0), True, id="no graphs to ask for"),
        pytest.param(GraphState((), cured=False, cures=0), True, id="none is mismatched"),
        pytest.param(GraphState(((6, 1),), cured=True, cures=0), True, id="cured"),
        pytest.param(GraphState(((6, 1),), cured=False, cures=0), False, id="a cell would stall it"),
    ],
)
def test_a_cell_that_would_stall_the_engine_is_not_run(graphs: GraphState, may: bool) -> None:
    assert (find_hindrance(make_core(), graphs) is None) is may


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        pytest.param({}, 0.0, id="nobody asks, as in the profiling Job"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "7"}, 7.0, id="a roll-out asks"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "7", "TABLETUNE_WARM_UP": "off"}, 0.0, id="its user's switch wins"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "7", "TABLETUNE_WARM_UP": "on"}, 7.0, id="on is no other word than none"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "0"}, 0.0, id="its user's 0 seconds"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "soon"}, 0.0, id="no number"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "nan"}, 0.0, id="not a number"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "inf"}, 0.0, id="for ever"),
        pytest.param({"TABLETUNE_WARM_UP_SECONDS": "-1"}, 0.0, id="less than nothing"),
    ],
)
def test_how_long_the_environment_asks_for(environment: dict[str, str], seconds: float) -> None:
    assert seconds_asked(environment) == seconds
