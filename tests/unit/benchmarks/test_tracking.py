"""What the benchmark of the controller on a GPU concludes from what it measured, and the files that it gives to sidecars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "gpu")
    from tracking import files, measure

    yield type("Tracking", (), {"files": files, "measure": measure})
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tracking", "mismatch"}]:
        del sys.modules[name]


def test_recovered_is_when_all_that_follows_is_at_the_wanted_level(tracking: Any) -> None:
    def found(*levels: float) -> list[Any]:
        return [tracking.measure.Bin(2.0 * i, tokens, 8.0, {}) for i, tokens in enumerate(levels)]

    seconds_to = tracking.measure.seconds_to
    assert seconds_to(found(50, 60, 99, 101, 100), 99, 3) == 4.0
    assert seconds_to(found(50, 99, 101, 60, 60), 99, 3) is None  # it did not stay
    assert seconds_to(found(100, 98, 101, 100), 99, 3) == 0.0
    assert seconds_to(found(50, 99, 101), 99, 3) is None  # too short to say


def test_a_profile_of_the_first_days_and_another_acceptance_is_used_as_far_as_it_goes(tracking: Any, tmp_path: Path) -> None:
    old = ROOT / "benchmarks" / "results" / "2026-12-01-h200-qwen3-4b"
    measured = tracking.files.read_measured(old, (0.7, 0.5, 0.3))
    assert measured.lengths == (1, 3)
    assert measured.best.length_at(32) == 3
    assert next(note.split(":")[0] for note in measured.notes) == "table.json"
    kind, wrong = measured.wrong_at(64)
    assert (kind, wrong.length_at(64)) == ("documentation / 4", 1)
    kind, wrong = measured.wrong_at(8)
    assert (kind, wrong.length_at(8)) == ("worst lengths", 1)
    again = tracking.files.read_measured(measured.write(tmp_path, measured.best), (0.7, 0.5, 0.3))
    assert (again.best, again.notes) == (measured.best, ())
