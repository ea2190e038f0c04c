"""What may not stop a run is said once, to people and in the result; what must stop it does."""

from __future__ import annotations

from tabletune_tuner.outcome import BlockedError
from tabletune_tuner.preflight import Judgement
from tabletune_tuner.progress import Tracker


class Judge:
    """Takes what is found about options and engines while the stages run."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._warnings: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that was said so far, for the profile."""
        return tuple(self._warnings)

    def warn(self, message: str) -> None:
        """Say it, unless it was said before."""
        if message not in self._warnings:
            self._warnings.append(message)
            self._tracker.warn(message)

    def take(self, judgement: Judgement) -> None:
        """Raises BlockedError when it has a reason."""
        for warning in judgement.warnings:
            self.warn(warning)
        if judgement.reason is not None:
            raise BlockedError(judgement.reason, judgement.message or judgement.reason)
