"""`recommendation.json` (docs/formats.md): what was recommended to a target's user, and what the target had before. The operator's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.nodes import FORMAT_VERSION, Node, dump, read_root

RECOMMENDATION = "recommendation.json"

MOST_SETTINGS = 8
"""A target whose user applied an older recommendation than these counts as one with a setting of its user's own."""

Setting = Mapping[str, Any] | None
"""A speculative config; None: no speculation."""


@dataclass(frozen=True, slots=True)
class RecommendationFile:
    """A target that runs one of `settings` follows a recommendation; what its user had chosen before is `before`."""

    before: Setting
    settings: tuple[Setting, ...]  # the newest last

    def adds(self, *settings: Setting) -> RecommendationFile:
        """The same with these settings as the newest; the oldest are forgotten."""
        kept = [setting for setting in self.settings if setting not in settings]
        new = [setting for at, setting in enumerate(settings) if setting not in settings[:at]]
        return RecommendationFile(self.before, tuple((*kept, *new)[-MOST_SETTINGS:]))


def to_recommendation(file: RecommendationFile) -> str:
    return dump(
        {
            "formatVersion": FORMAT_VERSION,
            "before": _plain(file.before),
            "settings": [_plain(setting) for setting in file.settings],
        }
    )


def parse_recommendation(text: str) -> RecommendationFile:
    """Raises FormatError."""
    root = read_root(RECOMMENDATION, text)
    settings = root.value.get("settings")
    if not isinstance(settings, list):
        root.refuse("settings", f"must be a list, found {settings!r:.40}")
    return RecommendationFile(
        _parse_setting(root, "before", root.value.get("before")),
        tuple(_parse_setting(root, "settings", setting) for setting in settings),
    )


def _parse_setting(root: Node, field: str, value: object) -> Setting:
    if value is not None and not isinstance(value, dict):
        root.refuse(field, f"must hold speculative configs or null, found {value!r:.40}")
    return value


def _plain(setting: Setting) -> dict[str, Any] | None:
    return None if setting is None else dict(setting)
