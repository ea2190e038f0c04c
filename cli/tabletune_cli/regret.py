"""`tabletune regret`: what a table or a fixed length loses against the best length of each batch size of a grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tabletune.regret import Loss, Regret
from tabletune.regret import regret as compare
from tabletune.table import Table
from tabletune.words import percent
from tabletune_cli.errors import refuse
from tabletune_cli.grid import read_acceptance, read_grid
from tabletune_cli.output import Output, OutputOption, print_json


def regret(
    *,
    grid: Annotated[Path, typer.Option(help="CSV with the columns batch,k,value,metric", metavar="FILE.csv")],
    table: Annotated[str | None, typer.Option(help="ranges as vLLM takes them", metavar="'[[1,64,3],...]'")] = None,
    fixed: Annotated[int | None, typer.Option(help="one draft length at every batch size, instead of --table", metavar="K")] = None,
    acceptance: Annotated[str | None, typer.Option(help="a_1,a_2,... or an acceptance.json; for step times", metavar="RATES")] = None,
    where: Annotated[list[str] | None, typer.Option(help="choose one grid of the file; repeatable", metavar="COLUMN=VALUE")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare a table with the best length at each measured batch size."""
    if (table is None) == (fixed is None):
        refuse("BadArgument", "Give one of --table '[[1,64,3],...]' and --fixed K.")
    values = read_grid(grid, where or [], read_acceptance(acceptance) if acceptance is not None else None)
    asked = _parse_table(table) if table is not None else _fixed(fixed, max(values.goodput))
    result = compare(asked, values.goodput)
    if result.worst is None:
        refuse(
            "NothingToCompare",
            f"{grid} has no batch size at which length {', '.join(map(str, asked.lengths))} was measured: nothing to compare.",
        )
    if output is Output.JSON:
        print_json(
            {
                "table": asked.to_vllm(),
                "losses": [loss_to_json(x) for x in result.losses],
                "worst": loss_to_json(result.worst),
                "unknown": list(result.unknown),
                "noise": values.noise,
            }
        )
    else:
        _print(asked, result, result.worst)


def loss_to_json(loss: Loss) -> dict[str, Any]:
    """`loss` as a share: 0.05 = 5 %."""
    return {"batchSize": loss.batch_size, "draftLength": loss.draft_length, "bestLength": loss.best_length, "loss": loss.loss}


def _parse_table(text: str) -> Table:
    try:
        ranges = json.loads(text)
    except ValueError as error:
        refuse("BadArgument", f"--table is not JSON ({error}). Give '[[1,64,3],[65,128,1]]'.")
    try:
        return Table.parse(sorted(ranges) if _is_list_of_lists(ranges) else ranges)  # vLLM sorts too
    except ValueError as error:
        refuse("BadArgument", f"--table cannot be used: {error}. See tabletune validate.")


def _is_list_of_lists(ranges: object) -> bool:
    return isinstance(ranges, list) and all(isinstance(r, list) and all(type(n) is int for n in r) for r in ranges)


def _fixed(length: int | None, last: int) -> Table:
    if length is None or length < 0:
        refuse("BadArgument", f"--fixed is {length}; a draft length is 0 or more.")
    return Table.fixed(length, last)


def _print(table: Table, result: Regret, worst: Loss) -> None:
    print(f"{'B':>5}  {'length':>6}  {'best':>4}  {'loss':>7}")
    for x in result.losses:
        mark = "   worst" if x is worst and x.loss > 0 else ""
        print(f"{x.batch_size:>5}  {x.draft_length:>6}  {x.best_length:>4}  {percent(x.loss):>7}{mark}")
    for batch_size in result.unknown:
        print(f"{batch_size:>5}  {table.length_at(batch_size):>6}     -        -   not measured")
    if worst.loss > 0:
        print(f"Worst: {percent(worst.loss)} at B={worst.batch_size}, where {worst.best_length} is best and {worst.draft_length} is used.")
    else:
        print("Nothing lost: the best length at every measured batch size.")
