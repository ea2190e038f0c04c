"""Figures as the sections of `tabletune report` write them."""

from __future__ import annotations

NOTHING = "n/m"


def milliseconds(micros: float | None) -> str:
    """Not measured: NOTHING, here and below."""
    return NOTHING if micros is None else f"{micros / 1000:.2f}"


def rate(tokens_per_second: float | None) -> str:
    """Tokens a second, without a fraction where none tells anything."""
    if tokens_per_second is None:
        return NOTHING
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 100 else f"{tokens_per_second:.1f}"
