"""Regret: what a table loses at each batch size against the best length measured there."""

from collections.abc import Mapping
from dataclasses import dataclass

from tabletune.table import Table


@dataclass(frozen=True, slots=True)
class Loss:
    """`loss` is 1 - goodput / best goodput: 0 = nothing lost, 0.05 = 5 %."""

    batch_size: int
    draft_length: int
    best_length: int
    loss: float


@dataclass(frozen=True, slots=True)
class Regret:
    losses: tuple[Loss, ...]
    unknown: tuple[int, ...]  # batch sizes where the grid lacks the table's length

    @property
    def worst(self) -> Loss | None:
        """The batch size that loses most; None when no batch size could be compared."""
        return max(self.losses, key=lambda x: x.loss, default=None)


def regret(table: Table, goodput: Mapping[int, Mapping[int, float]]) -> Regret:
    """Compare a table with the grid's own best length at every measured batch size.

    Args:
        table: any table, a fixed length included.
        goodput: tokens a second by batch size and draft length.
    """
    losses: list[Loss] = []
    unknown: list[int] = []
    for batch_size in sorted(goodput):
        options = goodput[batch_size]
        length = table.length_at(batch_size)
        if length not in options:
            unknown.append(batch_size)
            continue
        best = min(options, key=lambda k: (-options[k], k))
        losses.append(Loss(batch_size, length, best, 1 - options[length] / options[best]))
    return Regret(tuple(losses), tuple(unknown))
