"""What is learned about costs, over a restart of the sidecar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from live_engine import LiveEngine
from sidecar_cases import CODE_TABLE, profile

from tabletune.regimes import Requests
from tabletune_sidecar.controller import State
from tabletune_sidecar.counters import StepCell
from tabletune_sidecar.live import Live, absorb, correction_of
from tabletune_sidecar.live_file import parse_live, to_live
from tabletune_sidecar.state import StateFileError, load_state, save_state


@pytest.fixture(scope="module")
def learned() -> Live:
    engine, live = LiveEngine(1, lambda B, k: 5_000.0 if k == 3 else 2_000.0, (8, 128)), Live()
    for _ in range(20):
        engine.run(CODE_TABLE)
        prefill = StepCell(8, 3, "prefill", 10 + len(engine.cells()), 100, 4_000)
        live = absorb(live, "boot-1", (*engine.cells(), prefill), engine.counters(), profile())
    return live


def test_survives_a_restart(learned: Live, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(path, State(live=learned))
    loaded = load_state(path).live
    assert loaded.read is None
    assert (loaded.profile, loaded.boot_id, loaded.step_times.compared) == (learned.profile, "boot-1", learned.step_times.compared)
    assert loaded.step_times.windows.keys() == learned.step_times.windows.keys() != set()
    assert loaded.requests.mean(Requests(10, 10)) == learned.requests.mean(Requests(10, 10)) != Requests(10, 10)
    for B, row in correction_of(learned, profile()).step_times.items():
        assert correction_of(loaded, profile()).step_times[B] == pytest.approx(row, rel=1e-5)


def test_what_is_written_is_read_back_as_it_is(learned: Live) -> None:
    once = parse_live(json.loads(json.dumps(to_live(learned))))
    assert parse_live(to_live(once)) == once
    assert parse_live(to_live(Live())) == Live()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("windows", [[12, 3, "decode", 5, [0.5]]]),
        ("windows", [[12, 3, 5, [1]]]),
        ("medians", [None]),
        ("beyond", [1]),
        ("steps", [[3, 10, 11]]),
        ("tokens", "many"),
        ("profile", None),
    ],
)
def test_a_damaged_entry_is_refused_whole(learned: Live, tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "state.json"
    save_state(path, State(live=learned))
    saved = json.loads(path.read_text())
    saved["live"][field] = value
    path.write_text(json.dumps(saved))
    with pytest.raises(StateFileError, match="damaged"):
        load_state(path)
