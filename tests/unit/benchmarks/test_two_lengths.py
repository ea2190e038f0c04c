"""The arithmetic of a length for each regime."""

from __future__ import annotations

import pytest
from benchmarks.regimes.recorded import ACCEPTANCE
from benchmarks.regimes.two_lengths import Known, Regimes, best_pair, best_single, gain, goodput

from tabletune.goodput import tau
from tabletune.regimes import Requests, prefills_per_step, share_with_prefill

REQUESTS = Requests(prompt_tokens=40, output_tokens=200)
DECODE = {1: 6_000.0, 3: 9_000.0}


def regimes(added: dict[int, float]) -> Regimes:
    return Regimes(64, (1, 3), DECODE.__getitem__, lambda k, _: DECODE[k] + added[k])


def test_one_length_for_both_is_what_the_core_predicts() -> None:
    gained = tau(ACCEPTANCE.acceptance, 3)
    n = prefills_per_step(64, gained, 200)
    micros = 9_000 + share_with_prefill(n) * 10_000
    expected = ((64 - n) * gained + n) / micros * 1e6
    assert goodput(regimes({1: 10_000.0, 3: 10_000.0}), (3, 3), REQUESTS, Known()) == pytest.approx(expected)


def test_what_a_prefill_adds_to_every_length_asks_for_no_second_length() -> None:
    alike = regimes({1: 10_000.0, 3: 10_000.0})
    assert best_pair(alike, REQUESTS, Known()) == best_single(alike, REQUESTS)


def test_a_prefill_that_is_dear_with_long_drafts_alone_asks_for_one() -> None:
    uneven = regimes({1: 10_000.0, 3: 25_000.0})
    assert best_pair(uneven, REQUESTS, Known()) == (3, 1)
    assert gain(uneven, (3, 1), best_single(uneven, REQUESTS), REQUESTS, Known()) > 0.01


def test_knowing_nothing_of_the_regime_gains_nothing() -> None:
    uneven = regimes({1: 10_000.0, 3: 25_000.0})
    always_the_decode_length = Known(with_prefill=0.0, decode_only=1.0)
    assert gain(uneven, (3, 1), (3, 3), REQUESTS, always_the_decode_length) == pytest.approx(0.0)
