"""The supervisor, run by path from an installed copy, with small commands in the place of an engine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tabletune.channel import Channel, ChannelClosedError, ChannelError
from tabletune_engine.install import install
from tabletune_operator.command import read_command

# A parent with a child in a session of its own; both ignore SIGTERM when asked.
FAMILY = r"""
import os, signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
os.write(1, b"pid %d\n" % os.getpid())
time.sleep(600)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    destination = tmp_path_factory.mktemp("plugin") / "engine"
    install(destination)
    return destination


@pytest.fixture
def run_dir() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tt-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def supervisor(packages: Path, run_dir: Path) -> Iterator[Channel]:
    with running(packages, run_dir) as (channel, _):
        yield channel


class running:  # noqa: N801 - reads as a statement: `with running(...)`
    """A supervisor process and a client of it."""

    def __init__(self, packages: Path, run_dir: Path, **env: str) -> None:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        script = packages / "tabletune_engine" / "supervise.py"
        self._socket = run_dir / "supervisor.sock"
        self._log = (run_dir / "log").open("wb")
        self._process = subprocess.Popen(
            ["/usr/bin/env", "python3", str(script), "--run-dir", str(run_dir)], env=clean | env, stdout=self._log
        )

    def __enter__(self) -> tuple[Channel, "subprocess.Popen[bytes]"]:
        eventually(self._socket.exists)
        self._channel = Channel(str(self._socket), timeout=60)
        return self._channel, self._process

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def log(channel: Channel) -> list[str]:
    lines = channel.ask("log", lines=400)["lines"]
    assert isinstance(lines, list)
    return lines


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def family(channel: Channel, temper: str) -> list[int]:
    channel.ask("start", argv=python(FAMILY, temper))
    eventually(lambda: len(log(channel)) == 2)
    return [int(line.removeprefix("pid ")) for line in log(channel)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_before_the_first_start_nothing_runs(supervisor: Channel) -> None:
    assert supervisor.ask("status") == {
        "state": "stopped",
        "pid": None,
        "exitCode": None,
        "signal": None,
        "argv": [],
        "uptimeSeconds": 0.0,
        "pythonPath": None,
        "gpuDevices": sorted(map(str, [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("kfd")])),
        "starts": 0,
    }


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        pytest.param("import sys; print('bye'); sys.exit(3)", 3, None, id="exit code"),
        pytest.param("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", None, 9, id="signal"),
    ],
)
def test_reports_how_an_engine_ended_and_starts_the_next(
    supervisor: Channel, run_dir: Path, code: str, exit_code: int | None, number: int | None
) -> None:
    for start in (1, 2):
        supervisor.ask("start", argv=python(code))
        eventually(lambda: supervisor.ask("status")["state"] == "exited")
        status = supervisor.ask("status")
        assert (status["exitCode"], status["signal"], status["starts"]) == (exit_code, number, start)
        eventually(lambda: log(supervisor) == ["bye"])
    eventually(lambda: (run_dir / "log").read_text() == "bye\nbye\n")


def test_one_engine_at_a_time(supervisor: Channel) -> None:
    pid = supervisor.ask("start", argv=python("import time; time.sleep(600)"))["pid"]
    with pytest.raises(ChannelError, match=f"AlreadyRunning: .*{pid}"):
        supervisor.ask("start", argv=["true"])
    status = supervisor.ask("status")
    assert (status["state"], status["pid"], status["starts"]) == ("running", pid, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"argv": ["/nowhere/vllm"]}, "CannotStart", id="no such file"),
        pytest.param({"argv": ["a\0b"]}, "CannotStart", id="impossible name"),
        pytest.param({"argv": "vllm serve"}, "BadMessage", id="a shell string"),
        pytest.param({"argv": []}, "BadMessage", id="empty"),
        pytest.param({}, "BadMessage", id="no argv"),
        pytest.param({"argv": ["true"], "env": {"A": 1}}, "BadMessage", id="environment with a number"),
        pytest.param({"argv": ["true"], "plugin": "yes"}, "BadMessage", id="plugin is a text"),
    ],
)
def test_what_cannot_be_started_is_refused_and_nothing_runs(supervisor: Channel, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ChannelError) as refused:
        supervisor.ask("start", **fields)
    assert refused.value.code == code
    assert supervisor.ask("status")["state"] == "stopped"
    supervisor.ask("start", argv=["true"])


@pytest.mark.parametrize(("temper", "number"), [("polite", 15), ("stubborn", 9)])
def test_stop_returns_when_the_engine_and_its_children_are_gone(supervisor: Channel, temper: str, number: int) -> None:
    members = family(supervisor, temper)
    assert all(map(is_alive, members))
    status = supervisor.ask("stop", graceSeconds=0.3)
    assert (status["state"], status["signal"]) == ("stopped", number)
    assert not any(map(is_alive, members))


def test_children_of_a_killed_engine_do_not_meet_the_next(supervisor: Channel) -> None:
    members = family(supervisor, "stubborn")
    os.kill(supervisor.ask("status")["pid"], signal.SIGKILL)
    eventually(lambda: supervisor.ask("status")["state"] == "exited")
    assert any(map(is_alive, members))
    supervisor.ask("start", argv=["true"])
    assert not any(map(is_alive, members))


def test_leaves_with_its_engine(packages: Path, run_dir: Path) -> None:
    with running(packages, run_dir) as (channel, process):
        members = family(channel, "polite")
        process.terminate()
        assert process.wait(60) == 0
        assert not any(map(is_alive, members))
        assert not (run_dir / "supervisor.sock").exists()
        with pytest.raises(ChannelClosedError):
            channel.ask("status")


SHOW = "import os; print(os.environ.get('PYTHONPATH'), os.environ.get('TABLETUNE_SOCKET'), os.environ.get('VLLM_PLUGINS'))"


@pytest.mark.parametrize(
    ("image", "plugin", "added", "wanted"),
    [
        pytest.param({}, False, {}, "None None None", id="bare"),
        pytest.param({}, True, {}, "{packages} {run}/engine.sock None", id="plugin"),
        pytest.param(
            {"PYTHONPATH": "/image", "VLLM_PLUGINS": "lora"},
            True,
            {},
            "{packages}:/image {run}/engine.sock lora,tabletune",
            id="plugin with what the image has",
        ),
        pytest.param(
            {"PYTHONPATH": "{packages}:/image", "TABLETUNE_SOCKET": "/x"},
            False,
            {},
            "/image None None",
            id="no plugin although the pod's environment names it",
        ),
        pytest.param({"PYTHONPATH": "/image"}, True, {"PYTHONPATH": "/mine"}, "{packages}:/mine {run}/engine.sock None", id="added"),
    ],
)
def test_the_engines_environment(
    packages: Path, run_dir: Path, *, image: dict[str, str], plugin: bool, added: dict[str, str], wanted: str
) -> None:
    image = {name: value.format(packages=packages) for name, value in image.items()}
    with running(packages, run_dir, **image) as (channel, _):
        channel.ask("start", argv=python(SHOW), env=added, plugin=plugin)
        eventually(lambda: log(channel))
        assert log(channel) == [wanted.format(packages=packages, run=run_dir)]
        own = ":".join(part for part in image.get("PYTHONPATH", "").split(":") if part not in {"", str(packages)})
        assert channel.ask("status")["pythonPath"] == (own or None)


def test_keeps_the_last_lines_whatever_they_hold(supervisor: Channel) -> None:
    code = r"import sys; w = sys.stdout.buffer.write; [w(b'%d\n' % i) for i in range(500)]; w(b'\xff\n'); w(b'x' * 90_000)"
    supervisor.ask("start", argv=python(code))
    eventually(lambda: log(supervisor)[-4:-2] == ["499", "\ufffd"])
    lines = log(supervisor)
    assert len(lines) == 400
    assert supervisor.ask("log", lines=1)["lines"] == lines[-1:]
    assert supervisor.ask("log", lines=0)["lines"] == []
    with pytest.raises(ChannelError, match="BadMessage"):
        supervisor.ask("log", lines=401)


def test_starts_a_users_script_with_the_flag_that_it_is_asked_for(packages: Path, run_dir: Path, tmp_path: Path) -> None:
    """As the operator has it started: the script with a hook, and what the tuner adds behind it."""
    engine = tmp_path / "vllm"
    engine.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"; echo\nexec sleep 600\n")
    engine.chmod(0o755)
    script = "echo first\neval \"exec vllm serve m ${MORE} --x 'a b' $@\""
    container = {"command": ["/bin/sh", "-c", script, "--"], "args": ["--y"], "env": [{"name": "MORE", "value": "-sc '{}' --z"}]}
    argv = list(read_command(container).run)
    with running(packages, run_dir, PATH=f"{tmp_path}:{os.environ['PATH']}", MORE="-sc '{}' --z") as (channel, _):
        channel.ask("start", argv=[*argv, "--speculative-config", '{"method": "n\'gram"}'])
        eventually(lambda: len(log(channel)) == 2)
        assert log(channel) == ["first", '<serve><m><--z><--x><a b><--y><--speculative-config><{"method": "n\'gram"}>']
        assert channel.ask("stop", graceSeconds=10)["state"] == "stopped"
        channel.ask("start", argv=argv)
        eventually(lambda: len(log(channel)) == 2)
        assert log(channel)[1] == "<serve><m><--z><--x><a b><--y>"
