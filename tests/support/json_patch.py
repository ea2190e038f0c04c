"""A JSON patch (RFC 6902) applied, as far as the webhook's patches need it; tests/api lets the real API server do it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(document: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Strict: a path whose parent is not there, and a replace of what is not there, fail as they do in the API server."""
    changed = copy.deepcopy(dict(document))
    for operation in operations:
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        place: Any = changed
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        value = copy.deepcopy(operation["value"])
        if isinstance(place, list):
            assert operation["op"] == "add"
            assert last == "-"
            place.append(value)
        else:
            assert operation["op"] == "add" or last in place
            place[last] = value
    return changed
