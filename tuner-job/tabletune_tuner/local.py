"""A supervisor on this machine, for a run without a cluster: the plugin is copied to a folder as an init container does it."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tabletune_engine.install import install

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 40.0  # the supervisor gives its engine 20 s


@contextmanager
def local_supervisor(log: Path) -> Iterator[Path]:
    """Run a supervisor; give its run folder. `log` gets what the engine writes."""
    # A short path: a Unix socket's name has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tabletune-", ignore_cleanup_errors=True) as folder, log.open("ab") as output:
        run_dir = Path(folder)
        install(run_dir / "engine")
        script = run_dir / "engine" / "tabletune_engine" / "supervise.py"
        process = subprocess.Popen(
            [sys.executable, str(script), "--run-dir", str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we stop it in order
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - no thread runs yet, and it makes one system call
        )
        try:
            yield run_dir
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_with_parent() -> None:
    """A run that is killed must not leave an engine on the GPU: the supervisor gets SIGTERM then, and takes it down."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
