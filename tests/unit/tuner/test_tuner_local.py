"""The supervisor of a run without a cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tabletune.channel import Channel
from tabletune_tuner.local import local_supervisor

HOLD = """
import sys, time
from pathlib import Path
from tabletune_tuner.local import local_supervisor
with local_supervisor(Path(sys.argv[1])) as run_dir:
    print(run_dir, flush=True)
    time.sleep(600)
"""


def supervise(run_dir: Path) -> Channel:
    deadline = time.monotonic() + 60
    while not (run_dir / "supervisor.sock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return Channel(str(run_dir / "supervisor.sock"))


def ended(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may go between opening and reading
        return False


def test_takes_its_engine_down_at_the_end(tmp_path: Path) -> None:
    with local_supervisor(tmp_path / "log") as run_dir:
        pid = supervise(run_dir).ask("start", argv=["sleep", "600"], env={}, plugin=False)["pid"]
    assert ended(pid)
    assert not run_dir.exists()


def test_a_run_that_is_killed_leaves_no_engine(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    run_dir = Path(holder.stdout.readline().strip())
    pid = supervise(run_dir).ask("start", argv=["sleep", "600"], env={}, plugin=False)["pid"]
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert ended(pid)
