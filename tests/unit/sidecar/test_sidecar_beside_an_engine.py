"""The sidecar as a process, beside the stand-in engine with the real plugin in it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from replay_engine import SPECULATIVE, ReplayEngine, replay_engine
from sidecar_cases import CODE_TABLE, PROSE, fleet_file, texts, write

from tabletune import formats
from tabletune.table import Table

PATIENCE_SECONDS = 180.0
CODE_PROMPT = "def area(radius):\n    return 3.14159 * square(radius)\n\nfor r in range(10):\n    print(area(r))\n"
PROSE_PROMPT = "The old harbour lay quiet under the morning fog, and nobody came down to the boats."
HURRIED = Path(__file__).parent / "hurried_sidecar.py"
LAUNCH = {**SPECULATIVE, "num_speculative_tokens_per_batch_size": [[1, 127, 3], [128, 128, 1]]}


@dataclass
class Pod:
    """The shared folder of a pod, and what runs in it."""

    folder: Path
    plugin: Path
    engine_port: int = field(default_factory=free_port)
    port: int = field(default_factory=free_port)
    # One, and without certificates: reading those for each of many questions costs more than all else here.
    http: httpx.Client = field(default_factory=lambda: httpx.Client(verify=False, timeout=PATIENCE_SECONDS))

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    def engine(self, **env: str) -> contextlib.AbstractContextManager[ReplayEngine]:
        plugin = {"PYTHONPATH": str(self.plugin), "TABLETUNE_SOCKET": str(self.folder / "engine.sock")}
        return replay_engine(self.folder, config=LAUNCH, port=self.engine_port, REPLAY_TIME_SCALE="0.25", **plugin, **env)

    @contextmanager
    def sidecar(self, *flags: str, proof_seconds: float = 10.0) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, str(HURRIED), str(proof_seconds), "--rebuild-every-steps", "300", "--port", str(self.port)]
        command += ["--socket", str(self.folder / "engine.sock"), "--files", str(self.files), "--engine-url", self.engine_url]
        command += ["--state-file", str(self.folder / "sidecar.json"), *flags]
        with (self.folder / "sidecar.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0, (self.folder / "sidecar.log").read_text()

    def ask(self, page: str) -> httpx.Response:
        return self.http.get(f"http://127.0.0.1:{self.port}/{page}")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.ask("state").json()
        return state

    def wait_for(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        state: dict[str, Any] | None = None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                state = self.state()
                if fits(state):
                    return state
            time.sleep(0.1)
        pytest.fail(f"not seen in {PATIENCE_SECONDS:.0f} s: {json.dumps(state, indent=1)}\n{(self.folder / 'sidecar.log').read_text()}")


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin") / "engine"
    subprocess.run([sys.executable, "-m", "tabletune_engine.install", str(folder)], check=True)
    return folder


@pytest.fixture
def pod(plugin: Path) -> Iterator[Pod]:
    # A Unix socket's path has at most 107 bytes; pytest's own folders are longer.
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:
        made = Pod(Path(folder), plugin)
        made.files.mkdir()
        write(made.files, texts())
        with made.http:
            yield made


@dataclass
class Clients:
    """Closed-loop clients that send one prompt again and again."""

    url: str
    prompt: str
    failures: list[str] = field(default_factory=list)
    answers: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, verify=False, timeout=PATIENCE_SECONDS) as http:
            while not self._done.is_set():
                answer = http.post("/v1/completions", json={"prompt": self.prompt, "max_tokens": 200})
                self.answers += 1
                if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != 200:
                    self.failures.append(answer.text)

    @contextmanager
    def running(self, number: int) -> Iterator[None]:
        threads = [threading.Thread(target=self.run) for _ in range(number)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join()


def codes(state: dict[str, Any]) -> list[str]:
    return [p["code"] for p in state["problems"]]


def length_at_4(state: dict[str, Any]) -> int | None:
    return Table.parse(state["table"]["inForce"]).length_at(4) if state["table"]["inForce"] else None


def test_swaps_the_table_when_code_turns_to_prose_without_a_restart_or_a_failure(pod: Pod) -> None:
    with pod.engine(), pod.sidecar():
        clients = Clients(pod.engine_url, CODE_PROMPT)
        with clients.running(4):
            before = pod.wait_for(lambda s: s["table"]["rebuilds"] >= 2)
            assert length_at_4(before) == 3
            clients.prompt = PROSE_PROMPT
            after = pod.wait_for(lambda s: length_at_4(s) == 1 and s["honoured"] == "Proved")
        metrics = pod.ask("metrics").text
        assert pod.ask("healthz").status_code == 200
    assert clients.failures == []
    assert clients.answers > 0
    assert after["engine"]["bootId"] == before["engine"]["bootId"]
    assert after["table"]["changes"] >= 1
    assert after["acceptance"]["live"][0] < 0.5 < after["acceptance"]["prior"][0]
    assert (after["violations"], codes(after)) == (0, [])
    assert "tabletune_table_honoured 1.0" in metrics


def test_explores_once_the_table_has_been_short_for_long(pod: Pod) -> None:
    flags = ("--rebuild-every-steps", "100", "--explore-every-steps", "20", "--prior-weight", "200")
    with pod.engine(), pod.sidecar(*flags), Clients(pod.engine_url, PROSE_PROMPT).running(4):
        short = pod.wait_for(lambda s: length_at_4(s) == 1)
        explored = pod.wait_for(lambda s: s["counts"]["exploringSteps"] >= 5 and length_at_4(s) == 1)
    assert short["counts"]["exploringSteps"] == 0
    assert explored["table"]["rebuilds"] >= 4
    assert (explored["violations"], codes(explored)) == (0, [])


def test_only_shows_what_it_would_do_when_it_observes(pod: Pod) -> None:
    with pod.engine(), pod.sidecar("--mode", "Observe", "--prior-weight", "0"), Clients(pod.engine_url, PROSE_PROMPT).running(4):
        state = pod.wait_for(lambda s: s["table"]["wanted"] is not None and Table.parse(s["table"]["wanted"]).length_at(4) == 1)
    assert state["table"]["changes"] >= 1
    assert state["table"]["inForce"] == CODE_TABLE.to_vllm()


def test_proves_an_idle_engine_by_a_request_of_its_own(pod: Pod) -> None:
    with pod.engine(), pod.sidecar(proof_seconds=1.0):
        state = pod.wait_for(lambda s: s["honoured"] == "Proved")
        assert state["violations"] == 0
        assert state["counts"]["tokens"] == 16


def test_finds_an_engine_that_ignores_its_table(pod: Pod) -> None:
    with pod.engine(REPLAY_IGNORE_TABLE="1"), pod.sidecar(proof_seconds=1.0):
        state = pod.wait_for(lambda s: s["honoured"] == "NotHonoured")
        assert state["violations"] > 0


def test_goes_on_after_its_own_restart(pod: Pod) -> None:
    with pod.engine():
        with pod.sidecar(), Clients(pod.engine_url, PROSE_PROMPT).running(4):
            before = pod.wait_for(lambda s: length_at_4(s) == 1)
        with pod.sidecar():
            after = pod.wait_for(lambda s: s["table"]["inForce"] is not None)
    assert length_at_4(after) == 1
    assert after["table"]["rebuilds"] >= before["table"]["rebuilds"]
    assert after["counts"]["steps"] >= before["counts"]["steps"]
    assert codes(after) == []


def test_starts_afresh_from_a_damaged_state_file_and_says_so(pod: Pod) -> None:
    (pod.folder / "sidecar.json").write_text('{"formatVersion": 1, "bel')
    with pod.engine(), pod.sidecar():
        state = pod.wait_for(lambda s: s["table"]["inForce"] is not None)
    assert codes(state) == ["StateFileUnusable"]
    assert state["table"]["inForce"] == CODE_TABLE.to_vllm()


def test_pushes_the_table_again_after_the_engine_restarted(pod: Pod) -> None:
    with pod.sidecar():
        assert codes(pod.wait_for(lambda s: True)) == ["EngineNotHeardYet"]
        with pod.engine(), Clients(pod.engine_url, PROSE_PROMPT).running(4):
            before = pod.wait_for(lambda s: length_at_4(s) == 1)
        assert codes(pod.wait_for(lambda s: not s["engine"]["reachable"])) == ["EngineUnreachable"]
        with pod.engine():
            after = pod.wait_for(lambda s: s["engine"]["reachable"] and s["table"]["inForce"] is not None)
    assert after["engine"]["bootId"] != before["engine"]["bootId"]
    assert length_at_4(after) == 1
    assert after["table"]["generation"] == 1
    assert after["counts"]["steps"] >= before["counts"]["steps"]


def test_keeps_the_table_while_a_file_is_damaged(pod: Pod) -> None:
    with pod.engine(), pod.sidecar():
        good = pod.wait_for(lambda s: s["table"]["inForce"] is not None)
        write(pod.files, {formats.TABLE: '{"formatVersion": 1}'})
        damaged = pod.wait_for(lambda s: "FileDamaged" in codes(s))
        assert damaged["table"]["inForce"] == good["table"]["inForce"]
        assert damaged["files"] == good["files"]
        write(pod.files, texts(table=Table.fixed(1, 128)))
        mended = pod.wait_for(lambda s: length_at_4(s) == 1)
    assert codes(mended) == []
    assert mended["files"] != good["files"]


def test_leaves_the_engines_table_when_a_file_needs_lengths_that_it_was_not_launched_for(pod: Pod) -> None:
    write(pod.files, texts(table=Table.parse([[1, 64, 2], [65, 128, 1]]), lengths=(1, 2)))
    with pod.engine(), pod.sidecar():
        state = pod.wait_for(lambda s: "LengthNotInLaunchSet" in codes(s))
        assert state["table"]["inForce"] is None
        assert state["honoured"] == "Unknown"
        write(pod.files, texts())
        pod.wait_for(lambda s: s["table"]["inForce"] == CODE_TABLE.to_vllm())


def test_starts_from_what_the_fleet_knows_and_says_how_that_table_does(pod: Pod) -> None:
    fleets = [[1, 2, 3], [3, 128, 1]]
    write(pod.files, {formats.FLEET: formats.to_fleet(fleet_file(table=Table.parse(fleets)))})
    with pod.engine(), pod.sidecar("--rebuild-every-steps", "1000000"):
        begun = pod.wait_for(lambda s: s["table"]["inForce"] is not None)
        with Clients(pod.engine_url, PROSE_PROMPT).running(4):
            state = pod.wait_for(lambda s: s["goodput"] is not None and s["goodput"]["steps"] >= 200)
    assert begun["table"]["inForce"] == fleets
    assert state["acceptance"]["prior"] == list(PROSE)
    evidence, goodput = state["acceptance"]["evidence"], state["goodput"]
    assert evidence["drafted"] == state["counts"]["drafted"]
    assert 0 < evidence["kept"][0] < evidence["drafted"][0]
    assert 0 < goodput["tokens"] <= state["counts"]["tokens"]
    assert goodput["expectedTokens"] > 0
