"""The Job's entry point: measures, and publishes to the cluster. Exit 0: succeeded, or blocked for a reason; 1: failed;
143: stopped by SIGTERM, and nothing published.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from tabletune_tuner.cluster import connect
from tabletune_tuner.options import Options, Target, parse_job
from tabletune_tuner.outcome import Outcome, Status
from tabletune_tuner.progress import LinePrinter
from tabletune_tuner.run import run


def main() -> int:
    """Command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    options, target = parse_job(sys.argv[1:])
    try:
        outcome = asyncio.run(_run(options, target))
    except asyncio.CancelledError:
        print("Stopped by SIGTERM: nothing is published.", flush=True)
        return 128 + signal.SIGTERM
    print(f"{outcome.status} {outcome.reason}: {outcome.message}", flush=True)
    return 1 if outcome.status is Status.FAILED else 0


async def _run(options: Options, target: Target) -> Outcome:
    work = asyncio.ensure_future(_measure(options, target))
    # A container's first process does not end by a signal that it does not handle, and a deleted Job must publish nothing more.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    return await work


async def _measure(options: Options, target: Target) -> Outcome:
    async with connect(target) as sink:
        return await run(options, sink, LinePrinter(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
