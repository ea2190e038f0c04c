"""The prediction against live measurements."""

import pytest

from tabletune.prediction import PredictionError, arms_of, goodput_error, step_time_error
from tabletune.verdict import Arm, Load, Predicted

SHARED = Arm(100.0, 0.01, "k=3", 1000, Predicted(1030, 97.0))
OFF = Arm(80.0, 0.01, "off", 900, Predicted(810, 88.0))
UNKNOWN = Arm(70.0, 0.01, "another drafter", 1500)
LOADS = [Load(1, SHARED, UNKNOWN, SHARED, OFF), Load(8, SHARED, UNKNOWN, SHARED, SHARED)]


def test_candidates_that_share_windows_count_once() -> None:
    assert arms_of(LOADS[0]) == (SHARED, UNKNOWN, OFF)
    assert arms_of(LOADS[1]) == (SHARED, UNKNOWN)


def test_errors_have_no_sign_and_the_worst_is_named() -> None:
    assert step_time_error(LOADS) == PredictionError(pytest.approx(0.03), pytest.approx(0.1), 1, "off")
    assert goodput_error(LOADS) == PredictionError(pytest.approx(0.03), pytest.approx(0.1), 1, "off")


def test_without_a_prediction_there_is_no_error() -> None:
    assert step_time_error([Load(1, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)]) is None
    assert goodput_error([]) is None
