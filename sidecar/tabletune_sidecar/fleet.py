"""Reads `fleet.json`, which the operator writes: what all replicas know of their traffic, for a sidecar that starts without beliefs.

It may be absent, and what is wrong with it never keeps the other files from being used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tabletune.fleet_file import FLEET, FleetFile, parse_fleet
from tabletune.nodes import FormatError
from tabletune_sidecar.files import Files
from tabletune_sidecar.problem import Problem


class FleetReader:
    """Reads one small file at every look."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FLEET
        self.problem: Problem | None = None

    def add_to(self, files: Files | None) -> Files | None:
        """The files, with the fleet's where it is there and belongs to them; sets `problem`."""
        self.problem = None
        if files is None:
            return None
        try:
            fleet = parse_fleet(self._path.read_text())
            if fleet.files != files.digest:
                return files  # counted with other files: the operator writes it anew, or has not seen ours yet
            _check(fleet, files)
        except FileNotFoundError:
            return files
        except (OSError, UnicodeDecodeError) as error:
            self.problem = _ignored(f"{self._path} cannot be read ({error})")
            return files
        except FormatError as error:
            self.problem = _ignored(f"{error.file}: {error.field} {error.problem}")
            return files
        return replace(files, fleet=fleet)


def _check(fleet: FleetFile, files: Files) -> None:
    """Raises FormatError when it does not fit the other files."""
    positions, needed = len(fleet.estimate.acceptance), len(files.acceptance.acceptance)
    if positions != needed:
        raise FormatError(FLEET, "acceptancePpm", f"has {positions} positions and acceptance.json {needed}")
    foreign = set(fleet.table.lengths if fleet.table is not None else ()) - set(files.table.launch_lengths)
    if foreign:
        raise FormatError(FLEET, "ranges", f"holds draft length {min(foreign)}, which launchLengths of table.json does not contain")


def _ignored(what: str) -> Problem:
    return Problem("FileDamaged", f"{what}. It is ignored: a replica starts from the profile's acceptance. The operator writes it anew.")
