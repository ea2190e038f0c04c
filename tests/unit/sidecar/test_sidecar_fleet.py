"""The fleet's file: where a sidecar without beliefs starts from, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sidecar_cases import CODE, CODE_TABLE, ENGINE, PROSE, fleet_file, settings, texts, write

from tabletune import formats
from tabletune.formats import FLEET, to_fleet
from tabletune.table import Table
from tabletune_sidecar.controller import State, decide
from tabletune_sidecar.counters import Counters
from tabletune_sidecar.files import Files, FilesReader
from tabletune_sidecar.fleet import FleetReader

FLEETS_TABLE = Table.parse([[1, 32, 3], [33, 128, 1]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, texts())
    return tmp_path


def look(folder: Path) -> tuple[Files, FleetReader]:
    reader, fleet = FilesReader(folder), FleetReader(folder)
    reader.read()
    files = fleet.add_to(reader.good)
    assert files is not None
    return files, fleet


def begin(files: Files, state: State | None = None) -> tuple[tuple[float, ...], Table | None]:
    decision = decide(state or State(), files, ENGINE, Counters(), settings(), uptime_seconds=1.0)
    assert decision.state.belief is not None
    return decision.state.belief.prior.acceptance, decision.push.table if decision.push is not None else None


def test_starts_from_the_profile_while_there_is_no_fleet(folder: Path) -> None:
    files, fleet = look(folder)
    assert fleet.problem is None
    assert begin(files) == (CODE, CODE_TABLE)


@pytest.mark.parametrize(
    ("table", "pushed"),
    [pytest.param(None, CODE_TABLE, id="the rolled-out table"), pytest.param(FLEETS_TABLE, FLEETS_TABLE, id="the fleet's table")],
)
def test_starts_from_what_the_fleet_knows(folder: Path, table: Table | None, pushed: Table) -> None:
    write(folder, {FLEET: to_fleet(fleet_file(table=table))})
    files, fleet = look(folder)
    assert fleet.problem is None
    assert begin(files) == (PROSE, pushed)


def test_a_fleet_that_changes_does_not_change_what_is_believed(folder: Path) -> None:
    files, _ = look(folder)
    state = decide(State(), files, ENGINE, Counters(), settings(), uptime_seconds=1.0).state
    write(folder, {FLEET: to_fleet(fleet_file(table=FLEETS_TABLE))})
    changed, _ = look(folder)
    assert changed.digest == files.digest
    assert begin(changed, state) == (CODE, CODE_TABLE)


def test_what_was_counted_with_other_files_is_not_used_and_no_problem(folder: Path) -> None:
    write(folder, {FLEET: to_fleet(fleet_file(digest="before"))})
    files, fleet = look(folder)
    assert (files.fleet, fleet.problem) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(to_fleet(fleet_file())[:80], "the whole file is not JSON", id="cut"),
        pytest.param("", "the whole file is not JSON", id="empty"),
        pytest.param(
            to_fleet(fleet_file()).replace('"formatVersion": 1', '"formatVersion": 2'), "formatVersion is 2", id="from the future"
        ),
        pytest.param(to_fleet(fleet_file((0.4, 0.2))), "acceptancePpm has 2 positions and acceptance.json 3", id="of another drafter"),
        pytest.param(to_fleet(fleet_file(table=Table.fixed(2, 128))), "ranges holds draft length 2", id="a length that was not launched"),
    ],
)
def test_a_damaged_one_is_shown_and_ignored_until_it_is_whole_again(folder: Path, text: str, words: str) -> None:
    write(folder, {FLEET: text})
    reader, fleet = FilesReader(folder), FleetReader(folder)
    reader.read()
    files = fleet.add_to(reader.good)
    assert files == reader.good is not None
    assert reader.problem is None
    assert fleet.problem is not None
    assert (fleet.problem.code, f"fleet.json: {words}" in fleet.problem.message) == ("FileDamaged", True), fleet.problem.message
    assert begin(files) == (CODE, CODE_TABLE)
    write(folder, {FLEET: to_fleet(fleet_file())})
    files = fleet.add_to(reader.good)
    assert fleet.problem is None
    assert files == replace(reader.good, fleet=fleet_file())


def test_without_the_other_files_it_is_of_no_use(tmp_path: Path) -> None:
    write(tmp_path, {FLEET: to_fleet(fleet_file())})
    assert FleetReader(tmp_path).add_to(None) is None


def test_fleet_is_in_no_digest() -> None:
    assert formats.digest_of({**texts(), FLEET: "anything"}) == formats.digest_of(texts())
