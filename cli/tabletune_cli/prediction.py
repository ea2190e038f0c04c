"""What a grid or profile says about a table, without a live measurement: pure functions on goodput by batch size and length."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.graphs import GraphCells, usable_cells
from tabletune.profile import Profile, Transition, step_times
from tabletune.table import MIN_SWITCH_GAIN, Table, build_choices, table_of
from tabletune.transitions import lengths_to_drop
from tabletune.verdict import Verdict, VerdictKind, mean_of_gains
from tabletune.words import percent
from tabletune_cli.errors import refuse
from tabletune_tuner.build import best_fixed

Goodput = Mapping[int, Mapping[int, float]]
"""Tokens a second: `{batch size: {draft length: value}}`."""

SCAN_STEPS = 100


@dataclass(frozen=True, slots=True)
class Robustness:
    """The table stays the same while a_1 lies in `low..high` (other positions in proportion); outside it becomes `below` and `above`.

    `below` and `above` are None when nothing changes down to 0, or up to 1.
    """

    low: float
    high: float
    below: Table | None
    above: Table | None


def predict_profile(profile: Profile, estimate: Estimate) -> dict[int, dict[int, float]]:
    """G(B, k) of every measured cell that the engine may run."""
    longest = max(c.draft_length for c in profile.cells)
    if longest > len(estimate.acceptance):
        refuse(
            "AcceptanceTooShort",
            f"The profile goes up to k={longest} and acceptance has {len(estimate.acceptance)} positions. Give {longest}.",
        )
    cells = usable_cells(profile.cells, GraphCells.of(profile.engine))
    return predict_goodput(step_times(cells), estimate, profile.prefills())


def find_unsafe(profile: Profile, goodput: Goodput) -> dict[int, Transition]:
    """The lengths that a table of this profile does without, and the change of length that each stalled or ended the engine in."""
    on_gpu = profile.engine.get("device") != "cpu"
    return lengths_to_drop(profile.transitions, profile.step_times(), goodput, on_gpu=on_gpu)


def without(goodput: Goodput, lengths: Container[int]) -> dict[int, dict[int, float]]:
    """The same without these lengths, and without batch sizes that have no other."""
    left = {b: {k: value for k, value in row.items() if k not in lengths} for b, row in goodput.items()}
    return {b: row for b, row in left.items() if row}


def build_table(values: Goodput, noise: float) -> Table:
    """The table of these values."""
    return table_of(build_choices(values, noise))


def predict_verdict(values: Goodput, table: Table, off: Mapping[int, float], noise: float) -> Verdict:
    """What to run, as predicted, by the rules of `tabletune.verdict`; the present setting is not known here."""
    threshold = max(MIN_SWITCH_GAIN, noise)
    at_table = {b: options[table.length_at(b)] for b, options in values.items() if table.length_at(b) in options}
    against_off = [off[b] / value - 1 for b, value in at_table.items() if b in off]
    if against_off and mean_of_gains(against_off) > threshold:
        return Verdict(
            VerdictKind.OFF,
            "SpeculationLoses",
            f"Predicted: no speculation gives {percent(mean_of_gains(against_off), sign=True)} tokens/s over the table. Remove the config.",
        )
    fixed = table.lengths[0] if len(table.lengths) == 1 else best_fixed(values)
    gains = {b: value / values[b][fixed] - 1 for b, value in at_table.items() if fixed in values[b]}
    most = max(gains, key=lambda b: gains[b])
    if gains[most] <= threshold and fixed == 0:
        return Verdict(
            VerdictKind.OFF,
            "SpeculationLoses",
            "Length 0 is as good as any at every batch size, and it still pays for the drafter. Serve without speculation.",
        )
    if gains[most] <= threshold:
        return Verdict(
            VerdictKind.FIXED, "FixedLengthPays", f"Predicted: one length, k={fixed}, is as good as a table within {percent(threshold)}."
        )
    return Verdict(
        VerdictKind.TABLE,
        "TablePays",
        f"Predicted: {percent(mean_of_gains([*gains.values()]), sign=True)} tokens/s over the best fixed length, k={fixed}, on average "
        f"over {len(gains)} batch sizes; most at B={most}: {percent(gains[most], sign=True)}.",
    )


def find_robustness(estimate: Estimate, predict: Callable[[Estimate], Goodput], noise: float) -> Robustness | None:
    """How far a_1 may move before the table changes; None without acceptance to move."""
    first = estimate.acceptance[0] if estimate.acceptance else 0.0
    if first <= 0:
        return None

    def table_at(a1: float) -> Table:
        rates = tuple(min(a * a1 / first, 1.0) for a in estimate.acceptance)
        return build_table(predict(Estimate(rates, estimate.coverage)), noise)

    present = table_at(first)
    grid = [i / SCAN_STEPS for i in range(SCAN_STEPS + 1)]
    low, below = first, None
    for a1 in reversed([a for a in grid if a < first]):
        table = table_at(a1)
        if table != present:
            below = table
            break
        low = a1
    high, above = first, None
    for a1 in (a for a in grid if a > first):
        table = table_at(a1)
        if table != present:
            above = table
            break
        high = a1
    return Robustness(low, high, below, above)
