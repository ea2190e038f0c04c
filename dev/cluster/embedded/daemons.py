"""Starting, finding and ending the processes of the cluster.

A process is known by its number *and* its start time in this boot, so a number that the kernel has given to somebody
else meanwhile is never signalled. One that runs with other arguments or configuration than wanted is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from embedded.errors import ClusterError, run

READY_SECONDS = 90
TERM_SECONDS = 3  # nothing here loses more than the time to start again
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 12
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Components answer health probes over TLS with certificates of their own making; the probes ask for nothing secret.
_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE


def answers(url: str) -> bool:
    """Whether a health endpoint says that its component is ready."""
    try:
        with urllib.request.urlopen(url, timeout=2, context=_UNVERIFIED):
            return True
    except (urllib.error.URLError, OSError):
        return False


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process that must run."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    configs: tuple[Path, ...] = ()  # files that it reads once, at start
    listens: tuple[str, ...] = ()  # address:port pairs; a clear error when somebody else has them

    def digest(self) -> str:
        """What the process was started from: another digest asks for another process."""
        binary = Path(self.argv[0]).resolve()  # a new build lies behind the same link
        whole = hashlib.sha256("\0".join((str(binary), *self.argv)).encode())
        for path in self.configs:
            whole.update(path.read_bytes())
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """A started process as written to the state folder."""

    pid: int
    start_ticks: int  # /proc/PID/stat, field 22
    boot: str
    digest: str


def _start_ticks(pid: int) -> int | None:
    """The start time of a live process; None when there is none, or only its zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _holders(listen: str) -> str:
    """Who listens already where a daemon wants to: on that address, or on all of the machine's."""
    address, _, port = listen.rpartition(":")
    found: set[str] = set()
    for line in run(["ss", "-ltnpH", f"sport = :{port}"]).splitlines():
        local = line.split()[3].rpartition(":")[0].strip("[]")
        if local in {address, "*", "0.0.0.0", "::"} or address == "0.0.0.0":
            found.update(f"{name} (pid {pid})" for name, pid in re.findall(r'"([^"]+)",pid=(\d+)', line))
    return ", ".join(sorted(found))


class Daemons:
    """The processes recorded in one state folder."""

    def __init__(self, state: Path, logs: Path, say: Callable[[str], None]) -> None:
        self._records = state / "run"
        self._logs = logs
        self._say = say

    def _path(self, name: str) -> Path:
        return self._records / f"{name}.json"

    def _read(self, name: str) -> Record | None:
        try:
            return Record(**json.loads(self._path(name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # none, or a write that a kill cut short
            return None

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._records.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The number of the recorded process if it is still that process."""
        record = self._read(name)
        if record is None or record.boot != _boot() or _start_ticks(record.pid) != record.start_ticks:
            return None
        return record.pid

    def start(self, daemon: Daemon) -> None:
        """Have the daemon running from its present arguments; does not wait until it is ready."""
        record = self._read(daemon.name)
        if record is not None and self.pid(daemon.name) is not None:
            if record.digest == daemon.digest():
                return
            self._say(f"{daemon.name}: arguments or configuration changed, restarting")
        self.stop(daemon.name)
        for listen in daemon.listens:
            if holders := _holders(listen):
                raise ClusterError(
                    f"{daemon.name} needs {listen}, but {holders} listens there. End that process, or use its cluster: "
                    "KUBECONFIG=... TABLETUNE_CLUSTER=existing."
                )
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{daemon.name}.log").open("ab") as log:
            process = subprocess.Popen(
                daemon.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"PATH": PATH, "HOME": "/root"},
            )
        ticks = _start_ticks(process.pid)
        record = Record(process.pid, ticks or 0, _boot(), daemon.digest())
        self._path(daemon.name).write_text(json.dumps(asdict(record)))

    def wait_ready(self, daemon: Daemon) -> None:
        """Wait until the daemon answers; its last words are in the error when it does not."""
        deadline = time.monotonic() + READY_SECONDS
        while not daemon.ready():
            alive = self.pid(daemon.name) is not None
            if not alive or time.monotonic() > deadline:
                what = f"was not ready within {READY_SECONDS} s" if alive else "ended"
                log = self._logs / f"{daemon.name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
                raise ClusterError(f"{daemon.name} {what}. The end of {log}:\n{tail}")
            time.sleep(POLL_SECONDS)

    def stop(self, name: str) -> None:
        """End the recorded process, and only that one."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + TERM_SECONDS
            while self.pid(name) is not None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if self.pid(name) is not None:
                os.kill(pid, signal.SIGKILL)
            while self.pid(name) is not None:
                time.sleep(POLL_SECONDS)
        self._path(name).unlink(missing_ok=True)
