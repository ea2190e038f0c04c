"""Goodput: how many tokens a second a draft length gives at a batch size.

Goodput here is tokens a second, not llm-d's share of requests that meet a latency objective.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tabletune.acceptance import Estimate
from tabletune.regimes import Prefills


def tau(acceptance: Sequence[float], draft_length: int, coverage: float = 1.0) -> float:
    """Mean tokens that one request gains in one step.

    `tau(k) = 1 + c * (a_1 + ... + a_k)`: the step's own token and the guesses kept before the first miss.

    Args:
        acceptance: `a_i`, probability in [0, 1] that the first `i` guesses are all kept; index 0 is position 1.
        draft_length: `k`, guesses a step; at most `len(acceptance)`.
        coverage: `c`, share in [0, 1] of request-steps with a draft at all; 1 for drafters that run a model.

    Raises:
        ValueError: `draft_length` is negative or longer than the acceptance that is known.
    """
    if not 0 <= draft_length <= len(acceptance):
        raise ValueError(f"draft length {draft_length} needs acceptance of {draft_length} positions; {len(acceptance)} are known")
    return 1.0 + coverage * sum(acceptance[:draft_length])


def goodput(batch_size: int, draft_length: int, step_time_micros: float, acceptance: Sequence[float], coverage: float = 1.0) -> float:
    """Tokens a second: `G(B, k) = B * tau(k) / T(B, k)`, with `T` in microseconds.

    Raises:
        ValueError: the step time is not positive, or `tau` refuses the draft length.
    """
    if step_time_micros <= 0:
        raise ValueError(f"step time must be positive, got {step_time_micros} µs at B={batch_size}, k={draft_length}")
    return batch_size * tau(acceptance, draft_length, coverage) / step_time_micros * 1e6


def expected_step_time(times: Mapping[int, float], draft_length: int, coverage: float) -> float:
    """Step time when only a share of the requests drafts, as with drafters that look text up; microseconds in, microseconds out.

    `T(B, 0) + c * (T(B, k) - T(B, 0))`: linear in the drafted tokens of the step, since the profile is measured with every request
    drafting. Without a measured `T(B, 0)` it is `T(B, k)`, which can only be too long.

    Args:
        times: `T(B, k)` by draft length at one batch size.
        draft_length: a length in `times`.
        coverage: `c` in [0, 1].
    """
    time = times[draft_length]
    return time if 0 not in times else times[0] + coverage * (time - times[0])


@dataclass(frozen=True, slots=True)
class Step:
    """A mean step: the tokens that it yields, and its time."""

    tokens: float
    micros: float

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.micros * 1e6


def predict_steps(
    step_times: Mapping[int, Mapping[int, float]], traffic: Estimate, prefills: Prefills | None = None
) -> dict[int, dict[int, Step]]:
    """`{B: {k: mean step}}` from `{B: {k: microseconds}}`.

    Args:
        step_times: of decode-only steps.
        traffic: acceptance and coverage.
        prefills: what steps with a prefill cost, and how many there are; None: decode-only steps are all there is.

    Raises:
        ValueError: a draft length is longer than the acceptance that is known, or a step time is not positive.
    """
    a, c = traffic.acceptance, traffic.coverage

    def predict(B: int, k: int, micros: float) -> Step:
        if micros <= 0:
            raise ValueError(f"step time must be positive, got {micros} µs at B={B}, k={k}")
        return Step(B * tau(a, k, c), micros) if prefills is None else Step(*prefills.mean_step(B, k, tau(a, k, c), micros))

    return {B: {k: predict(B, k, expected_step_time(times, k, c)) for k in times} for B, times in step_times.items()}


def predict_goodput(
    step_times: Mapping[int, Mapping[int, float]], traffic: Estimate, prefills: Prefills | None = None
) -> dict[int, dict[int, float]]:
    """`{B: {k: tokens a second}}`, as `predict_steps`: what the tuner, the sidecar and the command line all build tables from."""
    return {B: {k: step.goodput for k, step in row.items()} for B, row in predict_steps(step_times, traffic, prefills).items()}
