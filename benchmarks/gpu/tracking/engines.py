"""Engines and sidecars as a roll-out starts them, on one machine; each engine can also be told which guesses to keep (worker.py)."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from mismatch import serving

from tabletune.channel import Channel, ChannelClosedError
from tabletune.table import Table
from tabletune_sidecar.controller import State
from tabletune_sidecar.counters import parse_counters
from tabletune_sidecar.live import Live
from tabletune_sidecar.state import save_state

SOCKET_SECONDS = 20.0
PLUGIN_SECONDS = 20.0  # between the first /health and the socket
HTTP_SECONDS = 20.0
SIDECAR_START_SECONDS = 60.0
STOP_SECONDS = 10.0
KV_CACHE_BYTES = 16 << 30  # of each engine: engines that start side by side cannot measure what is left
WARM_UP_SECONDS = "10"
WARM_UP_VARIABLES = ("TABLETUNE_WARM_UP_SECONDS", "VLLM_LOGGING_CONFIG_PATH")
_SHOWN = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"out": _SHOWN},
    "loggers": {name: {"handlers": ["out"], "level": "INFO", "propagate": False} for name in ("vllm", "tabletune_engine")},
}
"""So that the plugin's words are in the log."""
CPU_ENV = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
CPU_FLAGS = ("--served-model-name", serving.MODEL, "--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "1024")
HERE = Path(__file__).resolve().parents[1]


class Engine:
    """`vllm serve` with a launch table; `plugin` None: without TableTune, else the folder of the plugin."""

    def __init__(self, options: argparse.Namespace, name: str, port: int, run_dir: Path, *, plugin: Path | None, launch: Table) -> None:
        self.name = name
        self._options, self._run_dir = options, run_dir
        self.socket = str(run_dir / f"{name}.sock")
        paths = [str(HERE), *([str(plugin)] if plugin else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        # vLLM loads the plugins that are named only, wherever PYTHONPATH finds more of them.
        env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        env |= {"VLLM_PLUGINS": "tabletune", "TABLETUNE_SOCKET": self.socket} if plugin else {"VLLM_PLUGINS": ""}
        env |= CPU_ENV if options.cpu else {}
        env["PYTHONPATH"] = os.pathsep.join(paths)
        flags = [*_flags(options, launch), "--port", str(port), "--worker-extension-cls", "tracking.worker.BenchWorker"]
        argv = [*shlex.split(options.vllm), "serve", options.target, *flags]
        self._log = options.out / f"{name}.log"
        self.process = serving.Process(argv, env, self._log, port)
        self.url = self.process.url
        self._plugin = Channel(self.socket, timeout=SOCKET_SECONDS) if plugin else None

    def start(self, *, warm_up: bool) -> float:
        """Seconds until it served; a RuntimeError says why it does not. `warm_up`: with the lengths run first, as after a roll-out."""
        for name in WARM_UP_VARIABLES:
            self.process.env.pop(name, None)
        if warm_up:
            shown = self._run_dir / "logging.json"
            shown.write_text(json.dumps(LOGGING))
            self.process.env |= dict(zip(WARM_UP_VARIABLES, (WARM_UP_SECONDS, str(shown)), strict=True))
        seconds = self.process.start()
        if self._plugin is not None:
            hello = self._first_hello()
            if not hello["active"]:
                raise RuntimeError(f"the plugin is not active: {hello['inactiveReason']}")
        return seconds

    def _first_hello(self) -> dict[str, Any]:
        deadline = time.monotonic() + PLUGIN_SECONDS
        while True:
            try:
                return self.ask("hello")
            except ChannelClosedError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the plugin does not answer: {error}") from error
                time.sleep(0.2)

    def warm_up_line(self) -> str | None:
        """What the plugin said of it."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line[:600] for line in lines if "before its first request" in line), None)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question to the plugin."""
        if self._plugin is None:
            raise RuntimeError(f"{self.name} has no plugin")
        return self._plugin.ask(op, **fields)

    def put(self, table: Table) -> None:
        """Put a table in force as it is: no exploring, no length forced."""
        self.ask("force", draftLength=None, reject=False)
        self.ask("table", ranges=table.to_vllm())

    def tell(self, method: str, word: str) -> str:
        """Have the worker do something between two steps; its answer."""
        body = json.dumps({"method": method, "args": [word]}).encode()
        request = urllib.request.Request(f"{self.url}/collective_rpc", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as answer:
            return str(json.load(answer)["results"][0])

    def set_rates(self, rates: tuple[float, ...]) -> None:
        """Keep so many guesses. On a CPU: of those that are really kept, for which `--rates` stands."""
        kept = self._options.rates if self._options.cpu else (1.0,) * len(rates)
        self.tell("set_rates", ",".join(str(rate / most) for rate, most in zip(rates, kept, strict=True)))


class Sidecar:
    """The real sidecar process beside an engine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/state"

    def state(self) -> dict[str, Any] | None:
        """Its `/state`; None before it answers."""
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, HTTPException):
            return None

    def until_heard(self) -> dict[str, Any]:
        """Its first state in which a table of its own is in force. Raises RuntimeError."""
        deadline = time.monotonic() + SIDECAR_START_SECONDS
        while time.monotonic() < deadline:
            state = self.state()
            if state is not None and state["table"]["inForce"]:
                return state
            time.sleep(0.05)
        raise RuntimeError("the sidecar put no table in force")


@contextmanager
def sidecar(engine: Engine, files: Path, run_dir: Path, port: int, log: Path, *options: str) -> Iterator[Sidecar]:
    """A sidecar that knows the files and nothing of what this engine counted so far, as beside an engine that has just started."""
    state_file = run_dir / f"{engine.name}-sidecar.json"
    counts = engine.ask("counts")
    boot_id = counts["bootId"]
    save_state(state_file, State(boot_id=boot_id, seen=parse_counters(counts), live=Live(boot_id=boot_id)))
    argv = [sys.executable, "-m", "tabletune_sidecar.main", "--socket", engine.socket, "--files", str(files)]
    argv += ["--state-file", str(state_file), "--engine-url", engine.url, "--port", str(port), *options]
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
    try:
        yield Sidecar(port)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _flags(options: argparse.Namespace, launch: Table) -> list[str]:
    if options.cpu:
        speculation: dict[str, Any] = {"method": "draft_model", "model": options.drafter, "num_speculative_tokens": len(options.rates)}
        speculation["num_speculative_tokens_per_batch_size"] = launch.to_vllm()
        return [*CPU_FLAGS, "--speculative-config", json.dumps(speculation)]
    speculation = serving.synthetic(options.drafter, launch.to_vllm(), options.rates)
    memory = ["--gpu-memory-utilization", "0.25", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    return [*serving.FLAGS, *memory, "--speculative-config", json.dumps(speculation)]
