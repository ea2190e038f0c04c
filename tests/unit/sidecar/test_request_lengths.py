"""How long live requests are, from steps with a prefill."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from tabletune.regimes import Requests, prefills_per_step
from tabletune_sidecar.counters import StepCell
from tabletune_sidecar.request_lengths import RequestLengths, absorb

PROFILE = Requests(prompt_tokens=32, output_tokens=64)
TAU = 2.0


def traffic(seed: int, lengths: Requests, batch_sizes: tuple[int, ...], steps: int, before: RequestLengths | None = None) -> RequestLengths:
    """Steps in which requests of these lengths begin independently of each other, read every 200 steps."""
    random, seen = Random(seed), before or RequestLengths()
    for _ in range(steps // 200):
        cells, chosen, tokens = [], {}, 0.0
        for B in batch_sizes:
            n = prefills_per_step(B, TAU, lengths.output_tokens)
            chosen[B] = 200 // len(batch_sizes)
            begun = [_poisson(random, n) for _ in range(chosen[B])]
            tokens += chosen[B] * (B * TAU) - sum(begun) * (TAU - 1)
            prompts = sum(begun) * lengths.prompt_tokens
            cells.append(StepCell(B, 3, "prefill", sum(b > 0 for b in begun), 1, prompts))
            cells.append(StepCell(B, 3, "decode", 50, 1))
        seen = absorb(seen, cells, chosen, round(tokens))
    return seen


def _poisson(random: Random, mean: float) -> int:
    count, left = 0, random.random()
    while left > exp(-mean):
        count, left = count + 1, left * random.random()
    return count


@pytest.mark.parametrize("lengths", [Requests(40, 200), Requests(1500, 60), Requests(300, 1000)])
@pytest.mark.parametrize("batch_sizes", [(8,), (60, 96), (2, 16, 100)])
def test_finds_the_lengths_of_live_requests(lengths: Requests, batch_sizes: tuple[int, ...]) -> None:
    found = traffic(1, lengths, batch_sizes, 40_000).mean(None)
    assert found is not None
    assert found.output_tokens == pytest.approx(lengths.output_tokens, rel=0.12)
    assert found.prompt_tokens == pytest.approx(lengths.prompt_tokens, rel=0.12)


def test_the_profiles_lengths_count_until_live_requests_are_many() -> None:
    assert RequestLengths().mean(PROFILE) == PROFILE
    few = traffic(1, Requests(400, 400), (8,), 400).mean(PROFILE)
    many = traffic(1, Requests(400, 400), (8,), 40_000).mean(PROFILE)
    assert few is not None
    assert many is not None
    assert PROFILE.output_tokens < few.output_tokens < 150
    assert 330 < many.output_tokens < 420


def test_too_few_requests_say_nothing_where_the_profile_has_none() -> None:
    assert traffic(1, Requests(400, 400), (8,), 400).mean(None) is None


def test_follows_other_traffic() -> None:
    before = traffic(1, Requests(100, 100), (16,), 40_000)
    after = traffic(2, Requests(1000, 50), (16,), 120_000, before).mean(PROFILE)
    assert after is not None
    assert after.output_tokens == pytest.approx(50, rel=0.25)
    assert after.prompt_tokens == pytest.approx(1000, rel=0.25)


def test_a_prefill_in_every_step_is_no_endless_number_of_requests() -> None:
    seen = absorb(RequestLengths(), [StepCell(64, 1, "prefill", 1_000, 1, 90_000)], {64: 1_000}, 64_000)
    assert seen.share_with_prefill == 1.0
    assert 1_000 < seen.requests < 10_000


def test_counts_that_do_not_agree_stay_sane() -> None:
    """An answer is read while the engine counts: a step may be in one number and not yet in another."""
    seen = absorb(RequestLengths(), [StepCell(8, 1, "prefill", 3, 1, 90)], {8: 2}, 0)
    assert seen.share_with_prefill == 1.0
    assert seen.mean(PROFILE) is not None
    assert absorb(RequestLengths(), [StepCell(8, 1, "prefill", 3, 1, 90)], {}, 0).mean(PROFILE) is not None
