"""Starts of engines, each of which costs minutes on a GPU: which kind comes first, and what follows when the guess was wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.argv import with_speculative_config
from tabletune_tuner.engine import Engine, EngineFailureError, Hello
from tabletune_tuner.judge import Judge
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import BlockedError, FailedError
from tabletune_tuner.preflight import build_profiling_config, judge_engine
from tabletune_tuner.progress import Tracker


@dataclass(frozen=True, slots=True)
class TimingEngine:
    """An engine in which every guess can be rejected. `is_synthetic`: it does so by itself, and so cannot serve as in production."""

    hello: Hello
    is_synthetic: bool


class Starts:
    """Starts one engine after the other."""

    def __init__(self, options: Options, engine: Engine, tracker: Tracker, judge: Judge) -> None:
        self._options = options
        self._engine = engine
        self._tracker = tracker
        self._judge = judge

    async def for_timing(self) -> TimingEngine:
        """An engine that rejects every guess by itself (GPU), or lets the plugin do it (CPU).

        Raises FailedError when no such engine starts, and BlockedError when one cannot be measured.
        """
        guess = self._engine.has_gpu  # only a guess: another device may be fine with it too
        try:
            found = await self._profiling(synthetic=guess)
        except EngineFailureError as error:
            if not guess:
                raise FailedError("EngineDoesNotStart", f"The engine does not start: {error}.") from error
            self._tracker.warn(f"engine does not start with synthetic rejection ({error}); trying without")
            found = await self._profiling(synthetic=False)
        if self._cannot_reject(found.hello) and not found.is_synthetic:
            self._judge.take(judge_engine(found.hello, self._options))  # before another start is spent on it
            self._tracker.warn("the plugin cannot reject guesses in this engine; starting it with synthetic rejection")
            found = await self._profiling(synthetic=True)
        if self._cannot_reject(found.hello):
            self._judge.take(judge_engine(found.hello, self._options))
            raise BlockedError(
                "RejectNotPossible",
                "Neither the engine nor the plugin can reject every guess, so step times would depend on the prompts. "
                "Upgrade the engine; its log says what the plugin misses.",
            )
        return found

    async def serving(self, timing: TimingEngine) -> Hello:
        """An engine that serves as in production: the one that runs, where that can."""
        if not timing.is_synthetic:
            return timing.hello
        return await self.start(build_profiling_config(self._options, synthetic=False), "speculation, as in service")

    async def start(self, config: Mapping[str, Any] | None, kind: str) -> Hello:
        """An engine with this speculative config; None: without. Raises FailedError."""
        try:
            return await self._start(config, kind)
        except EngineFailureError as error:
            raise FailedError("EngineDoesNotStart", f"The engine ({kind}) does not start: {error}.") from error

    async def _profiling(self, *, synthetic: bool) -> TimingEngine:
        kind = "speculation, every guess rejected" if synthetic else "speculation"
        try:
            return TimingEngine(await self._start(build_profiling_config(self._options, synthetic=synthetic), kind), synthetic)
        except EngineFailureError:
            self._tracker.add_start()
            raise

    async def _start(self, config: Mapping[str, Any] | None, kind: str) -> Hello:
        self._tracker.enter("engine", f"starting: {kind}")
        begun = time.monotonic()
        options = self._options
        hello = await self._engine.start(with_speculative_config(options.serve_argv, config, explicit_off=options.explicit_off))
        seconds = time.monotonic() - begun
        self._tracker.started(seconds)
        self._tracker.leave(f"{kind}: ready in {seconds:.0f} s")
        return hello

    @staticmethod
    def _cannot_reject(hello: Hello) -> bool:
        return hello.active and hello.reject_by is None
