"""Entry point of `tabletune`: one file a command, errors in one style (errors.py)."""

from __future__ import annotations

from typing import Annotated

import typer

from tabletune import __version__
from tabletune_cli.build import build
from tabletune_cli.errors import CommandGroup
from tabletune_cli.explain import explain
from tabletune_cli.plot import plot
from tabletune_cli.profile import EXTRA_ARGUMENTS, profile
from tabletune_cli.regret import regret
from tabletune_cli.report import report
from tabletune_cli.validate import validate

app = typer.Typer(
    cls=CommandGroup,
    help="Measured speculative-decoding tables for vLLM: check, build, compare, measure, explain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tabletune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="print the version and leave", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Options before the command."""


for command in (validate, build, regret, explain, plot, report):
    app.command()(command)
app.command(context_settings=EXTRA_ARGUMENTS, add_help_option=False)(profile)
