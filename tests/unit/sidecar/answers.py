"""Traffic as it is: a closed loop of requests, each with an acceptance of its own for as long as its answer lasts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from tabletune_sidecar.controller import Push
from tabletune_sidecar.counters import Counters


class Answers:
    """Sampled step by step; drafts of one answer are alike, which is what the controller must not take for another traffic.

    Args:
        seed: of all that is drawn.
        rates: `a_i` on average; may be changed while it runs: answers that have begun go on as they are.
        batch_size: requests at a time.
        spread: standard deviation of the first `a_i` between answers.
        answer_steps: mean length of an answer.
    """

    def __init__(self, seed: int, rates: Sequence[float], batch_size: int, spread: float = 0.12, answer_steps: int = 100) -> None:
        self.rates = tuple(rates)
        self.counters = Counters()
        self._random = Random(seed)
        self._batch_size = batch_size
        self._spread = spread
        self._answer_steps = answer_steps
        self._unexplored = 0  # steps since one was explored
        self._slots = [self._begin(self._random.randrange(1, 2 * answer_steps)) for _ in range(batch_size)]

    def run(self, steps: int, push: Push) -> Counters:
        """So many more steps under the table and exploring of `push`; the counters since the beginning."""
        k = push.table.length_at(self._batch_size)
        explore = push.explore
        explores = explore is not None and any(first <= self._batch_size <= last for first, last in explore.ranges)
        longer = 0
        if explore is not None and explores:
            longer, self._unexplored = divmod(self._unexplored + steps, explore.every_steps)
        explored = explore.draft_length if explore is not None else k
        drafted, kept = [0] * len(self.rates), [0] * len(self.rates)
        for at in range(self._batch_size):
            left = steps
            while left:
                steps_left, chain = self._slots[at]
                part = min(left, steps_left)
                for _ in range(part):
                    # Which steps explore has nothing to do with the answer: drawn by lot.
                    length = explored if longer and self._random.random() < longer / steps else k
                    reached = True
                    for i in range(length):
                        drafted[i] += 1
                        reached = reached and self._random.random() < chain[i]
                        kept[i] += reached
                left -= part
                self._slots[at] = (steps_left - part, chain) if steps_left > part else self._begin(2 * self._answer_steps)
        requests = steps * self._batch_size
        fresh = Counters(
            steps=steps,
            tokens=requests + sum(kept),
            request_steps=requests,
            drafted_steps=requests if k else 0,
            drafted=tuple(drafted),
            kept=tuple(kept),
            chosen={(self._batch_size, k): steps - longer, **({(self._batch_size, explored): longer} if longer else {})},
            exploring_steps=longer,
        )
        self.counters = self.counters.plus(fresh)
        return self.counters

    def _begin(self, most_steps: int) -> tuple[int, tuple[float, ...]]:
        """An answer: its steps, and the probability that each guess is kept if those before it were."""
        shift = self._random.gauss(0, self._spread)
        chain = [b / a if a else 0.0 for a, b in pairwise((1.0, *self.rates))]
        return self._random.randint(1, most_steps), tuple(min(0.99, max(0.01, q + shift)) for q in chain)
