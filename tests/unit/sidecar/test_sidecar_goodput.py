"""Goodput of the table in force against its prediction, over a window of recent readings."""

from __future__ import annotations

import pytest
from sidecar_cases import CODE, CODE_TABLE, profile

from tabletune.acceptance import Estimate
from tabletune.goodput import tau
from tabletune.table import Table
from tabletune_sidecar.counters import Counters, StepCell
from tabletune_sidecar.goodput import HALF_WINDOW_SECONDS, Goodput, Reading, Window, advance, measure, read

TRAFFIC = Estimate(CODE, 1.0)
TABLE_A, TABLE_B = ("boot-1", "A"), ("boot-1", "B")
MICROS = {B: profile().step_times()[B][3] for B in (8, 64)}
TAU = tau(CODE, 3)


def reading(
    steps: dict[int, int], *, slower: float = 1.0, better: float = 1.0, told: float = 1.0, of: tuple[str, str] = TABLE_A, at: float = 0.0
) -> Reading:
    """After so many steps of 3 drafts by batch size: `slower` than the profile, `better` in tokens, `told` the share that is in a cell."""
    tokens = sum(round(n * B * TAU * better) for B, n in steps.items())
    counters = Counters(steps=sum(steps.values()), tokens=tokens, chosen={(B, 3): n for B, n in steps.items()})
    cells = [
        StepCell(B, 3, "decode", round(n * told), round(round(n * told) * MICROS.get(B, 1.0) * slower)) for B, n in steps.items() if told
    ]
    return read(of, at, counters, cells)


def measured(*readings: Reading, rolled_out: Table = CODE_TABLE) -> Goodput | None:
    window: Window | None = None
    for each in readings:
        window = advance(window, each)
    assert window is not None
    return measure(window, profile(), rolled_out, TRAFFIC)


def ratio(goodput: Goodput | None) -> float:
    assert goodput is not None
    return goodput.tokens / goodput.expected_tokens


@pytest.mark.parametrize(
    ("slower", "better", "expected"),
    [
        pytest.param(1.0, 1.0, 1.0, id="as predicted"),
        pytest.param(1.25, 1.0, 0.8, id="steps take a quarter longer"),
        pytest.param(1.0, 1.1, 1.1, id="more is accepted"),
    ],
)
def test_says_how_goodput_stands_to_its_prediction(slower: float, better: float, expected: float) -> None:
    before, after = ({8: 1000 * n, 64: 200 * n} for n in (1, 3))
    found = measured(reading(before, slower=slower, better=better), reading(after, slower=slower, better=better, at=60.0))
    assert found is not None
    assert found.steps == 2400
    assert ratio(found) == pytest.approx(expected, rel=0.001)


def test_another_table_is_compared_with_the_rolled_out_one_and_not_with_itself() -> None:
    """What fixed length 1 is predicted to give in the same step time, by G(B, k) = B tau(k) / T(B, k)."""
    found = measured(reading({8: 0}), reading({8: 1000}, at=60.0), rolled_out=Table.fixed(1, 128))
    times = profile().step_times()[8]
    assert ratio(found) == pytest.approx((TAU / times[3]) / (tau(CODE, 1) / times[1]), rel=0.001)


@pytest.mark.parametrize(
    ("batch_size", "micros"),
    [
        pytest.param(20, (4820 + 5330) / 2, id="halfway between 8 and 32"),
        pytest.param(64, 6650, id="measured"),
        pytest.param(80, (6650 + 8530) / 2, id="halfway between 64 and 96"),
    ],
)
def test_step_times_between_two_measured_batch_sizes_are_linear(batch_size: int, micros: float) -> None:
    found = measured(reading({batch_size: 0}), reading({batch_size: 1_000_000}, at=1.0))
    assert found is not None
    live = MICROS.get(batch_size, 1.0)
    assert found.expected_tokens == pytest.approx(1_000_000 * live * batch_size * TAU / micros, rel=0.001)


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param([reading({8: 1000})], id="one reading"),
        pytest.param([reading({8: 1000}), reading({8: 1000}, at=9.0)], id="an idle engine"),
        pytest.param([reading({8: 0}, told=0.5), reading({8: 1000}, told=0.0, at=9.0)], id="no step in a cell"),
        pytest.param([reading({200: 0}), reading({200: 1000}, at=9.0)], id="batch sizes above the profile"),
        pytest.param([reading({8: 0, 200: 0}), reading({8: 1000, 200: 200}, at=9.0)], id="too many of them"),
    ],
)
def test_says_nothing_of_what_it_cannot_tell(readings: list[Reading]) -> None:
    assert measured(*readings) is None


def test_steps_without_a_cell_took_as_long_as_the_others_of_their_batch_size() -> None:
    found = measured(reading({8: 0}), reading({8: 1000}, told=0.4, at=9.0))
    assert ratio(found) == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize(
    "of", [pytest.param(TABLE_B, id="another table in force"), pytest.param(("boot-2", "A"), id="another engine start")]
)
def test_counts_from_when_the_table_came_in_force(of: tuple[str, str]) -> None:
    old = [reading({8: 1000 * n}, better=0.5, at=float(n)) for n in range(3)]
    new = [reading({8: n}, of=of, at=10.0 + n) for n in (500, 1500)]
    found = measured(*old, *new)
    assert found is not None
    assert found.steps == 1000
    assert ratio(found) == pytest.approx(1.0, rel=0.001)


def test_forgets_what_is_older_than_its_window() -> None:
    window: Window | None = None
    for second in range(0, 1801, 60):
        window = advance(window, reading({8: 10 * second}, at=float(second)))
        age = second - window.start.seconds
        assert age <= 2 * HALF_WINDOW_SECONDS
        assert age >= min(second, HALF_WINDOW_SECONDS)
