"""What every option loses at its worst load: the table, each fixed length, the present setting, and no speculation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabletune.regret import Loss, regret
from tabletune.table import Table, table_of
from tabletune.verdict import ArmName, Load
from tabletune_cli.explanation import Explanation, present_table
from tabletune_cli.prediction import predict_profile

ARMS: tuple[ArmName, ...] = ("table", "present", "fixed", "off")


@dataclass(frozen=True, slots=True)
class LiveLoss:
    """`loss` as in `tabletune.regret`, against the best arm of that load."""

    batch_size: int
    loss: float


@dataclass(frozen=True, slots=True)
class OptionLoss:
    """The worst load of one option, as step times and acceptance predict it and as it was measured live.

    `best`: the option that is best there. `unknown`: batch sizes that lack this option in the profile, so that its worst load is
    known over the others only.
    None: nothing could be compared.
    """

    name: str
    setting: str
    predicted: Loss | None
    best: str | None
    unknown: tuple[int, ...]
    live: LiveLoss | None


def find_losses(e: Explanation) -> tuple[OptionLoss, ...]:
    """Every option against the best option of the same batch size, no speculation included."""
    stored = e.stored
    off_column = e.lengths[-1] + 1  # off takes part as a length of its own, behind all of them
    goodput = {
        b: {**row, **({off_column: stored.table.off_goodput[b]} if b in stored.table.off_goodput else {})}
        for b, row in predict_profile(stored.profile, stored.acceptance.estimate).items()
    }

    loads = stored.table.loads
    live = {arm: worst_live(loads, arm) for arm in ARMS}

    def option(name: str, setting: str, table: Table, measured: LiveLoss | None) -> OptionLoss:
        found = regret(table, goodput)
        at = found.worst.best_length if found.worst else None
        best = None if at is None else "off" if at == off_column else f"k={at}"
        return OptionLoss(name, setting, found.worst, best, found.unknown, measured)

    def fixed(k: int) -> OptionLoss:
        return option("fixed", f"k={k}", Table.fixed(k, 1), live["fixed"] if loads and loads[0].fixed.setting == f"k={k}" else None)

    options: list[OptionLoss] = []
    if table := candidate_table(e):
        options.append(option("table", str(table), table, live["table"]))
    if present := present_table(stored):
        options.append(option("present", *present, live["present"]))
    options += [fixed(k) for k in e.lengths]
    options.append(option("off", "no speculation", Table.fixed(off_column, 1), live["off"]))
    return tuple(options)


def candidate_table(e: Explanation) -> Table | None:
    """The table that the choices make, also where the verdict runs something else; None without choices."""
    return table_of(e.stored.table.choices) if e.stored.table.choices else None


def worst_live(loads: Sequence[Load], arm: ArmName) -> LiveLoss | None:
    """The load at which an arm is furthest behind the best arm; None without loads."""
    losses = [LiveLoss(x.batch_size, max(1 - 1 / (1 + x.gain(rival, arm)) for rival in ARMS)) for x in loads]
    return max(losses, key=lambda x: x.loss, default=None)
