"""What one stage of a decision says: its reason, its message, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tabletune_operator.conditions import Reason
from tabletune_operator.plan import Action


@dataclass(frozen=True, slots=True)
class Stage:
    reason: Reason
    message: str
    actions: tuple[Action, ...] = ()


def listed(names: Iterable[str], most: int = 4) -> str:
    """`a, b and 3 more`, for messages."""
    every = list(names)
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


def percent(share: float, *, sign: bool = False) -> str:
    """0.036 is `+3.6 %` with a sign. Messages have a space before the sign, columns none (display.py)."""
    return f"{share * 100:{'+' if sign else ''}.1f} %"
