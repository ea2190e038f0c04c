"""The prediction against what was measured live: how far profile and acceptance were off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tabletune.verdict import Arm, Load


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Relative errors without their sign: 0.05 = 5 %; `batch_size` and `setting` are the worst one's."""

    median: float
    worst: float
    batch_size: int
    setting: str


def arms_of(load: Load) -> tuple[Arm, ...]:
    """The arms that were measured at a load, each once: candidates that do the same there share their windows."""
    arms = (load.table, load.present, load.fixed, load.fixed_here, load.off)
    return tuple({(arm.tokens_per_second, arm.step_time_micros): arm for arm in arms if arm is not None}.values())


def relative_error(predicted: float, measured: float) -> float:
    """With its sign: above 0 when the prediction was too high."""
    return predicted / measured - 1


def step_time_error(loads: Sequence[Load]) -> PredictionError | None:
    """Over all arms and loads with a prediction; None when there is none."""
    return _summarise(
        [
            (relative_error(arm.predicted.step_time_micros, arm.step_time_micros), x.batch_size, arm.setting)
            for x in loads
            for arm in arms_of(x)
            if arm.predicted is not None and arm.step_time_micros is not None
        ]
    )


def goodput_error(loads: Sequence[Load]) -> PredictionError | None:
    """The same for tokens a second."""
    return _summarise(
        [
            (relative_error(arm.predicted.tokens_per_second, arm.tokens_per_second), x.batch_size, arm.setting)
            for x in loads
            for arm in arms_of(x)
            if arm.predicted is not None
        ]
    )


def _summarise(errors: Sequence[tuple[float, int, str]]) -> PredictionError | None:
    if not errors:
        return None
    worst, batch_size, setting = max(errors, key=lambda e: abs(e[0]))
    return PredictionError(median(abs(e) for e, *_ in errors), abs(worst), batch_size, setting)
