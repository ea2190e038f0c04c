"""What the stages of a run hand to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from tabletune.formats import AcceptanceFile
from tabletune.profile import Transition
from tabletune.regimes import Prefills, Requests
from tabletune_tuner.build import Built, Candidate
from tabletune_tuner.engine import Hello
from tabletune_tuner.load import Client, Prompt
from tabletune_tuner.sweep_plan import Room, SweepPlan, SweepResult
from tabletune_tuner.verify import Comparison, Traffic


@dataclass(frozen=True, slots=True)
class Frame:
    """What options and first engine fix for the rest of the run."""

    reject_by: str
    largest: int  # batch size
    lengths: tuple[int, ...]  # measured draft lengths
    room: Room
    traffic: Traffic
    windows: int  # of each arm and load in the live comparison
    plan: SweepPlan


@dataclass(frozen=True, slots=True)
class Asking:
    """What requests are made with: the prompts are those that the engine can take."""

    client: Client
    real: tuple[Prompt, ...]

    @property
    def prompt_tokens(self) -> int:
        """Of a mean prompt."""
        return round(mean(len(prompt) for prompt in self.real))


@dataclass(frozen=True, slots=True)
class Swept:
    """Step times with speculation, and what follows from them alone. `noise`: relative floor of the sweep."""

    result: SweepResult
    requests: Requests
    prefills: Prefills | None
    noise: float


@dataclass(frozen=True, slots=True)
class Decided:
    """The table whose changes of length the engine stands, and what else may be run in it.

    `kept`: lengths that an engine may be launched with. `present`: the present setting as it may be compared; None when there is none,
    or it needs an engine of its own.
    """

    built: Built
    kept: tuple[int, ...]
    present: Candidate | None
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The live comparison, and the engine without speculation."""

    comparison: Comparison
    candidates: Mapping[int, Sequence[Candidate]]  # by load
    settings: Mapping[str, str]  # what each arm ran
    here: Mapping[int, Candidate]  # the fixed length of one load only
    off: Hello
    baseline: SweepResult


@dataclass(frozen=True, slots=True)
class Measured:
    """All of it. `hello`: of the engine that served as in production."""

    hello: Hello
    frame: Frame
    swept: Swept
    acceptance: AcceptanceFile
    decided: Decided
    compared: Compared
