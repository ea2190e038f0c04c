"""What follows from the cells whose drafter graph the target did not prepare."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.graphs import GraphCells, capture_sizes, profile_lengths, usable_cells
from tabletune.profile import Cell

HOLES = {"mismatched": [[6, 1], [10, 0]], "cured": False}
CURED = {**HOLES, "cured": True}
CLEAN = {"mismatched": [], "cured": False}
NOT_ASKED = {"mismatched": None, "cured": False}


def graphs(said: Any) -> GraphCells:
    return GraphCells.of({"graphCells": said})


def test_v2_holds_the_lengths_that_leave_each_other_their_graphs() -> None:
    assert profile_lengths(3, "v2") == (1, 3)
    assert profile_lengths(1, "v2") == (1,)


def test_v1_has_no_graph_for_a_length() -> None:
    assert profile_lengths(3, "v1") == (0, 1, 2, 3)


def test_a_table_is_not_built_from_cells_that_must_not_run() -> None:
    cells = [Cell(B, k, 4000, 10, 8) for B in (6, 10) for k in (0, 1, 3)]
    assert {(c.batch_size, c.draft_length) for c in usable_cells(cells, graphs(HOLES))} == {(6, 0), (6, 3), (10, 1), (10, 3)}
    for said in (CURED, CLEAN, NOT_ASKED):
        assert usable_cells(cells, graphs(said)) == tuple(cells)


def test_the_length_for_an_engine_whose_plugin_does_not_work_has_no_mismatched_cell() -> None:
    assert graphs(CURED).quiet_length((0, 1, 2, 3)) == 3
    assert graphs({"mismatched": [[4, 3]], "cured": True}).quiet_length((0, 1, 2, 3)) == 2


def test_knows_when_the_engine_is_safe_only_by_the_plugin() -> None:
    assert [graphs(said).needs_cure for said in (HOLES, CURED, CLEAN, NOT_ASKED, None)] == [True, True, False, False, False]


@pytest.mark.parametrize("said", [[], {"cured": True}, {"mismatched": [[1]], "cured": True}, {"mismatched": 3, "cured": True}])
def test_says_what_is_wrong_with_facts_of_another_form(said: Any) -> None:
    with pytest.raises(ValueError, match='"graphCells" must hold'):
        graphs(said)


def without_a_graph(sizes: Sequence[int], lengths: Sequence[int], most: int) -> set[tuple[int, int]]:
    """The cells (B, k) that vLLM's rule leaves without a full graph, of those that the largest one has room for."""
    widest = most * (max(lengths) + 1)
    rounded = {(-(-size // q) * q, q) for size in sizes for q in (k + 1 for k in lengths)}
    graphs_of = {(n, q) for n, q in rounded if n <= max(sizes) and n <= widest and n // q <= most}
    missing = set()
    for B in range(1, most + 1):
        for k in lengths:
            tokens = B * (k + 1)
            nearest = min((n for n, _ in graphs_of if n >= tokens), default=None)
            if tokens <= max(sizes) and (nearest, k + 1) not in graphs_of:
                missing.add((B, k))
    return missing


DEFAULT_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def test_the_rule_finds_the_cells_that_stalled_an_engine() -> None:
    # K = 3, every length in the launch set, as in docs/engine-safety.md: 3, 6 and 9 are the sizes that vLLM adds for its launch table.
    assert {6, 9, 21, 33, 45, 129} <= {B for B, k in without_a_graph((*DEFAULT_SIZES, 3, 6, 9), (0, 1, 2, 3), 256) if k == 1}
    assert without_a_graph(DEFAULT_SIZES, (1, 3), 256) == set()
    assert without_a_graph(DEFAULT_SIZES, (1, 4), 256) != set()


@given(st.integers(1, 16), st.integers(2, 300), st.sampled_from([64, 384, 512, 1024]))
def test_with_these_sizes_every_batch_of_two_lengths_has_a_graph(longest: int, most: int, largest: int) -> None:
    lengths = profile_lengths(longest, "v2")
    sizes = capture_sizes(lengths, most, largest)
    assert max(sizes) >= largest
    assert without_a_graph(sizes, lengths, most) == set()


@given(st.sets(st.integers(0, 5), min_size=1), st.integers(2, 300))
def test_so_has_every_batch_of_a_launch_set_by_hand(lengths: set[int], most: int) -> None:
    assert without_a_graph(capture_sizes(sorted(lengths), most, 512), sorted(lengths), most) == set()


def test_sizes_are_few_and_fine_where_batches_are_small() -> None:
    sizes = capture_sizes((1, 4), 256, 512)
    assert sizes[:14] == (2, 4, 5, 6, 8, 10, 12, 14, 15, 16, 18, 20, 22, 24)
    assert sizes[-8:] == (500, 510, 512, 514, 515, 516, 518, 520)  # two lengths side by side up to the largest batch of one draft
    assert len(sizes) < 90
    every = capture_sizes((0, 1, 2, 3), 256, 504)
    assert set(range(1, 37)) | set(range(36, 505, 12)) <= set(every)  # as computed before for every length up to 3
