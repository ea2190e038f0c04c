"""Changes of draft length, tried in the engine that serves as in production before a table that makes them is compared or rolled out.

At each batch size the lengths are forced back and forth while that many requests are held; then the table itself is in force while
requests come and go one by one across its edge. The clock is the engine's own. Which changes, and which are bad: `tabletune.transitions`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

from tabletune.profile import Cell, Transition, step_times
from tabletune.table import Table
from tabletune.transitions import LEAST_TRIES, Change, changes_of, is_bad, step_micros
from tabletune_tuner.engine import Engine, EngineFailureError, Seen, Watchdog
from tabletune_tuner.load import Client, Prompt, Running, hold, random_prompts
from tabletune_tuner.progress import Tracker
from tabletune_tuner.sweep_plan import RAMP_STEPS
from tabletune_tuner.verify import drained, restart

CHANGE_STEPS = 3  # after a change: the length is chosen in the first, drafted at its end, verified in the second
RAMP_WIDTH = 2  # batch sizes on each side of an edge
PROMPT_TOKENS = 16  # prefills of long prompts would look like pauses
SHARE_OF_STEP = 0.25  # between two looks
STEPS_OF_SIZE = 2 * (LEAST_TRIES + 1) * CHANGE_STEPS  # of a batch size; the first change each way is not counted
LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 0.01, 0.05

Key = tuple[int, int, int]
"""From length, to length, batch size."""


class Pauses:
    """The longest time without a step between looks at the engine's own clock."""

    def __init__(self, step_seconds: float) -> None:
        """`step_seconds`: what a step takes there, so that a look that came late is not taken for a pause."""
        self.longest = 0.0  # seconds
        self._step_seconds = step_seconds
        self._moved: tuple[float, int] | None = None

    def look(self, uptime_seconds: float, steps: int) -> None:
        if self._moved is None:
            self._moved = (uptime_seconds, steps)
            return
        at, before = self._moved
        others = max(steps - before - 1, 0)
        self.longest = max(self.longest, uptime_seconds - at - others * self._step_seconds)
        if steps != before:
            self._moved = (uptime_seconds, steps)


@dataclass(slots=True)
class Tally:
    """What was seen of one change at one batch size."""

    tries: int = 0
    pause_seconds: float = 0.0
    failures: int = 0


class _Watch:
    """Looks at the engine while requests run in it."""

    def __init__(self, engine: Engine, step_seconds: float) -> None:
        self.running: list[Running] = []
        self._engine = engine
        self._step_seconds = step_seconds
        self._poll_seconds = min(max(SHARE_OF_STEP * step_seconds, LEAST_POLL_SECONDS), MOST_POLL_SECONDS)
        self._watchdog = Watchdog()
        self._last: Seen | None = None

    @property
    def _has_ended(self) -> bool:
        """Whether a request is over, so that the batch is smaller than it was asked to be."""
        return any(running.finished for running in self.running)

    async def see(self, B: int | None, steps: int, tally: Tally | None = None) -> bool:
        """Wait for a step with B requests (None: any), and then for more steps; False when the engine does not run so many at once.

        The longest pause meanwhile goes into `tally`, also when the engine fails.
        """
        pauses = Pauses(self._step_seconds)
        if self._last is not None:  # from before the change: an engine that stalls at once may answer late
            pauses.look(self._last.uptime_seconds, self._last.steps)
        first = await self._look(pauses)
        reached = first if B is None else None
        try:
            while True:
                await asyncio.sleep(self._poll_seconds)
                seen = await self._look(pauses)
                if reached is None and seen.batch_size_last == B and seen.steps > first.steps:
                    reached = seen
                if reached is not None and seen.steps - reached.steps >= steps:
                    return True
                if self._has_ended or seen.steps - first.steps > RAMP_STEPS + steps + (B or 0):
                    return False
        finally:
            if tally is not None:
                tally.pause_seconds = max(tally.pause_seconds, pauses.longest)

    async def _look(self, pauses: Pauses) -> Seen:
        for running in self.running:
            running.check()
        seen = await self._engine.seen()
        self._watchdog.look(seen.steps)
        pauses.look(seen.uptime_seconds, seen.steps)
        self._last = seen
        return seen


class Trials:
    """Tries the changes of one table after another; what was tried is not tried again."""

    def __init__(
        self,
        engine: Engine,
        client: Client,
        real: Sequence[Prompt],
        tracker: Tracker,
        cells: Sequence[Cell],
        *,
        max_model_len: int | None,
        on_gpu: bool,
    ) -> None:
        self._engine = engine
        self._client = client
        self._real = real
        self._tracker = tracker
        self._step_times = step_times(cells)
        self._max_model_len = max_model_len
        self._on_gpu = on_gpu
        self._tallies: dict[Key, Tally] = {}
        self._trying = (0, 0, 0)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """All that was tried, by lengths and batch size."""
        return tuple(
            Transition(a, b, B, tally.tries, round(tally.pause_seconds * 1e6), tally.failures)
            for (a, b, B), tally in sorted(self._tallies.items())
        )

    @property
    def summary(self) -> str:
        """For people."""
        if not self._tallies:
            return "no change of length to try"
        longest = max(tally.pause_seconds for tally in self._tallies.values())
        return f"{sum(tally.tries for tally in self._tallies.values())} changes tried, at most {longest * 1000:.0f} ms without a step"

    async def run(self, table: Table, explored: Sequence[int]) -> Transition | None:
        """Try what a table does and was not tried; the first bad change ends it, and is the answer.

        `explored`: the lengths that an exploring step may take. Raises FailedError when the engine does not come back.
        """
        changes = changes_of(table, explored)
        for change in changes:
            if (bad := self._find_bad(change)) is not None:
                return bad  # found before, with another table
        fresh = {change: [B for B in change.batch_sizes if (change.left, change.right, B) not in self._tallies] for change in changes}
        self._tracker.add(sum(len(sizes) * STEPS_OF_SIZE for sizes in fresh.values()), 0)
        for change, sizes in fresh.items():
            for B in sizes:
                await self._survive(change, B, partial(self._force, change, B))
                if (bad := self._find_bad(change)) is not None:
                    return bad
            if change.edge is not None and sizes:
                await self._survive(change, change.edge, partial(self._cross, table, change, change.edge))
            if (bad := self._find_bad(change)) is not None:
                return bad
        return None

    def _find_bad(self, change: Change) -> Transition | None:
        both = {change.left, change.right}
        mine = [t for t in self.transitions if {t.from_length, t.to_length} == both]
        return next((t for t in mine if is_bad(t, self._step_times, on_gpu=self._on_gpu)), None)

    async def _survive(self, change: Change, B: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again, once, when the engine failed in it, or paused: the machine's other work may take its CPU too."""
        begun = time.monotonic()
        keys = ((change.left, change.right, B), (change.right, change.left, B))
        for is_last in (False, True):
            before = {key: replace(self._tally(*key)) for key in keys}
            self._trying = keys[0]
            try:
                await work()
            except EngineFailureError as error:
                a, b, at = self._trying
                self._tally(a, b, at).failures += 1
                self._tracker.warn(f"engine failed at B={at} as k went from {a} to {b} ({error}); restarted")
                await restart(self._engine, self._tracker)
                continue
            bad = self._find_bad(change)
            if bad is None or bad.failures or is_last:
                break
            pause = f"without a step for {bad.worst_pause_micros / 1e6:.1f} s"
            self._tracker.warn(f"engine was {pause} at B={B} as k went from {bad.from_length} to {bad.to_length}; tried again")
            self._tallies |= before
        self._tracker.worked(STEPS_OF_SIZE, time.monotonic() - begun, f"B={B} k={change.left} to {change.right} and back")

    async def _force(self, change: Change, B: int) -> None:
        """Hold B requests and force the lengths in turn."""
        there, back = (change.left, change.right, B), (change.right, change.left, B)
        while (tries := self._tries(there, back)) < 2 * LEAST_TRIES:
            self._trying = there
            await self._engine.ask("force", draftLength=change.left, reject=False)
            watch = await self._watch(change, B)
            async with hold(self._client, random_prompts(self._real, B, PROMPT_TOKENS), self._tokens(change, B)) as running:
                watch.running.append(running)
                if await watch.see(B, 0):
                    await self._alternate(watch, there, back)
            if self._tries(there, back) == tries:
                a, b, _ = there
                self._tracker.warn(f"B={B}: the engine did not hold so many requests long enough to try k={a} to {b} {LEAST_TRIES} times")
                return

    async def _alternate(self, watch: _Watch, there: Key, back: Key) -> None:
        """Until both were tried often enough, or a request ended. The first time is for what is compiled or loaded at first use."""
        is_first = True
        while self._tries(there, back) < 2 * LEAST_TRIES:
            for key in (there, back):
                self._trying, tally = key, self._tally(*key)
                await self._engine.ask("force", draftLength=key[1], reject=False)
                if not await watch.see(None, CHANGE_STEPS, None if is_first else tally):
                    return
                tally.tries += not is_first
            is_first = False

    async def _cross(self, table: Table, change: Change, edge: int) -> None:
        """Put the table in force, and let requests come and go one by one across its edge."""
        await self._engine.ask("table", ranges=table.to_vllm(), hysteresis=0)
        await self._engine.ask("force", draftLength=None, reject=False)
        up, down = (change.left, change.right, edge), (change.right, change.left, edge)
        low, high = max(1, edge - RAMP_WIDTH), min(edge + RAMP_WIDTH, table.ranges[-1].last)
        prompts = random_prompts(self._real, high, PROMPT_TOKENS)
        watch, tokens = await self._watch(change, high), self._tokens(change, high)
        async with AsyncExitStack() as stack:
            watch.running.append(await stack.enter_async_context(hold(self._client, prompts[:low], tokens)))
            if not await watch.see(low, 0):
                return
            more: list[AsyncExitStack] = []
            self._trying = up
            for B in range(low + 1, high + 1):
                one = await stack.enter_async_context(AsyncExitStack())
                watch.running.append(await one.enter_async_context(hold(self._client, prompts[B - 1 : B], tokens)))
                more.append(one)
                if not await watch.see(B, CHANGE_STEPS, self._tally(*up)):
                    return
            self._tally(*up).tries += 1
            self._trying = down
            for B in range(high - 1, low - 1, -1):
                watch.running.pop()
                await more.pop().aclose()
                if not await watch.see(B, CHANGE_STEPS, self._tally(*down)):
                    return
            self._tally(*down).tries += 1

    def _tries(self, *keys: Key) -> int:
        return sum(min(self._tally(*key).tries, LEAST_TRIES) for key in keys)

    def _tally(self, a: int, b: int, B: int) -> Tally:
        return self._tallies.setdefault((a, b, B), Tally())

    async def _watch(self, change: Change, B: int) -> _Watch:
        """For requests that begin now: the engine has none of those before."""
        step_seconds = step_micros(self._step_times, (change.left, change.right), B) / 1e6
        await drained(self._engine, step_seconds)
        return _Watch(self._engine, step_seconds)

    def _tokens(self, change: Change, B: int) -> int:
        """That a request may write: enough for all tries though every guess is kept, as far as the context goes."""
        longest = max(change.left, change.right)
        wanted = (RAMP_STEPS + B + 2 * STEPS_OF_SIZE) * (longest + 1)
        return wanted if self._max_model_len is None else max(1, min(wanted, self._max_model_len - PROMPT_TOKENS - longest - 1))
