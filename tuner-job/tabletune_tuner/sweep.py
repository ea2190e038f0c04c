"""The sweep: step times T(B, k), by forcing k in an engine that rejects every guess and holds B requests.

One batch of B requests serves every k of a repeat, so that prompts are computed once. The clock is the engine's own, and so
is the batch size: a cell is sampled when the engine says that it ran steps of B decoding requests with k drafts each.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any

from tabletune.profile import Cell, SkippedCell, step_times
from tabletune.regimes import PrefillCell
from tabletune_tuner.engine import Engine, EngineFailureError, Watchdog
from tabletune_tuner.load import Client, Prompt, Running, hold, random_prompts
from tabletune_tuner.outcome import FailedError
from tabletune_tuner.prefills import measure_prefills
from tabletune_tuner.progress import Tracker
from tabletune_tuner.sweep_plan import (
    LEAST_STEPS,
    RAMP_STEPS,
    Room,
    Sample,
    SweepPlan,
    SweepResult,
    cannot_win,
    error_of,
    floor_of,
    has_enough,
    is_settled,
    lengths_at_once,
    most_edges,
    next_edge,
    next_look,
    noise_ppm,
    order_of,
    prefill_batch_sizes,
    prefill_lengths,
    summarise,
    tokens_needed,
)

TRIES = 2  # for a cell whose engine dies, or whose requests end too early
MAX_FAILURES = 4  # of the engine in a row, without a cell in between
LEAST_POLL_SECONDS = 0.01
MOST_POLL_SECONDS = 0.25
PATIENCE = 6  # times the steps of a cell, without one sample, until it counts as not reached


class NotReachedError(Exception):
    """The engine never ran the cell. The message is the reason in words, without a full stop."""


class EndedEarlyError(NotReachedError):
    """All requests ended before enough steps were seen."""


class Sweep:
    """Measures all cells of a plan; the engine may die meanwhile."""

    def __init__(self, engine: Engine, client: Client, plan: SweepPlan, *, room: Room, real: Sequence[Prompt], tracker: Tracker) -> None:
        self._engine = engine
        self._client = client
        self._plan = plan
        self._room = room
        self._real = real
        self._tracker = tracker
        self._samples: dict[tuple[int, int], list[Sample]] = defaultdict(list)
        self._deaths: dict[tuple[int, int], int] = defaultdict(int)
        self._ended_early: dict[tuple[int, int], int] = defaultdict(int)
        self._skipped: dict[tuple[int, int], str] = {}
        self._failures = 0
        self._cells: list[Cell] = []
        self._steps_planned = 0
        self._steps_saved = 0

    async def run(self) -> SweepResult:
        """The grid, and batch sizes between its points where the best length changes.

        Raises FailedError when the engine keeps dying, or nothing could be measured.
        """
        for B in self._plan.batch_sizes:
            await self._row(B)
        if not self._cells:
            reasons = "; ".join(sorted(set(self._skipped.values())))
            raise FailedError("NoCells", f"Not one cell could be measured: {reasons}.")
        if self._plan.lengths is not None:
            await self._refine()
        cells = sorted(self._cells, key=lambda c: (c.batch_size, c.draft_length))
        skipped = tuple(SkippedCell(B, k, why) for (B, k), why in sorted(self._skipped.items()))
        return SweepResult(tuple(cells), () if self._plan.lengths is None else skipped, self._steps_planned, self._steps_saved)

    async def run_prefills(self, answer: int) -> tuple[PrefillCell, ...]:
        """Steps that carry a prefill, at a few batch sizes of the grid; `answer`: tokens of an answer, at most.

        A batch size whose engine dies is left out. Raises FailedError when the engine does not come back.
        """
        times = step_times(self._cells)
        found: list[PrefillCell] = []
        for B in prefill_batch_sizes(self._plan):
            decode = {k: round(times[B][k]) for k in prefill_lengths(self._plan) if k in times.get(B, {})}
            if not decode:
                continue
            try:
                cells = await measure_prefills(
                    self._engine,
                    self._client,
                    self._real,
                    batch_size=B,
                    decode=decode,
                    forces=self._plan.lengths is not None,
                    steps=self._plan.steps,
                    answer=answer,
                )
            except EngineFailureError as error:
                self._tracker.warn(f"engine failed at B={B} with prefills ({error}); restarted, this batch size is left out")
                await self._revive()
                continue
            found += cells
            texts = [f"k={c.draft_length} {c.step_time_micros / 1000:.2f} ms at {c.prompt_tokens} prompt tokens" for c in cells]
            self._tracker.moved(f"B={B} with a prefill: {', '.join(texts) or 'too few steps had one'}")
        return tuple(found)

    async def _row(self, B: int) -> None:
        """All cells of one batch size."""
        for repeat in range(self._plan.repeats):
            await self._measure(B, repeat)
        for k in self._plan.cells:
            self._cells += self._finish(B, k)

    async def _refine(self) -> None:
        tried = set(self._plan.batch_sizes)
        for _ in range(most_edges(self._plan.batch_sizes)):
            B = next_edge(step_times(self._cells), noise_ppm(self._cells) / 1_000_000, tried)
            if B is None:
                return
            tried.add(B)
            row = len(self._plan.cells) + 1  # the engine without speculation follows
            self._tracker.add(self._plan.steps * self._plan.repeats * row, row)
            await self._row(B)

    def _finish(self, B: int, k: int) -> list[Cell]:
        baseline = self._plan.lengths is None
        if (B, k) in self._skipped:
            self._tracker.cell_done(None, f"{_name(B, k, baseline=baseline)} left out: {self._skipped[B, k]}")
            return []
        cell = summarise(B, k, self._samples[B, k])
        share = 100 * cell.spread_micros / cell.step_time_micros
        text = f"{_name(B, k, baseline=baseline)} {cell.step_time_micros / 1000:.2f} ms spread {share:.1f} %"
        self._tracker.cell_done(cell, text, is_baseline=baseline)
        return [cell]

    async def _measure(self, B: int, repeat: int) -> None:
        """One repeat of all draft lengths at one batch size."""
        at_once = lengths_at_once(self._plan, B, self._room)
        floor = floor_of(self._cells)
        pending = [k for k in order_of(self._plan.cells, repeat) if (B, k) not in self._skipped]
        self._steps_planned += self._plan.steps * len(pending)
        known = {k: median(s.step_time_micros for s in self._samples[B, k]) for k in pending if self._samples[B, k]}
        rivals = [k for k in known if self._plan.stays_within(B, k)]
        enough = [k for k in pending if has_enough(self._samples[B, k], floor) or (k in known and cannot_win(known, k, rivals))]
        self._save(self._plan.steps * len(enough))
        pending = [k for k in pending if k not in enough]
        if not at_once:
            for k in pending:
                self._skip(B, k, f"{B} requests of this length do not fit into the engine's context or KV cache")
            return
        while pending:
            begun, first = time.monotonic(), pending[0]
            try:
                async for k, sample in self._wave(B, pending[:at_once], floor):
                    self._samples[B, k].append(sample)
                    pending.remove(k)
                    self._failures = 0
                    now = time.monotonic()
                    name = _name(B, k, baseline=self._plan.lengths is None)
                    self._tracker.worked(sample.count, now - begun, f"{name} repeat {repeat + 1}/{self._plan.repeats}")
                    self._save(max(self._plan.steps - sample.count, 0))
                    begun = now
            except NotReachedError as error:
                # Another than the first had fewer tokens left than it needs, and is tried with requests of its own.
                if pending[0] == first and self._missed(B, first, error):
                    self._skip(B, pending.pop(0), str(error))
            except EngineFailureError as error:
                if self._died(B, pending[0], error):
                    pending.pop(0)
                await self._revive()

    def _save(self, steps: int) -> None:
        self._steps_saved += steps
        self._tracker.drop(steps)

    def _skip(self, B: int, k: int, reason: str) -> None:
        self._tracker.drop(self._plan.steps * self._plan.repeats)
        self._skipped[B, k] = reason

    def _missed(self, B: int, k: int, error: NotReachedError) -> bool:
        """Note a cell that was not reached; tell whether it is given up. Requests that ended too early say nothing of the engine the first
        time: the machine was busy with something else while they ran.
        """
        if not isinstance(error, EndedEarlyError):
            return True
        self._ended_early[B, k] += 1
        return self._ended_early[B, k] >= TRIES

    def _died(self, B: int, k: int, error: EngineFailureError) -> bool:
        """Note a failure; tell whether the cell is given up."""
        self._deaths[B, k] += 1
        given_up = self._deaths[B, k] >= TRIES
        if given_up:
            self._skip(B, k, f"the engine failed here {TRIES} times: {error}")
        fate = "cell is left out" if given_up else "cell is measured again"
        self._tracker.warn(
            f"engine failed at {_name(B, k, baseline=self._plan.lengths is None)} ({error}); restarted, {fate}, sweep goes on"
        )
        return given_up

    async def _revive(self) -> None:
        while True:
            self._failures += 1
            if self._failures > MAX_FAILURES:
                cause = await self._engine.cause_of_death()
                raise FailedError("EngineKeepsDying", f"The engine failed {self._failures} times in a row: {cause}.")
            self._tracker.add_start()
            begun = time.monotonic()
            try:
                await self._engine.restart()
            except EngineFailureError as error:
                self._tracker.warn(f"engine did not start again ({error})")
            else:
                self._tracker.started(time.monotonic() - begun)
                return

    async def _wave(self, B: int, lengths: Sequence[int], floor: float) -> AsyncIterator[tuple[int, Sample]]:
        """Hold B requests, and give one sample after the other."""
        prompts = random_prompts(self._real, B, self._plan.prompt_tokens)
        if self._plan.lengths is not None:
            await self._engine.ask("force", draftLength=lengths[0], reject=True)
        async with hold(self._client, prompts, tokens_needed(self._plan, B, len(lengths))) as running:
            for k in lengths:
                if self._plan.lengths is not None:
                    await self._engine.ask("force", draftLength=k, reject=True)
                yield k, await self._sample(B, k, running, floor)

    async def _sample(self, B: int, k: int, running: Running, floor: float) -> Sample:
        """As many steps as it takes to know their median within the noise floor, or all that were planned or that requests lasted."""
        await self._engine.ask("record", on=True)
        first = await self._engine.seen()
        before = _count(await self._cell(B, k))
        watchdog = Watchdog()
        largest = 0
        pause = LEAST_POLL_SECONDS
        wanted = min(LEAST_STEPS, self._plan.steps)
        while True:
            await asyncio.sleep(pause)
            running.check()
            seen = await self._engine.seen()
            watchdog.look(seen.steps)
            largest = max(largest, seen.batch_size_last)
            cell = await self._cell(B, k)
            samples = _count(cell) - before
            if samples >= wanted and cell is not None:
                if samples >= self._plan.steps or is_settled(cell["medianMicros"], cell["spreadMicros"], samples, floor):
                    return _sample_of(cell, samples)
                wanted = next_look(samples, self._plan.steps)
            steps = seen.steps - first.steps
            if running.finished:
                running.check()  # what ended since the last look may have failed
                if samples >= min(LEAST_STEPS, self._plan.steps) and cell is not None:
                    return _sample_of(cell, samples)
                raise EndedEarlyError(f"requests ended after {samples} of {self._plan.steps} steps with this draft length")
            if not samples and steps > RAMP_STEPS + B + PATIENCE * self._plan.steps:
                raise NotReachedError(f"the engine ran at most {largest} requests at once with this draft length")
            if steps:
                a_step = (seen.uptime_seconds - first.uptime_seconds) / steps
                pause = min(max((wanted - samples) * a_step / 4, LEAST_POLL_SECONDS), MOST_POLL_SECONDS)

    async def _cell(self, B: int, k: int) -> dict[str, Any] | None:
        answer = await self._engine.ask("steps")
        wanted = (B, k, "decode")
        return next((c for c in answer["cells"] if (c["batchSize"], c["draftLength"], c["regime"]) == wanted), None)


def _sample_of(cell: dict[str, Any], samples: int) -> Sample:
    return Sample(cell["medianMicros"], samples, error_of(cell["spreadMicros"], samples))


def _count(cell: dict[str, Any] | None) -> int:
    return 0 if cell is None else int(cell["count"])


def _name(B: int, k: int, *, baseline: bool) -> str:
    return f"B={B} off" if baseline else f"B={B} k={k}"
