"""What the API server does with an apply of ours, as far as a pod template needs it; tests/api tries the same on the real one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def apply(live: Mapping[str, Any], applied: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`live` with `applied` merged in; what an earlier apply of ours (`before`) held and this one does not is deleted."""
    merged = _merge(copy.deepcopy(dict(live)), applied)
    return merged if before is None else _prune(merged, before, applied)


def _key(items: Any) -> str | None:
    """A list of maps is merged by the maps' key; any other list is one value."""
    if not items or not isinstance(items[0], Mapping):
        return None
    return "mountPath" if "mountPath" in items[0] else "name"


def _merge(live: Any, applied: Any) -> Any:
    if isinstance(applied, Mapping):
        live = dict(live) if isinstance(live, Mapping) else {}
        for name, value in applied.items():
            live[name] = _merge(live.get(name), value)
        return live
    key = _key(applied) if isinstance(applied, list) else None
    if key is None:
        return copy.deepcopy(applied)
    merged = list(live or [])
    for item in applied:
        at = next((n for n, present in enumerate(merged) if present.get(key) == item[key]), None)
        if at is None:
            merged.append(copy.deepcopy(item))
        else:
            merged[at] = _merge(merged[at], item)
    return merged


def _prune(live: Any, before: Any, applied: Any) -> Any:
    """Every leaf and item that we owned and do not apply now goes; what holds others' fields stays."""
    if isinstance(before, Mapping) and before:
        for name, value in before.items():
            if name not in live:
                continue
            left = _prune(live[name], value, applied.get(name) if isinstance(applied, Mapping) else None)
            if left is None or (value and left in ([], {})):
                del live[name]
            else:
                live[name] = left
        return live
    key = _key(before) if isinstance(before, list) else None
    if key is None:
        return live if applied is not None else None
    wanted = {item[key]: item for item in applied or ()}
    owned = {item[key]: item for item in before}
    kept = []
    for item in live:
        if item.get(key) not in owned:
            kept.append(item)
        elif item[key] in wanted:
            kept.append(_prune(item, owned[item[key]], wanted[item[key]]))
        elif item.keys() - owned[item[key]].keys():
            kept.append(_prune(item, owned[item[key]], {key: item[key]}))
    return kept
