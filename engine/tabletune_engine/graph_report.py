"""What the workers say about their graphs, for the scheduler's process to tell: a mapped file and a list beside the socket.

The mapped file holds one switch for all (the cure may be off, for experiments) and a slot for each worker; the list, which is
as long as it is, lies in a JSON file of its own. Process ids tell what this engine said from what a dead one left, as in `control`.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabletune_engine.mapped import FILE_BYTES, FILE_MODE, map_file

SWITCH = struct.Struct("<I")
OFF = 1
SLOT = struct.Struct("<IIQQ")  # a worker's process id, its parent's, whether it holds its graphs, cures so far
FIRST_SLOT = 64
MAX_WORKERS = (FILE_BYTES - FIRST_SLOT) // SLOT.size


@dataclass(frozen=True, slots=True)
class GraphState:
    """`mismatched`: cells (B, k), None when no worker could tell; `cured`: every worker that spoke holds its graphs now."""

    mismatched: tuple[tuple[int, int], ...] | None
    cured: bool
    cures: int

    def to_fact(self) -> dict[str, Any]:
        """As `hello` has it (docs/protocol.md)."""
        return {"mismatched": None if self.mismatched is None else [list(cell) for cell in self.mismatched], "cured": self.cured}


class GraphReport:
    """The two files of the engine whose socket is `socket_path`."""

    def __init__(self, socket_path: str) -> None:
        self._list = Path(socket_path).with_suffix(".graphs.json")
        self._map = map_file(Path(socket_path).with_suffix(".graphs"))

    # Anybody's side: what an experiment may do to a running engine

    def switch(self, on: bool) -> None:
        """Let the workers cure, or not, from the next step on."""
        SWITCH.pack_into(self._map, 0, 0 if on else OFF)

    def is_on(self) -> bool:
        """Whether the workers may cure."""
        return bool(SWITCH.unpack_from(self._map, 0)[0] != OFF)

    # The workers' side

    def say(self, rank: int, cells: Sequence[tuple[int, int]]) -> None:
        """This worker's mismatched cells, which are those of every worker of the engine; it does not cure them yet."""
        fresh = self._list.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"by": [os.getpid(), os.getppid()], "cells": cells}))
        fresh.chmod(FILE_MODE)
        fresh.replace(self._list)
        self._put(rank, False, 0)

    def hold(self, rank: int, cures: int) -> None:
        """This worker cures mismatched cells, and has done so in this many steps."""
        self._put(rank, True, cures)

    def let_go(self, rank: int, cures: int) -> None:
        """This worker has left the engine as it was."""
        self._put(rank, False, cures)

    def _put(self, rank: int, holds: bool, cures: int) -> None:
        if rank < MAX_WORKERS:
            SLOT.pack_into(self._map, FIRST_SLOT + rank * SLOT.size, os.getpid(), os.getppid(), holds, cures)

    # The scheduler's side

    def read(self, workers: int) -> GraphState:
        """What the workers of this process's engine have said, by ranks below `workers`."""
        own = os.getpid()
        ranks = range(min(workers, MAX_WORKERS))
        slots = [SLOT.unpack_from(self._map, FIRST_SLOT + rank * SLOT.size) for rank in ranks]
        spoke = [slot for slot in slots if own in slot[:2]]
        if not spoke or workers > MAX_WORKERS:
            return GraphState(None, cured=False, cures=0)
        holds = all(slot[2] for slot in spoke)
        return GraphState(self._cells(own), cured=holds and self.is_on(), cures=max(slot[3] for slot in spoke))

    def _cells(self, own: int) -> tuple[tuple[int, int], ...] | None:
        try:
            said = json.loads(self._list.read_text())
            return tuple((B, k) for B, k in said["cells"]) if own in said["by"] else None
        except (OSError, ValueError, TypeError, KeyError):  # not there, or damaged
            return None
