"""Building tables: properties on any grid, and grids that users published."""

from __future__ import annotations

from itertools import pairwise

import pytest
from grids import LLAMA_EAGLE, MODELS, read_published
from hypothesis import given
from hypothesis import strategies as st

from tabletune.regret import regret
from tabletune.table import MIN_SWITCH_GAIN, Range, Table, build_choices, launch_table, table_of

GRIDS = st.dictionaries(
    st.integers(1, 512),
    st.dictionaries(st.integers(0, 7), st.floats(1.0, 1e6), min_size=1, max_size=5),
    min_size=1,
    max_size=24,
)
NOISE = st.floats(0.0, 0.1)


@given(GRIDS, NOISE)
def test_loses_at_most_the_noise_floor_on_its_own_grid(grid: dict[int, dict[int, float]], noise: float) -> None:
    result = regret(table_of(build_choices(grid, noise)), grid)
    assert result.unknown == ()
    assert result.worst is not None
    assert result.worst.loss <= max(MIN_SWITCH_GAIN, noise)


@given(GRIDS, NOISE)
def test_covers_one_to_the_largest_measured_batch_size_and_no_more(grid: dict[int, dict[int, float]], noise: float) -> None:
    table = table_of(build_choices(grid, noise))
    assert (table.ranges[0].first, table.ranges[-1].last) == (1, max(grid))


@given(GRIDS, NOISE)
def test_neighbouring_ranges_differ(grid: dict[int, dict[int, float]], noise: float) -> None:
    lengths = [r.draft_length for r in table_of(build_choices(grid, noise)).ranges]
    assert all(a != b for a, b in pairwise(lengths))


@given(GRIDS, NOISE)
def test_scale_of_goodput_does_not_matter(grid: dict[int, dict[int, float]], noise: float) -> None:
    doubled = {b: {k: g * 2 for k, g in options.items()} for b, options in grid.items()}
    assert table_of(build_choices(grid, noise)) == table_of(build_choices(doubled, noise))


@given(GRIDS)
def test_vllm_form_reads_back_as_the_same_table(grid: dict[int, dict[int, float]]) -> None:
    table = table_of(build_choices(grid))
    assert Table.parse(table.to_vllm()) == table


@given(GRIDS, st.sets(st.integers(0, 7), max_size=4), st.integers(0, 64))
def test_launch_table_holds_every_length_up_to_max_num_seqs(grid: dict[int, dict[int, float]], lengths: set[int], spare: int) -> None:
    table = table_of(build_choices(grid))
    largest = table.ranges[-1].last + 8 + spare
    launched = launch_table(table, sorted(lengths), largest)
    assert set(launched.lengths) == set(table.lengths) | lengths
    assert launched.ranges[-1].last == largest
    assert all(launched.length_at(b) == table.length_at(b) for b in grid)


def test_published_llama_grid_gives_the_golden_table() -> None:
    # Goodput in tokens/s computed by hand from the published step times and acceptance: 1: 153/228/257/235 at k = 0/1/3/5.
    grid = read_published(LLAMA_EAGLE)
    assert {k: round(g) for k, g in grid[1].items()} == {0: 153, 1: 228, 3: 257, 5: 235}
    assert {k: round(g) for k, g in grid[256].items()} == {0: 17666, 1: 15859, 3: 13924, 5: 10832}
    assert table_of(build_choices(grid)).to_vllm() == [[1, 63, 3], [64, 255, 1], [256, 256, 0]]


@pytest.mark.parametrize(
    ("ranges", "losses"),
    [
        pytest.param([[1, 256, 3]], {1: 0, 4: 0, 16: 0, 64: 3.1, 256: 21.2}, id="fixed 3"),
        pytest.param([[1, 64, 3], [65, 128, 1], [129, 512, 0]], {1: 0, 4: 0, 16: 0, 64: 3.1, 256: 0}, id="table of vLLM's documentation"),
    ],
)
def test_loss_of_other_settings_on_the_llama_grid(ranges: list[list[int]], losses: dict[int, float]) -> None:
    result = regret(Table.parse(ranges), read_published(LLAMA_EAGLE))
    assert {x.batch_size: round(x.loss * 100, 1) for x in result.losses} == losses


@pytest.mark.parametrize("model", MODELS)
def test_loses_at_most_half_a_percent_on_published_grids(model: str) -> None:
    grid = read_published(model)
    worst = regret(table_of(build_choices(grid)), grid).worst
    assert worst is not None
    assert worst.loss <= MIN_SWITCH_GAIN


def test_keeps_the_earlier_length_while_another_wins_only_noise() -> None:
    grid = {1: {1: 100.0, 3: 110.0}, 2: {1: 200.5, 3: 200.0}, 4: {1: 402.1, 3: 400.0}}
    choices = build_choices(grid)
    assert [c.draft_length for c in choices] == [3, 3, 1]
    assert choices[1].margin < 0
    assert "3 stays" in choices[1].why
    assert "switch" in choices[2].why


def test_takes_the_smaller_of_two_equal_lengths() -> None:
    assert build_choices({1: {3: 100.0, 1: 100.0}})[0].draft_length == 1


def test_leaves_a_length_that_is_missing() -> None:
    assert [c.draft_length for c in build_choices({1: {3: 100.0}, 2: {1: 150.0}})] == [3, 1]


@pytest.mark.parametrize("grid", [{}, {1: {}}], ids=["no batch size", "no length"])
def test_refuses_nothing_to_choose_from(grid: dict[int, dict[int, float]]) -> None:
    with pytest.raises(ValueError, match="measured"):
        build_choices(grid)


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([], id="empty"),
        pytest.param([[2, 4, 1]], id="not from 1"),
        pytest.param([[1, 4, 1], [4, 8, 2]], id="overlap"),
        pytest.param([[1, 4, -1]], id="negative length"),
        pytest.param([[4, 1, 1]], id="reversed"),
        pytest.param([[1, 4]], id="two numbers"),
        pytest.param([[1, 4, True]], id="bool"),
        pytest.param({"1-4": 3}, id="object"),
    ],
)
def test_refuses_ranges_that_are_no_table(ranges: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Table.parse(ranges)


def test_gap_takes_the_length_before_it_and_the_tail_the_last() -> None:
    table = Table.parse([[1, 4, 3], [9, 12, 1]])
    assert table.ranges == (Range(1, 8, 3), Range(9, 12, 1))
    assert [table.length_at(b) for b in (1, 8, 9, 12, 500)] == [3, 3, 1, 1, 1]
    assert str(table) == "1-8:3 9-12:1"


def test_launch_table_refuses_more_lengths_than_batch_sizes() -> None:
    with pytest.raises(ValueError, match="max_num_seqs 2 is too small"):
        launch_table(Table.fixed(3, 2), (0, 1, 2, 3), 2)
