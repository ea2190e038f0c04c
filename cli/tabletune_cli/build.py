"""`tabletune build`: a table from measured values, as vLLM wants it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tabletune.acceptance import Estimate
from tabletune.formats import PPM, parse_profile
from tabletune.regret import regret
from tabletune.table import Table, build_choices, table_of
from tabletune.transitions import say_bad
from tabletune.verdict import VerdictKind
from tabletune_cli.errors import refuse
from tabletune_cli.grid import read_acceptance, read_grid, read_text
from tabletune_cli.output import Output, OutputOption, print_json
from tabletune_cli.prediction import Goodput, find_unsafe, predict_profile, predict_verdict, without
from tabletune_cli.regret import loss_to_json
from tabletune_tuner.build import best_fixed, predict_off

GridOption = Annotated[Path | None, typer.Option(help="CSV with the columns batch,k,value,metric", metavar="FILE.csv")]
AcceptanceOption = Annotated[
    str | None,
    typer.Option(
        help="a_1,a_2,... (share of drafts whose first i guesses are all kept) or an acceptance.json; for step times", metavar="RATES"
    ),
]
WhereOption = Annotated[list[str] | None, typer.Option(help="choose one grid of the file; repeatable", metavar="COLUMN=VALUE")]


def build(
    grid: GridOption = None,
    where: WhereOption = None,
    profile: Annotated[Path | None, typer.Option(help="profile.json of a ConfigMap, instead of --grid", metavar="FILE")] = None,
    acceptance: AcceptanceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Build a table from a grid or a profile; prints it as vLLM wants it."""
    if (grid is None) == (profile is None):
        refuse("BadArgument", "Give one of --grid FILE.csv and --profile profile.json.")
    if profile is not None and where:
        refuse("BadArgument", "--where chooses a grid of --grid; a profile.json holds one. Leave it out.")
    estimate = read_acceptance(acceptance) if acceptance is not None else None
    read = _read(grid, profile, where or [], estimate)
    values, off, noise = read.values, read.off, read.noise
    choices = build_choices(values, noise)
    table = table_of(choices)
    verdict = predict_verdict(values, table, off, noise)
    if output is Output.TEXT:
        for length, why in read.left_out.items():
            print(f"warning UnsafeChange: Draft length {length} is left out of the table: {why}.", file=sys.stderr)
        print(json.dumps(table.to_vllm(), separators=(",", ":")))
        if verdict.kind is VerdictKind.OFF:
            print(f"warning {verdict.reason}: {verdict.message}", file=sys.stderr)
        return
    losses = regret(table, values)
    print_json(
        {
            "ranges": table.to_vllm(),
            "verdict": {"kind": verdict.kind.value, "reason": verdict.reason, "message": verdict.message},
            "noise": noise,
            "goodput": [
                {
                    "batchSize": c.batch_size,
                    "draftLength": c.draft_length,
                    "tokensPerSecond": c.goodput[c.draft_length],
                    "byLength": {
                        **({"off": off[c.batch_size]} if c.batch_size in off else {}),
                        **{str(k): g for k, g in c.goodput.items()},
                    },
                    "margin": c.margin,
                    "why": c.why,
                }
                for c in choices
            ],
            "losses": [loss_to_json(x) for x in losses.losses],
            "worst": loss_to_json(losses.worst) if losses.worst else None,
            "bestFixed": _fixed(values),
            "leftOut": [{"draftLength": length, "why": why} for length, why in read.left_out.items()],
        }
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """Tokens a second by batch size and length, of the engine without speculation, the noise floor, and lengths left out with why."""

    values: Goodput
    off: Mapping[int, float]
    noise: float
    left_out: Mapping[int, str]


def _read(grid: Path | None, profile: Path | None, where: list[str], estimate: Estimate | None) -> _Measured:
    if grid is not None:
        read = read_grid(grid, where, estimate)
        return _Measured(read.goodput, read.off, read.noise, {})
    if profile is None or estimate is None:
        refuse("AcceptanceMissing", "--profile holds step times, and goodput needs acceptance too. Give --acceptance acceptance.json.")
    parsed = parse_profile(read_text(profile))
    values = predict_profile(parsed, estimate)
    unsafe = find_unsafe(parsed, values)
    return _Measured(
        without(values, unsafe),
        predict_off(parsed.baseline, parsed.baseline_prefills()),
        parsed.noise_ppm / PPM,
        {length: say_bad(transition) for length, transition in unsafe.items()},
    )


def _fixed(values: Goodput) -> dict[str, Any]:
    length = best_fixed(values)
    worst = regret(Table.fixed(length, max(values)), values).worst
    return {"draftLength": length, "worst": loss_to_json(worst) if worst else None}
