"""What the policies are put through: loads and traffic over simulated time, and what TableTune was told before it began.

Acceptance of code, mathematics and prose is chosen so that they want different tables on the measured step times; it was not measured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

import numpy as np
from benchmarks.controller.engine import Traffic
from benchmarks.controller.grids import RECORDED_ACCEPTANCE, Grid, h200, h200_pair, llama, read_traces
from benchmarks.controller.ours import tuned_table
from benchmarks.controller.rivals import documented

from tabletune.acceptance import Estimate
from tabletune.table import Table

CODE = Traffic("code", (0.78, 0.58, 0.43, 0.33, 0.26))
MATHEMATICS = Traffic("mathematics", (0.55, 0.28, 0.14, 0.07, 0.04))
PROSE = Traffic("prose", (0.36, 0.13, 0.05, 0.02, 0.01))
RECORDED = Traffic("recorded", RECORDED_ACCEPTANCE.acceptance)  # what the recorded engines were told to keep
PUBLISHED = Traffic("published", (0.68118, 0.39144, 0.20352, 0.10140, 0.05142))  # beside the grid llama-8b
BY_LOAD = Traffic("code below 48 requests, prose from there on", CODE.acceptance, heavy=PROSE.acceptance, heavy_from=48)

CELL_ERROR = 0.005  # how far the true step times are off the profile's, a standard deviation for each cell
DIPS = 0.02  # of the held requests, how many a step lacks on average
LOADS = (1, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)

Held = Callable[[float], int]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Run:
    """One simulated engine's life. `events` are moments from which recovery is timed; until `settle` seconds after one, losses are
    part of it and not of the converged state."""

    name: str
    seconds: int
    held: Callable[[int], Held]  # by seed: requests in a step at a moment
    traffic: Callable[[float], Traffic]
    events: tuple[float, ...] = (0.0,)
    settle: float = 60.0


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    grid: Grid  # the engine's
    launch: Table
    prior: Estimate
    runs: tuple[Run, ...]
    profile: Grid | None = None  # what TableTune and the linear model were told; None: the engine's grid
    scale: Mapping[int, float] = field(default_factory=dict)  # true step times over the grid's, by length

    @property
    def told(self) -> Grid:
        return self.profile or self.grid


def scenarios() -> tuple[Scenario, ...]:
    return (
        *(_steady(grid, traffic, loads) for grid, traffic, loads in _STEADY),
        _on_h200("ramp", "ramp from 1 to 128 requests and back, 8 minutes", (_ramp(),), CODE),
        _on_h200("flash-crowd", "8 requests, twice a minute of 128", (_crowd(),), CODE),
        _on_h200("switch-96", "code, then mathematics, then code, at 96 requests", (_switch(96, MATHEMATICS),), CODE),
        _on_h200("switch-8", "code, then prose, then code, at 8 requests", (_switch(8, PROSE),), CODE),
        _wrong_launch(),
        _on_h200("by-load", "code below 48 requests, prose from there on, 16 and 96 in turn", (_by_load(),), CODE),
        _slower_when_kept(),
        _other_machine(),
        _on_h200("recorded", "batch sizes of seven recorded engines", tuple(_recorded()), CODE),
    )


_STEADY = (
    (h200(), RECORDED, LOADS),
    (h200_pair(), RECORDED, LOADS),
    (llama(), PUBLISHED, tuple(llama().times)),
)


def _steady(grid: Grid, traffic: Traffic, loads: Sequence[int]) -> Scenario:
    measured = len(grid.times) == len(loads)  # a grid of a few batch sizes says nothing of those between: they are held exactly
    runs = tuple(
        Run(f"{load} requests", 180, _exactly(load) if measured else _constant(load), lambda _: traffic, settle=120.0) for load in loads
    )
    return _scenario(f"steady-{grid.name}", f"steady at each of {len(loads)} loads, {grid.name}", grid, runs, CODE)


def _ramp() -> Run:
    return Run("1 to 128 to 1", 480, _dipping(lambda t: 1 + round(127 * (1 - abs(t - 240) / 240))), lambda _: RECORDED)


def _crowd() -> Run:
    phases = ((120, 8), (60, 128), (120, 8), (60, 128), (60, 8))
    return Run("8 and 128", 420, _dipping(_in_turn(phases)), lambda _: RECORDED, (0.0, *accumulate(s for s, _ in phases[:-1])), 20.0)


def _switch(load: int, other: Traffic) -> Run:
    return Run(f"{load} requests", 540, _constant(load), _in_turn(((180, CODE), (180, other), (180, CODE))), (180.0, 360.0))


def _wrong_launch() -> Scenario:
    grid = h200()
    runs = tuple(Run(f"{load} requests", 180, _constant(load), lambda _: RECORDED) for load in (8, 32, 64, 96, 128))
    launch = documented(grid.lengths, grid.largest, shrink=4)
    title = "launch table: the documentation's, every range a quarter as long, at 8, 32, 64, 96 and 128 requests"
    return Scenario("wrong-launch", title, grid, launch, _prior(CODE, grid), runs)


def _by_load() -> Run:
    phases = tuple((60, load) for _ in range(4) for load in (16, 96))
    return Run("16 and 96", 480, _dipping(_in_turn(phases)), lambda _: BY_LOAD, (0.0,))


def _slower_when_kept() -> Scenario:
    grid = h200()
    runs = tuple(Run(f"{load} requests", 180, _constant(load), lambda _: CODE) for load in (8, 32, 64, 96))
    title = "steps of k > 1 take 1.6 times the profile, as with block drafters whose guesses are kept, at 8, 32, 64 and 96 requests"
    return _scenario("times-1.6", title, grid, runs, CODE, scale={k: 1.6 for k in grid.lengths if k > 1})


def _other_machine() -> Scenario:
    engine, profile = h200_pair("2026-11-30-h200-qwen3-4b"), h200_pair()
    runs = tuple(Run(f"{load} requests", 180, _constant(load), lambda _: MATHEMATICS) for load in (8, 32, 48, 64, 80, 96))
    title = "profile of another H200 (up to 16 % off), mathematics at 8, 32, 48, 64, 80 and 96 requests"
    return _scenario("other-machine", title, engine, runs, CODE, profile=profile)


def _recorded() -> Iterator[Run]:
    for name, points in read_traces().items():
        yield Run(name, int(points[-1][0]), _replayed(points), lambda _: RECORDED, settle=10.0)


def _on_h200(name: str, title: str, runs: tuple[Run, ...], prior: Traffic) -> Scenario:
    return _scenario(name, title, h200(), runs, prior)


def _scenario(
    name: str,
    title: str,
    grid: Grid,
    runs: tuple[Run, ...],
    prior: Traffic,
    *,
    profile: Grid | None = None,
    scale: Mapping[int, float] | None = None,
) -> Scenario:
    """Launched with what the tuner would have built for `prior`."""
    told = profile or grid
    believed = _prior(prior, told)
    return Scenario(name, title, grid, tuned_table(told, believed), believed, runs, profile, scale or {})


def _prior(traffic: Traffic, grid: Grid) -> Estimate:
    return Estimate(traffic.acceptance[: max(grid.lengths)], 1.0)


def _exactly(load: int) -> Callable[[int], Held]:
    return lambda _: lambda _: load


def _constant(load: int) -> Callable[[int], Held]:
    return _dipping(lambda _: load)


def _dipping(load: Held) -> Callable[[int], Held]:
    """A step now and then holds fewer requests than the load, for one that ends is not followed at once."""

    def held(seed: int) -> Held:
        dips = np.random.default_rng([seed, 1]).random(4093).tolist()
        count = 0

        def now(t: float) -> int:
            nonlocal count
            count += 1
            requests = load(t)
            mean = DIPS * requests
            return max(1, requests - int(mean * 2 * dips[count % 4093] + dips[(count * 7) % 4093]))

        return now

    return held


def _replayed(points: Sequence[tuple[float, int]]) -> Callable[[int], Held]:
    times = [t for t, _ in points]
    return lambda _: lambda t: points[max(bisect_right(times, t) - 1, 0)][1]


def _in_turn(phases: Sequence[tuple[int, Value]]) -> Callable[[float], Value]:
    """Each value for so many seconds; the last one stays."""
    ends = list(accumulate(seconds for seconds, _ in phases))
    return lambda t: phases[min(bisect_right(ends, t), len(phases) - 1)][1]
