"""The controller beside a real engine on one GPU: from a wrong table, through a switch of traffic, in a fleet, and what the plugin costs.

`python3 benchmarks/gpu/controller.py --target T --drafter D --profile FILES --out OUT`: engines with our plugin (one without, for the
cost), the real sidecar beside each, load from the tuner's client processes. result.json is written after every step. Run again with the
same OUT, it goes on with what is missing; parts are independent, and what does not fit into `--seconds` is left out and named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for benchmarks.controller

from mismatch import serving
from tracking.bench import BARE, MAIN, SECOND, Bench, conditions, run_parts
from tracking.cost import cost
from tracking.files import read_measured
from tracking.fleet import fleet
from tracking.switch import switch
from tracking.wrong_table import wrong_table

from tabletune_engine.install import install

PARTS: dict[str, Callable[[Bench], None]] = {"wrong-table": wrong_table, "switch": switch, "fleet": fleet, "cost": cost}
ENGINES = {"wrong-table": {MAIN}, "switch": {MAIN}, "fleet": {MAIN, SECOND}, "cost": {MAIN, SECOND, BARE}}
STOP_SECONDS = 25.0  # of `--seconds`, to take everything down


class EndedError(BaseException):
    """A signal: no part catches it."""


def main(argv: Sequence[str] | None = None) -> int:
    begun = time.monotonic()
    options = read_options(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGALRM, _leave)
    signal.alarm(round(options.seconds))
    folder = Path(tempfile.mkdtemp(prefix="tt-"))
    install(folder / "plugin")
    measured = read_measured(options.profile, options.rates)
    result = _read_result(options.out)
    bench = Bench(options, measured, folder, folder / "plugin", begun + options.seconds - STOP_SECONDS, result)
    bench.note(conditions=conditions(bench))
    try:
        bench.start({MAIN} if options.one_engine else set().union(*(ENGINES[name] for name in options.parts)))
        run_parts(bench, PARTS, options.parts)
    except BaseException as error:
        bench.note(stopped=f"{type(error).__name__}: {error}")
        raise
    finally:
        signal.alarm(0)
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
        bench.note(totalSeconds=round(time.monotonic() - begun, 1))
        print(f"total: {time.monotonic() - begun:.0f} s", flush=True)
    return int(any("failed" in bench.part(name) for name in options.parts))


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--target", required=True, help="model folder; only its shape matters (dummy weights)")
    parser.add_argument("--drafter", required=True, help="EAGLE-3 drafter's folder; only its shape matters")
    parser.add_argument("--profile", required=True, type=Path, help="folder with the ConfigMap's files, as `tabletune profile` wrote them")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json and the logs")
    parser.add_argument("--parts", type=_words, default=list(PARTS), help="of wrong-table,switch,fleet,cost (all)")
    parser.add_argument("--vllm", default="vllm", help='command that takes "serve", with its words')
    parser.add_argument("--port", type=int, default=8021, help="of the first engine; the others have the next ones")
    parser.add_argument("--seconds", type=float, default=570.0, help="hard limit of the whole run (%(default)s)")
    parser.add_argument("--one-engine", action="store_true", help="start one engine; the parts do without what needs more")
    parser.add_argument("--cpu", action="store_true", help="rehearse with a small model and a draft model on a CPU")
    parser.add_argument("--max-num-seqs", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--rates", type=_rates, default=(0.7, 0.5, 0.3), help="acceptance that was profiled (%(default)s)")
    parser.add_argument("--other-rates", type=_rates, default=(0.36, 0.13, 0.05), help="the other traffic (%(default)s)")
    parser.add_argument("--tokens", type=int, default=250, help="output tokens; requests have three to five quarters of it (%(default)s)")
    parser.add_argument("--loads", type=_numbers, default=[8, 32, 64, 96, 128], help="of wrong-table (%(default)s)")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds before a reference (%(default)s)")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of a reference (%(default)s)")
    parser.add_argument("--bin", type=float, default=2.0, help="seconds (%(default)s)")
    parser.add_argument("--most", type=float, default=36.0, help="seconds that a controller is watched from a wrong table (%(default)s)")
    parser.add_argument("--switch-load", type=int, default=64)
    parser.add_argument("--after", type=float, default=60.0, help="seconds that are watched after a switch (%(default)s)")
    parser.add_argument("--fleet-load", type=int, default=64)
    parser.add_argument("--replica-seconds", type=float, default=16.0, help="of load on each replica of the fleet (%(default)s)")
    parser.add_argument("--newcomer-seconds", type=float, default=8.0, help="of load on the third (%(default)s)")
    parser.add_argument("--cost-loads", type=_numbers, default=[1, 64], help="batch sizes of cost (%(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="of turns of cost at most, for each batch size and comparison (%(default)s)")
    parser.add_argument("--turn-tokens", type=int, default=300, help="steps of a turn (%(default)s)")
    options = parser.parse_args(argv)
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    options.max_num_seqs = options.max_num_seqs or (16 if options.cpu else 256)
    vocabulary = json.loads((Path(options.target) / "config.json").read_text())["vocab_size"]
    options.last_token = min(serving.LAST_TOKEN, vocabulary - 1)
    return options


def _read_result(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / "result.json").read_text())
    except (OSError, ValueError):
        return {"parts": {}}
    return {"parts": found.get("parts", {})}


def _leave(number: int, _frame: FrameType | None) -> None:
    raise EndedError(signal.Signals(number).name)


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
