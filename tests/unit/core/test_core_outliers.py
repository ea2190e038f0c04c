"""Which replicas have another traffic: told when it is so, and hardly ever when it is not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tabletune.acceptance import Counts
from tabletune.outliers import ASSUMED_DESIGN_EFFECT, design_effects, find_outliers

CODE, PROSE = (0.78, 0.58, 0.43), (0.36, 0.13, 0.05)
EFFECTS = (10.0, 10.0, 10.0)


def counts(rates: Sequence[float], drafted: int = 20_000, coverage: float = 1.0) -> Counts:
    steps = round(drafted / coverage)
    return Counts(steps, drafted, (drafted,) * len(rates), tuple(round(a * drafted) for a in rates))


def fleet(*replicas: Counts) -> dict[str, Counts]:
    return {f"decode-{at}": each for at, each in enumerate(replicas)}


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param(fleet(counts(CODE), counts((0.77, 0.57, 0.43)), counts(PROSE)), ("decode-2",), id="one of three"),
        pytest.param(fleet(*[counts(CODE)] * 8, counts(PROSE), counts(PROSE)), ("decode-8", "decode-9"), id="two of ten"),
        pytest.param(fleet(counts(CODE), counts(PROSE)), (), id="of two nobody can say which"),
        pytest.param(fleet(*[counts(CODE)] * 4), (), id="all alike"),
        pytest.param(fleet(*[counts(CODE)] * 4, counts((0.72, 0.52, 0.38))), (), id="a difference that moves no edge"),
        pytest.param(fleet(*[counts(CODE)] * 4, counts(PROSE, drafted=20)), (), id="too few to say"),
        pytest.param(fleet(*[counts(CODE)] * 4, counts(PROSE, drafted=0)), (), id="nothing counted"),
        pytest.param(fleet(*[counts(CODE)] * 4, counts(CODE, coverage=0.5)), ("decode-4",), id="drafts in half of its steps"),
        pytest.param(fleet(*[counts(CODE), counts(PROSE)] * 4), (), id="two halves: nobody is the other one"),
        pytest.param(fleet(*[counts((0.78, 0.58, 0.43))] * 4, counts((0.78, 0.58, 0.1))), ("decode-4",), id="in the last position only"),
    ],
)
def test_tells_the_replicas_with_another_traffic(replicas: dict[str, Counts], expected: tuple[str, ...]) -> None:
    assert find_outliers(replicas, EFFECTS) == expected


def test_hardly_ever_tells_one_where_all_have_the_same_traffic() -> None:
    """Answers of 30 drafts whose share of kept ones spreads by 0.2: drafts of one answer are alike, and replicas see few answers."""
    chance = random.Random(5)
    false = 0
    for _ in range(200):
        replicas = {}
        for name in "abcd":
            kept = 0
            for _ in range(30):
                share = min(1.0, max(0.0, chance.gauss(0.6, 0.2)))
                kept += sum(chance.random() < share for _ in range(30))
            replicas[name] = Counts(900, 900, (900,), (kept,))
        false += bool(find_outliers(replicas, (10.0,)))
    assert false <= 4


def test_design_effects_follow_how_far_answers_differ() -> None:
    even, uneven = [counts((0.5,), 1000)] * 8, [counts((0.3,), 1000), counts((0.7,), 1000)] * 4
    assert design_effects(even, 1) == (1.0,)
    assert design_effects(uneven, 1)[0] > 100
    assert design_effects(even[:1], 1) == (ASSUMED_DESIGN_EFFECT,)
