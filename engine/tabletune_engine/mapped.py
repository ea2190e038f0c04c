"""A small file that all processes of an engine have mapped: what one packs into it, the others read as memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

FILE_BYTES = 4096
FILE_MODE = 0o666


def map_file(path: Path) -> mmap.mmap:
    """The file at `path`, made if it is not there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.ftruncate(descriptor, FILE_BYTES)
        # On a full disk this fails; a write to memory whose place was never taken would kill the engine (SIGBUS).
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        return mmap.mmap(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)
