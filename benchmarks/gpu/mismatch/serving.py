"""A vLLM server of our own and requests to it, for the scripts beside this file and `../controller.py`. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

MODEL = "bench"
FLAGS = (
    "--served-model-name",
    MODEL,
    "--load-format",
    "dummy",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "256",
    "--no-enable-prefix-caching",
)
PROMPT_TOKENS = 32
CELL_SECONDS = 20.0  # one cell gets no more, however much of it is pauses
FIRST_TOKEN, LAST_TOKEN = 10, 30000  # ids that every vocabulary in use has, and that mean nothing special
REQUEST_SECONDS = 120.0
START_SECONDS = 420.0
STOP_SECONDS = 20.0
CAUSES = (  # best first
    "illegal memory access",
    "AcceleratorError",
    "CUDA error",
    "EngineDeadError",
    "Error:",
)


def parser(what: str) -> argparse.ArgumentParser:
    """The options that both scripts have."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--target", required=True, help="model folder; only its shape matters (dummy weights)")
    made.add_argument("--drafter", required=True, help="EAGLE-3 drafter's folder; only its shape matters")
    made.add_argument("--out", required=True, type=Path, help="folder for result.json and server.log")
    made.add_argument("--vllm", default="vllm", help='command that takes "serve", with its words')
    made.add_argument("--port", type=int, default=8012)
    made.add_argument("--seconds", type=float, default=200.0, help="time to measure; no new cell begins after it")
    made.add_argument("--tokens", type=int, default=1000, help="output tokens of each request, which is steps of each cell")
    return made


class Process:
    """One server command in a process group of its own, with a log."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.env = dict(env)
        self._argv, self._log = list(argv), log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start and wait until it serves; seconds that took. Raises RuntimeError with the log's last words."""
        begun = time.monotonic()
        if self._is_healthy():
            raise RuntimeError(f"another server answers on {self.url}")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, env=self.env, stdout=log, stderr=log, start_new_session=True)
        while time.monotonic() - begun < START_SECONDS:
            if not self.is_running():
                raise RuntimeError(f"the server ended while it started: {self.cause()}")
            if self._is_healthy():
                return time.monotonic() - begun
            time.sleep(0.5)
        self.stop()
        raise RuntimeError(f"the server did not serve within {START_SECONDS:.0f} s: {self.cause()}")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it and its children."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + STOP_SECONDS
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(0.2)
        self._process.wait()
        self._process = None

    def cause(self) -> str:
        """The line of the log that looks most like a cause, or its last line."""
        lines = self._log.read_text(errors="replace").splitlines()
        for word in CAUSES:
            if said := [line for line in lines if word in line]:
                return said[-1].strip()[:300]
        return lines[-1].strip()[:300] if lines else ""

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False


class Server(Process):
    """`vllm serve` with a launch table. Every guess is rejected: one token a request and step."""

    def __init__(self, options: argparse.Namespace, table: list[list[int]], extra_env: Mapping[str, str]) -> None:
        options.out.mkdir(parents=True, exist_ok=True)
        flags = [*FLAGS, "--port", str(options.port), "--gpu-memory-utilization", "0.6"]
        flags += ["--speculative-config", json.dumps(synthetic(options.drafter, table, [0.0, 0.0, 0.0]))]
        argv = [*shlex.split(options.vllm), "serve", options.target, *flags]
        super().__init__(argv, {**os.environ, **extra_env}, options.out / "server.log", options.port)


def synthetic(drafter: str, table: list[list[int]], rates: Sequence[float]) -> dict[str, Any]:
    """A speculative config that keeps guesses by chance: `rates[i]`, how often the first i + 1 are all kept."""
    return {
        "method": "eagle3",
        "model": drafter,
        "num_speculative_tokens": len(rates),
        "num_speculative_tokens_per_batch_size": table,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(rates),
    }


class Held:
    """`count` requests at the same time, each with the times at which its tokens came if they are streamed."""

    def __init__(self, url: str, count: int, tokens: int, *, stream: bool, last_token: int = LAST_TOKEN) -> None:
        self.failures = 0
        self.times: list[list[float]] = [[] for _ in range(count)]
        self._url, self._tokens, self._stream, self._last_token = url, tokens, stream, last_token
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(times,), daemon=True) for times in self.times]
        for thread in self._threads:
            thread.start()

    def running(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def leave(self) -> None:
        """Streams end with their next token; what does not stream goes on."""
        self._leaving.set()

    def wait(self, seconds: float) -> bool:
        """Whether all ended in time."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self.running()

    def _run(self, times: list[float]) -> None:
        body = {
            "model": MODEL,
            "prompt": [random.randrange(FIRST_TOKEN, self._last_token) for _ in range(PROMPT_TOKENS)],
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self._stream,
        }
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        times.append(time.monotonic())
                        self.failures += b'"error"' in line
                    if self._stream and self._leaving.is_set():
                        return
        except (OSError, HTTPException):
            self.failures += 1


def write(out: Path, result: Mapping[str, Any]) -> None:
    """After every cell, so that a run that is cut short leaves what it had."""
    fresh = out / "result.json.new"
    fresh.write_text(json.dumps(result, indent=1) + "\n")
    fresh.replace(out / "result.json")


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """As Markdown."""
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join("-" if row.get(name) is None else str(row[name]) for name in columns) + " |", flush=True)
