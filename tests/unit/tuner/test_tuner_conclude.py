"""The profile that a run leaves: what was measured, of which engine, and what the run said."""

from typing import Any

from tabletune.acceptance import Counts
from tabletune.formats import AcceptanceFile, parse_profile, to_profile
from tabletune.profile import Cell, Transition
from tabletune.regimes import Requests
from tabletune.table import Table
from tabletune_tuner.build import Built
from tabletune_tuner.conclude import Said, build_profile
from tabletune_tuner.engine import Hello
from tabletune_tuner.options import Options
from tabletune_tuner.results import Compared, Decided, Frame, Measured, Swept
from tabletune_tuner.sweep_plan import Room, SweepPlan, SweepResult
from tabletune_tuner.verify import Traffic

FACTS = {"device": "cuda", "captureSizes": [1, 2, 4], "launchTable": [[1, 8, 3]], "kvCacheTokens": 5000, "graphCells": None}
CELLS = (Cell(1, 1, 4000, 20, 8), Cell(2, 1, 4100, 20, 8), Cell(3, 1, 6100, 20, 8))
CHANGE = Transition(3, 1, 2, 5, 14_000, 0)
NOT_ASKED: Any = None


def measured() -> Measured:
    plan = SweepPlan((1, 2, 3), (1,), 3, 64, 32)
    frame = Frame("engine", 3, (1,), Room(None, None), Traffic(256, 0.7, 192, 15.0), 3, plan)
    return Measured(
        Hello("b", True, None, "engine", FACTS),
        frame,
        Swept(SweepResult(CELLS, (), 0, 0), Requests(20, 40), None, 0.004),
        AcceptanceFile(Counts(9, 9, (9,), (6,)), 700, 16, "", "sample", ()),
        Decided(Built((), Table.fixed(1, 3), 1), (1,), None, (CHANGE,)),
        Compared(NOT_ASKED, {}, {}, {}, NOT_ASKED, SweepResult((Cell(1, 0, 3600, 10, 8),), (), 0, 0)),
    )


def test_the_profile_tells_what_was_measured_and_what_the_run_said() -> None:
    said = Said(("prompts were cut",), {"sweep": 60.0}, 960, "/theirs:/more")
    stored = parse_profile(to_profile(build_profile(Options(("vllm", "serve"), 3, 8), measured(), said)))
    assert stored.engine == {**FACTS, "pythonPath": "/theirs:/more"}
    assert (stored.cells, stored.transitions, stored.warnings) == (CELLS, (CHANGE,), ("prompts were cut",))
    assert [(c.draft_length, c.batch_size) for c in stored.ceilings] == [(1, 2)]
    assert (stored.measurement.gpu_seconds, stored.measurement.reject_by) == (960, "engine")
    assert [c.step_time_micros for c in stored.baseline] == [3600]


def test_a_fingerprint_holds_what_a_profile_is_valid_for_and_not_what_differs_from_start_to_start() -> None:
    said = Said((), {}, 0, None)
    made = build_profile(Options(("vllm", "serve"), 3, 8, prompt_tokens=32, output_tokens=64), measured(), said).fingerprint
    grid = {"profileMaxBatchSize": "8", "profilePromptTokens": "32", "profileOutputTokens": "64"}
    assert dict(made.fields) == {"device": "cuda", "captureSizes": "[1, 2, 4]", **grid}
    given = build_profile(Options(("vllm", "serve"), 3, 8, fingerprint={"gpuProduct": "H200"}), measured(), said).fingerprint
    assert given.fields == (("gpuProduct", "H200"),)
