"""Starts the stand-in for tests, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ports import free_port

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "dev/replay/vllm"
SPECULATIVE: Mapping[str, Any] = {
    "method": "eagle3",
    "model": "drafter",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}
READY_SECONDS = 60.0


@dataclass(frozen=True)
class ReplayEngine:
    process: subprocess.Popen[bytes]
    url: str
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text()


@contextmanager
def replay_engine(
    folder: Path, *, config: Mapping[str, Any] = SPECULATIVE, flags: tuple[str, ...] = (), port: int | None = None, **env: str
) -> Iterator[ReplayEngine]:
    """A stand-in that answers /health; it is ended on the way out, if it still runs."""
    at = port or free_port()
    log_path = folder / f"replay-{at}.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable, str(LAUNCHER), "serve", "m", "--host", "127.0.0.1", "--port", str(at),
                "--max-num-seqs", "128", "--speculative-config", json.dumps(config), *flags,
            ],
            env={"REPLAY_START_SECONDS": "0", **env},
            stdout=log,
            stderr=log,
        )  # fmt: skip
    engine = ReplayEngine(process, f"http://127.0.0.1:{at}", log_path)
    try:
        _wait_until_healthy(engine)
        yield engine
    finally:
        process.kill()
        process.wait()


def _wait_until_healthy(engine: ReplayEngine) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(base_url=engine.url, verify=False) as http:
        while time.monotonic() < deadline and engine.process.poll() is None:
            try:
                if http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
    raise RuntimeError(f"the stand-in did not come up:\n{engine.log()}")
