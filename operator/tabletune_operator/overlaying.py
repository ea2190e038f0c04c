"""Our fields laid over an object that is written whole, and taken out of it again. Pure.

Server-side apply does the same where a definition says which lists are maps. Where it does not (KServe's small definition calls the
whole `spec` atomic), an apply would take away everything that it does not name: such an object is read, changed here, and updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ABSENT: Any = object()


def lay_over(there: Any, ours: Any) -> Any:
    """`there` with our fields: maps by key, lists of named things by name, everything else as a whole. Nothing is changed in place."""
    if isinstance(ours, Mapping):
        before = there if isinstance(there, Mapping) else {}
        return {**before, **{key: lay_over(before.get(key), value) for key, value in ours.items()}}
    key = _key_of(ours)
    if key is None:
        return ours
    by_name = {item[key]: item for item in ours}
    kept = [lay_over(item, by_name.pop(item.get(key))) if item.get(key) in by_name else item for item in there or ()]
    return [*kept, *(item for item in ours if item[key] in by_name)]


def take_out(live: Any, before: Any, ours: Any) -> Any:
    """What `live` is without our fields: each as it was before us, if it is still as we wrote it; what others wrote stays.

    `take_out(lay_over(before, ours), before, ours) == before`. None where nothing is left of what was not there before.
    """
    left = _take_out(live, _ABSENT if before is None else before, ours)
    return None if left is _ABSENT else left


def _take_out(live: Any, before: Any, ours: Any) -> Any:
    if isinstance(ours, Mapping):
        if not isinstance(live, Mapping):
            return live
        return _map_without(live, before if isinstance(before, Mapping) else _ABSENT, ours)
    key = _key_of(ours)
    if key is None:
        return before if live == ours else live
    if not isinstance(live, Sequence):
        return live
    by_name = {item[key]: item for item in ours}
    old = {item.get(key): item for item in (() if before is _ABSENT else before)}
    left = [_item_without(item, key, by_name, old) for item in live]
    kept = [item for item in left if item is not _ABSENT]
    return kept if kept or before is not _ABSENT else _ABSENT


def _map_without(live: Mapping[str, Any], before: Any, ours: Mapping[str, Any]) -> Any:
    was: Mapping[str, Any] = {} if before is _ABSENT else before
    left = {k: _take_out(v, was.get(k, _ABSENT), ours[k]) if k in ours else v for k, v in live.items()}
    kept = {k: v for k, v in left.items() if v is not _ABSENT}
    return kept if kept or before is not _ABSENT else _ABSENT


def _item_without(item: Mapping[str, Any], key: str, ours: Mapping[str, Any], before: Mapping[str, Any]) -> Any:
    name = str(item.get(key))
    if name not in ours:
        return item
    was = before.get(name, _ABSENT)
    if was is not _ABSENT and item == lay_over(was, ours[name]):
        return was
    left = _map_without(item, was, {k: v for k, v in ours[name].items() if k != key})
    if was is _ABSENT and left is not _ABSENT and {k: v for k, v in left.items() if v != {}} == {key: name}:
        return _ABSENT  # KServe's webhook gives every container `resources: {}`
    return left


def _key_of(items: Any) -> str | None:
    """Of a list that is a map: by what. One volume can be mounted twice."""
    if not isinstance(items, Sequence) or isinstance(items, str) or not items or not isinstance(items[0], Mapping):
        return None
    return "mountPath" if "mountPath" in items[0] else "name" if "name" in items[0] else None
