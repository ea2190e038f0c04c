"""What the plugin does to a scheduler that is as it should be, to one that is not, and when it fails itself."""

import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from vllm_graphs import make_worker
from vllm_shapes import Cached, Output, SpecDecodingStats, add_up, outputs, step

from tabletune.channel import Channel, ChannelClosedError, ChannelError
from tabletune_engine import server as server_module
from tabletune_engine.plugin import register

LAUNCH = [[1, 4, 3], [5, 8, 1]]
EXPLORE = {"everySteps": 2, "draftLength": 3, "ranges": [[5, 8]]}


class Scheduler:
    """A scheduler with vLLM's methods and nothing behind them."""

    def __init__(self, **changes: Any) -> None:
        speculative = SimpleNamespace(num_speculative_tokens_per_batch_size=LAUNCH, method="eagle3")
        self.vllm_config = SimpleNamespace(
            speculative_config=changes.get("speculative", speculative),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            parallel_config=SimpleNamespace(data_parallel_size=changes.get("data_parallel", 1), world_size=1),
        )
        self.dynamic_sd_lookup: Any = changes.get("lookup", [3, 3, 3, 3, 3, 1, 1, 1, 1])
        self.num_spec_tokens = 3
        self.use_v2_model_runner = True
        self.max_num_running_reqs = 8
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.script: list[Output] = []

    def schedule(self) -> Output:
        return self.script.pop(0)

    def update_from_output(self, scheduler_output: Output, model_runner_output: Any) -> dict[int, Any]:
        for request_id, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            self.make_spec_decoding_stats(
                None,
                num_draft_tokens=len(drafts),
                num_accepted_tokens=model_runner_output[request_id],
                num_invalid_spec_tokens=None,
                request_id=request_id,
            )
        return outputs({request_id: 1 + kept for request_id, kept in model_runner_output.items()})

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: Mapping[str, int] | None,
        request_id: str,
    ) -> tuple[str, int, int]:
        return request_id, num_draft_tokens, num_accepted_tokens


class RenamedScheduler(Scheduler):
    """As a future vLLM might have it."""

    def make_spec_decoding_stats(self, drafts: int) -> int:  # type: ignore[override]
        return drafts


class CountingScheduler(Scheduler):
    """One that keeps statistics, as vLLM does unless it is told not to."""

    log_stats = True

    def update_from_output(self, scheduler_output: Output, model_runner_output: Any) -> dict[int, Any]:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        verified = [(len(drafts[request_id]), kept) for request_id, kept in model_runner_output.items() if request_id in drafts]
        return outputs({request_id: 1 + kept for request_id, kept in model_runner_output.items()}, add_up(verified, longest=3))


@dataclass
class OldOutput:
    """As a vLLM before 0.32 has it."""

    num_scheduled_tokens: dict[str, int]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """vLLM's modules, as far as the plugin looks, for a scheduler class and an output class."""
    folder = Path(tempfile.mkdtemp(prefix="tt-"))
    path = str(folder / "engine.sock")
    monkeypatch.setenv("TABLETUNE_SOCKET", path)

    def put(scheduler: type, output: type = Output) -> None:
        modules = {
            "vllm.v1.core.sched.scheduler": {"Scheduler": scheduler},
            "vllm.v1.core.sched.output": {"SchedulerOutput": output, "CachedRequestData": Cached},
            "vllm.v1.worker.worker_base": {"WorkerWrapperBase": type("Wrapper", (), {"init_device": lambda _: None})},
        }
        for name, members in modules.items():
            module = ModuleType(name)
            module.__dict__.update(members)
            parts = name.split(".")
            for end in range(1, len(parts)):
                package = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, package, sys.modules.get(package, ModuleType(package)))
            monkeypatch.setitem(sys.modules, name, module)

    yield SimpleNamespace(put=put, channel=Channel(path), socket=path)
    shutil.rmtree(folder, ignore_errors=True)


def fresh(base: type[Scheduler] = Scheduler) -> type[Scheduler]:
    """A class of its own for each test, because the plugin wraps the class's constructor."""
    return type(base.__name__, (base,), {"__init__": base.__init__})


def ask(channel: Channel, op: str, **fields: Any) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return channel.ask(op, **fields)
        except ChannelClosedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def run(scheduler: Scheduler, out: Output, kept: Mapping[str, int]) -> tuple[Output, dict[int, Any]]:
    scheduler.script.append(out)
    return scheduler.schedule(), scheduler.update_from_output(out, kept)


def test_without_the_variable_nothing_is_touched(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    monkeypatch.delenv("TABLETUNE_SOCKET")
    before = dict(vars(scheduler))
    register()
    made = scheduler()
    assert dict(vars(scheduler)) == before
    assert "schedule" not in vars(made)
    assert type(made.dynamic_sd_lookup) is list
    assert not Path(vllm.socket).exists()


def test_an_engine_that_the_plugin_does_not_know_begins_without_a_warm_up(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineCoreProc:
        begun = 0

        def __init__(self, scheduler: Scheduler) -> None:
            self.scheduler = scheduler

        def run_busy_loop(self) -> None:
            self.begun += 1

    scheduler = fresh()
    vllm.put(scheduler)
    for name in ("vllm.v1.engine", "vllm.v1.engine.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.engine.core"].__dict__["EngineCoreProc"] = EngineCoreProc
    monkeypatch.setenv("TABLETUNE_WARM_UP_SECONDS", "5")
    original = EngineCoreProc.run_busy_loop
    register()
    assert EngineCoreProc.run_busy_loop is not original
    core = EngineCoreProc(scheduler())
    core.run_busy_loop()
    assert core.begun == 1
    assert ask(vllm.channel, "counts")["steps"] == 0


def test_counts_chooses_and_gives_vllm_its_own_results(vllm: SimpleNamespace) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    register()  # vLLM may load plugins more than once
    made = scheduler()
    hello = ask(vllm.channel, "hello")
    assert (hello["active"], hello["inactiveReason"], hello["rejectBy"]) == (True, None, None)
    facts = hello["engine"]
    assert (facts["launchTable"], facts["launchLengths"], facts["runner"]) == (LAUNCH, [1, 3], "v2")
    assert (facts["method"], facts["numSpeculativeTokens"], facts["maxModelLen"]) == ("eagle3", None, None)
    first, second = step(3, new={"a": 9}), step(3, {"a": 3})
    assert run(made, first, {"a": 0})[0] is first
    assert run(made, second, {"a": 2})[1] == outputs({"a": 3})
    counts = ask(vllm.channel, "counts")
    assert (counts["steps"], counts["tokens"], counts["requestSteps"], counts["draftedSteps"]) == (2, 4, 1, 1)
    assert (counts["drafted"], counts["kept"], counts["chosen"]) == ([1, 1, 1], [1, 1, 0], [[1, 3, 2]])
    ask(vllm.channel, "table", ranges=[[1, 8, 1]])
    assert made.dynamic_sd_lookup[2] == 1


def test_an_engine_that_keeps_statistics_is_not_asked_for_each_request(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = fresh(CountingScheduler)
    vllm.put(scheduler)
    module = ModuleType("vllm.v1.spec_decode.metrics")
    module.__dict__["SpecDecodingStats"] = SpecDecodingStats
    monkeypatch.setitem(sys.modules, module.__name__, module)
    register()
    made = scheduler()
    assert "make_spec_decoding_stats" not in vars(made)
    run(made, step(3, new={"a": 9}), {"a": 0})
    run(made, step(3, {"a": 3}), {"a": 2})
    counts = ask(vllm.channel, "counts")
    assert (counts["tokens"], counts["requestSteps"], counts["draftedSteps"]) == (4, 1, 1)
    assert (counts["drafted"], counts["kept"]) == ([1, 1, 1], [1, 1, 0])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"speculative": None, "lookup": None}, "without speculation", id="no speculation"),
        pytest.param({"lookup": None}, "num_speculative_tokens_per_batch_size", id="no table"),
        pytest.param({"lookup": None, "data_parallel": 2}, "--data-parallel-size 1", id="data parallel"),
    ],
)
def test_an_engine_without_a_table_is_counted_and_its_length_left_alone(vllm: SimpleNamespace, changes: dict[str, Any], says: str) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    made = scheduler(**changes)
    hello = ask(vllm.channel, "hello")
    assert not hello["active"]
    assert says in hello["inactiveReason"]
    assert (hello["engine"]["launchTable"], hello["engine"]["launchLengths"]) == (None, [])
    for op, fields in (("table", {"ranges": [[1, 8, 1]]}), ("force", {"draftLength": 1})):
        with pytest.raises(ChannelError, match="Inactive") as refused:
            ask(vllm.channel, op, **fields)
        assert says in refused.value.message
    run(made, step(0, new={"a": 9}), {"a": 0})
    counts = ask(vllm.channel, "counts")
    assert (counts["steps"], counts["tokens"]) == (1, 1)
    assert made.dynamic_sd_lookup is None


@pytest.mark.parametrize(
    ("base", "output", "says"),
    [
        pytest.param(RenamedScheduler, Output, "make_spec_decoding_stats", id="a method with other parameters"),
        pytest.param(Scheduler, OldOutput, "num_spec_tokens_to_schedule", id="an output without the length"),
    ],
)
def test_an_engine_that_is_not_as_expected_stays_as_it_was_and_says_why(
    vllm: SimpleNamespace, base: type[Scheduler], output: type, says: str
) -> None:
    scheduler = fresh(base)
    vllm.put(scheduler, output)
    register()
    made = scheduler()
    hello = ask(vllm.channel, "hello")
    assert not hello["active"]
    assert says in hello["inactiveReason"]
    assert "schedule" not in vars(made)
    assert type(made.dynamic_sd_lookup) is list
    with pytest.raises(ChannelError, match="Inactive"):
        ask(vllm.channel, "force", draftLength=1)


def test_a_failure_of_the_plugin_in_a_step_ends_the_plugin_not_the_step(vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    made = scheduler()
    launch = list(made.dynamic_sd_lookup)
    assert ask(vllm.channel, "force", draftLength=1)["draftLength"] == 1
    strange = step(99, {"a": 3})  # a length that no table can hold
    assert run(made, strange, {"a": 2}) == (strange, outputs({"a": 3}))
    assert "lets go of this engine" in caplog.text
    assert not {"schedule", "update_from_output", "make_spec_decoding_stats"} & vars(made).keys()
    assert (type(made.dynamic_sd_lookup), made.dynamic_sd_lookup) == (list, launch)
    assert "let go of the engine" in ask(vllm.channel, "hello")["inactiveReason"]
    with pytest.raises(ChannelError, match="Inactive"):
        ask(vllm.channel, "table", ranges=[[1, 8, 1]])


@pytest.mark.parametrize(
    ("op", "fields", "code"),
    [
        pytest.param("table", {}, "BadTable", id="no ranges"),
        pytest.param("table", {"ranges": [[1, 8]]}, "BadTable", id="a range of two"),
        pytest.param("table", {"ranges": [[1, 8, True]]}, "BadTable", id="a bool"),
        pytest.param("table", {"ranges": [[1, 8, 1.0]]}, "BadTable", id="a float"),
        pytest.param("table", {"ranges": [[1, 8, -1]]}, "BadTable", id="a negative length"),
        pytest.param("table", {"ranges": [[1, 4, 1], [4, 8, 3]]}, "BadTable", id="overlap"),
        pytest.param("table", {"ranges": [[1, 8, 2]]}, "LengthNotInLaunchSet", id="a length not launched"),
        pytest.param("table", {"ranges": [[1, 8, 1]], "hysteresis": -1}, "BadMessage", id="negative hysteresis"),
        pytest.param("table", {"ranges": [[1, 8, 1]], "hysteresis": "9"}, "BadMessage", id="a text"),
        pytest.param("table", {"ranges": {"1-8": 1}}, "BadTable", id="ranges as a map"),
        pytest.param("table", {"ranges": [[1, 8, 1]], "explore": 50}, "BadTable", id="exploring as a number"),
        pytest.param("table", {"ranges": [[1, 8, 1]], "explore": {}}, "BadTable", id="exploring without a field"),
        *(
            pytest.param("table", {"ranges": [[1, 8, 1]], "explore": EXPLORE | change}, code, id=f"exploring with {change}")
            for change, code in (
                ({"everySteps": 0}, "BadTable"),
                ({"everySteps": 8.0}, "BadTable"),
                ({"everySteps": True}, "BadTable"),
                ({"draftLength": 0}, "BadTable"),
                ({"draftLength": None}, "BadTable"),
                ({"draftLength": 2}, "LengthNotInLaunchSet"),
                ({"ranges": None}, "BadTable"),
                ({"ranges": [5, 8]}, "BadTable"),
                ({"ranges": [[5, 8, 3]]}, "BadTable"),
                ({"ranges": [[0, 8]]}, "BadTable"),
                ({"ranges": [[8, 5]]}, "BadTable"),
            )
        ),
        pytest.param("force", {"draftLength": 2}, "LengthNotInLaunchSet", id="forced length not launched"),
        pytest.param("force", {"draftLength": True}, "BadMessage", id="forced true"),
        pytest.param("force", {"draftLength": 1, "reject": True}, "RejectNotPossible", id="nobody can reject"),
        pytest.param("force", {"draftLength": 1, "reject": "yes"}, "BadMessage", id="reject is a text"),
        pytest.param("record", {}, "BadMessage", id="record without on"),
    ],
)
def test_a_refused_request_changes_nothing(vllm: SimpleNamespace, op: str, fields: dict[str, Any], code: str) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    made = scheduler()
    ask(vllm.channel, "table", ranges=[[1, 2, 3], [3, 8, 1]])
    before = [made.dynamic_sd_lookup[B] for B in range(1, 9)]
    with pytest.raises(ChannelError) as refused:
        ask(vllm.channel, op, **fields)
    assert refused.value.code == code
    assert [made.dynamic_sd_lookup[B] for B in range(1, 9)] == before
    answer = ask(vllm.channel, "table", ranges=[[1, 8, 3]])
    assert answer == {"inForce": [[1, 8, 3]], "generation": 2}


def attached(vllm: SimpleNamespace) -> Scheduler:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    return scheduler()


def running(computed: int, tokens: int) -> SimpleNamespace:
    """A request of the scheduler's as it is within `schedule()`: with the tokens that this step computes not yet counted."""
    return SimpleNamespace(num_computed_tokens=computed, num_tokens=tokens)


DECODING = running(computed=29, tokens=30)
SCHEDULED_AHEAD = running(computed=36, tokens=30)  # asynchronous scheduling counts tokens that are still to come
BEGINNING, HALF_WAY, RESUMED = running(0, 25), running(512, 900), running(16, 31)


@pytest.mark.parametrize(
    ("requests", "waiting", "explores"),
    [
        pytest.param([DECODING] * 6, [], True, id="decoding only"),
        pytest.param([SCHEDULED_AHEAD] * 6, [], True, id="decoding only, scheduled ahead"),
        pytest.param([*[DECODING] * 5, BEGINNING], [], False, id="one begins in this step"),
        pytest.param([HALF_WAY, *[DECODING] * 5], [], False, id="one is half way through its prompt"),
        pytest.param([*[DECODING] * 5, RESUMED], [], False, id="one is computed again"),
        pytest.param([DECODING] * 6, [BEGINNING], False, id="one waits though there is room"),
        pytest.param([DECODING] * 8, [BEGINNING], True, id="one waits for a full engine"),
    ],
)
def test_explores_only_where_no_prefill_is_near(
    vllm: SimpleNamespace, requests: list[SimpleNamespace], waiting: list[SimpleNamespace], explores: bool
) -> None:
    made = attached(vllm)
    ask(vllm.channel, "table", ranges=LAUNCH, explore=EXPLORE)
    made.running, made.waiting = requests, waiting
    seen = [made.dynamic_sd_lookup[len(requests)] for _ in range(4)]
    assert seen == ([1, 3, 1, 3] if explores else [1] * 4)
    assert ask(vllm.channel, "counts")["exploringSteps"] == seen.count(3)


def test_requests_that_are_not_as_expected_end_the_plugin_not_the_step(vllm: SimpleNamespace) -> None:
    made = attached(vllm)
    ask(vllm.channel, "table", ranges=[[1, 8, 1]], explore=EXPLORE)
    made.running = [SimpleNamespace(computed=1)]
    assert [made.dynamic_sd_lookup[6] for _ in range(3)] == [1, 1, 1]
    assert "let go of the engine" in ask(vllm.channel, "hello")["inactiveReason"]
    assert type(made.dynamic_sd_lookup) is list


def test_a_sidecar_of_before_or_after_is_served_as_far_as_it_is_understood(vllm: SimpleNamespace) -> None:
    made = attached(vllm)
    made.running = [DECODING] * 6
    answer = ask(vllm.channel, "table", ranges=[[1, 8, 1]], exploreEverySteps=1, inTheDark={"x": 1})
    assert answer == {"inForce": [[1, 8, 1]], "generation": 1}
    assert [made.dynamic_sd_lookup[6] for _ in range(5)] == [1] * 5
    ask(vllm.channel, "table", ranges=[[1, 8, 1]], explore=EXPLORE | {"onlyOnSundays": True})
    assert 3 in [made.dynamic_sd_lookup[6] for _ in range(2)]
    with pytest.raises(ChannelError, match="UnknownOperation"):
        ask(vllm.channel, "limits")


def test_a_table_given_while_a_length_is_forced_waits_for_it(vllm: SimpleNamespace) -> None:
    made = attached(vllm)
    ask(vllm.channel, "force", draftLength=3)
    assert ask(vllm.channel, "table", ranges=[[1, 8, 1]]) == {"inForce": [[1, 8, 1]], "generation": 1}
    assert {made.dynamic_sd_lookup[B] for B in range(1, 9)} == {3}
    ask(vllm.channel, "force", draftLength=None)
    assert {made.dynamic_sd_lookup[B] for B in range(1, 9)} == {1}


def test_of_several_clients_each_gets_its_own_table_in_force_and_none_is_lost(vllm: SimpleNamespace) -> None:
    attached(vllm)
    ask(vllm.channel, "hello")
    answers: list[tuple[list[list[int]], dict[str, Any]]] = []

    def change(edge: int) -> None:
        with Channel(vllm.socket) as channel:
            for _ in range(20):
                ranges = [[1, edge, 3], [edge + 1, 8, 1]]
                answers.append((ranges, channel.ask("table", ranges=ranges)))

    clients = [threading.Thread(target=change, args=(edge,)) for edge in range(1, 7)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert all(answer["inForce"] == ranges for ranges, answer in answers)
    assert sorted(answer["generation"] for _, answer in answers) == list(range(1, 121))


def test_a_wall_clock_that_jumps_changes_neither_uptime_nor_step_times(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    made = attached(vllm)
    begun = time.monotonic()
    wall = [2e9, 0.0, 4e9, 1e9]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(wall[0] * 1e9))
    first = ask(vllm.channel, "counts")["uptimeSeconds"]
    for _ in range(4):
        run(made, step(3, {"a": 3}), {"a": 0})
        wall.append(wall.pop(0))
    [cell] = ask(vllm.channel, "steps")["cells"]
    uptime = ask(vllm.channel, "counts")["uptimeSeconds"]
    passed = time.monotonic() - begun
    assert 0 <= uptime - first <= passed + 0.01
    assert (cell["count"], 0 <= cell["totalMicros"] <= passed * 1e6) == (3, True)


def test_a_table_cut_in_half_changes_nothing(vllm: SimpleNamespace) -> None:
    made = attached(vllm)
    ask(vllm.channel, "hello")
    whole = b'{"v": 1, "id": 1, "op": "table", "ranges": [[1, 8, 1]]}'
    for cut in (20, len(whole) - 1, len(whole)):  # the last one lacks only the end of its line
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(vllm.socket)
            client.sendall(whole[:cut])
    assert ask(vllm.channel, "table", ranges=LAUNCH)["generation"] == 1
    assert ask(vllm.channel, "counts")["swaps"] == 0
    assert made.dynamic_sd_lookup[4] == 3


def test_answers_through_a_socket_that_was_taken_away_and_made_again(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "RECHECK_SECONDS", 0.2)
    attached(vllm)
    boot_id = ask(vllm.channel, "hello")["bootId"]
    ask(vllm.channel, "table", ranges=[[1, 8, 1]])
    for stranger in (None, "a file of somebody's"):
        Path(vllm.socket).unlink()
        if stranger:
            Path(vllm.socket).write_text(stranger)
        assert ask(vllm.channel, "hello")["bootId"] == boot_id  # who is connected stays so
        fresh_client = Channel(vllm.socket)
        assert ask(fresh_client, "hello")["bootId"] == boot_id
        assert ask(fresh_client, "table", ranges=[[1, 8, 1]])["inForce"] == [[1, 8, 1]]


def test_an_engine_that_rejects_by_itself_says_so(vllm: SimpleNamespace) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    synthetic = SimpleNamespace(
        num_speculative_tokens_per_batch_size=LAUNCH,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=[0.0, 0.0, 0.0],
    )
    scheduler(speculative=synthetic)
    assert ask(vllm.channel, "hello")["rejectBy"] == "engine"
    assert ask(vllm.channel, "force", draftLength=3, reject=True) == {"draftLength": 3, "reject": True}


class Worker:
    """vLLM's Worker, whose graphs are there after `compile_or_warm_up_model`."""

    def __init__(self) -> None:
        vars(self).update(vars(make_worker([[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 16, 3]])))

    def compile_or_warm_up_model(self) -> float:
        return 1.5


class WorkerWrapperBase:
    def __init__(self) -> None:
        self.worker = Worker()
        self.vllm_config = self.worker.vllm_config  # type: ignore[attr-defined]
        self.global_rank = 0

    def init_device(self) -> None:
        pass


def test_tells_the_mismatched_cells_of_the_workers_graphs_and_counts_cures(vllm: SimpleNamespace) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    sys.modules["vllm.v1.worker.worker_base"].__dict__["WorkerWrapperBase"] = WorkerWrapperBase
    register()
    wrapper = WorkerWrapperBase()
    wrapper.init_device()
    assert wrapper.worker.compile_or_warm_up_model() == 1.5
    scheduler()
    graphs = ask(vllm.channel, "hello")["engine"]["graphCells"]
    assert [9, 1] in graphs["mismatched"]
    assert graphs["cured"]
    assert ask(vllm.channel, "counts")["graphCures"] == 0
    runner: Any = vars(wrapper.worker)["model_runner"]
    wrote = runner.cudagraph_manager.dispatch(9, 18, 2, num_active_loras=0, max_query_len=2)
    runner.speculator.prefill_cudagraph_manager.dispatch(9, wrote.num_tokens, 2, num_active_loras=0)
    assert ask(vllm.channel, "counts")["graphCures"] == 1


def test_an_engine_whose_workers_say_nothing_has_unknown_cells(vllm: SimpleNamespace) -> None:
    scheduler = fresh()
    vllm.put(scheduler)
    register()
    scheduler()
    assert ask(vllm.channel, "hello")["engine"]["graphCells"] == {"mismatched": None, "cured": False}
