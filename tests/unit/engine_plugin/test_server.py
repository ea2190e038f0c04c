"""The socket under clients that behave, and clients that do not."""

import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.channel import MAX_LINE_BYTES, Channel, ChannelClosedError, ChannelError, LineBuffer
from tabletune_engine import server as server_module
from tabletune_engine.server import MAX_CLIENTS, LineServer


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's may have 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="tt-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def add(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("boom"):
        raise ZeroDivisionError
    if fields["a"] < 0:
        raise ChannelError("TooSmall", "a is negative; give 0 or more.")
    return {"sum": fields["a"] + fields["b"]}


@dataclass
class Wait:
    """A request that takes as long as a test wants."""

    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        self.begun.set()
        self.ended.wait(60)
        return {"waited": True}


@pytest.fixture
def wait() -> Iterator[Wait]:
    made = Wait()
    yield made
    made.ended.set()


@pytest.fixture
def path(folder: Path, wait: Wait, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(server_module, "RECHECK_SECONDS", 0.2)
    server = LineServer(str(folder / "x.sock"), {"add": add, "wait": wait})
    server.start()
    eventually((folder / "x.sock").exists)
    yield str(folder / "x.sock")
    server.close()


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def raw(path: str, *parts: bytes, answers: int = 1) -> list[dict[str, Any]]:
    """Send bytes as they are and read whole lines."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(path)
        for part in parts:
            client.sendall(part)
        with client.makefile("rb") as lines:
            return [json.loads(lines.readline()) for _ in range(answers)]


def works(path: str) -> bool:
    with Channel(path) as channel:
        return channel.ask("add", a=1, b=2) == {"sum": 3}


def test_answers_and_refuses(path: str) -> None:
    with Channel(path) as channel:
        assert channel.ask("add", a=1, b=2) == {"sum": 3}
        with pytest.raises(ChannelError) as refused:
            channel.ask("add", a=-1, b=2)
        assert (refused.value.code, refused.value.message) == ("TooSmall", "a is negative; give 0 or more.")
        assert channel.ask("add", a=3, b=4) == {"sum": 7}


@pytest.mark.parametrize(
    ("line", "identifier", "code"),
    [
        pytest.param(b"nonsense", None, "BadMessage", id="no JSON"),
        pytest.param(b"[1, 2]", None, "BadMessage", id="no object"),
        pytest.param(b'{"v": 1, "id": 7}', 7, "BadMessage", id="no operation"),
        pytest.param(b"\xff\xfe", None, "BadMessage", id="no UTF-8"),
        pytest.param(b"[" * 100_000, None, "BadMessage", id="too deep"),
        pytest.param(b'{"v": 2, "id": "x", "op": "add"}', "x", "UnknownVersion", id="other version"),
        pytest.param(b'{"v": true, "id": 1, "op": "add"}', 1, "UnknownVersion", id="version true"),
        pytest.param(b'{"v": 1, "id": 8, "op": "jump"}', 8, "UnknownOperation", id="unknown operation"),
        pytest.param(b'{"v": 1, "id": 9, "op": "add", "boom": 1}', 9, "InternalError", id="a handler that fails"),
    ],
)
def test_a_bad_line_is_answered_with_an_error_and_the_next_line_is_served(path: str, line: bytes, identifier: object, code: str) -> None:
    bad, good = raw(path, line + b"\n", b'{"v":1,"id":1,"op":"add","a":1,"b":1}\n', answers=2)
    assert (bad["v"], bad["id"], bad["ok"], bad["error"]["code"]) == (1, identifier, False, code)
    assert good == {"v": 1, "id": 1, "ok": True, "sum": 2}


def test_a_line_above_the_limit_is_refused_once_and_dropped(path: str) -> None:
    long = b'{"v": 1, "id": 1, "op": "' + b"x" * (3 * MAX_LINE_BYTES) + b'"}\n'
    bad, good = raw(path, long, b'{"v":1,"id":2,"op":"add","a":1,"b":1}\n', answers=2)
    assert (bad["id"], bad["error"]["code"]) == (None, "BadMessage")
    assert good["id"] == 2


def test_a_request_that_comes_in_pieces_is_whole(path: str) -> None:
    [answer] = raw(path, b'{"v":1,"id":1,', b'"op":"add","a":1,', b'"b":1}\n')
    assert answer["sum"] == 2


def test_clients_that_leave_half_way_are_forgotten(path: str) -> None:
    for part in (b"", b'{"v": 1, "id"', b'{"v":1,"id":1,"op":"wait"}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(part)
    assert works(path)


def test_a_client_that_never_reads_holds_up_nobody(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(path)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                silent.send(b'{"v":1,"id":1,"op":"nope"}\n' * 100)
        assert works(path)


def test_a_slow_request_does_not_delay_another_client(path: str, wait: Wait) -> None:
    with Channel(path, timeout=60) as slow:
        thread = threading.Thread(target=lambda: slow.ask("wait"))
        thread.start()
        eventually(wait.begun.is_set)
        assert works(path)
        assert thread.is_alive()
        wait.ended.set()
        thread.join()


def test_more_clients_than_places_are_turned_away_until_one_leaves(path: str) -> None:
    crowd = [Channel(path) for _ in range(MAX_CLIENTS)]
    for channel in crowd:
        channel.ask("add", a=0, b=0)
    with pytest.raises(ChannelClosedError):
        Channel(path).ask("add", a=1, b=2)
    for channel in crowd:
        channel.close()
    eventually(lambda: _served(path))


def _served(path: str) -> bool:
    try:
        return works(path)
    except ChannelClosedError:
        return False


def test_a_client_that_no_thread_is_left_for_is_turned_away_and_the_next_is_served(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def start_none(thread: threading.Thread) -> None:
        if thread.name != "tabletune-client":
            start(thread)
            return
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_none)
        for _ in range(MAX_CLIENTS + 1):
            with pytest.raises(ChannelClosedError):
                works(path)
    assert len(refused) == MAX_CLIENTS + 1  # none of them kept its place
    assert works(path)


def test_everybody_in_the_pod_may_connect(path: str) -> None:
    assert Path(path).stat().st_mode & 0o777 == 0o666


def test_a_stale_socket_file_is_replaced_and_a_live_one_is_not(folder: Path) -> None:
    path = str(folder / "x.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    first = LineServer(path, {"who": lambda _: {"who": 1}})
    first.start()
    eventually(lambda: _answers(path, {"who": 1}))
    second = LineServer(path, {"who": lambda _: {"who": 2}})
    second.start()
    time.sleep(0.3)
    assert Channel(path).ask("who") == {"who": 1}
    second.close()
    first.close()
    assert not Path(path).exists()


def _answers(path: str, wanted: dict[str, Any]) -> bool:
    try:
        return Channel(path).ask("who") == wanted
    except ChannelClosedError:
        return False


def test_a_removed_socket_file_comes_back_and_who_is_connected_stays(path: str) -> None:
    with Channel(path) as channel:
        assert channel.ask("add", a=1, b=2) == {"sum": 3}
        Path(path).unlink()
        eventually(lambda: _served(path))
        assert channel.ask("add", a=3, b=4) == {"sum": 7}


def test_a_removed_folder_comes_back(path: str, folder: Path) -> None:
    shutil.rmtree(folder)
    eventually(lambda: _served(path))


def test_a_client_outlives_the_server(folder: Path) -> None:
    path = str(folder / "x.sock")
    channel = Channel(path)
    with pytest.raises(ChannelClosedError, match="does not answer add"):
        channel.ask("add", a=1, b=2)
    server = LineServer(path, {"add": add})
    server.start()
    eventually(lambda: Path(path).exists())
    assert channel.ask("add", a=1, b=2) == {"sum": 3}
    server.close()


def test_a_late_answer_is_not_taken_for_the_next(path: str, wait: Wait) -> None:
    channel = Channel(path, timeout=0.1)
    with pytest.raises(ChannelClosedError, match="wait"):
        channel.ask("wait")
    wait.ended.set()
    channel._timeout_seconds = 60
    assert channel.ask("add", a=1, b=2) == {"sum": 3}


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_lines_do_not_depend_on_where_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"half a message"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    buffer, got = LineBuffer(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += buffer.feed(stream[start:end])
    assert got == lines
