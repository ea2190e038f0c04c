"""What is wrong at the moment, for `/state` and `/metrics`: a stable code and a sentence that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Code = Literal[
    "EngineNotHeardYet",
    "EngineUnreachable",
    "PluginNotUnderstood",
    "PluginInactive",
    "LengthNotInLaunchSet",
    "GraphsNotCured",
    "TableRefused",
    "FilesMissing",
    "FileDamaged",
    "ProofFailed",
    "StateFileUnusable",
    "StateNotSaved",
    "ProfileDrift",
]
"""Every code, with a line in docs/runbooks.md; a code never changes its meaning."""

CODES: tuple[Code, ...] = get_args(Code)

STOPS_TRACKING: frozenset[Code] = frozenset(
    {
        "EngineNotHeardYet",
        "EngineUnreachable",
        "PluginNotUnderstood",
        "PluginInactive",
        "LengthNotInLaunchSet",
        "GraphsNotCured",
        "TableRefused",
    }
)
"""While one of these lasts, the engine keeps its last table, and it does not follow the traffic."""


@dataclass(frozen=True, slots=True)
class Problem:
    code: Code
    message: str
