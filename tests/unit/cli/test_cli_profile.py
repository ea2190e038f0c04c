"""`tabletune profile`: arguments, screens with and without a terminal, and interruption. Measuring itself is tested with real engines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import call, check_golden
from rich.console import Console

from tabletune.profile import Cell
from tabletune_cli.profile import CellFile
from tabletune_cli.profile_screen import LiveScreen, PlainScreen
from tabletune_tuner.options import Options
from tabletune_tuner.progress import Event, Kind, Progress

NOON = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SERVE = ("vllm", "serve", "Qwen/Qwen3-4B", "--max-num-seqs", "128")
WAIT_SECONDS = 240  # a limit, not a pace: the machine may be busy


def event(
    kind: Kind, stage: str, message: str, cell: Cell | None = None, *, done: int = 0, left: float | None = None, is_baseline: bool = False
) -> Event:
    return Event(kind, message, Progress(stage, done, 72, done, left), NOON, cell, is_baseline)


def cell(batch_size: int, length: int, micros: int, spread: int = 20) -> Cell:
    return Cell(batch_size, length, micros, spread, 64)


STORY = [
    event("started", "preflight", "options and prompts"),
    event("done", "preflight", "160 prompts from shipped sample"),
    event("started", "engine", "starting: speculation"),
    event("done", "engine", "speculation: ready in 146 s"),
    event("started", "sweep", "batch sizes 1 to 128, draft lengths 1, 3"),
    event("moved", "sweep", "B=1 k=1 3.99 ms spread 0.5 %", cell(1, 1, 3990), done=1),
    event("moved", "sweep", "B=1 k=3 4.68 ms spread 0.4 %", cell(1, 3, 4680), done=2),
    event("warned", "sweep", "the engine died at B=16, k=3; started again"),
    event("moved", "sweep", "B=16 k=1 4.21 ms spread 3.1 %", cell(16, 1, 4210, 130), done=27, left=590),
]


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("columns", [80, 100])
def test_golden_screen(columns: int) -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    options = Options(SERVE, 3, 128, present={"method": "eagle3", "num_speculative_tokens": 3})
    screen = LiveScreen(options, console, clock)
    for told in STORY:
        screen.show(told)
        clock.now += 43.5
    console.print(screen)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= columns
    check_golden(f"profile-{columns}.txt", text)


def test_screen_uses_ascii_where_the_terminal_has_no_utf8() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)
    icons = LiveScreen(Options(SERVE, 3, 128), console)._icons
    assert all(icon.isascii() for icon in icons.values())


def test_without_a_terminal_cells_come_at_most_every_30_seconds() -> None:
    clock, lines = Clock(), list[str]()
    screen = PlainScreen(lines.append, clock)
    with screen:
        screen.show(event("started", "sweep", "begins"))
        for second in range(0, 100, 5):
            clock.now = second
            screen.show(event("moved", "sweep", f"at {second}", cell(1, 1, 3990), done=1))
        screen.show(event("moved", "sweep", "no cell"))
        screen.show(event("warned", "sweep", "odd"))
        screen.show(event("done", "sweep", "ends"))
    assert [line.split("% ")[1] for line in lines] == ["begins", "at 0", "at 30", "at 60", "at 90", "warning: odd", "ends"]


def test_every_finished_cell_is_kept_in_a_grid_that_build_reads(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells.csv")
    for told in [*STORY, event("moved", "sweep", "off", cell(1, 0, 3580), is_baseline=True)]:
        cells.add(told)
    assert cells.count == 4
    assert cells.path.read_text().splitlines()[1:] == ["1,1,3990,step_us", "1,3,4680,step_us", "16,1,4210,step_us", "1,off,3580,step_us"]
    built = call("build", "--grid", str(cells.path), "--acceptance", "0.68,0.39,0.22")
    assert built.stdout == "[[1,15,3],[16,16,1]]\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["--", *SERVE], "--out", id="no folder"),
        pytest.param(["--out", "{out}"], "the engine's command is missing", id="no command"),
        pytest.param(["--out", "{out}", "--repeats", "0", "--", *SERVE], "--repeats", id="no repeats"),
        pytest.param(["--out", "{out}", "--", *SERVE], "--max-draft-length", id="no speculation"),
        pytest.param(["--out", "{out}", "--present-json", "{{", "--", *SERVE], "--present-json", id="present no JSON"),
        pytest.param(["--out", "/dev/null/x", "--max-draft-length", "3", "--", *SERVE], "cannot be written", id="no folder to write"),
    ],
)
def test_unusable_arguments_exit_2(args: list[str], said: str, tmp_path: Path) -> None:
    result = call("profile", *(a.format(out=tmp_path) for a in args))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.startswith("error ")


def test_errors_are_json_when_json_was_asked_for(tmp_path: Path) -> None:
    result = call("profile", "-o", "json", "--out", str(tmp_path))
    assert json.loads(result.stderr)["error"]["code"] == "BadArgument"


HEARING = ("env", "--default-signal=INT,HUP,TERM")
"""Tests that a shell runs in the background ignore SIGINT, and what they start would too."""


def start_beside_a_silent_engine(folder: Path, *before: str) -> subprocess.Popen[str]:
    """The command with an engine that never answers, once that engine runs; its process id is in folder/pid."""
    engine = folder / "vllm"
    engine.write_text(f"#!/bin/sh\necho $$ > {folder}/pid.new\nmv {folder}/pid.new {folder}/pid\nexec sleep 600\n")
    engine.chmod(0o755)
    command = [str(Path(sys.executable).with_name("tabletune")), "profile", "--out", str(folder / "out"), "--max-draft-length", "3"]
    command += ["--method", "ngram", "--prompt-count", "8", "--", str(engine), *SERVE[1:]]
    process = subprocess.Popen([*HEARING, *before, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (folder / "pid").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def check_interrupted(process: subprocess.Popen[str], folder: Path) -> None:
    out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, out) == (130, ""), err
    assert "Interrupted; the engine is stopped. No cell was finished, so nothing is kept." in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_stops_the_engine_and_exits_130(tmp_path: Path, number: signal.Signals) -> None:
    with start_beside_a_silent_engine(tmp_path) as process:
        process.send_signal(number)
        check_interrupted(process, tmp_path)


def test_started_in_the_background_it_ignores_what_it_was_told_to_and_ends_by_sigterm(tmp_path: Path) -> None:
    with start_beside_a_silent_engine(tmp_path, "/bin/sh", "-c", 'trap "" INT HUP; exec "$@"', "sh") as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        check_interrupted(process, tmp_path)


def test_engine_that_does_not_start_exits_1_with_the_reason(tmp_path: Path) -> None:
    engine = tmp_path / "vllm"
    engine.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    engine.chmod(0o755)
    command = [str(Path(sys.executable).with_name("tabletune")), "profile", "-o", "json", "--out", str(tmp_path / "out")]
    command += ["--max-draft-length", "3", "--method", "ngram", "--prompt-count", "8", "--", str(engine), *SERVE[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, done.stdout) == (1, "")
    assert (error["code"], error["status"]) == ("EngineDoesNotStart", "Failed")
    assert "no such model" in (tmp_path / "out" / "engine.log").read_text()
