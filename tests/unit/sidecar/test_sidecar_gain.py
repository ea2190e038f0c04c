"""The estimated gain: which batch sizes count, and against what the table in force is compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_cases import CODE, CODE_TABLE, ENGINE, PROSE, files, profile

from tabletune.acceptance import Estimate
from tabletune.goodput import goodput
from tabletune.table import Table
from tabletune_sidecar.gain import HALF_LIFE_STEPS, BatchSizes, estimate_gains, rivals_of

LAUNCHED = replace(ENGINE, launch_table=Table.parse([[1, 32, 3], [33, 128, 1]]))
TRAFFIC = Estimate(CODE, 1.0)


def gains(shares: dict[int, float], table: Table = CODE_TABLE, traffic: Estimate = TRAFFIC) -> dict[str, float]:
    rivals = rivals_of(LAUNCHED, files().table.launch_lengths)
    found = profile()
    return estimate_gains(table, rivals, shares, traffic=traffic, step_times=found.step_times(), prefills=None, profile=found)


def measured(batch_size: int, draft_length: int, traffic: Estimate = TRAFFIC) -> float:
    """Tokens a second by the formula, from the recording."""
    return goodput(batch_size, draft_length, profile().step_times()[batch_size][draft_length], traffic.acceptance)


def test_at_one_batch_size_it_is_the_ratio_of_goodputs() -> None:
    found = gains({64: 1.0})
    (off,) = (cell.step_time_micros for cell in profile().baseline if cell.batch_size == 64)
    assert found["fixed-1"] == found["launch-table"] == pytest.approx(measured(64, 3) / measured(64, 1) - 1)
    assert found["fixed-3"] == 0
    assert found["off"] == pytest.approx(measured(64, 3) / (64 / off * 1e6) - 1)


def test_batch_sizes_count_by_the_time_spent_in_them() -> None:
    found = gains({8: 0.9, 128: 0.1})
    times = profile().step_times()
    weights = {8: 0.9 * times[8][3], 128: 0.1 * times[128][1]}
    longer = weights[8] * measured(8, 3) / measured(8, 1) + weights[128]
    assert found["fixed-1"] == pytest.approx(longer / sum(weights.values()) - 1)


def test_a_table_that_does_not_fit_the_traffic_shows_a_loss() -> None:
    prose = Estimate(PROSE, 1.0)
    found = gains({100: 1.0}, Table.fixed(3, 128), prose)
    assert found["fixed-1"] < 0
    assert found["launch-table"] < 0


def test_between_two_measured_batch_sizes_the_one_below_counts_and_above_the_largest_none() -> None:
    assert gains({65: 1.0}) == gains({64: 1.0})
    assert gains({129: 1.0}) == gains({}) == {}


def test_only_what_this_engine_may_do_is_compared() -> None:
    assert rivals_of(LAUNCHED, (1, 3)).keys() == {"launch-table", "fixed-1", "fixed-3"}
    assert rivals_of(LAUNCHED, (1, 2)).keys() == {"launch-table", "fixed-1"}
    assert rivals_of(ENGINE, (1, 3)).keys() == {"fixed-1", "fixed-3"}, "an engine that does not tell its launch table"


def test_lengths_without_acceptance_are_no_rivals() -> None:
    assert gains({8: 1.0}, Table.fixed(1, 128), Estimate((0.78,), 1.0)).keys() == {"off", "fixed-1"}


def test_old_batch_sizes_fade() -> None:
    early = BatchSizes().after({(8, 3): 100, (8, 1): 100})
    assert early.shares == {8: 1.0}
    later = early.after({(8, 3): 100, (8, 1): 100, (64, 3): HALF_LIFE_STEPS})
    assert later.shares == {8: pytest.approx(0.5), 64: pytest.approx(0.5)}
    assert later.after({(64, 3): 5}).shares == later.shares, "an engine that counts anew"


readings = st.lists(
    st.dictionaries(st.tuples(st.integers(1, 200), st.sampled_from([0, 1, 3])), st.integers(0, 10**7), max_size=5), max_size=6
)


@given(readings)
def test_shares_add_up_whatever_is_counted(counted: list[dict[tuple[int, int], int]]) -> None:
    sizes = BatchSizes()
    for chosen in counted:
        sizes = sizes.after(chosen)
    assert all(0 <= share <= 1 + 1e-9 for share in sizes.shares.values())
    assert not sizes.shares or sum(sizes.shares.values()) == pytest.approx(1)
    assert all(gain > -1 for gain in gains(dict(sizes.shares)).values())
