"""One engine process with all its descendants: start, watch, stop, and the last lines that it wrote.

Linux only. The supervisor is made the reaper of orphans, so "no child is left" means that the whole engine is gone,
whatever process groups its workers chose.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05
KEPT_LINES = 400
READ_BYTES = 1 << 16  # a longer line is kept in pieces

State = Literal["stopped", "running", "exited"]


class AlreadyRunningError(Exception):
    """An engine runs, or its last processes are still being taken down."""


@dataclass(frozen=True, slots=True)
class Status:
    """The engine as seen at one moment. `exit_code` and `signal` are those of the last engine that ended."""

    state: State
    pid: int | None
    exit_code: int | None
    signal: int | None
    argv: tuple[str, ...]
    uptime_seconds: float
    starts: int


class EngineProcess:
    """At most one engine at a time. All methods may be called by any thread."""

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        self._stopping = threading.Lock()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._state: State = "stopped"
        self._pid: int | None = None
        self._group = 0
        self._exit_code: int | None = None
        self._signal: int | None = None
        self._argv: tuple[str, ...] = ()
        self._started_at = 0.0
        self._starts = 0

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """Start `argv` in a session of its own; give its process id.

        Raises `AlreadyRunningError`, and `OSError` or `ValueError` when the system refuses the command.
        """
        if not self._stopping.acquire(blocking=False):
            raise AlreadyRunningError("the last engine is being stopped")
        try:
            with self._lock:
                if self._state == "running":
                    raise AlreadyRunningError(f"process {self._pid} runs")
                self._kill_leftovers()
                # Under the lock: a process that ends at once must not be reaped before its id is known.
                child = subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                # We reap every process ourselves; a Popen without a return code would take this one's when it is collected.
                child.returncode = 0
                self._pid = self._group = child.pid
                self._argv = tuple(argv)
                self._state, self._exit_code, self._signal = "running", None, None
                self._started_at = time.monotonic()
                self._starts += 1
                self._lines.clear()
        finally:
            self._stopping.release()
        assert child.stdout is not None
        threading.Thread(target=self._keep_output, args=(child.stdout,), name="engine-output", daemon=True).start()
        return child.pid

    def status(self) -> Status:
        """What is known now, after looking for processes that ended."""
        self.reap()
        with self._lock:
            uptime = time.monotonic() - self._started_at if self._state == "running" else 0.0
            return Status(self._state, self._pid, self._exit_code, self._signal, self._argv, uptime, self._starts)

    def lines(self) -> list[str]:
        """The last lines that the engine wrote, oldest first."""
        return list(self._lines)

    def reap(self) -> bool:
        """Collect every process that ended; tell whether none is left."""
        with self._lock:
            return self._reap()

    def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the engine's process group, SIGKILL to what is left after the grace; return when all are gone."""
        with self._stopping:
            told = {self._signal_group(signal.SIGTERM)}
            deadline = time.monotonic() + grace_seconds
            while not self.reap():
                if time.monotonic() >= deadline:
                    self._signal_group(signal.SIGKILL)
                    _signal_children(signal.SIGKILL)
                else:
                    # Workers with a session of their own become our children when their parent ends.
                    told |= _signal_children(signal.SIGTERM, told)
                time.sleep(POLL_SECONDS)
            with self._lock:
                self._state = "stopped"

    def _reap(self) -> bool:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._group = 0  # the id may now be given to a stranger
                return True
            if pid == 0:
                return False
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(wait_status)
                self._exit_code, self._signal = (code, None) if code >= 0 else (None, -code)
                self._state, self._pid = "exited", None

    def _kill_leftovers(self) -> None:
        """Take down what a dead engine left, or its memory and its port would fail the next one."""
        while not self._reap():
            _signal_children(signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    def _signal_group(self, number: signal.Signals) -> int:
        """Tell the whole group; give its id, which is that of the engine's first process."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._group:
                os.killpg(self._group, number)
        return self._group

    def _keep_output(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(READ_BYTES):
                self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                # A log that nobody takes any more must not stop the engine.
                with contextlib.suppress(OSError):
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()


def _signal_children(number: signal.Signals, told: Set[int] = frozenset()) -> set[int]:
    """Tell the children of this process that were not told; give their ids."""
    children = {int(pid) for task in Path("/proc/self/task").iterdir() for pid in _words(task / "children")}
    for pid in children - told:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return children


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # a thread of ours that ended
        return []
