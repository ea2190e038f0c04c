"""Acceptance: how often guesses are kept on real prompts at the serving temperature, counted in the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from tabletune.acceptance import Counts
from tabletune_tuner.engine import Engine, Watchdog
from tabletune_tuner.load import Client, Prompt, drain
from tabletune_tuner.progress import Tracker
from tabletune_tuner.texts import repeated_share, split_units

REPEATED_GROUP = 4
LEAST_JUDGED_UNITS = 20  # of an answer; fewer words say nothing
MOST_REPEATED_SHARE = 0.3  # of groups of four words within an answer, on average; prose and code have up to 0.07
PART_PROMPTS = 16
"""Answers that are counted together: parts show how far answers differ. The engine runs empty between them, so they are not smaller."""
CONCURRENCY = 8  # acceptance does not hang on the batch size; this many keeps an engine busy
POLL_SECONDS = 0.25


async def count_acceptance(
    engine: Engine,
    client: Client,
    prompts: Sequence[Prompt],
    *,
    draft_length: int,
    concurrency: int,
    max_tokens: int,
    temperature: float,
    steps_per_prompt: float,
    tracker: Tracker,
) -> tuple[tuple[Counts, ...], tuple[str, ...]]:
    """Every prompt once with the longest draft in every step, in parts: the counts of each, and the answers. Raises EngineFailureError."""
    await engine.ask("force", draftLength=draft_length, reject=False)
    answers: list[str] = []
    last = time.monotonic()

    def finished(answer: str) -> None:
        nonlocal last
        now = time.monotonic()
        answers.append(answer)
        tracker.worked(steps_per_prompt, now - last, f"prompt {len(answers)}/{len(prompts)}")
        last = now

    watchdog = Watchdog()
    parts: list[Counts] = []
    for part in split_evenly(prompts, PART_PROMPTS):
        before = await engine.seen()
        async with drain(client, part, concurrency, max_tokens, temperature, done=finished) as running:
            while running.finished < concurrency:
                await asyncio.sleep(POLL_SECONDS)
                running.check()
                watchdog.look((await engine.seen()).steps)
            running.check()
        parts.append((await engine.seen()).counts_since(before))
    return tuple(parts), tuple(answers)


def split_evenly(prompts: Sequence[Prompt], least: int) -> tuple[Sequence[Prompt], ...]:
    """As many parts of `least` prompts or more as there can be, of about one size, in order: the sample's kinds are in every part."""
    count = max(len(prompts) // least, 1)
    bounds = [len(prompts) * at // count for at in range(count + 1)]
    return tuple(prompts[first:last] for first, last in pairwise(bounds))


def judge_answers(answers: Sequence[str], temperature: float) -> tuple[str, ...]:
    """A warning when answers repeat themselves: drafts of a repetition are kept, so acceptance flatters.

    The measure is seq-rep-4 of S. Welleck et al., Neural Text Generation with Unlikelihood Training (ICLR 2020): the share of
    groups of four words that occurred earlier in the same answer. Greedy decoding is known for it.
    """
    shares = [repeated_share([units], REPEATED_GROUP) for units in split_units(answers) if len(units) >= LEAST_JUDGED_UNITS]
    if not shares or fmean(shares) <= MOST_REPEATED_SHARE:
        return ()
    share = f"{fmean(shares) * 100:.0f} %"
    said = (
        f"Answers repeat themselves ({share} of their groups of {REPEATED_GROUP} words were there before): acceptance is flattering. "
        f"Measured at temperature {temperature:g}; measure at the serving temperature, on prompts as the model is served them."
    )
    return (said,)
