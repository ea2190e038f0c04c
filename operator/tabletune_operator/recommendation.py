"""What mode Recommend writes beside the results: an overlay to apply, and a note of what was recommended. Pure.

The operator's own, with a field manager of its own like fleet.json: the Job's files, and copies of them, stay whoever's they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.recommendation_file import RECOMMENDATION, RecommendationFile, to_recommendation
from tabletune_operator.overlay import OVERLAY_FILES
from tabletune_operator.pods import config_map_name

MOST_DATA_BYTES = 1_000_000
"""Of a ConfigMap; the API server refuses 1 MiB with everything in it."""

OWN_FILES = (*OVERLAY_FILES, RECOMMENDATION)


@dataclass(frozen=True, slots=True)
class Stored:
    """The ConfigMap `<name>-tabletune` as far as we write it. `uid` empty: it is not there; `room`: bytes left for our files."""

    uid: str
    files: Mapping[str, str]
    room: int


NOTHING_STORED = Stored("", {}, 0)


def parse_stored(data: Mapping[str, str], uid: str) -> Stored:
    own = {name: text for name, text in data.items() if name in OWN_FILES}
    return Stored(uid, own, MOST_DATA_BYTES - _size({name: text for name, text in data.items() if name not in own}))


def build_files(
    stored: Stored, namespace: str, draft_table: str, overlay: Mapping[str, str], file: RecommendationFile
) -> dict[str, Any] | None:
    """What to apply; None: it is so already, or the ConfigMap is not there or has no room.

    It names the ConfigMap's uid, so it can never create one.
    """
    files = {**overlay, RECOMMENDATION: to_recommendation(file)}
    if not stored.uid or stored.files == files or _size(files) > stored.room:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(draft_table), "namespace": namespace, "uid": stored.uid},
        "data": files,
    }


def _size(files: Mapping[str, str]) -> int:
    return sum(len(name) + len(text.encode()) for name, text in files.items())
