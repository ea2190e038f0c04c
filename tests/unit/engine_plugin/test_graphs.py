"""Which cells replay a graph that nobody prepared, how they are cured, and when the engine is left alone."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_graphs import CUDAGraphMode, DSparkSpeculator, SpeculatorCudaGraphManager, make_worker

from tabletune_engine.graph_report import GraphReport, GraphState
from tabletune_engine.graphs import SWITCH_VARIABLE, hold_graphs, is_full

EVERY_LENGTH = [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 16, 3]]
NONE_KNOWN = GraphState(None, cured=False, cures=0)


@pytest.fixture
def report(tmp_path: Path) -> GraphReport:
    return GraphReport(str(tmp_path / "engine.sock"))


def step(worker: Any, B: int, k: int) -> tuple[Any, Any]:
    """What the two managers answer in one step of B requests that verify k drafts each."""
    q = k + 1
    wrote = worker.model_runner.cudagraph_manager.dispatch(B, B * q, q, num_active_loras=0, max_query_len=q)
    drafter = worker.model_runner.speculator.prefill_cudagraph_manager
    return wrote, drafter.dispatch(B, max(B * q, wrote.num_tokens), q, num_active_loras=0)


def is_exposed(worker: Any, B: int, k: int) -> bool:
    wrote, replayed = step(worker, B, k)
    return is_full(replayed) and not is_full(wrote)


def exposed(worker: Any) -> set[tuple[int, int]]:
    return {(B, k) for B in range(1, 17) for k in range(4) if is_exposed(worker, B, k)}


def test_lists_and_cures_what_the_engine_would_do(report: GraphReport) -> None:
    before = exposed(make_worker(EVERY_LENGTH))
    assert (9, 1) in before
    assert {k for _, k in before} <= {0, 1}
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    assert report.read(1) == GraphState(tuple(sorted(before)), cured=True, cures=0)
    assert exposed(worker) == set()
    assert report.read(1).cures == len(before)


def test_a_second_warm_up_is_held_like_the_first(report: GraphReport) -> None:
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    first = report.read(1)
    exposed(worker)
    hold_graphs(worker, report)
    assert report.read(1) == first
    assert exposed(worker) == set()
    assert report.read(1).cures == len(first.mismatched or ())


def test_a_cured_step_gets_what_a_batch_that_is_not_uniform_gets(report: GraphReport) -> None:
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    wrote, replayed = step(worker, 9, 1)
    assert wrote.cg_mode is CUDAGraphMode.PIECEWISE
    assert replayed == wrote


def test_clean_steps_keep_their_full_graphs(report: GraphReport) -> None:
    worker, free = make_worker(EVERY_LENGTH), make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    for B, k in ((5, 1), (8, 1), (8, 3), (16, 2)):
        assert step(worker, B, k) == step(free, B, k)
        assert is_full(step(worker, B, k)[1])
    assert report.read(1).cures == 0


def test_two_lengths_have_no_mismatched_cell(report: GraphReport) -> None:
    hold_graphs(make_worker([[1, 8, 3], [9, 16, 1]]), report)
    assert report.read(1) == GraphState((), cured=True, cures=0)


def test_a_target_that_did_not_ask_counts_as_not_full(report: GraphReport) -> None:
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    step(worker, 8, 1)
    # vLLM runs some steps without asking for the target's graph.
    assert not is_full(worker.model_runner.speculator.prefill_cudagraph_manager.dispatch(8, 16, 2, num_active_loras=0))


def test_can_be_switched_off_at_the_start_and_at_any_time(report: GraphReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH_VARIABLE, "off")
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    state = report.read(1)
    assert (not state.cured, (9, 1) in (state.mismatched or ())) == (True, True)
    assert is_exposed(worker, 9, 1)
    report.switch(on=True)
    assert not is_exposed(worker, 9, 1)
    assert report.read(1).cured
    report.switch(on=False)
    assert is_exposed(worker, 9, 1)
    monkeypatch.delenv(SWITCH_VARIABLE)
    hold_graphs(make_worker(EVERY_LENGTH), report)
    assert report.read(1).cured


@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_of_ours_leaves_the_engine_as_it_was(report: GraphReport, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(EVERY_LENGTH)
    hold_graphs(worker, report)
    is_on = report.is_on
    monkeypatch.setattr(report, "is_on", (lambda: 1 / 0) if broken else is_on)
    assert is_exposed(worker, 9, 1) == broken
    monkeypatch.setattr(report, "is_on", is_on)
    managers = (worker.model_runner.cudagraph_manager, worker.model_runner.speculator.prefill_cudagraph_manager)
    assert all(("dispatch" in vars(manager)) != broken for manager in managers)
    assert report.read(1).cured != broken


class AlwaysFull(SpeculatorCudaGraphManager):
    """Has a full graph even for a batch that is not uniform."""

    def dispatch(self, num_reqs: int, num_tokens: int, uniform_token_count: int | None, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(num_reqs, -(-num_tokens // 2) * 2, 2, *args, **kwargs)

    dispatch.__signature__ = inspect.signature(SpeculatorCudaGraphManager.dispatch)  # type: ignore[attr-defined]


class Renamed(SpeculatorCudaGraphManager):
    def dispatch(self, batch: Any, uniform: bool) -> Any:  # type: ignore[override]
        raise AssertionError("it must not be asked")


def give_drafter(worker: Any, kind: type[Any]) -> Any:
    worker.model_runner.speculator.prefill_cudagraph_manager = kind([1, 2, 3, 4], 4)
    return worker


def test_what_the_cure_does_not_cure_is_not_called_cured(report: GraphReport) -> None:
    worker = give_drafter(make_worker(EVERY_LENGTH), AlwaysFull)
    hold_graphs(worker, report)
    state = report.read(1)
    assert state.mismatched
    assert not state.cured
    assert "dispatch" not in vars(worker.model_runner.cudagraph_manager)


def test_unknown_managers_are_left_alone(report: GraphReport) -> None:
    worker = give_drafter(make_worker(EVERY_LENGTH), Renamed)
    hold_graphs(worker, report)
    assert report.read(1) == NONE_KNOWN
    assert "dispatch" not in vars(worker.model_runner.cudagraph_manager)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"v2": False}, NONE_KNOWN),
        ({"speculator": None}, NONE_KNOWN),
        ({"speculator": DSparkSpeculator()}, GraphState((), cured=True, cures=0)),
    ],
)
def test_says_only_what_it_knows(report: GraphReport, changes: dict[str, Any], said: GraphState) -> None:
    hold_graphs(make_worker(EVERY_LENGTH, **changes), report)
    assert report.read(1) == said


def test_without_a_table_the_one_length_is_looked_at(report: GraphReport) -> None:
    hold_graphs(make_worker(None), report)
    assert report.read(1) == GraphState((), cured=True, cures=0)


WORKER = """
import sys
from tabletune_engine.graph_report import GraphReport
report = GraphReport(sys.argv[1])
report.say(int(sys.argv[2]), [(9, 1)])
report.hold(int(sys.argv[2]), 7)
if sys.argv[3] == "lets go":
    report.let_go(int(sys.argv[2]), 7)
"""


def work(socket: Path, rank: int, ends: str) -> None:
    subprocess.run([sys.executable, "-c", WORKER, socket, str(rank), ends], check=True)


@pytest.mark.parametrize("damaged", ["", '{"by": [1', "[]", '{"by": 3, "cells": []}', '{"cells": []}', '{"by": [%d], "cells": [9, 1]}'])
def test_a_damaged_list_is_as_good_as_none(report: GraphReport, tmp_path: Path, damaged: str) -> None:
    report.hold(0, cures=2)
    (tmp_path / "engine.graphs.json").write_text(damaged.replace("%d", str(os.getpid())))
    assert report.read(1) == GraphState(None, cured=True, cures=2)


def test_reads_what_workers_in_other_processes_say(tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    report = GraphReport(str(socket))
    assert report.read(1) == NONE_KNOWN
    work(socket, 0, "holds")
    assert report.read(1) == GraphState(((9, 1),), cured=True, cures=7)
    work(socket, 1, "lets go")
    assert report.read(2) == GraphState(((9, 1),), cured=False, cures=7)


def test_the_words_of_a_dead_engine_mean_nothing_to_the_next(tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    engine = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}, {str(socket)!r}, '0', 'holds'], check=True)"
    subprocess.run([sys.executable, "-c", engine], check=True)
    assert GraphReport(str(socket)).read(1) == NONE_KNOWN
