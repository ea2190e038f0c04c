"""Faults that tests ask for through the environment; none by default."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

Cell = tuple[int, int]


@dataclass(frozen=True)
class Faults:
    crash_at: Cell | None  # REPLAY_CRASH_AT="B:k": the process dies by SIGKILL in that cell
    hang_at: Cell | None  # REPLAY_HANG_AT="B:k": the step loop never returns from that cell
    ignore_table: bool  # REPLAY_IGNORE_TABLE=1: K drafts whatever was chosen, as vLLM #51510
    fail_start: bool  # REPLAY_FAIL_START=1: the engine exits 1 while it starts
    start_seconds: float  # REPLAY_START_SECONDS
    time_scale: float  # REPLAY_TIME_SCALE: multiplies every step time
    seed: int  # REPLAY_SEED

    def strike(self, batch_size: int, draft_length: int) -> None:
        cell = (batch_size, draft_length)
        if cell == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        while cell == self.hang_at:
            time.sleep(3600)


def read_faults(env: Mapping[str, str]) -> Faults:
    """Raises ValueError for a value that cannot be read."""
    return Faults(
        crash_at=_cell(env.get("REPLAY_CRASH_AT")),
        hang_at=_cell(env.get("REPLAY_HANG_AT")),
        ignore_table=env.get("REPLAY_IGNORE_TABLE") == "1",
        fail_start=env.get("REPLAY_FAIL_START") == "1",
        start_seconds=float(env.get("REPLAY_START_SECONDS", "2")),
        time_scale=float(env.get("REPLAY_TIME_SCALE", "1")),
        seed=int(env.get("REPLAY_SEED", "0")),
    )


def _cell(text: str | None) -> Cell | None:
    if not text:
        return None
    batch_size, _, draft_length = text.partition(":")
    return int(batch_size), int(draft_length)
