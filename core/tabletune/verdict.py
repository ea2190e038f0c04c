"""The verdict: what to run, decided from live measurements of the candidates at several loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from statistics import fmean
from typing import Literal

from tabletune.table import MIN_SWITCH_GAIN, Table
from tabletune.words import noise_floor, percent

ArmName = Literal["table", "present", "fixed", "off"]

NOTHING_GAINED = "NothingGained"
"""The reason of a verdict Present whose setting is no better than another on average."""

HURT_MARGIN = 1.5
"""Noise floors by which one load of several must be behind to count by itself. The floor is two standard errors, which one of a few loads
passes by chance every now and then; this makes it three.
"""


class VerdictKind(StrEnum):
    TABLE = "Table"
    FIXED = "Fixed"
    PRESENT = "Present"
    OFF = "Off"
    BLOCKED = "Blocked"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What profile and acceptance say of an arm at a load: a mean step (decode only where no other was measured), and tokens a second."""

    step_time_micros: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Arm:
    """One candidate at one load: tokens a second (median of the repeats), its relative spread (their median absolute deviation, without
    what all candidates of a repeat have in common), and what was set. `step_time_micros` is the mean step of a window, prefills included
    (median of the repeats).

    Nothing is predicted of an engine that the profile is not of.
    """

    tokens_per_second: float
    spread: float
    setting: str
    step_time_micros: int | None = None
    predicted: Predicted | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The candidates at one batch size, all through the same client. `off`: an engine without speculation.

    `fixed` is one length for all loads; `fixed_here` the length that is predicted best at this load, where that is another.
    """

    batch_size: int
    table: Arm
    present: Arm
    fixed: Arm
    off: Arm
    fixed_here: Arm | None = None

    @property
    def best_fixed(self) -> Arm:
        """The better of the fixed lengths that were measured here; the one for all loads when they are equal."""
        here = self.fixed_here
        return here if here is not None and here.tokens_per_second > self.fixed.tokens_per_second else self.fixed

    def gain(self, arm: ArmName, rival: ArmName) -> float:
        """Relative gain of one arm over another here."""
        return self.arm(arm).tokens_per_second / self.arm(rival).tokens_per_second - 1

    def arm(self, name: ArmName) -> Arm:
        return {"table": self.table, "present": self.present, "fixed": self.fixed, "off": self.off}[name]


@dataclass(frozen=True, slots=True)
class Gains:
    """Mean relative gain of the table over each rival, over all loads: 0.036 = 3.6 % more tokens a second."""

    present: float
    fixed: float
    off: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The loads (batch sizes) where what was chosen is ahead of the best of the other settings, level with it, or behind it.

    A difference inside the noise is level. Other settings: those that could be chosen for all loads, so not `fixed_here`.
    """

    ahead: tuple[int, ...] = ()
    level: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    def __str__(self) -> str:
        named = (("best", self.ahead), ("level", self.level), ("behind", self.behind))
        said = "; ".join(f"{word} at B={', '.join(map(str, sizes))}" for word, sizes in named if sizes)
        return f"{said[:1].upper()}{said[1:]}."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to run, why, and the loads that it holds for (none with Blocked)."""

    kind: VerdictKind
    reason: str
    message: str
    loads: Standing = Standing()


@dataclass(frozen=True, slots=True)
class WorstLoss:
    """Where the table loses most against the best fixed length measured there: 0.02 = 2 % fewer tokens a second; below 0: a gain."""

    batch_size: int
    setting: str
    loss: float


def worst_loss(loads: Sequence[Load]) -> WorstLoss | None:
    """The table's worst load; None without loads."""
    losses = [WorstLoss(x.batch_size, x.best_fixed.setting, 1 - x.table.tokens_per_second / x.best_fixed.tokens_per_second) for x in loads]
    return max(losses, key=lambda x: x.loss, default=None)


def mean_gain(loads: Sequence[Load], arm: ArmName, rival: ArmName) -> float:
    """Mean relative gain of one arm over another, over all loads.

    It is the geometric mean, as for every mean of ratios: with the arithmetic one, two arms that win one load each both win on average.

    Raises:
        statistics.StatisticsError: there are no loads.
    """
    return mean_of_gains([x.gain(arm, rival) for x in loads])


def mean_of_gains(gains: Sequence[float]) -> float:
    """The geometric mean of relative gains. Raises statistics.StatisticsError when there are none."""
    return exp(fmean(log(1 + gain) for gain in gains)) - 1


def gains(loads: Sequence[Load]) -> Gains:
    """Mean gain of the table over the loads. Raises statistics.StatisticsError when there are none."""
    return Gains(*(mean_gain(loads, "table", rival) for rival in ("present", "fixed", "off")))


def decide_verdict(
    loads: Sequence[Load], noise: float, *, table: Table, fixed_length: int, present_speculates: bool, noise_assumed: bool = False
) -> Verdict:
    """Choose what to run; a gain inside the noise is no gain. `noise_assumed`: it was not measured, and the message says so.

    Off: no speculation beats the table, and nothing beats it; or what won never drafts, and no speculation is as good.
    Present: the present setting beats both the table and the best fixed length; or it is as good on average as what would be rolled out,
    and beats that at a load: then a roll-out could only hurt.
    Fixed: the best fixed length beats the table, or is as good on average and at every load.
    """
    if not loads:
        return Verdict(
            VerdictKind.BLOCKED,
            "NotVerified",
            "No load could be measured live, so nothing is known to pay. Serving was not touched.",
        )
    said = noise_floor(noise, assumed=noise_assumed)
    return _Comparison(tuple(loads), max(MIN_SWITCH_GAIN, noise), said, table, fixed_length, present_speculates).decide()


@dataclass(frozen=True, slots=True)
class _Comparison:
    loads: tuple[Load, ...]
    threshold: float
    noise: str  # for people
    table: Table
    fixed_length: int
    present_speculates: bool

    def decide(self) -> Verdict:
        match self._choose():
            case VerdictKind.OFF:
                return self._verdict(VerdictKind.OFF, "off", "SpeculationLoses", self._say_off())
            case VerdictKind.PRESENT if self._present_wins():
                return self._verdict(VerdictKind.PRESENT, "present", "PresentPays", self._say_present())
            case VerdictKind.PRESENT:
                return self._verdict(VerdictKind.PRESENT, "present", NOTHING_GAINED, self._say_kept())
            case VerdictKind.FIXED:
                return self._verdict(VerdictKind.FIXED, "fixed", "FixedLengthPays", self._say_fixed())
            case _:
                return self._verdict(VerdictKind.TABLE, "table", "TablePays", f"Table gives {self._against_present('table')}")

    def _verdict(self, kind: VerdictKind, arm: ArmName, reason: str, message: str) -> Verdict:
        standing = self._stand(arm)
        return Verdict(kind, reason, f"{message} {standing}", standing)

    def _stand(self, arm: ArmName) -> Standing:
        rivals: list[ArmName] = [name for name in ("table", "fixed", "off") if name != arm]
        if self.present_speculates and arm != "present":
            rivals.append("present")
        gains = {x.batch_size: min(x.gain(arm, rival) for rival in rivals) for x in self.loads}
        ahead = tuple(B for B, gain in gains.items() if gain > self.threshold)
        # As every gain it is a share of the slower one.
        behind = tuple(B for B, gain in gains.items() if 1 / (1 + gain) - 1 > self.threshold)
        return Standing(ahead, tuple(B for B in gains if B not in (*ahead, *behind)), behind)

    def _choose(self) -> VerdictKind:
        present_beats_off = self.present_speculates and self._beats("present", "off")
        if self._beats("off", "table") and not self._beats("fixed", "off") and not present_beats_off:
            return VerdictKind.OFF
        if self._present_wins():
            return VerdictKind.PRESENT
        ours = self._ours()
        never_drafts = self.fixed_length == 0 if ours == "fixed" else self.table.lengths == (0,)
        if never_drafts and not self._beats(ours, "off") and not present_beats_off:
            return VerdictKind.OFF
        if self._would_hurt(ours):
            return VerdictKind.PRESENT
        return VerdictKind.FIXED if ours == "fixed" else VerdictKind.TABLE

    def _ours(self) -> ArmName:
        """What would be rolled out. When neither Off nor the present setting wins, one of the two is beaten by nothing."""
        fixed_wins = not self._loses("fixed") and (self._loses("table") or self._is_fixed_as_good())
        return "fixed" if fixed_wins else "table"

    def _beats(self, arm: ArmName, rival: ArmName) -> bool:
        return mean_gain(self.loads, arm, rival) > self.threshold

    def _present_wins(self) -> bool:
        return self.present_speculates and self._beats("present", "table") and self._beats("present", "fixed")

    def _would_hurt(self, arm: ArmName) -> bool:
        """Wins nothing on average over a present setting that no speculation does not beat, and loses to it at a load beyond doubt."""
        if not self.present_speculates or self._beats(arm, "present") or self._beats("off", "present"):
            return False
        return bool(self._losing_loads(arm))

    def _losing_loads(self, arm: ArmName) -> list[Load]:
        return [x for x in self.loads if x.gain("present", arm) > HURT_MARGIN * self.threshold]

    def _loses(self, arm: ArmName) -> bool:
        """To what needs neither table nor another fixed length."""
        return self._beats("off", arm) or (self.present_speculates and self._beats("present", arm))

    def _is_fixed_as_good(self) -> bool:
        if self._beats("fixed", "table"):
            return True
        return not self._beats("table", "fixed") and all(x.gain("table", "fixed") <= self.threshold for x in self.loads)

    # What is said

    @property
    def _count(self) -> str:
        return "1 load" if len(self.loads) == 1 else f"{len(self.loads)} loads"

    @property
    def _measured(self) -> str:
        return f"over {self._count} (B={', '.join(str(x.batch_size) for x in self.loads)}); noise {self.noise}"

    def _gain(self, arm: ArmName, rival: ArmName) -> str:
        return percent(mean_gain(self.loads, arm, rival), sign=True)

    def _say_off(self) -> str:
        if not self._beats("off", "table"):
            return (
                f"The best draft length is 0, and serving without speculation is as good: {self._gain('off', 'table')} tokens/s against "
                f"the table {self._measured}. Remove --speculative-config."
            )
        said = f"Serving without speculation gives {self._gain('off', 'table')} tokens/s over the table {self._measured}. "
        wins = [
            f"B={x.batch_size} ({percent(x.gain('table', 'off'), sign=True)})"
            for x in self.loads
            if x.gain("table", "off") > self.threshold
        ]
        if wins:
            return f"{said}The table still wins at {', '.join(wins)}. Remove --speculative-config, or keep it only for such load."
        return f"{said}Remove --speculative-config."

    def _say_present(self) -> str:
        first = self.loads[0]
        return (
            f"The present setting ({first.present.setting}) gives {self._gain('present', 'table')} tokens/s over the table and "
            f"{self._gain('present', 'fixed')} over the best fixed length ({first.fixed.setting}) {self._measured}. Keep it as it is."
        )

    def _say_kept(self) -> str:
        arm, first = self._ours(), self.loads[0]
        name = f"One length ({first.fixed.setting})" if arm == "fixed" else "The table"
        losses = ", ".join(f"{percent(x.gain(arm, 'present'), sign=True)} at B={x.batch_size}" for x in self._losing_loads(arm))
        return (
            f"{name} gives no more than the present setting ({first.present.setting}) on average, and less at a load: {losses} "
            f"{self._measured}. Keep it as it is."
        )

    def _say_fixed(self) -> str:
        if self._beats("fixed", "table"):
            against = f"gives {self._gain('fixed', 'table')} tokens/s over the table"
        else:
            against = "is as good as a table"
        return f"One length ({self.loads[0].fixed.setting}) {against}. It gives {self._against_present('fixed')}"

    def _against_present(self, arm: ArmName) -> str:
        split = ", ".join(f"{percent(x.gain(arm, 'present'), sign=True)} at B={x.batch_size}" for x in self.loads)
        against = f"the present setting ({self.loads[0].present.setting})"
        return f"{self._gain(arm, 'present')} tokens/s against {against} over {self._count}; noise {self.noise}: {split}."
