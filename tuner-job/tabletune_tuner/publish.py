"""Where results go: the files of docs/formats.md, to a folder here, or to a cluster (`cluster.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tabletune_tuner.outcome import FailedError


class Sink(Protocol):
    """Takes the results of a run."""

    def note(self, progress: Mapping[str, Any]) -> None:
        """The newest progress (docs/protocol.md); must not wait."""

    async def publish(self, files: Mapping[str, str]) -> None:
        """All files at once, or none. Raises FailedError."""

    async def finish(self, progress: Mapping[str, Any]) -> None:
        """The last progress, with the outcome."""


class FolderSink:
    """Files in a folder; progress is only shown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, progress: Mapping[str, Any]) -> None:
        """Nobody watches a folder."""

    async def publish(self, files: Mapping[str, str]) -> None:
        """Each file is written beside its place first, so that none is ever half there."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = []
            for name, text in files.items():
                path = self._folder / f".{name}.{os.getpid()}"
                path.write_text(text, encoding="utf-8")
                fresh.append((path, self._folder / name))
            for path, place in fresh:
                path.replace(place)
        except OSError as error:
            raise FailedError("CannotPublish", f"{self._folder} cannot be written ({error.strerror}). Give another folder.") from error

    async def finish(self, progress: Mapping[str, Any]) -> None:
        """Nobody watches a folder."""
