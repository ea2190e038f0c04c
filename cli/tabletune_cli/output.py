"""Options and helpers that several commands share."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 100


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs")]


def print_json(value: Any) -> None:
    """The result on stdout, as JSON that keeps its shape when lists grow."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def result_console() -> Console:
    """Where results for people go: the terminal's width, 100 columns without one; data is never read as markup."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, highlight=False, width=width)
