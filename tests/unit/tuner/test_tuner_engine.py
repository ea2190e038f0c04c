"""What is said of an engine that ended, and how a hanging one is told."""

from typing import Any

import pytest

from tabletune.acceptance import Counts
from tabletune_tuner.engine import EngineFailureError, Hello, Seen, Watchdog, describe_end

EXITED: dict[str, Any] = {"state": "exited", "exitCode": 1, "signal": None}
LOG = [
    "INFO 11-30 loading weights",
    "(EngineCore pid=7) ERROR 11-30 [core.py:1] ValueError: No available memory for the cache blocks.",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
]


@pytest.mark.parametrize(
    ("status", "lines", "expected"),
    [
        pytest.param(
            EXITED,
            LOG,
            "exit code 1; its log says: ERROR 11-30 [core.py:1] ValueError: No available memory for the cache blocks",
            id="the first error, not its echo",
        ),
        pytest.param(
            {**EXITED, "exitCode": None, "signal": 9}, ["INFO ready"], "killed by signal 9; its log says: INFO ready", id="killed"
        ),
        pytest.param({**EXITED, "exitCode": 0}, [], "exit code 0", id="without a word"),
        pytest.param({**EXITED, "state": "running"}, [], "its socket does not answer", id="still there"),
        pytest.param({**EXITED, "state": "stopped", "exitCode": None}, [], "its socket does not answer", id="stopped by somebody"),
    ],
)
def test_describes_how_an_engine_ended(status: dict[str, Any], lines: list[str], expected: str) -> None:
    assert describe_end(status, lines, "its socket does not answer") == expected


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_slow_engine_does_not_hang() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    watchdog.look(0)
    clock.now = 100  # a first step may compile
    watchdog.look(0)
    clock.now = 101
    watchdog.look(1)  # 101 s a step: the next may take 50 times as long
    clock.now = 5000
    watchdog.look(1)
    watchdog.look(2)


def test_an_engine_without_a_step_for_ten_seconds_hangs() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    watchdog.look(0)
    clock.now = 1
    watchdog.look(100)
    clock.now = 10.9
    watchdog.look(100)
    clock.now = 11.1
    with pytest.raises(EngineFailureError, match="the engine hangs: no step for 10 s"):
        watchdog.look(100)


def test_counts_are_differences_and_a_look_into_a_step_does_not_break_them() -> None:
    earlier = Seen(1.0, 10, 20, 4, 10, 10, drafted=(10, 10), kept=(5, 2), steps_by_batch_size={3: 4, 4: 6})
    later = Seen(2.0, 20, 60, 4, 30, 31, drafted=(31, 30), kept=(15, 8), steps_by_batch_size={1: 1, 3: 5, 4: 14})
    assert later.counts_since(earlier) == Counts(20, 20, (21, 20), (10, 6))
    assert later.mean_batch_size_since(earlier) == pytest.approx((1 + 3 + 4 * 8) / 10)
    assert earlier.mean_batch_size_since(earlier) == 0


@pytest.mark.parametrize(
    ("facts", "devices"),
    [
        ({"device": "cpu", "tensorParallelSize": 1}, 0),
        ({"device": "cuda", "tensorParallelSize": 4, "pipelineParallelSize": 2}, 8),
        ({"device": "cuda"}, 1),
    ],
)
def test_counts_the_gpus_of_an_engine(facts: dict[str, Any], devices: int) -> None:
    assert Hello("b", True, None, None, facts).devices == devices
