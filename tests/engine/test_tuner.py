"""The tuner's whole run on real vLLM: every stage, an engine killed in the middle, and engines that cannot be measured."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from live_engine import CPU_ENVIRONMENT, DRAFT_MODEL, ONE_PROCESS, prompts

from tabletune.acceptance import by_context
from tabletune.channel import Channel
from tabletune.formats import ACCEPTANCE, FILES, PROFILE, REPORT, SPECULATIVE_CONFIG, TABLE, parse_acceptance, parse_profile, parse_table
from tabletune.verdict import VerdictKind
from tabletune_tuner import clients
from tabletune_tuner import engine as engine_module
from tabletune_tuner.local import local_supervisor
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import Status
from tabletune_tuner.progress import Event, to_line
from tabletune_tuner.publish import FolderSink
from tabletune_tuner.run import run

PORT = 8347


@pytest.fixture
def run_dir(engine_venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A supervisor as `tabletune profile` runs it, with `vllm` on the PATH."""
    monkeypatch.setenv("PATH", f"{engine_venv / 'bin'}:{os.environ['PATH']}")
    for name, value in CPU_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    with local_supervisor(tmp_path / "engine.log") as folder:
        yield folder


@pytest.fixture
def options(run_dir: Path, tiny_pair: Path, tmp_path: Path) -> Options:
    texts = tmp_path / "prompts.txt"
    texts.write_text("\n".join(prompts(16, seed=5)))
    serve = f"vllm serve {tiny_pair / 'target'} --enforce-eager --max-num-seqs 4 --max-model-len 512 --port {PORT} {ONE_PROCESS}"
    return Options(
        serve_argv=tuple(serve.split()),
        max_draft_length=2,
        max_batch_size=3,
        present={**DRAFT_MODEL, "model": str(tiny_pair / "draft"), "num_speculative_tokens": 2},
        repeats=2,
        prompt_tokens=16,
        output_tokens=8,
        prompt_count=16,
        prompts_file=texts,
        context_tokens=(64, 128),
        temperature_milli=0,
        timeout_seconds=800,
        run_dir=run_dir,
        engine_url=f"http://127.0.0.1:{PORT}",
    )


class Troubles:
    """Shows progress; kills the engine as soon as a cell of B=2 was measured, and stops its core, once, as soon as one of B=3 was."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._supervisor = Channel(str(run_dir / "supervisor.sock"))
        self.events: list[Event] = []
        self.killed: int | None = None
        self.stopped: int | None = None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        print(to_line(event), flush=True)
        if self.killed is None and event.kind == "worked" and event.message.startswith("B=2 k=1"):
            self.killed = self._supervisor.ask("status")["pid"]
            os.kill(self.killed, signal.SIGKILL)
        if self.stopped is None and event.kind == "worked" and event.message.startswith("B=3 k=1"):
            self.stopped = self._core()
            os.kill(self.stopped, signal.SIGSTOP)

    def _core(self) -> int:
        """The process that owns the engine's scheduler: the one that listens on the plugin's socket."""
        with socket.socket(socket.AF_UNIX) as plugin:
            plugin.connect(str(self._run_dir / "engine.sock"))
            credentials = plugin.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid


def test_measures_decides_and_publishes_though_the_engine_is_killed_and_hangs(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "REQUESTS_A_PROCESS", 2)  # so that two processes share the load of three requests
    monkeypatch.setattr(engine_module, "SOCKET_SECONDS", 5.0)  # as a core that hangs as a whole answers nothing
    monkeypatch.setattr(engine_module, "STOP_GRACE_SECONDS", 3)  # and hears no SIGTERM
    show = Troubles(options.run_dir)
    out = tmp_path / "out"
    outcome = asyncio.run(run(options, FolderSink(out), show))

    assert outcome.status is Status.SUCCEEDED, outcome.message
    warnings = [e.message for e in show.events if e.kind == "warned"]
    assert show.killed
    assert show.stopped
    assert any("engine failed at B=3" in w and "its socket does not answer" in w and "cell is measured again" in w for w in warnings)
    assert any("engine failed at B=2" in w and "cell is measured again" in w for w in warnings)

    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    profile = parse_profile((out / PROFILE).read_text())
    assert {(c.batch_size, c.draft_length) for c in profile.cells} == {(B, k) for B in (1, 2, 3) for k in (0, 1, 2)}
    # A longer length that can win with no traffic is measured once.
    assert all(c.samples >= options.output_tokens * (1 if c.draft_length else options.repeats) for c in profile.cells)
    assert {c.batch_size for c in profile.baseline} == {1, 2, 3}
    # Steps with a prefill, at the largest batch size and the ends of the lengths.
    assert {(c.batch_size, c.draft_length) for c in profile.prefill} == {(3, 0), (3, 2)}
    assert {c.batch_size for c in profile.baseline_prefill} == {3}
    assert profile.prefills() is not None
    assert "requests of" in (out / REPORT).read_text()
    assert profile.engine["pythonPath"] == str(tmp_path / "theirs")
    assert (profile.skipped, profile.measurement.reject_by) == ((), "plugin")
    # What the table does, and exploring, was tried; nothing of it is a fault of a CPU's.
    assert {(t.from_length, t.to_length) for t in profile.transitions} >= set(edges(out))
    assert all(t.tries >= 5 and t.failures == 0 for t in profile.transitions)
    # A drafter that runs a model costs time: at each batch size two guesses take longer than none.
    times = profile.step_times()
    assert sum(times[B][2] for B in times) > sum(times[B][0] for B in times)

    acceptance = parse_acceptance((out / ACCEPTANCE).read_text())
    assert acceptance.prompt_count == 16
    assert [(tokens, counts.drafted[0] > 50) for tokens, counts in by_context(acceptance.parts).items()] == [(64, True), (128, True)]
    assert acceptance.counts.coverage == 1.0
    assert acceptance.counts.drafted[0] > 100
    assert 0.2 < acceptance.counts.rates[0] < 0.95  # the pair is made to agree on about two thirds

    table = parse_table((out / TABLE).read_text())
    assert {x.batch_size for x in table.loads} >= {1, 3}
    assert all(x.off.setting == "no speculation" and x.present.setting == "k=2" for x in table.loads)
    assert all(arm.predicted and arm.step_time_micros for x in table.loads for arm in (x.table, x.present, x.fixed, x.off))
    assert table.noise_ppm >= 30_000  # two repeats say too little for less
    assert sorted((*table.verdict.loads.ahead, *table.verdict.loads.level, *table.verdict.loads.behind)) == [
        x.batch_size for x in table.loads
    ]
    assert table.capacity is not None  # the drafter's own cache is taken from the target's
    assert 0 < table.capacity.speculation_tokens < table.capacity.off_tokens
    config: dict[str, Any] = json.loads((out / SPECULATIVE_CONFIG).read_text())
    if table.verdict.kind is VerdictKind.OFF:
        assert config == {}
    elif table.verdict.kind is VerdictKind.PRESENT:
        assert config == options.present
    else:
        assert table.table is not None
        assert config == {**(options.present or {}), "num_speculative_tokens_per_batch_size": table.table.to_vllm()}

    last = show.events[-1].progress
    assert (last.stage, last.cells_done, last.cells_total) == ("publish", 12, 12)
    percents = [e.progress.percent for e in show.events]
    assert percents == sorted(percents)


def test_an_engine_that_cannot_start_fails_with_its_own_words(options: Options, tmp_path: Path) -> None:
    broken = Options(**{**_fields(options), "serve_argv": (*options.serve_argv, "--dtype", "float3")})
    outcome = asyncio.run(run(broken, FolderSink(tmp_path / "out"), lambda e: print(to_line(e), flush=True)))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "EngineDoesNotStart")
    assert "exit code" in outcome.message
    assert "float3" in outcome.message
    assert not (tmp_path / "out").exists()


def test_a_run_that_takes_too_long_ends_with_its_stage(options: Options, tmp_path: Path) -> None:
    short = Options(**{**_fields(options), "timeout_seconds": 5})
    outcome = asyncio.run(run(short, FolderSink(tmp_path / "out"), lambda _: None))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "Timeout")
    assert "stage engine" in outcome.message
    status = Channel(str(options.run_dir / "supervisor.sock")).ask("status")
    assert status["state"] == "stopped"  # nothing is left running


def edges(out: Path) -> Iterator[tuple[int, int]]:
    """The changes of length of the table that was built, both ways; from its choices, as a verdict may want another."""
    lengths = [c.draft_length for c in parse_table((out / TABLE).read_text()).choices]
    for a, b in pairwise(lengths):
        if a != b:
            yield from ((a, b), (b, a))


def _fields(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}
