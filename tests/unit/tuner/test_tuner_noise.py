"""The noise floor of the live comparison."""

import random
from statistics import median

import pytest

from tabletune.verdict import Arm, Load
from tabletune_tuner.noise import Noise, live_noise, relative_mad, spreads


def load(*spreads: float) -> Load:
    table, present, fixed, off = (Arm(100.0 + n, spread, "") for n, spread in enumerate(spreads))
    return Load(8, table, present, fixed, off)


def test_the_deviation_of_an_arm_is_relative_and_no_outlier_moves_it() -> None:
    assert relative_mad([100, 98, 103]) == pytest.approx(0.02)
    assert relative_mad([100, 98, 20]) == pytest.approx(2 / 98)
    assert relative_mad([7.0]) == 0.0


@pytest.mark.parametrize("repeats", [3, 5, 9])
def test_two_equal_arms_stay_below_the_floor_in_about_95_of_100_comparisons(repeats: int) -> None:
    draw = random.Random(7)

    def arm() -> Arm:
        windows = [draw.gauss(1000, 10) for _ in range(repeats)]
        return Arm(median(windows), relative_mad(windows), "")

    inside = 0
    for _ in range(400):
        loads = [Load(B, arm(), arm(), arm(), arm()) for B in (1, 8, 64)]
        inside += all(abs(x.gain("table", "fixed")) <= live_noise(loads, repeats, 0.0).share for x in loads[:1])
    assert 0.92 < inside / 400 < 0.99


def test_each_arm_counts_once_and_the_sweep_is_a_floor() -> None:
    shared = Arm(100.0, 0.0, "k=3")
    arms = Load(8, shared, shared, shared, Arm(90.0, 0.02, "off"))
    assert live_noise([arms], 3, 0.0).share == pytest.approx(live_noise([load(0.01, 0.01, 0.01, 0.01)], 3, 0.0).share)
    assert live_noise([load(0.0, 0.0, 0.0, 0.0)], 3, 0.004) == Noise(0.004, assumed=False)


def test_two_repeats_are_no_reason_to_believe_in_no_noise() -> None:
    assert live_noise([load(0.0, 0.0, 0.0, 0.0)], 2, 0.001) == Noise(pytest.approx(0.032), assumed=True)
    much = live_noise([load(0.1, 0.1, 0.1, 0.1)], 2, 0.001)
    assert (much.share > 0.3, much.assumed) == (True, False)  # that two differ is believed


def test_what_all_arms_of_a_repeat_share_is_no_noise() -> None:
    prompts = (1.0, 1.3, 0.8)
    alike = {name: [rate * p for p in prompts] for name, rate in (("table", 100.0), ("off", 60.0))}
    assert spreads(alike) == pytest.approx({"table": 0.0, "off": 0.0}, abs=1e-12)
    assert spreads({"table": alike["table"]}) == pytest.approx({"table": 0.2})  # nothing to compare with


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_taking_the_shared_part_out_leaves_the_rest_as_large_as_it_is(arms: int) -> None:
    draw = random.Random(11)
    found = []
    for _ in range(300):
        prompts = [draw.gauss(1.0, 0.2) for _ in range(9)]
        found += spreads({str(arm): [(50 + arm) * p * draw.gauss(1.0, 0.02) for p in prompts] for arm in range(arms)}).values()
    alone = [relative_mad([draw.gauss(1.0, 0.02) for _ in range(9)]) for _ in range(900)]
    assert sum(found) / len(found) == pytest.approx(sum(alone) / len(alone), rel=0.1)
