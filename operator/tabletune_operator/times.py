"""Times as the API server writes them: RFC 3339, UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def to_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Raises ValueError when `text` is no RFC 3339 time with an offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no offset; write it as 2026-11-30T14:36:00Z")
    return moment.astimezone(UTC)


def clock(moment: datetime) -> str:
    """For messages: 14:36Z."""
    return moment.astimezone(UTC).strftime("%H:%MZ")


def spoken(seconds: float) -> str:
    """For messages: 50 s, 4 min, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
