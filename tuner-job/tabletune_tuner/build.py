"""From what was measured to what is run: table, candidates for the live comparison, verdict, and the files. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean
from typing import Any

import yaml

from tabletune.acceptance import Estimate
from tabletune.findings import EngineFlag
from tabletune.formats import Capacity, TableFile
from tabletune.goodput import Step, predict_goodput, predict_steps
from tabletune.graphs import GraphCells
from tabletune.profile import Cell, Profile, step_times
from tabletune.regimes import Prefills
from tabletune.speculative_config import ADAPTIVE_FIELD, LONGEST_FIELD, TABLE_FIELD
from tabletune.table import Choice, Range, Table, build_choices, launch_table, table_of
from tabletune.verdict import Load, Predicted, VerdictKind, decide_verdict, gains
from tabletune_tuner.noise import Noise

OFF = "off"
FEWEST_SHARE = 0.8  # of a load, that a step in one of its windows has


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of the engine with speculation, as a table over its launch lengths."""

    name: str
    table: Table
    setting: str  # for people


@dataclass(frozen=True, slots=True)
class Built:
    """What the profile and the acceptance give; `fixed_length` is the best single length over all batch sizes."""

    choices: tuple[Choice, ...]
    table: Table
    fixed_length: int


def predict_off(baseline: Sequence[Cell], prefills: Prefills | None) -> dict[int, float]:
    """Goodput without speculation by batch size."""
    predicted = predict_goodput(step_times(baseline), Estimate((), 1.0), prefills)
    return {B: row[0] for B, row in predicted.items()}


def build(cells: Sequence[Cell], estimate: Estimate, noise: float, prefills: Prefills | None) -> Built:
    """The table of highest goodput, and the best fixed length. `cells` must not be empty."""
    predicted = predict_goodput(step_times(cells), estimate, prefills)
    choices = build_choices(predicted, noise)
    table = table_of(choices)
    # A table of one length is a fixed length, though another may be ahead by less than a change must win.
    return Built(choices, table, table.lengths[0] if len(table.lengths) == 1 else best_fixed(predicted))


def best_fixed(predicted: Mapping[int, Mapping[int, float]]) -> int:
    """The length that loses least against each batch size's best, on average; the smaller of two equal ones.

    A length that is missing at a batch size counts as nothing there: it cannot be run at every load.
    """
    lengths = sorted({k for row in predicted.values() for k in row})

    def share(k: int) -> float:
        return mean(row.get(k, 0.0) / max(row.values()) for row in predicted.values())

    return max(lengths, key=lambda k: (share(k), -k))


def choose_loads(batch_sizes: Sequence[int], table: Table) -> tuple[int, ...]:
    """Batch sizes to compare live: the smallest, the largest, about their geometric middle, and where the table first changes."""
    smallest, largest = min(batch_sizes), max(batch_sizes)
    middle = min(batch_sizes, key=lambda B: (abs(B - sqrt(smallest * largest)), B))
    edges = [r.first for r in table.ranges[1:2] if r.first in batch_sizes]
    return tuple(sorted({smallest, middle, largest, *edges}))


def choose_candidates(built: Built, present: Candidate | None, largest: int) -> list[Candidate]:
    """What is compared at every load in an engine with speculation."""
    fixed = Candidate("fixed", Table.fixed(built.fixed_length, largest), f"k={built.fixed_length}")
    return [Candidate("table", built.table, str(built.table)), *([] if present is None else [present]), fixed]


def present_candidate(present: Mapping[str, Any], lengths: Sequence[int], largest: int) -> Candidate:
    """The user's present setting up to `largest`, in lengths that may be put in force: the nearest one, the smaller of two."""

    def nearest(k: int) -> int:
        return min(lengths, key=lambda own: (abs(own - k), own))

    longest = int(present.get(LONGEST_FIELD) or max(lengths))
    ranges = present.get(TABLE_FIELD)
    table = Table.parse(ranges) if ranges else Table.fixed(longest, largest)
    # vLLM cuts a longer length to the longest without a word.
    asked = {k: min(k, longest) for k in table.lengths}
    mapped = Table(tuple(Range(r.first, r.last, nearest(asked[r.draft_length])) for r in table.ranges)).up_to(largest)
    setting = str(table) if ranges else f"k={longest}"
    changed = sorted({asked[k] for k in table.lengths} - set(lengths))
    note = f" ({', '.join(f'{k} run as {nearest(k)}' for k in changed)})" if changed else ""
    return Candidate("present", mapped, setting + note)


def say_present(present: Mapping[str, Any]) -> str:
    """A present setting that runs in an engine of its own, for people."""
    adaptive = ", adaptive verification" if present.get(ADAPTIVE_FIELD) else ""
    return f"{present.get('method')}, k={present.get(LONGEST_FIELD)}{adaptive}"


def fixed_here(built: Built, loads: Sequence[int]) -> dict[int, Candidate]:
    """The length of highest predicted goodput at each load, the smaller of two equal ones, where it is not the best fixed one.

    Every load must be a batch size of the profile.
    """
    goodput = {c.batch_size: c.goodput for c in built.choices}
    best = {B: max(sorted(goodput[B]), key=goodput[B].__getitem__) for B in loads}
    largest = built.table.ranges[-1].last
    return {B: Candidate("fixedHere", Table.fixed(k, largest), f"k={k}") for B, k in best.items() if k != built.fixed_length}


def predict_arms(profile: Profile, estimate: Estimate, candidates: Mapping[int, Sequence[Candidate]]) -> dict[tuple[str, int], Predicted]:
    """Mean step time and goodput of each candidate at the batch sizes where it is compared, by name and batch size; `off` as well.

    A length that was not measured at a batch size is not predicted there.
    """
    steps = predict_steps(profile.step_times(), estimate, profile.prefills())
    off = predict_steps(step_times(profile.baseline), Estimate((), 1.0), profile.baseline_prefills())
    predicted = {(OFF, B): _predicted(off[B][0]) for B in candidates if B in off}
    for B, of_load in candidates.items():
        for candidate in of_load:
            k = candidate.table.length_at(B)
            if k in steps[B]:
                predicted[candidate.name, B] = _predicted(steps[B][k])
    return predicted


def _predicted(step: Step) -> Predicted:
    return Predicted(round(step.micros), step.goodput)


def same_in_window(a: Table, b: Table, batch_size: int) -> bool:
    """Whether two tables do the same at every batch size of a window at this load: a few requests come and go in it."""
    fewest = max(1, min(batch_size - 2, int(FEWEST_SHARE * batch_size)))
    return all(a.length_at(B) == b.length_at(B) for B in range(fewest, batch_size + 1))


def decide(
    built: Built,
    off: Mapping[int, float],
    loads: Sequence[Load],
    noise: Noise,
    lengths: Sequence[int],
    *,
    present_speculates: bool,
    capacity: Capacity | None,
) -> TableFile:
    """The decision, with the table that its verdict means: one range when a fixed length is as good, none when no table of ours pays."""
    verdict = decide_verdict(
        loads,
        noise.share,
        table=built.table,
        fixed_length=built.fixed_length,
        present_speculates=present_speculates,
        noise_assumed=noise.assumed,
    )
    largest = built.table.ranges[-1].last
    tables = {
        VerdictKind.TABLE: built.table,
        VerdictKind.FIXED: Table.fixed(built.fixed_length, largest),
    }
    return TableFile(
        table=tables.get(verdict.kind),
        verdict=verdict,
        launch_lengths=tuple(lengths),
        noise_ppm=round(noise.share * 1_000_000),
        noise_assumed=noise.assumed,
        capacity=capacity,
        choices=built.choices,
        off_goodput=off,
        loads=tuple(loads),
        gains=gains(loads) if loads else None,
    )


def build_speculative_config(
    base: Mapping[str, Any], table: Table | None, lengths: Sequence[int], engine: Mapping[str, Any], most: int
) -> dict[str, Any]:
    """What an engine with the plugin gets for a table; empty without one. `engine` is what `hello` said of the one that was profiled.

    On the V2 runner the launch table must hold every length that a later table may use; V1 has no graph for a length. Where the
    lengths are safe only by the plugin, the launch table keeps to one length that is safe without it, but for the largest batch
    sizes: the sidecar puts the true table in force through the plugin, and if that does not work, nothing dangerous runs.
    """
    if table is None:
        return {}
    if engine.get("runner") != "v2":
        return {**base, TABLE_FIELD: table.to_vllm()}
    graphs = GraphCells.of(engine)
    start = Table.fixed(graphs.quiet_length(lengths), most) if graphs.needs_cure else table
    return {**base, TABLE_FIELD: launch_table(start, lengths, most).to_vllm()}


def bare_table(table: Table, lengths: Sequence[int], engine: Mapping[str, Any]) -> Table:
    """What is safe without the plugin: the same, or one length where several are safe only by the plugin. One alone always is."""
    graphs = GraphCells.of(engine)
    if len(table.lengths) == 1 or engine.get("runner") != "v2" or not graphs.needs_cure:
        return table
    return Table.fixed(graphs.quiet_length(lengths), table.ranges[-1].last)


def to_speculative_config(config: Mapping[str, Any]) -> str:
    return json.dumps(config) + "\n"


def to_vllm_yaml(config: Mapping[str, Any], advice: EngineFlag | None) -> str:
    """The same as a file for `vllm serve --config`; `advice` stands above it as a comment, for nobody measured it."""
    said = [] if advice is None else textwrap.wrap(f"{advice.flag} {advice.effect}", 120, break_on_hyphens=False, break_long_words=False)
    text = yaml.safe_dump({"speculative-config": dict(config)} if config else {}, sort_keys=False)
    return "".join(f"# {line}\n" for line in said) + text
