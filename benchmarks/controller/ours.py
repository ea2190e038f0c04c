"""TableTune itself beside the simulated engine: the sidecar's `decide` and the engine plugin's `Policy`, as they are.

The only place that knows their interfaces. What lies between them in a pod (socket, files, proof requests) is left out.
"""

from __future__ import annotations

from benchmarks.controller.engine import Step
from benchmarks.controller.grids import NOISE_PPM, RECORDED_REQUESTS, Grid

from tabletune.acceptance import Estimate
from tabletune.goodput import predict_goodput
from tabletune.graphs import GraphCells
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.regimes import BESIDE, DECODE, PREFILL, regime_before, regime_of
from tabletune.table import Table, build_choices, table_of
from tabletune.table_file import TableFile
from tabletune.verdict import Standing, Verdict, VerdictKind
from tabletune_engine.policy import Exploring, Policy, Ranges, to_lengths
from tabletune_sidecar.controller import EngineFacts, Push, State, decide, took
from tabletune_sidecar.counters import Counters, StepCell
from tabletune_sidecar.files import Files
from tabletune_sidecar.options import parse_options

BOOT = "simulated"
NAMES = {DECODE: "decode", BESIDE: "beside", PREFILL: "prefill"}  # of regimes, in docs/protocol.md


def as_profile(grid: Grid) -> Profile:
    """The grid in the form of profile.json."""
    cells = tuple(Cell(B, k, round(micros), 0, 64) for B, row in grid.times.items() for k, micros in row.items())
    return Profile(
        fingerprint=Fingerprint.of({"grid": grid.name}),
        engine={"captureSizes": [grid.largest_graph]} if grid.largest_graph else {},
        measurement=Measurement(32, 64, 3, "engine", "2026-12-01T00:00:00Z", 0, "0"),
        cells=cells,
        baseline=(),
        skipped=(),
        noise_ppm=NOISE_PPM,
        prefill=grid.prefill,
        requests=grid.requests,
    )


def tuned_table(grid: Grid, traffic: Estimate) -> Table:
    """The table that the tuner would roll out for this profile and acceptance."""
    profile = as_profile(grid)
    return table_of(build_choices(predict_goodput(profile.step_times(), traffic, profile.prefills()), NOISE_PPM / 1e6))


def rolled_out(grid: Grid, prior: Estimate, table: Table) -> Files:
    """What the ConfigMap holds after a roll-out of `table`."""
    verdict = Verdict(VerdictKind.TABLE, "TablePays", "The table gives more.", Standing())
    return Files(as_profile(grid), prior, TableFile(table, verdict, grid.lengths, NOISE_PPM, (), {}, (), None), "simulated")


class StepClock:
    """Step times by batch size, length and regime, as the plugin's recorder tells them (docs/protocol.md, `steps`)."""

    def __init__(self) -> None:
        self.prefill = False  # whether the last step carried one
        self._last: tuple[int, int, float, int] = (0, 0, 0.0, 0)  # with the requests that were in their prefill
        self._settling = 0
        self._regime = BESIDE
        self._cells: dict[tuple[int, int, int], list[float]] = {}  # steps, microseconds, prompt tokens

    def saw(self, step: Step) -> None:
        B, k, micros, prefilling = self._last
        same = (B, k) == (step.batch_size, step.draft_length)
        regime = regime_before(self._regime, step.prefill)
        if micros and (regime != DECODE or same):
            cell = self._cells.setdefault((B, k, regime), [0, 0.0, 0])
            cell[0] += 1
            cell[1] += micros
            cell[2] += prefilling * RECORDED_REQUESTS.prompt_tokens
        self._regime, self._settling = regime_of(step.prefill, self._settling)
        self._last = (step.batch_size, step.draft_length, step.micros, step.batch_size - step.decoding)
        self.prefill = step.prefill

    def cells(self) -> tuple[StepCell, ...]:
        return tuple(
            StepCell(B, k, NAMES[regime], int(count), round(micros), int(tokens))
            for (B, k, regime), (count, micros, tokens) in self._cells.items()
        )


class TableTune:
    """One replica's engine plugin and sidecar, on a pod that has just been rolled out."""

    def __init__(self, profile: Grid, prior: Estimate, table: Table) -> None:
        launch: Ranges = tuple((r.first, r.last, r.draft_length) for r in table.ranges)
        self.policy = Policy(
            (profile.lengths[0], *to_lengths(launch, profile.largest)), launch, profile.lengths, lambda: self._clock.prefill
        )
        self.state = State()
        self._settings = parse_options([]).settings  # what a DraftTable gets that asks for nothing else
        self._files = rolled_out(profile, prior, table)
        self._facts = EngineFacts(
            BOOT,
            active=True,
            inactive_reason=None,
            vllm=None,
            launch_lengths=profile.lengths,
            max_num_seqs=profile.largest,
            graphs=GraphCells(frozenset(), cured=True),
        )
        self._steps = self._tokens = self._request_steps = 0
        self._drafted = [0] * max(profile.lengths)
        self._kept = [0] * max(profile.lengths)
        self._chosen: dict[tuple[int, int], int] = {}
        self._clock = StepClock()

    def choose(self, batch_size: int) -> int:
        k: int = self.policy[batch_size]
        self._chosen[batch_size, k] = self._chosen.get((batch_size, k), 0) + 1
        return k

    def saw(self, step: Step) -> None:
        """Count as the plugin's recorder does (docs/protocol.md)."""
        self._steps += 1
        self._tokens += step.tokens
        if step.draft_length:
            self._request_steps += step.decoding
        for at, kept in enumerate(step.kept):
            self._drafted[at] += step.decoding
            self._kept[at] += kept
        self._clock.saw(step)

    def tick(self, now: float) -> None:
        """One turn of the sidecar's loop."""
        cells = self._clock.cells()
        decision = decide(self.state, self._files, self._facts, self._counters(), self._settings, uptime_seconds=now, cells=cells)
        self.state = decision.state
        if decision.push is not None:
            self._put_in_force(decision.push)
            self.state = took(self.state, decision.push)

    def _put_in_force(self, push: Push) -> None:
        ranges: Ranges = tuple((r.first, r.last, r.draft_length) for r in push.table.ranges)
        e = push.explore
        self.policy.follow(ranges, push.hysteresis, None if e is None else Exploring(e.every_steps, e.draft_length, e.ranges))

    def _counters(self) -> Counters:
        return Counters(
            steps=self._steps,
            tokens=self._tokens,
            request_steps=self._request_steps,
            drafted_steps=self._request_steps,
            drafted=tuple(self._drafted),
            kept=tuple(self._kept),
            chosen=dict(self._chosen),
            exploring_steps=self.policy.exploring_steps,
            swaps=self.policy.swaps,
        )
