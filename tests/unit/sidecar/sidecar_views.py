"""Given views of the loop, and the metrics page that they make."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_page import Family, families
from sidecar_cases import CODE_TABLE, ENGINE, files, settings

from tabletune.table import Table
from tabletune.verdict import Gains
from tabletune_sidecar import honour
from tabletune_sidecar.controller import State, decide, took
from tabletune_sidecar.counters import Counters, StepCell
from tabletune_sidecar.goodput import Goodput
from tabletune_sidecar.honour import Honour, Verdict
from tabletune_sidecar.metrics import ViewCollector
from tabletune_sidecar.options import Mode
from tabletune_sidecar.problem import Problem
from tabletune_sidecar.view import View

NOTHING = View(
    mode=Mode.TRACK,
    state=State(),
    files=None,
    engine=None,
    reachable=False,
    in_force=None,
    generation=None,
    verdict=honour.UNKNOWN,
    cells=(),
    batch_shares={},
    batch_size_last=None,
    draft_length_last=None,
    problems=(Problem("FilesMissing", "Not there."),),
    updated_at=datetime(2026, 11, 30, 15, 0, 0, 250_000, UTC),
)


def busy() -> View:
    """Of an engine at work, launched for length 3 up to 32 requests and with everything known that can be."""
    first = decide(State(), files(), ENGINE, Counters(), settings(), uptime_seconds=1.0)
    assert first.push is not None
    counters = Counters(60, 900, 480, 480, (480, 400, 400), (384, 250, 190), {(8, 3): 50, (100, 1): 10}, 0, 1, 0, 2)
    state = decide(took(first.state, first.push), files(), ENGINE, counters, settings(), uptime_seconds=1.0).state
    verified = replace(files().table, gains=Gains(0.036, 0.02, 0.41))
    return replace(
        NOTHING,
        state=state,
        files=replace(files(), table=verified),
        engine=replace(ENGINE, launch_table=Table.parse([[1, 32, 3], [33, 128, 1]])),
        reachable=True,
        in_force=CODE_TABLE.to_vllm(),
        generation=1,
        verdict=Verdict(Honour.PROVED, 10, 0),
        cells=(
            StepCell(8, 3, "decode", 100, 530_200),
            StepCell(8, 3, "prefill", 2, 28_000),
            StepCell(8, 3, "beside", 4, 22_000),
            StepCell(9, 3, "decode", 5, 25_000),
        ),
        batch_shares={8: 0.75, 100: 0.25},
        batch_size_last=8,
        draft_length_last=3,
        problems=(),
        goodput=Goodput(60, 900, 880),
    )


def page(view: View) -> tuple[Family, ...]:
    """What `/metrics` says of a view, read by Prometheus' own parser."""
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view))
    return families(generate_latest(registry).decode())


def values(view: View) -> dict[str, float]:
    """Each sample by its name and labels: `name,label=value`."""
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view))
    found = text_string_to_metric_families(generate_latest(registry).decode())
    return {s.name + "".join(f",{k}={v}" for k, v in sorted(s.labels.items())): s.value for family in found for s in family.samples}


def problems_shown(view: View) -> list[str]:
    """The codes that `/metrics` shows as present."""
    return [name.partition("code=")[2] for name, value in values(view).items() if name.startswith("tabletune_problem,") and value == 1]
