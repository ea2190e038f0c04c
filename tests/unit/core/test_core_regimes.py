"""Two regimes: how many steps carry a prefill, and what that does to goodput."""

import random
from itertools import pairwise
from statistics import mean

import pytest

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput, tau
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.regimes import PROMPT_TOKENS, PrefillCell, Prefills, Requests, bucket_of, prefills_per_step, share_with_prefill

TRAFFIC = Estimate((0.7, 0.5, 0.3), 1.0)
TIMES = {8: {1: 4000.0, 3: 5000.0}, 128: {1: 7000.0, 3: 10_000.0}}


def test_as_many_requests_begin_as_end() -> None:
    """By hand: a closed loop of 24 requests of 50 tokens each, whose guesses are kept as told."""
    rng = random.Random(7)
    rates, held, tokens = TRAFFIC.acceptance, 24, 50
    left = [0] * held  # tokens; 0: a new request, whose prefill gives the first one
    begun = []
    for _ in range(4000):
        begun.append(sum(x <= 0 for x in left))
        draws = [rng.random() for _ in left]
        left = [tokens - 1 if x <= 0 else x - 1 - sum(d < a for a in rates) for x, d in zip(left, draws, strict=True)]
    expected = prefills_per_step(held, tau(rates, 3), tokens)
    # A request that keeps more than it needs ends with fewer tokens in its last step, so a little fewer begin than the mean says.
    assert mean(begun[500:]) == pytest.approx(expected, rel=0.05)
    assert mean(n > 0 for n in begun[500:]) == pytest.approx(share_with_prefill(expected), abs=0.05)


def test_a_request_of_one_token_is_nothing_but_its_prefill() -> None:
    assert prefills_per_step(8, 1.0, 1) == 8


def test_every_number_of_prompt_tokens_has_a_bucket() -> None:
    assert [PROMPT_TOKENS[bucket_of(n)] for n in (1, 64, 65, 256, 4096, 4097, 90_000)] == [64, 64, 256, 256, 4096, 16384, 16384]


def test_goodput_counts_the_time_and_the_tokens_of_steps_with_a_prefill() -> None:
    cells = (PrefillCell(8, 1, 40, 14_000, 0, 16),)
    prefills = Prefills.of(cells, TIMES, Requests(40, 200), None)
    n = 8 * 1.7 / 200.7
    share = share_with_prefill(n)
    expected = ((8 - n) * 1.7 + n) / (4000 + share * 10_000) * 1e6
    assert predict_goodput(TIMES, TRAFFIC, prefills)[8][1] == pytest.approx(expected)


def test_without_prefills_goodput_is_that_of_decode_only_steps() -> None:
    assert Prefills.of((), TIMES, Requests(40, 200), None) is None
    assert predict_goodput(TIMES, TRAFFIC, None)[8][1] == pytest.approx(8 * 1.7 / 4000 * 1e6)


def test_what_a_prefill_adds_is_pooled_over_lengths_and_linear_between_batch_sizes() -> None:
    cells = (
        PrefillCell(8, 1, 40, 4000 + 10_000, 0, 16),
        PrefillCell(8, 3, 40, 5000 + 12_000, 0, 16),
        PrefillCell(128, 1, 40, 7000 + 13_000, 0, 16),
    )
    prefills = Prefills.of(cells, TIMES, Requests(40, 200), None)
    assert prefills is not None
    for B, extra in ((1, 11_000), (8, 11_000), (68, 12_000), (128, 13_000), (256, 13_000)):
        share = share_with_prefill(prefills_per_step(B, 2.5, 200))
        assert prefills.mean_step(B, 3, 2.5, 5000.0)[1] == pytest.approx(5000 + share * extra)


def test_above_the_largest_graph_a_prefill_costs_what_it_costs_there() -> None:
    cells = (PrefillCell(128, 1, 60, 7000 + 10_000, 0, 16), PrefillCell(128, 3, 60, 10_000 + 15_000, 0, 16))
    prefills = Prefills.of(cells, TIMES, Requests(40, 200), 512)
    assert prefills is not None
    share = share_with_prefill(prefills_per_step(128, 2.5, 200))
    assert prefills.mean_step(128, 3, 2.5, 10_000.0)[1] == pytest.approx(10_000 + share * 15_000)
    share = share_with_prefill(prefills_per_step(128, 1.7, 200))
    assert prefills.mean_step(128, 1, 1.7, 7000.0)[1] == pytest.approx(7000 + share * 10_000, rel=1e-4)  # seven prefills in a step pass it


def test_a_step_that_passes_the_largest_graph_by_its_prefill_is_told_from_one_that_passes_it_anyhow() -> None:
    """As on an H200 with 512 tokens: 22 ms more where k = 1 just fits, 4 ms more where k = 3 is past the graph already."""
    times = {32: {1: 5000.0, 3: 6000.0}, 256: {1: 11_000.0, 3: 31_000.0}}
    cells = (
        PrefillCell(32, 1, 40, 13_000, 0, 16),
        PrefillCell(256, 1, 40, 33_000, 0, 16),
        PrefillCell(256, 3, 40, 35_000, 0, 16),
    )
    prefills = Prefills.of(cells, times, Requests(40, 200), 512)
    assert prefills is not None
    assert prefills.extra_micros(32, 3, 40) == 8000
    assert prefills.extra_micros(256, 1, 40) == 22_000
    assert prefills.extra_micros(256, 3, 40) == 4000
    # Where no step was measured that passes it by its prefill, one that stays within it stands for it.
    other = Prefills.of((cells[0], cells[2]), times, Requests(40, 200), 512)
    assert other is not None
    assert other.extra_micros(256, 1, 40) == 8000


def test_a_few_more_prefills_a_step_do_not_make_all_of_them_dearer() -> None:
    """Where their mean number of prompt tokens passes the edge of a bucket, a mean step does not jump."""
    cells = (PrefillCell(88, 1, 60, 7000 + 4_000, 0, 16), PrefillCell(88, 3, 68, 9000 + 9_000, 0, 16))
    times = {88: {1: 7000.0, 3: 9000.0}}
    prefills = Prefills.of(cells, times, Requests(40, 200), None)
    assert prefills is not None
    steps = [prefills.mean_step(88, 1, 1.5 + 0.01 * i, 7000.0)[1] for i in range(100)]
    rises = [after - before for before, after in pairwise(steps)]
    assert min(rises) > 0
    assert max(rises) < 30


def test_takes_the_nearest_bucket_of_prompt_tokens() -> None:
    cells = (PrefillCell(8, 1, 40, 5000, 0, 16), PrefillCell(8, 1, 900, 54_000, 0, 16))
    for prompt, extra in ((40, 1000), (700, 50_000), (30_000, 50_000)):
        prefills = Prefills.of(cells, TIMES, Requests(prompt, 200), None)
        assert prefills is not None
        share = share_with_prefill(prefills_per_step(8, 1.7, 200))
        assert prefills.mean_step(8, 1, 1.7, 4000.0)[1] == pytest.approx(4000 + share * extra, rel=1e-4)


def test_a_profile_without_lengths_of_requests_predicts_decode_only() -> None:
    profile = Profile(
        Fingerprint.of({}),
        {"captureSizes": [1, 512]},
        Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"),
        (Cell(8, 1, 4000, 0, 64),),
        (Cell(8, 0, 3500, 0, 64),),
        (),
        0,
        prefill=(PrefillCell(8, 1, 40, 14_000, 0, 16),),
        requests=Requests(40, 200),
    )
    known = profile.prefills()
    assert known is not None
    assert known.ceiling == 512
    assert profile.baseline_prefills() == known  # not measured there: what they add with speculation
    unknown = Profile(profile.fingerprint, {}, profile.measurement, profile.cells, profile.baseline, (), 0, prefill=profile.prefill)
    assert unknown.prefills() is None
    assert unknown.baseline_prefills() is None
