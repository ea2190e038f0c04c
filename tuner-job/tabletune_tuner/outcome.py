"""How a run ends: the outcome, and the exceptions that end it early.

`reason` is CamelCase and stable once shipped: the same word in the Job's annotation, in conditions and in the exit text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    SUCCEEDED = "Succeeded"
    BLOCKED = "Blocked"  # measured or not, this engine cannot use a table; nothing is broken
    FAILED = "Failed"  # something broke; another try may help


@dataclass(frozen=True, slots=True)
class Outcome:
    """`files` are those of the ConfigMap, by name; empty unless the run succeeded."""

    status: Status
    reason: str
    message: str
    files: Mapping[str, str]


class TunerError(Exception):
    """Ends the run. The message is a full sentence that says what to do."""

    status = Status.FAILED

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class BlockedError(TunerError):
    """A table is of no use to this engine, or the engine cannot take one: no try will change that."""

    status = Status.BLOCKED


class FailedError(TunerError):
    """The run broke."""
