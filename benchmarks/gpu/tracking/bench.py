"""What all parts of the benchmark share: options, engines, files, the time that is left, and the result, written after every step."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mismatch import serving
from tracking.engines import Engine, Sidecar, sidecar
from tracking.files import Measured
from tracking.measure import Load

SIDECAR_PORT = 9478
MAIN, SECOND, BARE = "main", "second", "bare"


class OutOfTimeError(Exception):
    """What was to be measured next does not fit into the time that is left."""


@dataclass
class Bench:
    """One run. Everything of it is in `result`, which is on disk after every `note`."""

    options: argparse.Namespace
    measured: Measured
    run_dir: Path  # for sockets and state files: a short path
    plugin: Path
    ends: float  # of time.monotonic()
    result: dict[str, Any]
    engines: dict[str, Engine] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    closed: bool = False

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Raises OutOfTimeError when that does not fit any more."""
        if self.left < seconds:
            raise OutOfTimeError(f"{what} needs {seconds:.0f} s, and {self.left:.0f} s are left")

    def part(self, name: str) -> dict[str, Any]:
        """Its results so far, those of an earlier run included."""
        found: dict[str, Any] = self.result["parts"].setdefault(name, {})
        return found

    def note(self, **what: Any) -> None:
        """Keep in the result, and write it."""
        self.result.update(what)
        serving.write(self.options.out, self.result)

    def start(self, names: set[str]) -> None:
        """Start engines side by side, and the load processes of each; what does not start is in the result and not in `engines`."""
        launch = self.measured.launch(self.options.max_num_seqs)
        ports = {MAIN: 0, SECOND: 1, BARE: 2}

        def begin(name: str) -> tuple[str, Engine, float | str]:
            plugin = None if name == BARE else self.plugin
            engine = Engine(self.options, name, self.options.port + ports[name], self.run_dir, plugin=plugin, launch=launch)
            self.engines[name] = engine
            try:
                return name, engine, round(engine.start(warm_up=name == SECOND), 1)
            except (RuntimeError, OSError) as error:
                if name != SECOND or self.closed:
                    return name, engine, str(error)
                engine.process.stop()
                self.result["warmUpFailed"] = str(error)  # that is a result, too; the parts need the engine all the same
            try:
                return name, engine, round(engine.start(warm_up=False), 1)
            except (RuntimeError, OSError) as error:
                return name, engine, str(error)

        pool = ThreadPoolExecutor(max(1, len(names)))
        try:
            begun = list(pool.map(begin, sorted(names)))
        finally:
            pool.shutdown(wait=False)  # who is told to end must not wait for engines that start
        starts = self.result.setdefault("starts", {})
        for name, engine, seconds in begun:
            starts[name] = seconds
            if isinstance(seconds, str):
                engine.process.stop()
                del self.engines[name]
            elif name != BARE:
                self.loads[name] = Load(engine.url, max(self.options.loads), self.options.last_token)
                self.result.setdefault("engine", engine.ask("hello")["engine"])
        if SECOND in self.engines:
            self.result["warmUp"] = self.engines[SECOND].warm_up_line()
        self.note(launchTable=launch.to_vllm())
        print(f"started: {starts}", flush=True)

    def close(self) -> None:
        self.closed = True
        for load in self.loads.values():
            load.close()
        with ThreadPoolExecutor(max(1, len(self.engines))) as pool:
            list(pool.map(lambda engine: engine.process.stop(), self.engines.values()))

    @contextmanager
    def sidecar(self, engine: Engine, files: Path, *options: str) -> Iterator[Sidecar]:
        """A fresh sidecar beside an engine, with a port of its own."""
        port = SIDECAR_PORT + list(self.engines).index(engine.name)
        with sidecar(engine, files, self.run_dir, port, self.options.out / f"{engine.name}-sidecar.log", *options) as made:
            yield made


def conditions(bench: Bench) -> dict[str, Any]:
    """Where and on what this was measured."""
    return {
        "startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": _shown("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "rates": list(bench.options.rates),
        "outputTokens": bench.options.tokens,
        "measuredTable": bench.measured.best.to_vllm(),
        "profile": bench.measured.profile.fingerprint.digest,
        "notes": list(bench.measured.notes),
    }


def run_parts(bench: Bench, parts: dict[str, Callable[[Bench], None]], names: list[str]) -> None:
    """Each part by itself: what goes wrong in one is written down, and the next one begins."""
    for name in names:
        part, begun = bench.part(name), time.monotonic()
        part.pop("cutShort", None)
        part.pop("failed", None)
        print(f"== {name}, {bench.left:.0f} s left", flush=True)
        try:
            parts[name](bench)
        except OutOfTimeError as error:
            part["cutShort"] = str(error)
        except Exception as error:  # noqa: BLE001 - a part that fails must not take what the others measured with it
            part["failed"] = f"{type(error).__name__}: {error}"
            for engine in bench.engines.values():
                if not engine.process.is_running():
                    part.setdefault("died", {})[engine.name] = engine.process.cause()
        part["seconds"] = round(part.get("seconds", 0.0) + time.monotonic() - begun, 1)
        bench.note()
        print(json.dumps({name: {key: part[key] for key in ("seconds", "cutShort", "failed") if key in part}}), flush=True)


def _shown(*argv: str) -> str | None:
    try:
        return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
