"""An engine that runs by chance, for the tests of live costs: steps of given true times, and the counters that its plugin would have."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sidecar_cases import CODE

from tabletune.table import Table
from tabletune_sidecar.counters import Counters, StepCell

Times = Callable[[int, int], float]  # true microseconds of a step at (B, k)


class LiveEngine:
    """`noise` is the relative deviation of a step; one step in `stall_every` takes a second."""

    def __init__(self, seed: int, times: Times, batch_sizes: tuple[int, ...], noise: float = 0.05, stall_every: int = 5_000) -> None:
        self._random, self._times, self._batch_sizes = Random(seed), times, batch_sizes
        self._noise, self._stall_every = noise, stall_every
        self._cells: dict[tuple[int, int], list[int]] = {}
        self._drafted, self._kept = [0] * len(CODE), [0] * len(CODE)

    def run(self, table: Table, steps: int = 200) -> None:
        for _ in range(steps):
            B = self._random.choice(self._batch_sizes)
            k = table.length_at(B)
            micros = self._times(B, k) * self._random.lognormvariate(0.0, self._noise)
            if self._random.random() * self._stall_every < 1:
                micros += 1e6
            cell = self._cells.setdefault((B, k), [0, 0])
            cell[0] += 1
            cell[1] += round(micros)
            for i in range(k):
                self._drafted[i] += B
                self._kept[i] += round(B * CODE[i])

    def cells(self) -> tuple[StepCell, ...]:
        return tuple(StepCell(B, k, "decode", count, micros) for (B, k), (count, micros) in self._cells.items())

    def counters(self) -> Counters:
        requests = sum(B * count for (B, _), (count, _) in self._cells.items())
        return Counters(
            steps=sum(count for count, _ in self._cells.values()),
            tokens=2 * requests,
            request_steps=requests,
            drafted_steps=requests,
            drafted=tuple(self._drafted),
            kept=tuple(self._kept),
            chosen={cell: count for cell, (count, _) in self._cells.items()},
        )
