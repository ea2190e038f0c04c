"""Starts, stops and watches the engine in the user's own image, on request over a Unix socket (docs/protocol.md).

It outlives its engine, so that the tuner can start the next one, and it leaves no process of an engine behind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from tabletune.channel import ChannelError
from tabletune_engine.process import KEPT_LINES, AlreadyRunningError, EngineProcess
from tabletune_engine.server import Handler, LineServer

PLUGIN_NAME = "tabletune"  # of the entry point, as VLLM_PLUGINS lists it
LOG_BYTES = 900_000  # of one answer, safely below the limit of a line
LINE_CHARACTERS = 2_000
DEFAULT_GRACE_SECONDS = 30.0
EXIT_GRACE_SECONDS = 20.0  # below the 30 s that a pod gets by default
REAP_SECONDS = 0.1


def main() -> int:
    """Serve until SIGTERM or SIGINT; then take the engine down and leave."""
    parser = argparse.ArgumentParser(prog="supervise.py", description="Starts and stops an engine for TableTune.")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder of supervisor.sock and engine.sock")
    run_dir = parser.parse_args().run_dir.resolve()
    leaving = threading.Event()

    def leave(_number: int, _frame: FrameType | None) -> None:
        leaving.set()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    engine = EngineProcess()
    packages = str(Path(__file__).resolve().parent.parent)
    supervisor = Supervisor(engine, packages, engine_socket=str(run_dir / "engine.sock"))
    server = LineServer(str(run_dir / "supervisor.sock"), supervisor.handlers())
    server.start()
    while not leaving.wait(REAP_SECONDS):
        engine.reap()
    server.close()
    engine.stop(EXIT_GRACE_SECONDS)
    return 0


class Supervisor:
    """Answers for one engine process. `packages` is the folder that PYTHONPATH gets for the plugin."""

    def __init__(self, engine: EngineProcess, packages: str, engine_socket: str) -> None:
        self._engine = engine
        self._packages = packages
        self._engine_socket = engine_socket
        self._python_path = _without(os.environ.get("PYTHONPATH"), packages)

    def handlers(self) -> dict[str, Handler]:
        """By operation."""
        return {"status": self._status, "start": self._start, "stop": self._stop, "log": self._log}

    def _status(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        seen = self._engine.status()
        return {
            "state": seen.state,
            "pid": seen.pid,
            "exitCode": seen.exit_code,
            "signal": seen.signal,
            "argv": list(seen.argv),
            "uptimeSeconds": round(seen.uptime_seconds, 3),
            "pythonPath": self._python_path,
            "gpuDevices": _gpu_devices(),
            "starts": seen.starts,
        }

    def _start(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        argv, added, plugin = fields.get("argv"), fields.get("env", {}), fields.get("plugin", False)
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
            raise ChannelError("BadMessage", '"argv" must be a list of texts with the command first.')
        if not isinstance(added, dict) or not all(isinstance(value, str) for value in added.values()):
            raise ChannelError("BadMessage", '"env" must map names to texts.')
        if not isinstance(plugin, bool):
            raise ChannelError("BadMessage", '"plugin" must be true or false.')
        try:
            return {"pid": self._engine.start(argv, self._environment(added, plugin))}
        except AlreadyRunningError as error:
            raise ChannelError("AlreadyRunning", f"An engine is there: {error}. Ask stop first.") from error
        except (OSError, ValueError) as error:
            raise ChannelError("CannotStart", f"{argv[0]} cannot be started: {error}.") from error

    def _stop(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        grace = fields.get("graceSeconds", DEFAULT_GRACE_SECONDS)
        if isinstance(grace, bool) or not isinstance(grace, (int, float)) or grace < 0:
            raise ChannelError("BadMessage", '"graceSeconds" must be a number from 0 up.')
        self._engine.stop(grace)
        return self._status({})

    def _log(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        wanted = fields.get("lines", KEPT_LINES)
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= KEPT_LINES:
            raise ChannelError("BadMessage", f'"lines" must be an integer from 0 to {KEPT_LINES}.')
        kept: list[str] = []
        room = LOG_BYTES
        for line in reversed(self._engine.lines()[-wanted:] if wanted else []):
            text = line[:LINE_CHARACTERS]
            room -= len(json.dumps(text)) + 1
            if room < 0:
                break
            kept.append(text)
        return {"lines": kept[::-1]}

    def _environment(self, added: Mapping[str, str], plugin: bool) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "TABLETUNE_SOCKET"}}
        env.update(added)
        python_path = _without(added.get("PYTHONPATH", self._python_path), self._packages)
        if plugin:
            python_path = f"{self._packages}:{python_path}" if python_path else self._packages
            env["TABLETUNE_SOCKET"] = self._engine_socket
            # vLLM loads only the plugins that this list names, if there is one.
            if (named := env.get("VLLM_PLUGINS")) is not None and PLUGIN_NAME not in named.split(","):
                env["VLLM_PLUGINS"] = f"{named},{PLUGIN_NAME}" if named else PLUGIN_NAME
        if python_path:
            env["PYTHONPATH"] = python_path
        return env


def _gpu_devices() -> list[str]:
    """Device files of GPUs in this container: NVIDIA's are numbered, AMD's share one."""
    dev = Path("/dev")
    return sorted(str(device) for pattern in ("nvidia[0-9]*", "kfd") for device in dev.glob(pattern))


def _without(python_path: str | None, folder: str) -> str | None:
    """The search path without `folder`; None when nothing is left."""
    if python_path is None:
        return None
    return ":".join(entry for entry in python_path.split(":") if entry != folder) or None


if __name__ == "__main__":
    sys.exit(main())
