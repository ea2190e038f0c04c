"""`make demo`: the whole job on real parts, told as it happens.

ENGINE=vllm (default) runs real vLLM on this machine's CPU; ENGINE=replay swaps in the labelled stand-in of dev/replay.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from rich.console import Console
from story import Ledger, Story, StoryError
from workshop import Workshop, WorkshopError


def main() -> int:
    parser = argparse.ArgumentParser(description="TableTune's main job, on a cluster of its own")
    parser.add_argument("--down", action="store_true", help="take the demonstration and its cluster away")
    options = parser.parse_args()
    engine = os.environ.get("ENGINE", "vllm")
    console = Console(width=None if sys.stdout.isatty() else 110)
    if engine not in ("vllm", "replay"):
        console.print(f"ENGINE is {engine!r}; it can be vllm (real engine, the default) or replay (stand-in).")
        return 2
    workshop = Workshop(Path(__file__).resolve().parents[2], console, engine)
    try:
        if options.down:
            workshop.take_down()
            return 0
        return asyncio.run(Story(workshop, console, Ledger()).tell())
    except (WorkshopError, StoryError) as error:
        console.print(f"[bold red]✖[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. The cluster stays as it is; run `make demo` to go on, `make demo-down` to take it away.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
