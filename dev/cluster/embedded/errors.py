"""The one error that ends a command with a message instead of a traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class ClusterError(Exception):
    """What is wrong and what to do, as one or a few sentences for the user."""


def run(argv: Sequence[str], *, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """The standard output of a command that must succeed; its standard error is part of the error otherwise."""
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def succeeds(argv: Sequence[str]) -> bool:
    """Whether a command succeeds: a question, or a removal of something that may be gone already."""
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
