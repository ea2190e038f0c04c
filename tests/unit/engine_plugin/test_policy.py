"""The table in force: which length each batch size gets, and what may never happen."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune_engine.policy import BadTableError, Exploring, LengthNotInLaunchSetError, Policy, Ranges, to_lengths

LAUNCH: Ranges = ((1, 4, 3), (5, 8, 1), (9, 16, 0))
SIZES = range(1, 17)


def make_policy(allowed: tuple[int, ...] = (0, 1, 2, 3), is_prefill_near: Callable[[], bool] = lambda: False) -> Policy:
    return Policy((3, *to_lengths(LAUNCH, 16)), LAUNCH, allowed, is_prefill_near)


def test_begins_with_the_launch_table() -> None:
    policy = make_policy()
    assert [policy[B] for B in SIZES] == [3] * 4 + [1] * 4 + [0] * 8
    assert (policy.ranges, policy.generation, policy.swaps, len(policy)) == (LAUNCH, 0, 0, 17)


def test_a_table_holds_from_the_next_look_up_on() -> None:
    policy = make_policy()
    policy.follow(((1, 2, 2), (3, 16, 1)), hysteresis=0, explore=None)
    assert [policy[B] for B in SIZES] == [2] * 2 + [1] * 14
    assert (policy.ranges, policy.generation, policy.swaps) == (((1, 2, 2), (3, 16, 1)), 1, 1)


def test_the_same_table_again_is_no_swap() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=0, explore=None)
    assert (policy.generation, policy.swaps) == (1, 0)


def test_a_length_that_the_engine_was_not_launched_for_is_refused_and_the_table_stays() -> None:
    policy = make_policy(allowed=(0, 1, 3))
    for change in (
        lambda: policy.follow(((1, 16, 2),), hysteresis=0, explore=None),
        lambda: policy.follow(((1, 16, 1),), hysteresis=0, explore=Exploring(50, 2, ((1, 16),))),
        lambda: policy.force(2),
    ):
        with pytest.raises(LengthNotInLaunchSetError, match=r"Draft length 2 is none of this engine's \(0, 1, 3\)"):
            change()
    assert (policy.ranges, policy.generation, policy.forced) == (LAUNCH, 0, None)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        pytest.param((), "no range", id="empty"),
        pytest.param(((2, 4, 1),), "must begin at batch size 1", id="does not begin at 1"),
        pytest.param(((1, 4, 1), (4, 8, 0)), "must not overlap", id="overlap"),
        pytest.param(((1, 8, 1), (9, 5, 0)), "ends before it begins", id="ends before it begins"),
    ],
)
def test_refuses_ranges_that_vllm_would_refuse(ranges: Ranges, says: str) -> None:
    with pytest.raises(BadTableError, match=says):
        to_lengths(ranges, 16)


@pytest.mark.parametrize(
    ("ranges", "lengths"),
    [
        pytest.param(((1, 1, 3), (4, 4, 1)), (3, 3, 3, 1, 1, 1), id="a gap and the end keep the length before"),
        pytest.param(((4, 9, 0), (1, 3, 2)), (2, 2, 2, 0, 0, 0), id="unsorted, and longer than the engine"),
        pytest.param(((1, 2, 3), (10**15, 10**18, 0)), (3, 3, 3, 3, 3, 3), id="numbers that no memory would hold"),
    ],
)
def test_reads_ranges_as_vllm_does(ranges: Ranges, lengths: tuple[int, ...]) -> None:
    assert to_lengths(ranges, 6) == lengths


def test_hysteresis_keeps_the_length_until_the_edge_is_well_behind() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=2, explore=None)
    assert [policy[B] for B in (4, 5, 6, 7, 6, 5, 4, 3, 2)] == [3, 3, 3, 1, 1, 1, 1, 1, 3]


def explored(policy: Policy, sizes: list[int]) -> list[int]:
    """Places in `sizes` at which the policy explored."""
    found = []
    for place, B in enumerate(sizes):
        before = policy.exploring_steps
        policy[B]
        found += [place] * (policy.exploring_steps - before)
    return found


def test_explores_every_so_many_steps_where_it_was_asked_to() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(3, 2, ((6, 7), (10, 12))))
    assert [policy[6] for _ in range(7)] == [1, 1, 2, 1, 1, 2, 1]
    assert policy.exploring_steps == 2
    # One step is counted above already. Nothing at 5, 8 and 13, which are in no range.
    assert explored(policy, [5, 8, 13, 7, 5, 5, 10, 12, 12, 12]) == [6, 9]


def test_does_not_explore_where_the_length_is_as_long_already() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(1, 1, ((1, 16),)))
    assert [policy[B] for B in SIZES] == [3] * 4 + [1] * 4 + [1] * 8
    assert policy.exploring_steps == 8


def test_an_exploring_step_that_a_prefill_forbids_is_made_as_soon_as_none_is_near() -> None:
    prefills = [True, True, False, False, True, False]  # an answer for each time that it is asked
    policy = make_policy(is_prefill_near=lambda: prefills.pop(0))
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(3, 3, ((5, 16),)))
    assert explored(policy, [6] * 12) == [4, 7, 11]
    assert not prefills


def test_a_prefill_is_not_asked_about_where_nothing_would_be_explored() -> None:
    policy = make_policy(is_prefill_near=lambda: pytest.fail("asked"))
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(100, 3, ((5, 8),)))
    for B in (1, 6, 16) * 20:
        policy[B]
    policy.follow(LAUNCH, hysteresis=0, explore=None)
    assert explored(policy, [6] * 500) == []


def test_a_forced_length_explores_nothing() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(1, 3, ((1, 16),)))
    policy.force(1)
    assert explored(policy, [6] * 10) == []
    policy.force(None)
    assert explored(policy, [6] * 2) == [0, 1]


def test_exploring_does_not_move_the_hysteresis() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=2, explore=Exploring(2, 3, ((7, 16),)))
    assert [policy[B] for B in (6, 7, 7, 6, 5)] == [1, 1, 3, 1, 1]


@pytest.mark.parametrize("ranges", [((7, 6),), ((5, 8), (16, 9))])
def test_refuses_to_explore_in_a_range_that_ends_before_it_begins_and_the_table_stays(ranges: tuple[tuple[int, int], ...]) -> None:
    policy = make_policy()
    with pytest.raises(BadTableError, match='of "explore" ends before it begins'):
        policy.follow(((1, 16, 1),), hysteresis=0, explore=Exploring(1, 3, ranges))
    assert (policy.ranges, policy.generation, policy.swaps) == (LAUNCH, 0, 0)
    assert explored(policy, [*SIZES]) == []


def test_explores_in_ranges_that_the_engine_is_too_small_for_as_far_as_it_goes() -> None:
    policy = make_policy()
    policy.follow(LAUNCH, hysteresis=0, explore=Exploring(1, 3, ((15, 10**18), (30, 40))))
    assert explored(policy, [14, 15, 16]) == [1, 2]


def test_force_overrides_the_table_and_null_gives_it_back() -> None:
    policy = make_policy()
    policy.force(2)
    assert [policy[B] for B in SIZES] == [2] * 16
    policy.follow(((1, 16, 1),), hysteresis=0, explore=None)
    assert policy[1] == 2
    policy.force(None)
    assert [policy[B] for B in SIZES] == [1] * 16


@st.composite
def tables(draw: st.DrawFn) -> Ranges:
    edges = sorted(draw(st.sets(st.integers(2, 16), max_size=5)) | {1})
    lasts = [first - 1 for first in edges[1:]] + [16]
    return tuple((a, b, draw(st.integers(0, 3))) for a, b in zip(edges, lasts, strict=True))


@given(
    table=tables(),
    hysteresis=st.integers(0, 20),
    explore=st.builds(Exploring, st.integers(1, 5), st.integers(1, 3), st.builds(lambda last: ((2, last),), st.integers(2, 16))),
    steps=st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=60),
)
def test_every_length_is_the_tables_nearby_or_an_exploring_step(
    table: Ranges, hysteresis: int, explore: Exploring, steps: list[tuple[int, bool]]
) -> None:
    """Each step: its batch size, and whether a prefill is near."""
    near = False
    policy = make_policy(is_prefill_near=lambda: near)
    policy.follow(table, hysteresis, explore)
    lengths, longest, [(first, last)] = to_lengths(table, 16), explore.draft_length, explore.ranges
    shorter = 0
    for B, near in steps:
        before = policy.exploring_steps
        k = policy[B]
        nearby = lengths[max(0, B - 1 - hysteresis) : B + hysteresis]
        shorter += first <= B <= last and min(nearby) < longest
        if policy.exploring_steps > before:
            assert k == longest > min(nearby)
            assert first <= B <= last
            assert not near
        else:
            assert k in nearby
            assert hysteresis or k == lengths[B - 1]
    assert policy.exploring_steps <= shorter // explore.every_steps
