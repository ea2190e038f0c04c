"""The sidecar's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Mode(StrEnum):
    TRACK = "Track"  # tables follow traffic
    OBSERVE = "Observe"  # the rolled-out table stays; what Track would do is shown


class PriorDecay(StrEnum):
    HALVE = "Halve"  # the prior's weight fades with every rebuild
    KEEP = "Keep"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controller's decisions depend on."""

    mode: Mode
    prior_weight: float  # drafted tokens a position that the prior is worth
    rebuild_every_steps: int  # at the most
    explore_every_steps: int  # at the least; 0: never
    prior_decay: PriorDecay
    hysteresis: int  # batch sizes
    max_swaps_per_minute: int


@dataclass(frozen=True, slots=True)
class Options:
    socket: str
    files: Path
    state_file: Path
    engine_url: str
    port: int
    settings: Settings


def parse_options(argv: Sequence[str] | None) -> Options:
    """Read the arguments; ends the process with a message and exit code 2 when they cannot be used."""
    parser = argparse.ArgumentParser(
        prog="tabletune-sidecar", description="Keeps the draft-length table of the engine beside it in step with its traffic."
    )
    parser.add_argument("--socket", default="/tabletune/run/engine.sock", help="socket of the engine plugin (%(default)s)")
    parser.add_argument("--files", type=Path, default=Path("/tabletune/files"), help="the ConfigMap's files (%(default)s)")
    parser.add_argument("--state-file", type=Path, default=Path("/tabletune/run/sidecar.json"), help="survives a restart (%(default)s)")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8000", help="the engine's HTTP (%(default)s)")
    parser.add_argument("--port", type=_whole(0), default=9478, help="port of /state, /metrics and /healthz (%(default)s)")
    parser.add_argument(
        "--mode", choices=[m.value for m in Mode], default=Mode.TRACK.value, help="follow traffic, or only show it (%(default)s)"
    )
    parser.add_argument("--prior-weight", type=_whole(0), default=2000, help="drafted tokens that the prior is worth (%(default)s)")
    parser.add_argument("--rebuild-every-steps", type=_whole(1), default=500, help="most steps between two rebuilds (%(default)s)")
    parser.add_argument(
        "--explore-every-steps", type=_whole(0), default=50, help="at most one longest draft in so many steps; 0: never (%(default)s)"
    )
    parser.add_argument(
        "--prior-decay", choices=[d.value for d in PriorDecay], default=PriorDecay.HALVE.value, help="fade the prior too (%(default)s)"
    )
    parser.add_argument("--hysteresis", type=_whole(0), default=0, help="batch sizes past an edge before the length changes (%(default)s)")
    parser.add_argument("--max-swaps-per-minute", type=_whole(1), default=4, help="tables put in force within a minute (%(default)s)")
    args = parser.parse_args(argv)
    return Options(
        socket=args.socket,
        files=args.files,
        state_file=args.state_file,
        engine_url=args.engine_url,
        port=args.port,
        settings=Settings(
            mode=Mode(args.mode),
            prior_weight=float(args.prior_weight),
            rebuild_every_steps=args.rebuild_every_steps,
            explore_every_steps=args.explore_every_steps,
            prior_decay=PriorDecay(args.prior_decay),
            hysteresis=args.hysteresis,
            max_swaps_per_minute=args.max_swaps_per_minute,
        ),
    )


class _whole:  # noqa: N801 (reads as a type in add_argument)
    """A whole number of at least `least`; its name is what argparse shows when it is not."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.__name__ = f"whole number from {least} up"

    def __call__(self, text: str) -> int:
        value = int(text)
        if value < self._least:
            raise ValueError(text)
        return value
