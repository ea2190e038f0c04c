"""The sidecar beside a real engine whose traffic becomes another one: the table follows, nothing restarts, no request fails.

What changes is how many guesses are kept: all that the drafter gets right, then none, then all again. The engine rejects them after it
verified them, so its texts and its steps stay what they are. Which lengths win is given by a profile that was written for this test.
"""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live_engine import DRAFT_MODEL, Launcher, LiveEngine, eventually, prompts
from ports import free_port

from tabletune import formats
from tabletune.acceptance import Counts
from tabletune.formats import AcceptanceFile, TableFile
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.table import Table
from tabletune.verdict import Standing, Verdict, VerdictKind

REQUESTS = 6  # in flight
FOLLOW_SECONDS = 240.0  # it takes 10 to 30 s where nothing else runs
SEEN = 400  # drafts that the prior was counted on: soon outweighed by what is kept here
QUICK = ("--prior-weight", "60", "--rebuild-every-steps", "100", "--explore-every-steps", "10")  # an engine on a CPU makes few steps


@pytest.fixture
def engine(launcher: Launcher) -> LiveEngine:
    return launcher.use(DRAFT_MODEL)


def test_the_table_follows_when_other_guesses_are_kept_without_a_restart_or_a_failed_request(engine: LiveEngine, tmp_path: Path) -> None:
    write_files(tmp_path / "files")
    boot_id = engine.plugin.ask("hello")["bootId"]
    with sidecar(engine, tmp_path) as state, load(engine) as answered:
        # The prior says that hardly a guess is kept.
        before = until(state, lambda s: length(s) > 0 and kept(s) > 0.4 and s["honoured"] == "Proved")
        engine.plugin.ask("force", draftLength=None, reject=True)
        without = until(state, lambda s: length(s) == 0)
        engine.plugin.ask("force", draftLength=None, reject=False)
        # Where the table says 0, only steps that explore or try a length show that guesses are kept again.
        again = until(state, lambda s: length(s) > 0 and kept(s) > 0.4 and not s["problems"])
    assert {s["engine"]["bootId"] for s in (before, without, again)} == {boot_id}
    assert kept(without) < kept(before)
    assert again["violations"] == 0
    assert len(answered) > REQUESTS
    assert set(answered) == {48}


def kept(state: dict[str, Any]) -> float:
    """Share of first guesses that are kept, as the sidecar believes."""
    return float(state["acceptance"]["used"][0])


def length(state: dict[str, Any]) -> int:
    """In force at the batch size of the load; the rolled-out one before the engine has taken a table."""
    return Table.parse(state["table"]["inForce"] or [[1, 1, 1]]).length_at(REQUESTS)


def until(state: Callable[[], dict[str, Any] | None], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def look() -> bool:
        now = state()
        seen[:] = [now] if now else seen
        return bool(now and holds(now))

    try:
        eventually(look, FOLLOW_SECONDS, "the table follows")
    except AssertionError:
        print(json.dumps(seen))
        raise
    return seen[0]


@contextmanager
def load(engine: LiveEngine) -> Iterator[list[int]]:
    """Requests one after the other in each of some threads; the tokens of each answer. Raises what one of them raised."""
    stop, answered = threading.Event(), list[int]()

    def ask(first: int) -> None:
        turn = first
        while not stop.is_set():
            answered.append(engine.complete(prompts(1, seed=1000 + turn)[0]).tokens)
            turn += REQUESTS

    with ThreadPoolExecutor(REQUESTS) as clients:
        asked = [clients.submit(ask, n) for n in range(REQUESTS)]
        try:
            yield answered
        finally:
            stop.set()
    for each in asked:
        each.result()


@contextmanager
def sidecar(engine: LiveEngine, folder: Path) -> Iterator[Callable[[], dict[str, Any] | None]]:
    port = free_port()
    argv = [sys.executable, "-m", "tabletune_sidecar.main", "--socket", engine.plugin_path, "--files", str(folder / "files")]
    argv += ["--state-file", str(folder / "state.json"), "--engine-url", f"http://127.0.0.1:{engine.port}", "--port", str(port), *QUICK]

    def state() -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as answer:
                return dict(json.load(answer))
        except OSError:
            return None

    process = subprocess.Popen(argv, stdout=sys.stdout.fileno(), stderr=subprocess.STDOUT)
    try:
        yield state
    finally:
        process.terminate()
        process.wait(60)
        engine.plugin.ask("force", draftLength=None, reject=False)


def write_files(folder: Path) -> None:
    """A profile by which a guess is worth it when two thirds of them are kept, and none when none is."""
    folder.mkdir()
    cells = tuple(Cell(B, k, 10_000 + 1_000 * k + 200 * B, 50, 64) for B in range(1, 17) for k in range(4))
    measured = Measurement(20, 48, 3, "plugin", "2026-12-01T00:00:00Z", 0, "0")
    profile = Profile(Fingerprint.of({"engine": "tiny"}), {}, measured, cells, (), (), 5_000)
    kept = AcceptanceFile(Counts(SEEN, SEEN, (SEEN,) * 3, (SEEN // 8, SEEN // 50, 0)), 0, 16, "", "a test", ())
    verdict = Verdict(VerdictKind.TABLE, "TablePays", "The table gives more.", Standing())
    table = TableFile(Table.fixed(1, 16), verdict, (0, 1, 2, 3), 5_000, (), {}, (), None)
    (folder / formats.PROFILE).write_text(formats.to_profile(profile))
    (folder / formats.ACCEPTANCE).write_text(formats.to_acceptance(kept))
    (folder / formats.TABLE).write_text(formats.to_table(table))
