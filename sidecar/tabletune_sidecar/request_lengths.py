"""How long live requests are: the share of steps with a prefill follows from it (core/tabletune/regimes.py). Pure.

The engine counts no requests, but steps with a prefill at each batch size. Where a share `s` of the steps carries one, `-ln(1 - s)`
requests begin in a step, as they end independently of each other. A prompt that the engine takes in several pieces counts as several
requests: what matters is the prefills that share steps with the decoding, and how much they carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from tabletune.regimes import Requests
from tabletune_sidecar.counters import PREFILL, StepCell

REMEMBERED_STEPS = 40_000
"""Counts are halved there, so that old traffic fades: some minutes of a busy engine."""
PRIOR_REQUESTS = 50
"""The profile's lengths count as much as so many live requests; without them so many live ones are needed."""


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """What was counted lately. Batch sizes are kept by doubling: 0 is 1, 1 is 2 and 3, 2 is 4 to 7, ..."""

    steps: Mapping[int, float] = field(default_factory=dict)
    with_prefill: Mapping[int, float] = field(default_factory=dict)
    tokens: float = 0.0  # output tokens
    prompt_tokens: float = 0.0  # computed in steps with a prefill: what a prefix cache had is not in them

    @property
    def requests(self) -> float:
        """Prefills that began, estimated."""
        return sum(-steps * log(1.0 - self._share(at, steps)) for at, steps in self.steps.items())

    @property
    def share_with_prefill(self) -> float | None:
        """Of all steps; None before the first."""
        steps = sum(self.steps.values())
        return min(sum(self.with_prefill.values()) / steps, 1.0) if steps else None

    def mean(self, prior: Requests | None) -> Requests | None:
        """Mean lengths to reckon with; `prior` are the profile's, None where it has none. None: too little is known."""
        requests, weight = self.requests, PRIOR_REQUESTS if prior is not None else 0
        if prior is None:
            if requests < PRIOR_REQUESTS:
                return None
            prior = Requests(0, 0)
        prompt, output = (
            (weight * before + seen) / (weight + requests)
            for before, seen in ((prior.prompt_tokens, self.prompt_tokens), (prior.output_tokens, self.tokens))
        )
        return Requests(max(1, round(prompt)), max(1, round(output)))

    def _share(self, at: int, steps: float) -> float:
        # A share of 1 would be endless requests: one step without a prefill may be missing by chance.
        return min(self.with_prefill.get(at, 0.0) / steps, 1.0 - 0.5 / max(steps, 1.0))


def absorb(seen: RequestLengths, fresh: Sequence[StepCell], steps: Mapping[int, int], tokens: int) -> RequestLengths:
    """Take in what a reading has that the one before had not: cells, all steps by batch size, output tokens."""
    total = sum(seen.steps.values()) + sum(steps.values())
    kept = 0.5 if total > REMEMBERED_STEPS else 1.0
    prefills = [cell for cell in fresh if cell.regime == PREFILL]
    return RequestLengths(
        steps=_added(seen.steps, kept, steps),
        with_prefill=_added(seen.with_prefill, kept, _by_batch_size(prefills)),
        tokens=kept * seen.tokens + tokens,
        prompt_tokens=kept * seen.prompt_tokens + sum(cell.prompt_tokens for cell in prefills),
    )


def _by_batch_size(cells: Sequence[StepCell]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for cell in cells:
        counts[cell.batch_size] = counts.get(cell.batch_size, 0) + cell.count
    return counts


def _added(seen: Mapping[int, float], kept: float, fresh: Mapping[int, int]) -> dict[int, float]:
    sums = {at: kept * count for at, count in seen.items()}
    for batch_size, count in fresh.items():
        at = batch_size.bit_length() - 1
        sums[at] = sums.get(at, 0.0) + count
    return sums
