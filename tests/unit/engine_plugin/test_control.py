"""The word from the scheduler to its workers, between real processes."""

import subprocess
import sys
from pathlib import Path

from tabletune_engine.control import FILE_BYTES, Control

WORKER = """
import sys
from tabletune_engine.control import Control
control = Control(sys.argv[1])
control.announce(int(sys.argv[2]))
for _ in sys.stdin:
    print(control.rejects(), flush=True)
"""


class Worker:
    """A child process that listens as a worker of this rank."""

    def __init__(self, socket: Path, rank: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(socket), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rejects()  # it has announced itself

    def rejects(self) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return self._process.stdout.readline() == "True\n"

    def close(self) -> None:
        self._process.communicate()


def test_a_worker_in_another_process_obeys_at_once(tmp_path: Path) -> None:
    control = Control(str(tmp_path / "engine.sock"))
    worker = Worker(tmp_path / "engine.sock", rank=0)
    assert not worker.rejects()
    control.set_reject(True)
    assert worker.rejects()
    control.set_reject(False)
    assert not worker.rejects()
    worker.close()


def test_a_worker_in_the_same_process_obeys_too(tmp_path: Path) -> None:
    scheduler, worker = Control(str(tmp_path / "engine.sock")), Control(str(tmp_path / "engine.sock"))
    worker.announce(0)
    scheduler.set_reject(True)
    assert worker.rejects()
    assert scheduler.has_workers(1)


def test_rejecting_needs_every_worker(tmp_path: Path) -> None:
    control = Control(str(tmp_path / "engine.sock"))
    assert not control.has_workers(0)
    assert not control.has_workers(1)
    workers = [Worker(tmp_path / "engine.sock", rank) for rank in (0, 1)]
    assert control.has_workers(2)
    assert not control.has_workers(3)
    for worker in workers:
        worker.close()


def test_the_words_of_a_dead_engine_mean_nothing_to_the_next(tmp_path: Path) -> None:
    # A whole engine that left while it rejected: a scheduler with one worker, in another process.
    dead = "import sys; from tabletune_engine.control import Control; c = Control(sys.argv[1]); c.announce(0); c.set_reject(True)"
    subprocess.run([sys.executable, "-c", dead, str(tmp_path / "engine.sock")], check=True)
    control = Control(str(tmp_path / "engine.sock"))
    # The file is from a child of this process, so only the parent's id that it left could mislead.
    assert not control.rejects()
    grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {dead!r}, sys.argv[1]], check=True)"
    (tmp_path / "engine.control").unlink()
    subprocess.run([sys.executable, "-c", grandchild, str(tmp_path / "engine.sock")], check=True)
    assert not Control(str(tmp_path / "engine.sock")).has_workers(1)


def test_a_file_of_any_earlier_size_serves(tmp_path: Path) -> None:
    (tmp_path / "engine.control").write_bytes(b"x")
    control = Control(str(tmp_path / "engine.sock"))
    control.set_reject(True)
    assert control.rejects()
    assert (tmp_path / "engine.control").stat().st_size == FILE_BYTES


def test_the_files_place_on_the_disk_is_taken_at_once(tmp_path: Path) -> None:
    """Else a disk that is full when the engine first rejects, or cures a graph, would end the engine."""
    Control(str(tmp_path / "engine.sock"))
    assert (tmp_path / "engine.control").stat().st_blocks * 512 >= FILE_BYTES
