"""Which changes of length are tried where, and what follows from a bad one."""

import pytest

from tabletune.profile import Transition
from tabletune.table import Range, Table
from tabletune.transitions import (
    Change,
    around,
    changes_of,
    is_bad,
    length_to_drop,
    lengths_to_drop,
    longest_pause_micros,
    say_bad,
    spread,
)

TWO = Table((Range(1, 7, 3), Range(8, 16, 1)))
TIMES = {8: {1: 10_000.0, 3: 40_000.0}, 16: {1: 12_000.0, 3: 50_000.0}}


@pytest.mark.parametrize(
    ("table", "explored", "expected"),
    [
        pytest.param(TWO, (1, 3), (Change(3, 1, (7, 8, 9), 8),), id="exploring goes over the edge's pair"),
        pytest.param(Table.fixed(3, 16), (1, 3), (), id="always the longest"),
        pytest.param(Table.fixed(1, 16), (1, 3), (Change(1, 3, (1, 9, 16), None),), id="exploring alone"),
        pytest.param(Table.fixed(1, 16), (1,), (), id="one length"),
        pytest.param(Table.fixed(1, 16), (), (), id="nothing explores"),
        pytest.param(
            Table((Range(1, 3, 2), Range(4, 9, 1), Range(10, 16, 0))),
            (0, 1, 2),
            (Change(2, 1, (3, 4, 5), 4), Change(1, 0, (9, 10, 11), 10), Change(0, 2, (10, 13, 16), None)),
            id="the last length explores, its neighbours do not reach the longest",
        ),
        pytest.param(
            Table((Range(1, 2, 1), Range(3, 4, 0), Range(5, 16, 1))),
            (0, 1),
            (Change(1, 0, (2, 3, 4), 3), Change(0, 1, (4, 5, 6), 5)),
            id="a pair that meets twice",
        ),
        pytest.param(Table((Range(1, 4, 1), Range(5, 8, 1))), (1,), (), id="an edge without a change"),
    ],
)
def test_the_changes_of_a_table(table: Table, explored: tuple[int, ...], expected: tuple[Change, ...]) -> None:
    assert changes_of(table, explored) == expected


@pytest.mark.parametrize(
    ("edge", "largest", "sizes"),
    [
        pytest.param(8, 16, (7, 8, 9), id="in the middle"),
        pytest.param(16, 16, (14, 15, 16), id="at the largest"),
        pytest.param(2, 8, (1, 2, 3), id="at the smallest"),
        pytest.param(2, 2, (1, 2), id="no room"),
    ],
)
def test_three_batch_sizes_around_an_edge(edge: int, largest: int, sizes: tuple[int, ...]) -> None:
    assert around(edge, largest) == sizes
    assert any(B % 2 for B in sizes)


@pytest.mark.parametrize(
    ("first", "last", "sizes"), [((1), 16, (1, 9, 16)), (10, 16, (10, 13, 16)), (4, 4, (4,)), (4, 5, (4, 5)), (1, 256, (1, 129, 256))]
)
def test_three_batch_sizes_of_a_range(first: int, last: int, sizes: tuple[int, ...]) -> None:
    assert spread(first, last) == sizes


def change(B: int, *, pause: int = 0, failures: int = 0) -> Transition:
    return Transition(3, 1, B, 5, pause, failures)


def test_a_pause_is_longer_than_a_floor_and_many_steps() -> None:
    assert longest_pause_micros(change(8), TIMES, on_gpu=True) == 20 * 40_000
    assert longest_pause_micros(change(9), TIMES, on_gpu=True) == 20 * 50_000  # the next larger batch size that was measured
    assert longest_pause_micros(change(99), TIMES, on_gpu=True) == 20 * 50_000
    assert longest_pause_micros(change(8), {8: {1: 4000.0}}, on_gpu=True) == 500_000
    assert longest_pause_micros(change(8), {8: {2: 60_000.0}}, on_gpu=False) == 50 * 60_000  # neither length was measured
    assert longest_pause_micros(change(8), {8: {1: 4000.0}}, on_gpu=False) == 2_000_000


@pytest.mark.parametrize(
    ("tried", "bad"),
    [
        pytest.param(change(8, pause=800_000), False, id="as long as it may be"),
        pytest.param(change(8, pause=800_001), True, id="longer"),
        pytest.param(change(8, failures=1), True, id="the engine failed"),
    ],
)
def test_what_is_bad(tried: Transition, bad: bool) -> None:
    assert is_bad(tried, TIMES, on_gpu=True) is bad


@pytest.mark.parametrize(
    ("goodput", "dropped"),
    [
        pytest.param({1: {1: 100.0, 3: 150.0}, 8: {1: 500.0, 3: 490.0}}, 1, id="less on the whole"),
        pytest.param({1: {1: 100.0, 3: 150.0}, 8: {1: 500.0}}, 3, id="cannot be run everywhere"),
        pytest.param({1: {1: 100.0, 3: 100.0}}, 3, id="the longer of equal ones"),
    ],
)
def test_drops_the_length_that_is_worth_less(goodput: dict[int, dict[int, float]], dropped: int) -> None:
    assert length_to_drop(change(8), goodput) == dropped


@pytest.mark.parametrize(
    ("transitions", "dropped"),
    [
        pytest.param([change(8)], [], id="none is bad"),
        pytest.param([change(8, failures=1), change(16, failures=1)], [1], id="one pair, one length"),
        pytest.param([change(8, failures=1), Transition(3, 0, 8, 5, 0, 1)], [1, 0], id="another pair"),
        pytest.param([change(8, failures=1), Transition(1, 0, 8, 5, 0, 1)], [1], id="a change from a dropped length is not made"),
    ],
)
def test_a_stored_profile_drops_what_the_tuner_dropped(transitions: list[Transition], dropped: list[int]) -> None:
    goodput = {8: {0: 100.0, 1: 200.0, 3: 300.0}}
    found = lengths_to_drop(transitions, TIMES, goodput, on_gpu=True)
    assert list(found) == dropped
    assert all(is_bad(t, TIMES, on_gpu=True) for t in found.values())


def test_says_what_a_bad_change_did() -> None:
    assert say_bad(change(8, pause=1_460_000)) == "as k went from 3 to 1 at B=8, it was without a step for 1.5 s"
    assert say_bad(change(8, pause=9_000_000, failures=1)) == "as k went from 3 to 1 at B=8, the engine failed 1 time"
