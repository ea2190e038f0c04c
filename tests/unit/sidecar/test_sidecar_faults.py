"""Whatever breaks: serving goes on with the last good table, and the sidecar says what is wrong, until it is mended.

The sidecar's own loop, on real sockets and files; the engine is a stand-in (stand_in.py).
"""

from __future__ import annotations

import ast
import datetime as clock
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sidecar_cases import CODE, CODE_TABLE, PROSE, texts, write
from sidecar_views import problems_shown
from stand_in import LAUNCH, StandIn

from tabletune import formats
from tabletune.channel import ChannelError
from tabletune.table import Table
from tabletune_sidecar import engine as engine_module
from tabletune_sidecar import main as main_module
from tabletune_sidecar.main import Sidecar
from tabletune_sidecar.options import parse_options
from tabletune_sidecar.view import View

SOURCES = Path(main_module.__file__).parent
CODE_RANGES, PROSE_RANGES = CODE_TABLE.to_vllm(), Table.fixed(1, 128).to_vllm()
MOST_TURNS = 40


@dataclass
class Pod:
    """The folders that sidecar and engine share."""

    folder: Path
    engine: StandIn = field(init=False)
    sidecar: Sidecar = field(init=False)

    def __post_init__(self) -> None:
        self.engine = StandIn(self.folder / "engine.sock")
        (self.folder / "files").mkdir()
        write(self.files, texts())
        self.start_sidecar()

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def state_file(self) -> Path:
        return self.folder / "sidecar.json"

    def start_sidecar(self, state_file: Path | None = None) -> None:
        """Another process of the sidecar; the last one is just dropped, as by SIGKILL."""
        options = ["--socket", str(self.engine.path), "--files", str(self.files), "--state-file", str(state_file or self.state_file)]
        self.sidecar = Sidecar(parse_options(options))

    def turn(self) -> View:
        return self.sidecar.turn()

    def until(self, fits: Callable[[View], bool], rates: tuple[float, ...] | None = None) -> View:
        """Turns of the loop, each after some traffic if there is any."""
        for _ in range(MOST_TURNS):
            if rates is not None:
                self.engine.run(2000, rates)
            view = self.turn()
            if fits(view):
                return view
        pytest.fail(f"not seen in {MOST_TURNS} turns; problems {view.problems}, in force {view.in_force}")


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setattr(engine_module, "SOCKET_TIMEOUT_SECONDS", 60)
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:  # a Unix socket's path has at most 107 bytes
        made = Pod(Path(folder))
        yield made
        made.engine.stop()


@pytest.fixture
def prose(pod: Pod) -> Pod:
    """An engine whose table has followed its traffic to prose."""
    pod.engine.start()
    pod.until(lambda view: view.in_force == PROSE_RANGES, PROSE)
    return pod


def shows(view: View, *codes: str) -> None:
    """The view, `/metrics` and `/state` name exactly these problems."""
    assert [problem.code for problem in view.problems] == list(codes)
    assert sorted(problems_shown(view)) == sorted(codes)


def test_an_engine_that_dies_and_returns_gets_the_table_of_its_traffic_again(prose: Pod) -> None:
    before = prose.turn()
    prose.engine.stop()
    dead = prose.turn()
    shows(dead, "EngineUnreachable")
    assert (dead.reachable, dead.tracks) == (False, False)
    assert dead.state.belief == before.state.belief
    prose.engine.start()
    back = prose.turn()
    shows(back)
    assert prose.engine.pushes == [PROSE_RANGES]
    assert back.state.total.steps == before.state.total.steps


def test_a_restart_between_two_questions_is_no_other_version(prose: Pod) -> None:
    prose.engine.mangle = lambda op, answer: answer.replace(b"boot-1", b"boot-2") if op == "counts" else answer
    shows(prose.turn(), "EngineUnreachable")


def test_a_sidecar_that_dies_and_returns_knows_the_traffic(prose: Pod) -> None:
    before = prose.turn()
    prose.sidecar.save()
    prose.start_sidecar()
    after = prose.turn()
    shows(after)
    assert after.in_force == PROSE_RANGES
    assert after.state.belief == before.state.belief
    assert after.state.total == before.state.total


def test_without_its_state_file_a_sidecar_learns_from_what_the_engine_has_counted(prose: Pod) -> None:
    prose.state_file.unlink(missing_ok=True)
    prose.start_sidecar()
    after = prose.turn()
    shows(after)
    assert after.state.total == prose.engine.counters
    assert after.in_force == prose.engine.in_force
    shows(prose.until(lambda view: view.in_force == PROSE_RANGES, PROSE))


def test_a_socket_that_is_gone_is_found_again(prose: Pod) -> None:
    prose.engine.stop()
    prose.engine.path.unlink()
    shows(prose.turn(), "EngineUnreachable")
    prose.engine.listen()  # the same engine start: it has kept its table
    back = prose.turn()
    shows(back)
    assert prose.engine.pushes[-1] == prose.engine.in_force == back.in_force == PROSE_RANGES


def test_before_the_first_answer_the_launch_table_stays(pod: Pod) -> None:
    view = pod.turn()
    shows(view, "EngineNotHeardYet")
    assert pod.engine.in_force == LAUNCH


@pytest.mark.parametrize(
    ("op", "name"), [("hello", "engine"), ("hello", "active"), ("counts", "exploringSteps"), ("counts", "drafted"), ("steps", "cells")]
)
def test_a_plugin_that_lacks_a_field_is_not_guessed_about(prose: Pod, op: str, name: str) -> None:
    prose.engine.forget = {op: name}
    before = prose.engine.pushes
    view = prose.turn()
    shows(view, "PluginNotUnderstood")
    assert not view.tracks
    assert name in view.problems[0].message
    assert (prose.engine.in_force, prose.engine.pushes) == (PROSE_RANGES, before)
    prose.engine.forget = {}
    shows(prose.turn())


def test_a_newer_plugin_may_say_more(prose: Pod) -> None:
    prose.engine.add = {"somethingNew": {"a": [1]}}
    shows(prose.turn())
    shows(prose.until(lambda view: view.in_force == CODE_RANGES, CODE))


@pytest.mark.parametrize("op", ["hello", "counts"])
def test_another_protocol_version_is_named(prose: Pod, op: str) -> None:
    prose.engine.refuse = {op: ChannelError("UnknownVersion", '"v" is 1; this side speaks version 2.')}
    view = prose.turn()
    shows(view, "PluginNotUnderstood")
    assert "UnknownVersion" in view.problems[0].message
    assert "Roll the workload out again" in view.problems[0].message
    assert prose.engine.in_force == PROSE_RANGES


def test_a_refused_table_leaves_the_last_one_and_is_not_sent_again(prose: Pod) -> None:
    prose.engine.refuse = {"table": ChannelError("BadTable", "Ranges must start at 1.")}
    view = prose.until(lambda view: bool(view.problems), CODE)
    shows(view, "TableRefused")
    assert "BadTable" in view.problems[0].message
    assert view.in_force == prose.engine.in_force == PROSE_RANGES


@pytest.mark.parametrize("op", ["hello", "counts", "steps"])
@pytest.mark.parametrize(
    "mangle",
    [
        pytest.param(lambda answer: answer[: len(answer) // 2], id="cut in half"),
        pytest.param(lambda answer: answer[:-1], id="without its newline"),
        pytest.param(lambda answer: b"", id="nothing"),
        pytest.param(lambda answer: b"\xff\xfe{]\n", id="no JSON"),
        pytest.param(lambda answer: answer.replace(b'"id":', b'"id":9'), id="to another question"),
    ],
)
def test_a_broken_message_costs_one_turn(prose: Pod, op: str, mangle: Callable[[bytes], bytes]) -> None:
    before = prose.turn()
    prose.engine.mangle = lambda asked, answer: mangle(answer) if asked == op else answer
    shows(prose.turn(), "EngineUnreachable")
    prose.engine.mangle = None
    after = prose.turn()
    shows(after)
    assert after.state.total == before.state.total
    assert after.in_force == prose.engine.in_force == PROSE_RANGES


def test_an_answer_that_does_not_come_is_given_up(prose: Pod) -> None:
    silent, channel = threading.Event(), prose.sidecar._engine._channel

    def stall(op: str, answer: bytes) -> bytes:
        if op == "counts":
            silent.wait(60)
        return answer

    prose.engine.mangle = stall
    channel.close()  # to be opened again with this patience
    channel._timeout_seconds = 0.3
    view = prose.turn()
    channel._timeout_seconds = 60
    silent.set()
    shows(view, "EngineUnreachable")
    assert "timed out" in view.problems[0].message
    shows(prose.turn())


@pytest.mark.parametrize("jump", [clock.timedelta(days=400), -clock.timedelta(days=400)], ids=["forwards", "backwards"])
def test_a_wall_clock_that_jumps_changes_no_decision(pod: Pod, monkeypatch: pytest.MonkeyPatch, jump: clock.timedelta) -> None:
    now = clock.datetime(2026, 12, 1, tzinfo=clock.UTC)

    class Jumping(clock.datetime):
        @classmethod
        def now(cls, tz: clock.tzinfo | None = None) -> clock.datetime:
            nonlocal now
            now += jump if now.year == 2026 else clock.timedelta(seconds=1)
            return now

    pod.engine.start()
    steady = [pod.turn().in_force]
    monkeypatch.setattr(main_module, "datetime", Jumping)
    for _ in range(3):
        pod.engine.run(50, CODE)
        steady.append(pod.turn().in_force)
    assert steady == [CODE_RANGES] * 4
    view = pod.until(lambda view: view.in_force == PROSE_RANGES, PROSE)
    shows(view)
    assert view.updated_at.year != 2026, "it is shown, and nothing more"


def test_nothing_but_what_is_shown_is_taken_from_the_wall_clock() -> None:
    """`time.monotonic` is the only clock of decisions."""
    wall = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}
    nodes = [(path.name, node) for path in sorted(SOURCES.glob("*.py")) for node in ast.walk(ast.parse(path.read_text()))]
    reads = [(name, ast.unparse(node)) for name, node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in wall]
    assert reads == [("main.py", "datetime.now(UTC)")]


def test_counters_that_begin_anew_without_a_word_count_nothing_twice(prose: Pod) -> None:
    before = prose.turn()
    prose.engine.counters = type(prose.engine.counters)()
    reset = prose.turn()
    shows(reset)
    assert reset.in_force == PROSE_RANGES
    assert before.state.belief is not None
    assert reset.state.belief is not None
    assert reset.state.belief.live == before.state.belief.live
    prose.engine.run(10, PROSE)
    assert prose.turn().state.belief.live.request_steps == before.state.belief.live.request_steps + 80  # type: ignore[union-attr]
    shows(prose.until(lambda view: view.in_force == CODE_RANGES, CODE))


def test_a_full_disk_costs_the_memory_of_a_restart_and_nothing_else(prose: Pod) -> None:
    # What the kernel says of a full disk, from the device that is always full.
    fresh = prose.state_file.with_name("sidecar.json.new")
    fresh.symlink_to("/dev/full")
    prose.engine.run(100, PROSE)
    prose.turn()
    prose.sidecar.save()
    full = prose.turn()
    shows(full, "StateNotSaved")
    assert "No space left" in full.problems[0].message
    assert full.tracks
    shows(prose.until(lambda view: view.in_force == CODE_RANGES, CODE), "StateNotSaved")
    fresh.unlink()
    prose.sidecar.save()
    shows(prose.turn())


def test_a_folder_that_is_gone_is_no_end(prose: Pod) -> None:
    prose.start_sidecar(prose.folder / "gone" / "sidecar.json")
    view = prose.until(lambda view: view.in_force == PROSE_RANGES, PROSE)
    shows(view, "StateNotSaved")
    assert view.tracks


@pytest.mark.parametrize("name", [formats.PROFILE, formats.ACCEPTANCE, formats.TABLE])
def test_a_damaged_file_leaves_the_last_good_set_in_use(prose: Pod, name: str) -> None:
    write(prose.files, {name: texts()[name][:100]})
    damaged = prose.turn()
    shows(damaged, "FileDamaged")
    assert damaged.tracks
    assert damaged.in_force == PROSE_RANGES
    shows(prose.until(lambda view: view.in_force == CODE_RANGES, CODE), "FileDamaged")
    write(prose.files, texts())
    shows(prose.turn())


def test_a_config_map_that_goes_leaves_the_last_good_set_in_use(prose: Pod) -> None:
    for name in texts():
        (prose.files / name).unlink()
    gone = prose.turn()
    shows(gone, "FilesMissing")
    assert gone.tracks
    shows(prose.until(lambda view: view.in_force == CODE_RANGES, CODE), "FilesMissing")


def test_without_any_good_file_the_launch_table_stays(pod: Pod) -> None:
    (pod.files / formats.TABLE).unlink()
    pod.engine.start()
    pod.engine.run(5000, PROSE)
    view = pod.turn()
    shows(view, "FilesMissing")
    assert not view.tracks
    assert (view.in_force, pod.engine.in_force) == (None, LAUNCH)


def mount(folder: Path, contents: dict[str, str], version: str) -> None:
    """As the kubelet does: a new folder, then one symbolic link swapped."""
    behind = folder / f"..{version}"
    behind.mkdir()
    for name, text in contents.items():
        (behind / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(Path("..data") / name)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(behind.name)
    fresh.replace(folder / "..data")


def test_a_set_that_is_swapped_while_it_is_read_is_never_half_used(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(pod.files, texts(), "1")
    pod.engine.start()
    first = pod.turn()
    mount(pod.files, texts(rates=(0.7, 0.5, 0.3)), "2")
    read, swaps = Path.read_text, []

    def swapping(path: Path, *args: str | None) -> str:
        text = read(path, *args)
        if path.parent == pod.files and not swaps:
            swaps.append(path.name)
            mount(pod.files, texts(PROSE, Table.fixed(1, 128)), "3")
        return text

    monkeypatch.setattr(Path, "read_text", swapping)
    second, third = pod.turn(), pod.turn()
    assert swaps
    assert (second.files, second.in_force) == (first.files, CODE_RANGES)
    assert third.files is not None
    assert (third.files.acceptance.acceptance, third.in_force) == (PROSE, PROSE_RANGES)
    shows(third)
