"""`tabletune validate`: what vLLM would refuse, change or ignore in a speculative config, before anything is started."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tabletune.speculative_config import parse_speculative_config
from tabletune.speculative_config import validate as find_findings
from tabletune_cli.errors import CommandError
from tabletune_cli.output import Output, OutputOption, print_json


class Runner(StrEnum):
    V1 = "v1"
    V2 = "v2"


def validate(
    *,
    speculative_config: Annotated[str, typer.Option(help="value of vLLM's --speculative-config, a JSON object", metavar="JSON")],
    vllm_version: Annotated[str | None, typer.Option(help="as in 0.32.0 (default: the newest that the rules know)")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="the engine's --max-num-seqs; without it some rules are left out")] = None,
    data_parallel_size: Annotated[int | None, typer.Option(help="the engine's --data-parallel-size (default: 1)")] = None,
    model_runner: Annotated[Runner | None, typer.Option(help="vLLM's model runner (default: what that version takes)")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check a --speculative-config. Exit 0: no error; 1: errors; 2: an argument cannot be used."""
    try:
        findings = find_findings(
            parse_speculative_config(speculative_config),
            vllm_version=vllm_version,
            max_num_seqs=max_num_seqs,
            data_parallel_size=data_parallel_size,
            model_runner=model_runner.value if model_runner else None,
        )
    except ValueError as error:
        raise CommandError("BadArgument", str(error)) from error
    if output is Output.JSON:
        print_json([{"level": f.level, "code": f.code, "message": f.message} for f in findings])
    else:
        for finding in findings:
            print(finding)
    raise typer.Exit(1 if any(f.level == "error" for f in findings) else 0)
