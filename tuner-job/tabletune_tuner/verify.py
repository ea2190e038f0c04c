"""The live comparison: candidates against each other on real prompts, at a few loads, in the same engine and in turn.

Every window of a load and repeat sees the same prompts in the same order, whatever candidate or engine it is for, and from as many
processes. Windows of the candidates take turns, so that a slow drift of the machine favours none.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tabletune.verdict import Arm, Load, Predicted
from tabletune_tuner.build import OFF, Candidate, same_in_window
from tabletune_tuner.clients import Clients
from tabletune_tuner.engine import Engine, EngineFailureError, Seen, Watchdog
from tabletune_tuner.load import Flow
from tabletune_tuner.noise import spreads
from tabletune_tuner.outcome import FailedError
from tabletune_tuner.progress import Tracker

WINDOW_FACTOR = 3  # steps of a window, in output tokens of a cell: a few requests come and go in it
GPU_WINDOW_SECONDS = 10
"""A fast engine makes a window's steps in a second, too short against clocks and stalls. Three such windows of each arm at four loads take
six minutes on an H200 and differ by 2 to 4 % (docs/results.md)."""
A_STEP_SECONDS = 0.01  # to plan with
POLL_SECONDS = 0.05
QUIET_SECONDS = 0.3  # without a step: the engine has no request any more
QUIET_STEPS = 5  # the same in step times, where these are long
BEGIN_STEPS = 4  # windows: an engine that by then never ran all requests at once will not
LEAST_SHARE = 0.9  # of the load, that the mean batch size of a window may be


@dataclass(frozen=True, slots=True)
class Traffic:
    """How the real prompts are asked, and how long a window is: so many steps, and at least so many seconds."""

    max_tokens: int
    temperature: float
    window_steps: int
    window_seconds: float

    @property
    def planned_steps(self) -> float:
        """Steps of a window, as far as they can be known before."""
        return max(self.window_steps, self.window_seconds / A_STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class Window:
    """What one window saw."""

    tokens_per_second: float
    batch_size: float  # mean over its steps
    step_seconds: float  # mean
    prefill_share: float = 0.0  # of its steps, those that carried a prefill
    prefill_seconds: float = 0.0  # mean of those

    def is_of(self, B: int) -> bool:
        """Whether its steps were of this load: never more requests, and no fewer than come and go."""
        return min(B - 1, LEAST_SHARE * B) <= self.batch_size <= B

    def __str__(self) -> str:
        rate = f"{self.tokens_per_second:,.1f} tokens/s"
        if not self.prefill_share:
            return rate
        return f"{rate} ({self.prefill_share:.0%} of steps with a prefill, {self.prefill_seconds * 1000:.1f} ms)"


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a window stands in the comparison, and how it is asked."""

    B: int
    repeat: int
    traffic: Traffic


Windows = dict[tuple[str, int], list[Window]]
"""Of each repeat, by candidate and batch size."""


class Comparison:
    """Measures windows on one engine after the other, and keeps them."""

    def __init__(self, traffic: Traffic, loads: Sequence[int], repeats: int, tracker: Tracker) -> None:
        self._traffic = traffic
        self._loads = loads
        self._repeats = repeats
        self._tracker = tracker
        self._windows: Windows = defaultdict(list)
        self._measured_as: dict[tuple[str, int], str] = {}  # candidate that does the same at this batch size
        self._step_seconds = 0.0  # of the last window

    async def measure(self, engine: Engine, clients: Clients, candidates_at: Mapping[int, Sequence[Candidate]]) -> None:
        """The candidates of each load on an engine with speculation, in turn. Those that do the same at a load are measured once there."""
        await self._warm_up(engine, clients)
        for B in self._loads:
            candidates = candidates_at[B]
            distinct: list[Candidate] = []
            for candidate in candidates:
                if not any(same_in_window(candidate.table, other.table, B) for other in distinct):
                    distinct.append(candidate)
            for repeat in range(self._repeats):
                turn = repeat % len(distinct)
                for candidate in (*distinct[turn:], *distinct[:turn]):
                    await self._window(engine, clients, candidate, B=B, repeat=repeat)
            for candidate in candidates:
                same = next(other for other in distinct if same_in_window(candidate.table, other.table, B))
                self._measured_as[candidate.name, B] = same.name
            self._tell(B, [candidate.name for candidate in candidates])

    async def measure_as_is(self, engine: Engine, clients: Clients, name: str) -> None:
        """An engine as it was started: without speculation, or with the present setting."""
        await self._warm_up(engine, clients)
        for B in self._loads:
            for repeat in range(self._repeats):
                await self._window(engine, clients, name, B=B, repeat=repeat)
            self._tell(B, [name])

    def loads(
        self, settings: Mapping[str, str], here: Mapping[int, Candidate], predicted: Mapping[tuple[str, int], Predicted]
    ) -> tuple[Load, ...]:
        """What was measured, by load; `settings` says what each arm ran. An arm without a setting ran as no speculation does.

        Args:
            settings: by arm, the same at every load.
            here: the load's own fixed length, where there is one.
            predicted: by arm and batch size.
        """

        def arm(name: str, B: int, setting: str | None = None) -> Arm:
            name = name if setting or name in settings else OFF
            windows = self._windows_of(name, B)
            rate, micros = median(w.tokens_per_second for w in windows), round(median(w.step_seconds for w in windows) * 1e6)
            spread = spread_at[B][self._measured_as.get((name, B), name)]
            return Arm(rate, spread, setting or settings[name], micros, predicted.get((name, B)))

        spread_at = {B: self._spreads(B) for B in self._loads}
        return tuple(
            Load(
                B,
                arm("table", B),
                arm("present", B),
                arm("fixed", B),
                arm(OFF, B),
                arm(here[B].name, B, here[B].setting) if B in here else None,
            )
            for B in self._loads
        )

    def _windows_of(self, name: str, B: int) -> list[Window]:
        return self._windows[self._measured_as.get((name, B), name), B]

    def _spreads(self, B: int) -> dict[str, float]:
        return spreads({name: [w.tokens_per_second for w in windows] for (name, at), windows in self._windows.items() if at == B})

    def _tell(self, B: int, names: Sequence[str]) -> None:
        rates = ", ".join(f"{name} {median(w.tokens_per_second for w in self._windows_of(name, B)):,.1f}" for name in names)
        self._tracker.moved(f"B={B}: {rates} tokens/s")

    async def _warm_up(self, engine: Engine, clients: Clients) -> None:
        """A short window that does not count: the first requests of their kind meet caches that are cold, and would make one arm slow."""
        short = replace(self._traffic, window_seconds=0.0)
        await self._try(engine, clients, None, _Spot(self._loads[0], 0, short), "warm-up")

    async def _window(self, engine: Engine, clients: Clients, arm: Candidate | str, *, B: int, repeat: int) -> None:
        """One window of a candidate, or (by name) of the engine as it is."""
        candidate, name = (arm, arm.name) if isinstance(arm, Candidate) else (None, arm)
        begun, spot = time.monotonic(), _Spot(B, repeat, self._traffic)
        window = await self._try(engine, clients, candidate, spot, name)
        if not window.is_of(B):
            window = await self._try(engine, clients, candidate, spot, name)
            if not window.is_of(B):
                self._tracker.warn(f"B={B} {name}: the engine ran {window.batch_size:.1f} requests at once on average, in two tries")
        self._windows[name, B].append(window)
        text = f"B={B} {name} {window} repeat {repeat + 1}/{self._repeats}"
        self._tracker.worked(self._traffic.planned_steps, time.monotonic() - begun, text)

    async def _try(self, engine: Engine, clients: Clients, candidate: Candidate | None, spot: _Spot, name: str) -> Window:
        """One window, though the engine may die once in it."""
        try:
            return await self._measure(engine, clients, candidate, spot)
        except EngineFailureError as error:
            self._tracker.warn(f"engine failed at B={spot.B} {name} ({error}); restarted, measured again")
            await restart(engine, self._tracker)
        try:
            return await self._measure(engine, clients, candidate, spot)
        except EngineFailureError as error:
            raise FailedError("EngineKeepsDying", f"The engine failed twice at B={spot.B} on real prompts: {error}.") from error

    async def _measure(self, engine: Engine, clients: Clients, candidate: Candidate | None, spot: _Spot) -> Window:
        if candidate is not None:
            await engine.ask("table", ranges=candidate.table.to_vllm(), hysteresis=0)
            await engine.ask("force", draftLength=None, reject=False)
        t, B = spot.traffic, spot.B
        flow = Flow(B, (spot.repeat * len(clients.prompts)) // self._repeats, t.max_tokens, t.temperature)
        idle = await drained(engine, self._step_seconds)
        async with clients.keep(flow) as running:
            watchdog = Watchdog()
            first: Seen | None = None
            before = (0, 0)
            while True:
                await asyncio.sleep(POLL_SECONDS)
                running.check()
                seen = await engine.seen()
                watchdog.look(seen.steps)
                if first is None:
                    # Waiting for a batch that never comes would take for ever; what was run then tells.
                    late = seen.steps - idle.steps > B + BEGIN_STEPS * t.window_steps
                    if seen.batch_size_last == B or late:
                        before, first = await _prefilled(engine), await engine.seen()
                    continue
                steps, seconds = seen.steps - first.steps, seen.uptime_seconds - first.uptime_seconds
                if steps >= t.window_steps and seconds >= t.window_seconds:
                    self._step_seconds = seconds / steps
                    tokens, batch_size = seen.tokens - first.tokens, seen.mean_batch_size_since(first)
                    share, each = _since(before, await _prefilled(engine), steps)
                    return Window(tokens / seconds, batch_size, self._step_seconds, share, each)


async def _prefilled(engine: Engine) -> tuple[int, int]:
    """Steps that carried a prefill since the engine's start, and their microseconds."""
    cells = [cell for cell in (await engine.ask("steps"))["cells"] if cell["regime"] == "prefill"]
    return sum(cell["count"] for cell in cells), sum(cell["totalMicros"] for cell in cells)


def _since(before: tuple[int, int], after: tuple[int, int], steps: int) -> tuple[float, float]:
    """Share of the steps that carried a prefill, and their mean seconds."""
    count, micros = after[0] - before[0], after[1] - before[1]
    return min(count / steps, 1.0), micros / count / 1e6 if count else 0.0


async def drained(engine: Engine, step_seconds: float) -> Seen:
    """Wait until the engine has no request of an earlier wave: it hears of their end later than their client."""
    quiet = max(QUIET_SECONDS, QUIET_STEPS * step_seconds)
    last, since = await engine.seen(), time.monotonic()
    while time.monotonic() - since < quiet:
        await asyncio.sleep(POLL_SECONDS)
        seen = await engine.seen()
        if seen.steps != last.steps:
            last, since = seen, time.monotonic()
    return last


async def restart(engine: Engine, tracker: Tracker) -> None:
    tracker.add_start()
    begun = time.monotonic()
    try:
        await engine.restart()
    except EngineFailureError as error:
        raise FailedError("EngineKeepsDying", f"The engine does not start again: {error}.") from error
    tracker.started(time.monotonic() - begun)
