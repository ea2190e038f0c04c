"""Events: transitions only. What is so stands in the conditions; an event says when it became so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tabletune_operator.conditions import REASONS, STAGES, Condition, Outlook
from tabletune_operator.plan import Event
from tabletune_operator.status import Fleet

_OUTLOOKS = {(reason.type, reason.name): reason.outlook for reason in REASONS}

TABLE_CHANGED = "TableChanged"


def transition_events(new: Iterable[Condition], old: Mapping[str, Condition]) -> tuple[Event, ...]:
    """One event for each stage whose reason is another one now. A stage that only waits for an earlier one says nothing."""
    events: list[Event] = []
    for condition in new:
        before = old.get(condition.type)
        outlook = _OUTLOOKS.get((condition.type, condition.reason))
        if condition.type not in STAGES or outlook is Outlook.BEHIND:
            continue
        if before is not None and (before.status, before.reason) == (condition.status, condition.reason):
            continue
        events.append(Event("Warning" if outlook is Outlook.HUMAN else "Normal", condition.reason, condition.message))
    return tuple(events)


def table_events(new: Fleet | None, old: Fleet | None) -> tuple[Event, ...]:
    """Replicas follow another table than before; `table_changed_at` moves at most every ten minutes, and so do these events."""
    if new is None or new.table_changed_at is None or not new.tables:
        return ()
    if old is None or old.table_changed_at is None or old.table_changed_at == new.table_changed_at:
        return ()
    return (Event("Normal", TABLE_CHANGED, f"Traffic changed: {'; '.join(new.tables)}. No restart. Nothing to do."),)
