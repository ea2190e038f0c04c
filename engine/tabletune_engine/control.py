"""One word that the scheduler's process gives to its workers: reject every guess, or not.

They may be different processes, so the word lies in a small file beside the socket that all of them have mapped; reading
it in a step is a read of memory. The word is the process id of the scheduler that means it, so what a dead engine left
in the file says nothing to the next one. A worker leaves its own and its parent's id to tell that it is listening.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tabletune_engine.mapped import FILE_BYTES, map_file

WORD = struct.Struct("<I")
SLOT = struct.Struct("<II")  # a worker's process id and its parent's
FIRST_SLOT = 64
MAX_WORKERS = (FILE_BYTES - FIRST_SLOT) // SLOT.size


class Control:
    """The mapped file of the engine whose socket is `socket_path`."""

    def __init__(self, socket_path: str) -> None:
        self._map = map_file(Path(socket_path).with_suffix(".control"))
        own, parent = WORD.pack(os.getpid()), WORD.pack(os.getppid())
        self._own = own
        self._masters = (own, parent)  # the scheduler is this process, or the one that started it

    # The scheduler's side

    def set_reject(self, on: bool) -> None:
        """Tell the workers; they obey from the next verification on."""
        self._map[: WORD.size] = self._own if on else bytes(WORD.size)

    def has_workers(self, count: int) -> bool:
        """Whether all workers of this engine, by rank, have said that they listen."""
        own = os.getpid()
        return 0 < count <= MAX_WORKERS and all(own in SLOT.unpack_from(self._map, FIRST_SLOT + rank * SLOT.size) for rank in range(count))

    # The workers' side

    def announce(self, rank: int) -> None:
        """Say that the worker of this rank listens."""
        if rank < MAX_WORKERS:
            SLOT.pack_into(self._map, FIRST_SLOT + rank * SLOT.size, os.getpid(), os.getppid())

    def rejects(self) -> bool:
        """Whether the scheduler of this engine wants every guess rejected."""
        return self._map[: WORD.size] in self._masters
