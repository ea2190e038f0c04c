"""Real vLLM on this machine's CPU, started through the supervisor, and requests to it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_port

from tabletune.channel import Channel, ChannelClosedError

REPOSITORY = Path(__file__).resolve().parents[2]
CPU_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
START_SECONDS = 240.0
LAUNCH_TABLE = [[1, 4, 3], [5, 8, 1], [9, 16, 0]]
ONE_PROCESS = "--distributed-executor-backend=vllm.v1.executor.uniproc_executor.UniProcExecutor"
WORKER_PROCESS = "--distributed-executor-backend=mp"
"""What vLLM does on a CPU by itself, a process for the model: as long to start again, and whoever waits for it keeps a core busy."""
DRAFT_MODEL = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def made_by(script: str, override: str) -> Path:
    """What `dev/models/SCRIPT` makes and prints the path of; an environment variable may name another."""
    if named := os.environ.get(override):
        return Path(named)
    shown = subprocess.run([REPOSITORY / "dev/models" / script], stdout=subprocess.PIPE, text=True, check=True)
    return Path(shown.stdout.strip().splitlines()[-1])


def eventually(holds: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Reply:
    """One completion: its text, its tokens, and vLLM's own account of every verification."""

    text: str
    tokens: int
    drafted: tuple[int, ...]
    kept: tuple[int, ...]


@dataclass
class Account:
    """Counts made from replies alone, in the terms of the socket's `counts`."""

    tokens: int = 0
    draftedSteps: int = 0  # noqa: N815 - the protocol's name
    drafted: list[int] = field(default_factory=lambda: [0] * 3)
    kept: list[int] = field(default_factory=lambda: [0] * 3)

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> Account:
        account = cls()
        for reply in replies:
            account.tokens += reply.tokens
            for drafted, kept in zip(reply.drafted, reply.kept, strict=True):
                account.draftedSteps += drafted > 0
                for i in range(3):
                    account.drafted[i] += drafted > i
                    account.kept[i] += kept > i
        return account


class LiveEngine:
    """An engine that answers requests, with its plugin's socket and its supervisor's."""

    def __init__(self, supervisor: Channel, plugin_path: str, port: int, model: str) -> None:
        self.supervisor = supervisor
        self.plugin_path = plugin_path
        self.plugin = Channel(plugin_path)
        self.port = port
        self.model = model

    def complete(self, prompt: str, max_tokens: int = 48) -> Reply:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            reply = json.load(response)
        speculation = reply["metrics"]["speculative_decoding"] or {}
        return Reply(
            text=reply["choices"][0]["text"],
            tokens=reply["usage"]["completion_tokens"],
            drafted=tuple(speculation.get("per_step_drafted") or ()),
            kept=tuple(speculation.get("per_step_accepted") or ()),
        )

    def complete_together(self, prompts: Sequence[str], max_tokens: int = 48) -> list[Reply]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, max_tokens), prompts))

    def counted(self, work: Callable[[], list[Reply]]) -> tuple[dict[str, Any], list[Reply]]:
        """What the plugin counted during `work`."""
        before = self.plugin.ask("counts")
        replies = work()
        after = self.plugin.ask("counts")
        old = {(B, k): steps for B, k, steps in before["chosen"]}
        change: dict[str, Any] = {"chosen": {(B, k): n - old.get((B, k), 0) for B, k, n in after["chosen"] if n > old.get((B, k), 0)}}
        for name in ("steps", "tokens", "requestSteps", "draftedSteps", "violations", "exploringSteps", "swaps"):
            change[name] = after[name] - before[name]
        for name in ("drafted", "kept"):
            change[name] = [new - was for was, new in zip(before[name], after[name], strict=True)]
        return change, replies


def prompts(count: int, seed: int, words: int = 20) -> list[str]:
    """Prompts of the tiny pair's own vocabulary, without two alike."""
    source = random.Random(seed)
    return [" ".join(f"w{source.randrange(1000)}" for _ in range(words)) for _ in range(count)]


class Launcher:
    """Keeps one engine running at a time, and starts the one that is asked for."""

    def __init__(self, supervisor: Channel, run_dir: Path, venv: Path, tiny: Path) -> None:
        self._supervisor = supervisor
        self._run_dir = run_dir
        self._venv = venv
        self._tiny = tiny
        self._running: tuple[dict[str, Any], LiveEngine] | None = None

    def use(self, speculation: dict[str, Any], executor: str = ONE_PROCESS, **environment: str) -> LiveEngine:
        """The engine with this speculative configuration, the launch table and these variables; started unless it runs."""
        alive = self._supervisor.ask("status")["state"] == "running"
        wanted = {"speculation": speculation, "executor": executor, "environment": environment}
        if self._running is not None and self._running[0] == wanted and alive:
            self._running[1].plugin.ask("force", draftLength=None, reject=False)
            self._running[1].plugin.ask("table", ranges=LAUNCH_TABLE)
            return self._running[1]
        self._supervisor.ask("stop", graceSeconds=20)
        port = free_port()
        model = str(self._tiny / "target")
        config = speculation | {"num_speculative_tokens_per_batch_size": LAUNCH_TABLE}
        if "model" in config:
            config["model"] = str(self._tiny / config["model"])
        flags = [executor, "--port", str(port), "--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "1024"]
        flags += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(config)]
        argv = [str(self._venv / "bin/vllm"), "serve", model, *flags]
        self._supervisor.ask("start", argv=argv, env=CPU_ENVIRONMENT | environment, plugin=True)
        eventually(lambda: self._is_healthy(port), START_SECONDS, "the engine is ready")
        engine = LiveEngine(self._supervisor, str(self._run_dir / "engine.sock"), port, model)
        self._running = wanted, engine
        return engine

    def _is_healthy(self, port: int) -> bool:
        status = self._supervisor.ask("status")
        assert status["state"] == "running", "\n".join(self._supervisor.ask("log", lines=60)["lines"])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return True
        except OSError:
            return False


def is_refused(plugin: Channel) -> bool:
    """Whether nobody listens on the plugin's socket any more."""
    try:
        plugin.ask("hello")
    except ChannelClosedError:
        return True
    return False
