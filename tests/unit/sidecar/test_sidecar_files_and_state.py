"""Files that anybody may have edited, and a state file that any version may have written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_cases import CODE, ENGINE, PROSE, files, settings, texts, write

from tabletune import formats
from tabletune_sidecar.controller import State, decide, took
from tabletune_sidecar.counters import Counters
from tabletune_sidecar.exploration import Explore
from tabletune_sidecar.files import FilesReader
from tabletune_sidecar.state import StateFileError, load_state, save_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, texts())
    return tmp_path


def test_reads_the_files_and_notices_a_change(folder: Path) -> None:
    reader = FilesReader(folder)
    reader.read()
    assert reader.good is not None
    assert (reader.good.acceptance.acceptance, reader.problem) == (CODE, None)
    write(folder, texts(PROSE))
    reader.read()
    assert reader.good.acceptance.acceptance == PROSE


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        pytest.param(formats.TABLE, "{", "FileDamaged", "table.json: the whole file", id="not JSON"),
        pytest.param(formats.TABLE, '{"formatVersion": 9}', "FileDamaged", "formatVersion is 9", id="from the future"),
        pytest.param(formats.PROFILE, '{"formatVersion": 1}', "FileDamaged", "profile.json: fingerprint is missing", id="a field gone"),
        pytest.param(formats.ACCEPTANCE, None, "FilesMissing", "acceptance.json", id="file gone"),
    ],
)
def test_keeps_the_last_good_files(folder: Path, name: str, text: str | None, code: str, words: str) -> None:
    reader = FilesReader(folder)
    reader.read()
    good = reader.good
    if text is None:
        (folder / name).unlink()
    else:
        write(folder, {name: text})
    for _ in range(2):  # also when nothing has changed since
        reader.read()
        assert reader.good is good
        assert reader.problem is not None
        assert reader.problem.code == code
        assert words in reader.problem.message
        assert "last good files" in reader.problem.message
    write(folder, texts())
    reader.read()
    assert reader.problem is None


def edited(name: str, path: list[str | int], value: object) -> str:
    """The file's good text with one value changed."""
    root = node = json.loads(texts()[name])
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return json.dumps(root)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(texts()[formats.PROFILE][:200], "the whole file is not JSON", id="truncated"),
        pytest.param(edited(formats.PROFILE, ["formatVersion"], 2), "formatVersion is 2", id="from the future"),
        pytest.param(edited(formats.PROFILE, ["cells", 0, "stepTimeMicros"], 0), "cells[0].stepTimeMicros", id="a time of zero"),
        pytest.param(edited(formats.PROFILE, ["cells", 1, "stepTimeMicros"], -1), "cells[1].stepTimeMicros", id="a negative time"),
        pytest.param(edited(formats.PROFILE, ["cells", 0, "batchSize"], 4095), "cells has a hole", id="a hole"),
    ],
)
def test_a_damaged_profile_is_refused_by_name_and_the_table_stays(folder: Path, text: str, words: str) -> None:
    reader = FilesReader(folder)
    reader.read()
    good = reader.good
    write(folder, {formats.PROFILE: text})
    reader.read()
    assert (reader.good, reader.problem and reader.problem.code) == (good, "FileDamaged")
    assert reader.problem is not None
    assert f"profile.json: {words}" in reader.problem.message


def test_has_no_files_before_the_config_map_is_mounted(tmp_path: Path) -> None:
    reader = FilesReader(tmp_path / "later")
    reader.read()
    assert reader.good is None
    assert reader.problem is not None
    assert "launched with" in reader.problem.message


def used_state() -> State:
    first = decide(State(), files(), ENGINE, Counters(), settings(), uptime_seconds=1.0)
    assert first.push is not None
    counters = Counters(500, 900, 800, 700, (700, 700, 700), (300, 200, 100), {(8, 3): 500}, 2, 9, 1)
    state = decide(took(first.state, first.push), files(), ENGINE, counters, settings(), uptime_seconds=1.0).state
    assert state.belief is not None
    assert (state.swapped_at, state.traffic_switches, len(state.belief.tables)) == ((1.0,), 1, 1)
    return replace(state, belief=replace(state.belief, explore=Explore(50, 3, ((1, 5), (7, 128)))))


def test_state_survives_a_restart_but_for_what_the_engine_must_be_told_again(tmp_path: Path) -> None:
    state = used_state()
    save_state(tmp_path / "state.json", state)
    loaded = load_state(tmp_path / "state.json")
    assert loaded.pushed is None
    assert took(loaded, state.pushed or pytest.fail("was pushed")) == replace(state, live=loaded.live)
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_starts_afresh_without_a_file(tmp_path: Path) -> None:
    assert load_state(tmp_path / "none.json") == State()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"formatVersion": 2}, "formatVersion 2", id="from the future"),
        pytest.param({"seen": {}}, "damaged", id="counters gone"),
        pytest.param({"belief": {"digest": "x"}}, "damaged", id="belief cut"),
        pytest.param({"bootId": 7}, "damaged", id="a number for a name"),
    ],
)
def test_refuses_a_state_file_that_it_does_not_know(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "state.json"
    save_state(path, used_state())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StateFileError, match=words):
        load_state(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("priorWeight", -1, id="a negative weight"),
        pytest.param("designEffect", 0.5, id="drafts that say more than independent ones"),
        pytest.param("designEffect", float("nan"), id="no number"),
        pytest.param("standardErrors", [0.1], id="a position without an error"),
        pytest.param("fresh", {"requestSteps": 9999, "draftedSteps": 0, "drafted": [0] * 3, "kept": [0] * 3}, id="a part above the whole"),
        pytest.param("live", {"requestSteps": 9, "draftedSteps": 0, "drafted": [0], "kept": [0]}, id="a position without counts"),
        pytest.param("prior", {"acceptance": [1.2, 0.5, 0.2], "coverage": 1}, id="more than all are kept"),
        pytest.param("explore", {"everySteps": 0, "draftLength": 3, "ranges": [[1, 128]]}, id="explored all the time"),
    ],
)
def test_refuses_a_belief_that_cannot_be(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "state.json"
    save_state(path, used_state())
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "belief": {**saved["belief"], field: value}}))
    with pytest.raises(StateFileError, match="damaged"):
        load_state(path)


@given(st.integers(0, 3000), st.binary(max_size=3))
def test_no_cut_or_garbled_state_file_does_more_than_refuse(tmp_path_factory: pytest.TempPathFactory, at: int, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    save_state(path, used_state())
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + garbage + whole[at + len(garbage) :] if garbage else whole[:at])
    try:
        state = load_state(path)
    except StateFileError:
        return
    decide(state, files(), ENGINE, Counters(), settings(), uptime_seconds=1.0)
