"""Runs the command line in this process, or as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tabletune_cli.main import app

GOLDEN = Path(__file__).parent / "golden"


def call(*args: str, columns: int = 100) -> Result:
    """In this process; `result.stdout` and `result.stderr` are apart."""
    return CliRunner().invoke(app, list(args), env={"COLUMNS": str(columns), "TERM": "dumb"})


def call_json(*args: str) -> Any:
    """The parsed result of `-o json`, which must succeed."""
    result = call(*args, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def call_process(*args: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own: what scripts see."""
    command = [str(Path(sys.executable).with_name("tabletune")), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def check_golden(name: str, text: str) -> None:
    """Compare with golden/NAME; `UPDATE_GOLDEN=1` writes it."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
