"""The ConfigMap's files for the sidecars: as measured, or with another table in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.controller.rivals import documented

from tabletune import formats
from tabletune.acceptance import Counts, Estimate
from tabletune.formats import AcceptanceFile, FormatError, TableFile
from tabletune.goodput import predict_goodput
from tabletune.profile import Profile
from tabletune.table import Table, build_choices, launch_table, table_of
from tabletune.verdict import Standing, Verdict, VerdictKind

ADDED_LATER: Mapping[str, object] = {
    "warnings": [],
    "requests": None,
    "prefill": [],
    "baselinePrefill": [],
    "ceilings": [],
    "transitions": [],
}
"""What profiles of the project's first days lack."""
COUNTED = 100_000  # drafts a position, where acceptance is not from a profile
SAME = 0.05  # acceptance of the profile, that far from what the engine keeps
SHRINK = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile of the engine, its acceptance, and the table that follows from them; `notes`: what is not as it was measured."""

    profile: Profile
    acceptance: AcceptanceFile
    table: TableFile
    notes: tuple[str, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.table.launch_lengths

    @property
    def best(self) -> Table:
        assert self.table.table is not None
        return self.table.table

    def wrong_at(self, load: int) -> tuple[str, Table]:
        """The documentation's table, every range a quarter as long (the simulator's scenario `wrong-launch`), and what it is.

        Where that is right by accident: at every batch size the length that is worth least.
        """
        shrunk = documented(self.lengths, max(self.profile.step_times()), shrink=SHRINK)
        if shrunk.length_at(load) != self.best.length_at(load):
            return "documentation / 4", shrunk
        goodput = _goodput(self.profile, self.acceptance.estimate, self.lengths)
        worst = {B: {k: 1 / tokens for k, tokens in row.items()} for B, row in goodput.items()}
        return "worst lengths", table_of(build_choices(worst))

    def launch(self, max_num_seqs: int) -> Table:
        """What an engine is started with: the longest length, and each other at a batch size of its own."""
        return launch_table(Table.fixed(max(self.lengths), max_num_seqs), self.lengths, max_num_seqs)

    def best_for(self, rates: Sequence[float]) -> Table:
        """The table that the tuner would build for this acceptance."""
        return _build(self.profile, Estimate(tuple(rates), 1.0), self.lengths)

    def write(self, folder: Path, table: Table) -> Path:
        """A folder for a sidecar whose roll-out had this table."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / formats.PROFILE).write_text(formats.to_profile(self.profile))
        (folder / formats.ACCEPTANCE).write_text(formats.to_acceptance(self.acceptance))
        (folder / formats.TABLE).write_text(formats.to_table(replace(self.table, table=table)))
        (folder / formats.FLEET).unlink(missing_ok=True)
        return folder


def read_measured(folder: Path, rates: Sequence[float]) -> Measured:
    """The files of a profiling run. Where they hold no table for this acceptance, one is built as the tuner does it.

    Raises FormatError or OSError.
    """
    notes = []
    table: TableFile | None = None
    profile = formats.parse_profile(json.dumps({**ADDED_LATER, **json.loads((folder / formats.PROFILE).read_text())}))
    acceptance = formats.parse_acceptance((folder / formats.ACCEPTANCE).read_text())
    try:
        table = formats.parse_table((folder / formats.TABLE).read_text())
    except FormatError as error:
        notes.append(f"{error.file}: {error.field} {error.problem}")
    except FileNotFoundError:
        notes.append("there is no table.json")
    told = acceptance.counts.rates
    is_other = len(told) != len(rates) or any(abs(a - b) > SAME for a, b in zip(told, rates, strict=True))
    if is_other:
        notes.append(f"the profile's acceptance is {[round(a, 3) for a in told]}; the engine keeps {list(rates)}, which is used instead")
        kept = tuple(round(COUNTED * rate) for rate in rates)
        acceptance = AcceptanceFile(Counts(COUNTED, COUNTED, (COUNTED,) * len(rates), kept), 0, 0, "", "given by --rates", ())
    if table is None or table.table is None or is_other:
        lengths = tuple(sorted({cell.draft_length for cell in profile.cells}))
        built = _build(profile, acceptance.estimate, lengths)
        notes.append(f"table.json holds no table for this acceptance; built from the profile: {built}")
        verdict = Verdict(VerdictKind.TABLE, "TablePays", "Built for a benchmark.", Standing())
        noise = table.noise_ppm if table is not None else profile.noise_ppm
        table = TableFile(built, verdict, lengths, noise, (), {}, (), None)
    return Measured(profile, acceptance, table, tuple(notes))


def _build(profile: Profile, traffic: Estimate, lengths: Sequence[int]) -> Table:
    return table_of(build_choices(_goodput(profile, traffic, lengths), profile.noise_ppm / formats.PPM))


def _goodput(profile: Profile, traffic: Estimate, lengths: Sequence[int]) -> Mapping[int, Mapping[int, float]]:
    times = {B: {k: micros for k, micros in row.items() if k in lengths} for B, row in profile.step_times().items()}
    return predict_goodput({B: row for B, row in times.items() if row}, traffic, profile.prefills())
