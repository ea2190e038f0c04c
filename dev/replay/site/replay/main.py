"""`vllm serve` of the stand-in: configuration, engine, HTTP, in vLLM's order and with its exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

from vllm import __version__
from vllm.v1.engine.core import EngineCore

from replay import BANNER
from replay.arguments import Arguments, build_config
from replay.faults import read_faults
from replay.recording import read_recording
from replay.server import Server

SWITCH_SECONDS = 0.0005
"""The step loop must get the interpreter back from the HTTP threads well within a step of 4 ms (Python's default: 5 ms)."""


def main(argv: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if list(argv) in (["--version"], ["-v"]):
        print(__version__)
        return 0
    if not argv or argv[0] != "serve":
        print(f"{BANNER}\nusage: vllm serve MODEL [vLLM's options]", file=sys.stderr)
        return 2
    print(f"=== {BANNER} (plays vLLM {__version__}) ===", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        faults = read_faults(os.environ)
        arguments = Arguments(argv[1:])
        config = build_config(arguments)
        core = EngineCore(config, read_recording(), faults)
        address = (arguments.text("--host", "0.0.0.0"), arguments.integer("--port", 8000))
    except (ValueError, RuntimeError):
        # vLLM dies with a traceback here, and tools that read its log look for one.
        traceback.print_exc()
        return 1
    server = Server(address, config, core)
    threading.Thread(target=_run, args=(core,), daemon=True).start()
    print(f"{BANNER}: {config.model_config.model} on http://{address[0]}:{address[1]}", file=sys.stderr, flush=True)
    server.serve_forever()
    return 0


def _run(core: EngineCore) -> None:
    try:
        core.run_busy_loop()
    except BaseException:  # noqa: BLE001 (whatever it was, the process must end)
        # An engine whose loop dies must not go on answering /health.
        traceback.print_exc()
        os._exit(1)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)
