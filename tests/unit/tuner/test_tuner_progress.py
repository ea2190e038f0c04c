"""The estimate of a run's end, and how progress is written down."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tabletune.profile import Cell
from tabletune_tuner.cluster import is_due
from tabletune_tuner.progress import Event, LinePrinter, Progress, Tracker, Work, estimate_seconds, to_annotation, to_line

AT = datetime(2026, 11, 30, 14, 26, 10, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_estimates_steps_and_planned_starts() -> None:
    # 500 steps of 20 ms, and two starts of 60 s
    assert estimate_seconds(Work(500, 2), 0.02, 60) == pytest.approx(130)


def test_tells_the_time_left_from_the_pace_of_this_run() -> None:
    clock = Clock()
    events: list[Event] = []
    tracker = Tracker(events.append, clock)
    tracker.plan(Work(steps=1000, starts=1), cells_total=10)
    clock.now += 50
    tracker.started(50.0)
    for _ in range(2):
        clock.now += 2
        tracker.worked(100, 2.0, "")
    assert events[-1].progress.left_seconds is None  # two pieces are a guess
    clock.now += 2
    tracker.worked(100, 2.0, "")
    # 700 steps at 20 ms; the one planned start is done. 56 s have passed.
    assert events[-1].progress.left_seconds == pytest.approx(14.0)
    assert events[-1].progress.percent == 80


def test_a_later_pace_counts_more_than_an_early_one() -> None:
    clock = Clock()
    tracker = Tracker(lambda _: None, clock)
    tracker.plan(Work(steps=10_000, starts=0), cells_total=0)
    for seconds in [1.0] * 50 + [3.0] * 24:
        clock.now += seconds
        tracker.worked(100, seconds, "")
    assert tracker.progress.left_seconds == pytest.approx((10_000 - 7_400) * 0.03)


def test_percent_never_goes_back_when_work_is_added() -> None:
    clock = Clock()
    tracker = Tracker(lambda _: None, clock)
    tracker.plan(Work(steps=400, starts=0), cells_total=0)
    for _ in range(3):
        clock.now += 1
        tracker.worked(100, 1.0, "")
    before = tracker.progress.percent
    tracker.add_start()
    tracker.worked(0, 0.0, "")
    assert tracker.progress.percent == before == 75
    assert tracker.progress.left_seconds == pytest.approx(1 + 120)  # no start was measured yet


def test_counts_the_time_of_each_stage() -> None:
    clock = Clock()
    tracker = Tracker(lambda _: None, clock)
    clock.now += 1
    tracker.enter("engine", "")
    clock.now += 5
    tracker.enter("sweep", "")
    clock.now += 7
    tracker.enter("engine", "")
    clock.now += 2
    assert tracker.stage_seconds == {"preflight": 1.0, "engine": 7.0, "sweep": 7.0}


def event(kind: Any = "moved", message: str = "B=32 k=3 5.33 ms spread 0.9 %", left: float | None = 590.0, at: datetime = AT) -> Event:
    return Event(kind, message, Progress("sweep", 27, 72, 37, left), at, Cell(32, 3, 5330, 48, 192))


def test_a_line_says_stage_cells_percent_and_time_left() -> None:
    assert to_line(event()) == "14:26:10Z sweep 27/72 37% B=32 k=3 5.33 ms spread 0.9 % left~590s"
    assert to_line(event(left=None)) == "14:26:10Z sweep 27/72 37% B=32 k=3 5.33 ms spread 0.9 %"
    assert to_line(event("warned", "engine died")) == "14:26:10Z sweep 27/72 37% warning: engine died left~590s"


def test_prints_pieces_of_work_every_ten_seconds_and_results_always() -> None:
    lines: list[str] = []
    show = LinePrinter(lines.append)
    for kind, message, second in [("moved", "a", 10), ("worked", "b", 11), ("moved", "c", 12), ("worked", "d", 20), ("worked", "e", 21)]:
        show(event(kind, message, None, AT.replace(second=second)))
    assert [line[-1] for line in lines] == ["a", "c"]
    show(event("worked", "f", None, AT.replace(second=23)))
    assert lines[-1].endswith("f")


def test_the_annotation_has_the_fields_of_the_protocol() -> None:
    assert to_annotation(event(), gpu_seconds=300) == {
        "formatVersion": 1,
        "stage": "sweep",
        "cellsDone": 27,
        "cellsTotal": 72,
        "percent": 37,
        "message": "B=32 k=3 5.33 ms spread 0.9 %",
        "finishAt": "2026-11-30T14:36:00Z",
        "updatedAt": "2026-11-30T14:26:10Z",
        "gpuSeconds": 300,
        "outcome": None,
        "reason": None,
    }


NOTED = {"stage": "sweep", "outcome": None, "percent": 20, "message": "a"}


@pytest.mark.parametrize(
    ("changes", "seconds", "due"),
    [
        pytest.param({"percent": 24}, 3.0, False, id="a little more, a little later"),
        pytest.param({"percent": 25}, 3.0, True, id="5 % more"),
        pytest.param({"message": "b"}, 10.0, True, id="10 s later"),
        pytest.param({}, 60.0, False, id="nothing new"),
        pytest.param({"stage": "verify"}, 0.1, True, id="another stage"),
        pytest.param({"outcome": "Failed"}, 0.1, True, id="the end"),
    ],
)
def test_writes_the_annotation_seldom(changes: dict[str, Any], seconds: float, due: bool) -> None:
    assert is_due(NOTED, {**NOTED, **changes}, seconds) is due
