"""Reads the ConfigMap's mounted files. A damaged or missing file is a problem to show; the last good files stay in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tabletune import formats
from tabletune.acceptance import Estimate
from tabletune.formats import FleetFile, FormatError, TableFile, digest_of
from tabletune.profile import Profile
from tabletune_sidecar.problem import Problem


@dataclass(frozen=True, slots=True)
class Files:
    """One whole, readable set."""

    profile: Profile
    acceptance: Estimate
    table: TableFile
    digest: str  # of the texts
    fleet: FleetFile | None = None  # read apart (fleet.py), and in no digest


class FilesReader:
    """Keeps the last good set; `read` is cheap while nothing changes on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._signature: object = None
        self.good: Files | None = None
        self.problem: Problem | None = None

    def read(self) -> None:
        """Look again, and set `good` and `problem`."""
        try:
            # A mounted ConfigMap changes by a swapped symbolic link, so the files behind the names are other ones then.
            signature = self._look()
            if signature == self._signature:
                return
            texts = {name: (self._folder / name).read_text() for name in formats.TRACKED}
            if signature != self._look():
                return  # swapped while we read: half of each set may be in our hands. The next look reads again.
        except (OSError, UnicodeDecodeError) as error:
            self._signature = None
            self.problem = Problem("FilesMissing", f"{self._folder} cannot be read ({error}). {self._consequence()}")
            return
        self._signature = signature
        try:
            self.good = parse_files(texts)
            self.problem = None
        except FormatError as error:
            self.problem = Problem("FileDamaged", f"{error} {self._consequence()}")

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        stats = [(self._folder / name).stat() for name in formats.TRACKED]
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)

    def _consequence(self) -> str:
        if self.good is None:
            return "The engine keeps the table that it was launched with."
        return "The last good files stay in use."


def parse_files(texts: dict[str, str]) -> Files:
    """Raises FormatError for the first file that cannot be used."""
    profile = formats.parse_profile(texts[formats.PROFILE])
    acceptance = formats.parse_acceptance(texts[formats.ACCEPTANCE])
    table = formats.parse_table(texts[formats.TABLE])
    return Files(profile, acceptance.estimate, table, digest_of(texts))
