"""What the sweep measures, and when a cell is known."""

import random
from statistics import median

import pytest

from tabletune.profile import Ceiling, Cell, batch_sizes
from tabletune_tuner.sweep_plan import (
    Sample,
    SweepPlan,
    cannot_win,
    ceiling_batch_sizes,
    find_ceilings,
    floor_of,
    graph_edges,
    has_enough,
    is_settled,
    most_edges,
    next_edge,
    next_look,
    prefill_batch_sizes,
    prefill_ceiling_batch_sizes,
    prefill_lengths,
    with_ceilings,
)


def test_three_settled_medians_lie_within_the_floor() -> None:
    """Steps of 4 ms with a deviation of 2 %, looked at as the sweep does: five of six cells are within 1 % of the truth."""
    rng, wrong, used = random.Random(3), 0, 0
    for _ in range(300):
        repeats = []
        for _ in range(3):
            samples = [rng.gauss(4000, 80) for _ in range(16)]
            while len(samples) < 64 and not settled(samples):
                samples += [rng.gauss(4000, 80) for _ in range(next_look(len(samples), 64) - len(samples))]
            repeats.append(median(samples))
            used += len(samples)
        wrong += abs(median(repeats) / 4000 - 1) > 0.01
    assert wrong <= 50
    assert used < 0.5 * 300 * 3 * 64


def settled(samples: list[float]) -> bool:
    middle = median(samples)
    return is_settled(middle, median(abs(x - middle) for x in samples), len(samples), 0.01)


def test_a_median_of_few_or_noisy_samples_is_not_settled() -> None:
    assert is_settled(4000, 10, 16, 0.005)
    assert not is_settled(4000, 80, 16, 0.005)
    assert is_settled(4000, 80, 64, 0.005)


def test_looks_again_after_half_as_many_samples_more() -> None:
    assert [next_look(n, 64) for n in (1, 16, 24, 60, 64)] == [2, 24, 36, 64, 64]


def test_no_cell_has_enough_before_three_repeats() -> None:
    same = [Sample(4000, 16)] * 4
    assert [has_enough(same[:n], 0.005) for n in range(5)] == [False, False, False, True, True]
    assert not has_enough([Sample(4000, 16), Sample(4200, 16), Sample(4400, 16)], 0.005)


def test_a_length_cannot_win_where_its_step_takes_longer_than_all_guesses_kept_would_gain() -> None:
    past_the_graph = {1: 10_580.0, 3: 46_406.0}  # of an H200 at B = 200: 4.4 times as long, for at most twice the tokens
    assert cannot_win(past_the_graph, 3, (1, 3))
    assert not cannot_win(past_the_graph, 1, (1, 3))
    assert not cannot_win({1: 6120.0, 3: 8710.0}, 3, (1, 3))
    assert not cannot_win({0: 1000.0, 3: 4300.0}, 3, (0, 3))  # a single repeat may be off by this much
    # At B = 256 a prefill takes k = 1 past the graph of 512 tokens too, and then three guesses in such a step are better than one.
    plan = SweepPlan((256,), (1, 3), 3, 64, 32, ceiling=512, request_tokens=27)
    assert [plan.stays_within(B, k) for B, k in ((242, 1), (243, 1), (256, 1), (121, 3))] == [True, False, False, True]
    assert not cannot_win({1: 10_700.0, 3: 30_670.0}, 3, [k for k in (1, 3) if plan.stays_within(256, k)])


def test_the_floor_is_never_below_what_a_change_of_length_must_win() -> None:
    assert floor_of([]) == 0.005
    assert floor_of([Cell(1, 0, 1000, 20, 8)]) == 0.02


def test_measures_on_both_sides_of_the_largest_graph_and_between_there_and_the_grid() -> None:
    grid = batch_sizes(256)
    # k=3: 128 * 4 = 512; k=1: 256 * 2 = 512 is the end of the grid
    assert ceiling_batch_sizes(512, (1, 3), grid) == (128, 129, 132)
    # k=2: 170 * 3 = 510; the grid has 176
    assert ceiling_batch_sizes(512, (2,), grid) == (170, 171, 173)
    assert ceiling_batch_sizes(None, (1, 3), grid) == ()
    assert ceiling_batch_sizes(2, (3,), grid) == ()  # not even one request fits


def test_measures_where_steps_with_a_few_prefills_pass_the_largest_graph() -> None:
    grid = batch_sizes(256)
    # k=3: (512 - 27 m) / 4 = 121, 114, 107; k=1: 242, 229, 215
    assert prefill_ceiling_batch_sizes(512, (1, 3), grid, 27) == (108, 115, 122, 216, 230, 243)
    assert prefill_ceiling_batch_sizes(512, (1, 3), grid, 600) == ()  # no step with a prefill stays below
    assert prefill_ceiling_batch_sizes(None, (1, 3), grid, 27) == ()
    sizes = with_ceilings(grid, (1, 3), 512, 27)
    assert {*grid, 128, 129, 132, 108, 115, 122, 216, 230, 243} == set(sizes)
    assert sizes == tuple(sorted(set(sizes)))


def test_finds_the_ceilings_that_were_measured_on_both_sides() -> None:
    cells = [Cell(B, k, 1000 * B + k, 0, 8) for B in (127, 128, 129) for k in (1, 3) if (B, k) != (129, 1)]
    assert find_ceilings(cells, 512) == (Ceiling(3, 128, 128_003, 129_003),)
    assert find_ceilings(cells, 254) == (Ceiling(1, 127, 127_001, 128_001),)
    assert find_ceilings(cells, None) == ()


def refined(true_edge: int, grid: tuple[int, ...]) -> list[int]:
    """Batch sizes that are measured one after the other when k=3 is best below `true_edge` and k=1 from there on, whatever is kept."""

    def row(B: int) -> dict[int, float]:
        return {1: 1000.0, 3: 1001.0} if true_edge > B else {1: 1000.0, 3: 9000.0}

    times, added = {B: row(B) for B in grid}, []
    while (B := next_edge(times, 0.0, times)) is not None:
        times[B] = row(B)
        added.append(B)
    assert next(B for B in sorted(times) if times[B][3] > 5000) == true_edge
    return added


@pytest.mark.parametrize("edge", [65, 68, 71, 72])
def test_finds_an_edge_between_two_points_of_the_grid_exactly(edge: int) -> None:
    added = refined(edge, (1, 64, 72))
    assert added[0] == 68
    assert len(added) == 3


def test_nothing_is_added_where_neighbours_agree_or_are_next_to_each_other() -> None:
    assert next_edge({1: {1: 1000.0, 3: 1001.0}, 8: {1: 1000.0, 3: 1001.0}}, 0.0, ()) is None
    assert next_edge({1: {1: 1000.0, 3: 1001.0}, 2: {1: 1000.0, 3: 9000.0}}, 0.0, ()) is None
    assert next_edge({1: {1: 1000.0, 3: 1001.0}, 9: {1: 1000.0, 3: 9000.0}}, 0.0, {5}) is None  # could not be measured


def test_adds_no_more_than_a_fifth_of_the_grid_for_edges() -> None:
    assert [most_edges(batch_sizes(B)) for B in (4, 8, 32, 64, 256)] == [0, 1, 4, 5, 8]


def test_measures_prefills_at_few_batch_sizes_and_at_the_ends_of_the_lengths() -> None:
    def plan(largest: int, *lengths: int, ceiling: int | None = None) -> SweepPlan:
        sizes = with_ceilings(batch_sizes(largest), lengths, ceiling, 27)
        return SweepPlan(sizes, lengths, 3, 8, 16, ceiling, 27)

    assert prefill_batch_sizes(plan(256, 1, 3)) == (8, 32, 128, 256)
    assert prefill_batch_sizes(plan(256, 1, 3, ceiling=512)) == (8, 32, 128, 256)
    assert prefill_batch_sizes(plan(256, 1, 2, ceiling=512)) == (8, 32, 128, 170, 256)  # 170 * 3 tokens pass 512 with a prefill only
    assert prefill_batch_sizes(plan(8, 1)) == (8,)
    assert prefill_batch_sizes(plan(5, 1)) == (5,)
    assert graph_edges(512, (1, 2, 3), batch_sizes(256)) == (128, 170)  # k=1 reaches it at the end of the grid
    assert graph_edges(None, (1, 3), batch_sizes(256)) == ()
    assert prefill_lengths(SweepPlan((1,), (0, 1, 2, 3), 3, 8, 16)) == (0, 3)
    assert prefill_lengths(SweepPlan((1,), None, 3, 8, 16)) == (0,)
