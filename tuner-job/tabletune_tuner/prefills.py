"""Steps that carry a prefill: requests on real prompts end and begin, while their number is held.

Every guess is rejected as in the rest of the sweep, so a request lasts as many steps as its answer has tokens. Answers are so long that
a request ends in about every second step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.regimes import PrefillCell
from tabletune_tuner.engine import Engine, Seen, Watchdog
from tabletune_tuner.load import Client, Flow, Prompt, Running, keep
from tabletune_tuner.sweep_plan import RAMP_STEPS

POLL_SECONDS = 0.05
LEAST_ANSWER = 16  # tokens
ANSWER_PER_REQUEST = 2  # tokens, times the batch size
LEAST_STEPS = 16  # with a prefill, for each length
LEAST_SECONDS = 1.5  # of a window: a fast engine has so many in a quarter of a second, which one pause of the machine spoils
ASK_SECONDS = 0.5  # between two looks at all cells, whose answer keeps the engine's thread waiting for milliseconds
LEAST_SAMPLES = 3  # of a bucket of prompt tokens
SETTLE_STEPS = 4  # after another length is forced
LEAST_SHARE = 0.8  # of the batch size, that a step must have to count: one request ends before the next begins
PATIENCE_STEPS = 400  # of a window, besides those of two answers

Cells = Mapping[tuple[int, int, str, int], dict[str, Any]]
"""The engine's cells by batch size, draft length, regime and bucket of prompt tokens (0 without a prefill)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of one cell in a window; times in microseconds."""

    count: int
    median: float
    spread: float
    prompt_tokens: int  # in all of them


async def measure_prefills(
    engine: Engine,
    client: Client,
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    decode: Mapping[int, int],
    forces: bool,
    steps: int,
    answer: int,
) -> list[PrefillCell]:
    """Cells of one batch size; none where too few steps had a prefill.

    Args:
        prompts: asked in turn.
        batch_size: requests to hold.
        decode: `T(B, k)` of decode-only steps in microseconds, by the draft lengths to measure.
        forces: the engine speculates, so that a length can be forced.
        steps: with a prefill, for each length, at least; more than 16 are not asked for.
        answer: tokens that an answer may have at most.

    Raises:
        EngineFailureError: the engine died or hangs.
    """

    async def is_full(first: Seen, now: Seen) -> bool:
        return now.batch_size_last >= LEAST_SHARE * batch_size or now.steps - first.steps > tokens

    tokens = min(answer, max(LEAST_ANSWER, ANSWER_PER_REQUEST * batch_size))
    cells: list[PrefillCell] = []
    if forces:
        await engine.ask("force", draftLength=min(decode), reject=True)
    async with keep(client, prompts, Flow(batch_size, 0, tokens, 0.0)) as running:
        await _look_until(engine, running, is_full)
        # The last of the first requests come many at once, as they do not later.
        await _look_until(engine, running, _after(min(batch_size, RAMP_STEPS)))
        for k, micros in sorted(decode.items()):
            if forces:
                await engine.ask("force", draftLength=k, reject=True)
            await _look_until(engine, running, _after(SETTLE_STEPS))
            await engine.ask("record", on=True)
            before = await _cells(engine)
            wanted, patience = min(steps, LEAST_STEPS), PATIENCE_STEPS + 2 * tokens
            after = await _window(engine, running, before, batch_size=batch_size, draft_length=k, steps=wanted, patience=patience)
            cells += summarise(batch_size, k, micros, before, after)
    return cells


def summarise(batch_size: int, draft_length: int, decode: float, before: Cells, after: Cells) -> list[PrefillCell]:
    """What a window's steps with a prefill took, by bucket, and with what those beside them differ from `decode` counted in."""
    stretches = _stretches(batch_size, draft_length, before, after)
    prefills = _count_prefills(stretches)
    beside = sum(s.count * (s.median - decode) for (_, bucket), group in stretches.items() if not bucket for s in group)
    cells: list[PrefillCell] = []
    for (regime, _), group in sorted(stretches.items()):
        count = sum(s.count for s in group)
        if regime == "prefill" and count >= LEAST_SAMPLES:
            cells.append(
                PrefillCell(
                    batch_size=batch_size,
                    draft_length=draft_length,
                    prompt_tokens=max(round(sum(s.prompt_tokens for s in group) / count), 1),
                    step_time_micros=max(round(_mean(group, "median") + beside / prefills), 1),
                    spread_micros=round(_mean(group, "spread")),
                    samples=count,
                )
            )
    return cells


def _count_prefills(stretches: Mapping[tuple[str, int], Sequence[Stretch]]) -> int:
    """Steps with a prefill among them."""
    return sum(s.count for (_, bucket), group in stretches.items() if bucket for s in group)


def _stretches(batch_size: int, draft_length: int, before: Cells, after: Cells) -> dict[tuple[str, int], list[Stretch]]:
    """Steps between two looks that had nearly all requests, by regime and bucket; without settled decode-only ones."""
    found: dict[tuple[str, int], list[Stretch]] = defaultdict(list)
    for key, cell in after.items():
        B, k, regime, bucket = key
        earlier = before.get(key, {"count": 0, "totalPromptTokens": 0})
        count = cell["count"] - earlier["count"]
        if count and k == draft_length and regime != "decode" and LEAST_SHARE * batch_size <= B <= batch_size:
            prompt_tokens = cell["totalPromptTokens"] - earlier["totalPromptTokens"] if bucket else 0
            found[regime, bucket].append(Stretch(count, cell["medianMicros"], cell["spreadMicros"], prompt_tokens))
    return found


def _mean(group: Sequence[Stretch], name: str) -> float:
    return sum(s.count * float(getattr(s, name)) for s in group) / sum(s.count for s in group)


async def _window(
    engine: Engine, running: Running, before: Cells, *, batch_size: int, draft_length: int, steps: int, patience: int
) -> Cells:
    """Look until so many steps had a prefill and enough time passed, or too many steps did."""
    after, ask_at = before, LEAST_SECONDS

    async def is_over(first: Seen, now: Seen) -> bool:
        nonlocal after, ask_at
        seconds, is_spent = now.uptime_seconds - first.uptime_seconds, now.steps - first.steps > patience
        if seconds < ask_at and not is_spent:
            return False
        after, ask_at = await _cells(engine), seconds + ASK_SECONDS
        return is_spent or _count_prefills(_stretches(batch_size, draft_length, before, after)) >= steps

    await _look_until(engine, running, is_over)
    return after


async def _look_until(engine: Engine, running: Running, is_over: Callable[[Seen, Seen], Awaitable[bool]]) -> None:
    """Look at the engine until something is true of the first and the last look."""
    first = await engine.seen()
    watchdog = Watchdog()
    while True:
        await asyncio.sleep(POLL_SECONDS)
        running.check()
        now = await engine.seen()
        watchdog.look(now.steps)
        if await is_over(first, now):
            return


def _after(steps: int) -> Callable[[Seen, Seen], Awaitable[bool]]:
    """Whether so many steps passed."""

    async def have_passed(first: Seen, now: Seen) -> bool:
        return now.steps - first.steps >= steps

    return have_passed


async def _cells(engine: Engine) -> Cells:
    answer = await engine.ask("steps")
    return {(c["batchSize"], c["draftLength"], c["regime"], c.get("promptTokens", 0)): c for c in answer["cells"]}
