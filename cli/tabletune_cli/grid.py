"""Grids: goodput or step times by batch size and draft length, from a CSV file that somebody measured.

Columns `batch,k,value,metric`; `k` may be `off`, an engine without speculation. Any other column tells grids apart when a file
holds several. Rows of the same batch size and length are repeats: their median counts, and their spread is the noise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tabletune.acceptance import Estimate
from tabletune.formats import parse_acceptance
from tabletune.goodput import goodput, predict_goodput
from tabletune_cli.errors import CommandError, refuse

NEEDED = ("batch", "k", "value", "metric")
GOODPUT_METRIC = "out_tok_s"
STEP_TIME_MICROS = {"itl_ms": 1000.0, "itl_ms_per_step": 1000.0, "step_us": 1.0}
"""Metrics that are step times T, and their unit in microseconds."""
OFF, OFF_LENGTH = "off", -1
DESCRIBING = frozenset(
    {"note", "comment", "repeat", "repetition", "run", "trial", "sample", "samples", "spread", "date", "time", "timestamp"}
)
"""Columns that may differ from row to row within one grid."""
SHOWN_GRIDS = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Tokens a second by batch size and length; `noise` is the median relative spread of repeats, 0 without repeats."""

    goodput: Mapping[int, Mapping[int, float]]
    off: Mapping[int, float]  # an engine without speculation, from rows whose k is `off`
    noise: float


def read_acceptance(text: str) -> Estimate:
    """`0.68,0.39` (a_i: the first i guesses all kept), or the path of an acceptance.json."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return parse_acceptance(read_text(path)).estimate
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        refuse("BadArgument", f"--acceptance {text!r} is neither numbers like 0.68,0.39,0.22 nor the path of an acceptance.json.")
    if not all(0 <= rate <= 1 for rate in rates):
        refuse(
            "BadArgument", f"--acceptance {text} has a rate outside 0..1. Each is the share of drafts whose first i guesses are all kept."
        )
    if any(later > earlier for earlier, later in pairwise(rates)):
        refuse("BadArgument", f"--acceptance {text} rises. Give the share of drafts whose first i guesses are all kept, which only falls.")
    return Estimate(rates, 1.0)


def read_text(path: Path) -> str:
    """A file that the user named."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        refuse("FileMissing", f"{path} does not exist. Give the path of an existing file.")
    except (OSError, UnicodeDecodeError) as error:
        refuse("FileUnreadable", f"{path} cannot be read: {error}.")


def read_grid(path: Path, where: Sequence[str], acceptance: Estimate | None) -> Grid:
    """The one grid that `where` (`COLUMN=VALUE`) leaves of a file.

    Raises:
        CommandError: the file, a row, or the choice cannot be used.
    """
    rows = _read_rows(path)
    rows = _choose(path, rows, where)
    metric = rows[0].fields["metric"]
    cells: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        length = OFF_LENGTH if row.fields["k"] == OFF else _integer(path, row, "k", 0)
        cells.setdefault((_integer(path, row, "batch", 1), length), []).append(_positive(path, row))
    values: dict[int, dict[int, float]] = {}
    off: dict[int, float] = {}
    for (batch_size, length), repeats in sorted(cells.items()):
        if length == OFF_LENGTH:
            off[batch_size] = median(repeats)
        else:
            values.setdefault(batch_size, {})[length] = median(repeats)
    if not values:
        refuse("GridEmpty", f"{path} has no row with a draft length in k, only {OFF}: nothing to choose from.")
    spreads = [median(abs(v - median(r)) for v in r) / median(r) for r in cells.values() if len(r) > 1]
    if metric in STEP_TIME_MICROS:
        values = _to_goodput(path, values, STEP_TIME_MICROS[metric], acceptance)
        off = {b: goodput(b, 0, t * STEP_TIME_MICROS[metric], ()) for b, t in off.items()}
    elif metric != GOODPUT_METRIC:
        known = ", ".join((GOODPUT_METRIC, *STEP_TIME_MICROS))
        refuse("UnknownMetric", f"{path}: metric is {metric!r}; it can be {known}.")
    return Grid(values, off, median(spreads) if spreads else 0.0)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    fields: Mapping[str, str]


def _read_rows(path: Path) -> list[_Row]:
    reader = csv.DictReader(read_text(path).splitlines())
    columns = [name.strip() for name in reader.fieldnames or ()]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        refuse(
            "ColumnMissing",
            f"{path}: column {', '.join(missing)} is missing; found {', '.join(columns) or 'nothing'}. Needed: {', '.join(NEEDED)}.",
        )
    reader.fieldnames = columns
    rows = []
    for fields in reader:
        if None in fields or None in fields.values():
            refuse("BadRow", f"{path} line {reader.line_num}: the row has not as many fields as the {len(columns)} columns. Quote commas.")
        rows.append(_Row(reader.line_num, {name: value.strip() for name, value in fields.items()}))
    if not rows:
        refuse("GridEmpty", f"{path} has no row below its header.")
    return rows


def _choose(path: Path, rows: list[_Row], where: Sequence[str]) -> list[_Row]:
    for condition in where:
        column, equals, wanted = condition.partition("=")
        if not equals or column not in rows[0].fields:
            refuse("BadArgument", f"--where {condition!r} is not COLUMN=VALUE with a column of {path}: {', '.join(rows[0].fields)}.")
        left = [row for row in rows if row.fields[column] == wanted]
        if not left:
            seen = sorted({row.fields[column] for row in rows})
            refuse("NoSuchGrid", f"{path} has no row with {column}={wanted}. Found: {'; '.join(seen[:SHOWN_GRIDS])}.")
        rows = left
    telling = [name for name in rows[0].fields if name not in DESCRIBING and name not in NEEDED[:3]]
    differing = [name for name in telling if len({row.fields[name] for row in rows}) > 1]
    if differing:
        counts: dict[tuple[str, ...], int] = {}
        for row in rows:
            key = tuple(row.fields[name] for name in differing)
            counts[key] = counts.get(key, 0) + 1
        grids = [dict(zip(differing, key, strict=True)) for key in counts]
        # As few columns as tell them apart, so that the list can be copied to --where.
        shown = next(((n,) for n in differing if len({g[n] for g in grids}) == len(grids)), tuple(differing))
        lines = [
            "  " + " ".join(f"--where '{name}={grid[name]}'" for name in shown) + f"   ({rows_of} rows)"
            for grid, rows_of in list(zip(grids, counts.values(), strict=True))[:SHOWN_GRIDS]
        ]
        more = [f"  and {len(grids) - SHOWN_GRIDS} more"] if len(grids) > SHOWN_GRIDS else []
        text = f"{path} holds {len(grids)} grids, told apart by {', '.join(differing)}. Choose one:"
        raise CommandError("SeveralGrids", "\n".join([text, *lines, *more]), {"grids": grids})
    return rows


def _to_goodput(
    path: Path, values: Mapping[int, Mapping[int, float]], micros: float, acceptance: Estimate | None
) -> dict[int, dict[int, float]]:
    longest = max(k for options in values.values() for k in options)
    if acceptance is None:
        refuse("AcceptanceMissing", f"{path} holds step times, and goodput needs acceptance too. Give --acceptance with {longest} rates.")
    if longest > len(acceptance.acceptance):
        refuse(
            "AcceptanceTooShort",
            f"{path} goes up to k={longest} and --acceptance has {len(acceptance.acceptance)} rates. Give {longest}.",
        )
    return predict_goodput({b: {k: t * micros for k, t in options.items()} for b, options in values.items()}, acceptance)


def _integer(path: Path, row: _Row, name: str, least: int) -> int:
    text = row.fields[name]
    if not text.isdecimal() or int(text) < least:
        refuse("BadRow", f"{path} line {row.line}: {name} is {text!r}; it must be an integer of {least} or more.")
    return int(text)


def _positive(path: Path, row: _Row) -> float:
    text = row.fields["value"]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        refuse("BadRow", f"{path} line {row.line}: value is {text!r}; it must be a number above 0.")
    return value
