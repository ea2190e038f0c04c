"""Stored files: what is written reads back as the same value, and a damaged file is refused by file and field."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.acceptance import Counts, Estimate, Part
from tabletune.formats import (
    AcceptanceFile,
    Capacity,
    FleetFile,
    FormatError,
    TableFile,
    parse_acceptance,
    parse_fleet,
    parse_profile,
    parse_table,
    to_acceptance,
    to_fleet,
    to_profile,
    to_table,
)
from tabletune.profile import Ceiling, Cell, Fingerprint, Measurement, Profile, SkippedCell, Transition
from tabletune.regimes import PrefillCell, Requests
from tabletune.table import Table, build_choices, table_of
from tabletune.verdict import Arm, Load, Predicted, Standing, Verdict, VerdictKind, gains

PROFILE = Profile(
    fingerprint=Fingerprint.of({"gpuProduct": "NVIDIA-H200", "maxDraftLength": 3}),
    engine={"vllm": "0.33.0", "runner": "v2"},
    measurement=Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"),
    cells=(Cell(1, 1, 3990, 20, 64), Cell(1, 3, 4680, 20, 64), Cell(8, 1, 4120, 20, 64)),
    baseline=(Cell(1, 0, 3580, 10, 64),),
    skipped=(SkippedCell(8, 3, "the engine died here 2 times"),),
    noise_ppm=8000,
    warnings=("3 of 160 prompts were cut to 900 tokens to fit max_model_len 1024.",),
    prefill=(PrefillCell(8, 1, 70, 13_000, 400, 16),),
    baseline_prefill=(PrefillCell(8, 0, 66, 11_000, 300, 16),),
    requests=Requests(40, 256),
    ceilings=(Ceiling(3, 128, 10_390, 12_900),),
    transitions=(Transition(3, 1, 8, 6, 5200, 0), Transition(1, 3, 8, 5, 2_100_000, 2)),
)
PARTS = (Part(Counts(60, 50, (50, 45, 40), (35, 20, 8)), None), Part(Counts(40, 40, (40, 35, 30), (25, 10, 2)), 4096))
ACCEPTANCE = AcceptanceFile(Counts(100, 90, (90, 80, 70), (60, 30, 10)), 700, 160, "5f2b1c", "shipped sample", ("few drafts",), PARTS)
LOADS = (
    Load(
        1,
        Arm(490.0, 0.006, "1:3", 4700, Predicted(4680, 489.5)),
        Arm(480.0, 0.006, "k=3", 4800),
        Arm(480.0, 0.006, "k=3", 4800),
        Arm(279.0, 0.004, "off", 3600, Predicted(3780, 265.0)),
        Arm(500.0, 0.006, "k=1", 4600),
    ),
    Load(8, *(Arm(900.0 + n, 0.006, "k=3") for n in range(4))),
)
CHOICES = build_choices({1: {1: 421.0, 3: 489.0}, 8: {1: 3262.0}})
TABLE = TableFile(
    table=table_of(CHOICES),
    verdict=Verdict(VerdictKind.TABLE, "TablePays", "Table gives more.", Standing((1,), (8,))),
    launch_lengths=(1, 3),
    noise_ppm=8000,
    choices=CHOICES,
    off_goodput={1: 279.0},
    loads=LOADS,
    gains=gains(LOADS),
    noise_assumed=True,
    capacity=Capacity(90_000, 100_000),
)
FLEET = FleetFile(
    files="5f2b1c",
    estimate=Estimate((0.361, 0.13, 0.052), 0.9),
    drafted=(20_000, 18_000, 900),
    replicas=3,
    table=Table.parse([[1, 32, 3], [33, 128, 1]]),
    updated_at="2026-11-30T14:36:00Z",
)
FILES: dict[str, tuple[str, Callable[[str], object]]] = {
    "profile.json": (to_profile(PROFILE), parse_profile),
    "acceptance.json": (to_acceptance(ACCEPTANCE), parse_acceptance),
    "table.json": (to_table(TABLE), parse_table),
    "fleet.json": (to_fleet(FLEET), parse_fleet),
}


def test_counts_of_one_piece_need_no_parts() -> None:
    text, _ = FILES["acceptance.json"]
    whole = parse_acceptance(json.dumps({k: v for k, v in json.loads(text).items() if k != "parts"}))
    assert (whole.counts, whole.parts) == (ACCEPTANCE.counts, ())


def test_reads_back_what_was_written() -> None:
    assert parse_profile(to_profile(PROFILE)) == PROFILE
    assert parse_acceptance(to_acceptance(ACCEPTANCE)) == ACCEPTANCE
    unknown = replace(PROFILE, requests=None, prefill=(), baseline_prefill=(), ceilings=(), transitions=())
    assert parse_profile(to_profile(unknown)) == unknown
    for fleet in (FLEET, replace(FLEET, table=None)):
        assert parse_fleet(to_fleet(fleet)) == fleet
    read = parse_table(to_table(TABLE))
    assert read.gains is not None
    assert TABLE.gains is not None
    assert read.gains.present == pytest.approx(TABLE.gains.present, abs=1e-6)
    assert replace(read, gains=TABLE.gains) == TABLE


def test_says_what_follows_from_the_loads() -> None:
    written = json.loads(to_table(TABLE))
    assert written["worstLoss"] == {"batchSize": 1, "bestFixed": "k=1", "lossPpm": 20_000}
    # Step times: 4680 for 4700, 3780 for 3600
    assert written["predictionError"]["stepTime"] == {
        "medianPpm": 27_128,
        "worstPpm": 50_000,
        "worstAt": {"batchSize": 1, "setting": "off"},
    }
    assert written["predictionError"]["goodput"]["worstPpm"] == 50_179


def test_reads_back_a_verdict_without_table_and_loads() -> None:
    off = TableFile(None, Verdict(VerdictKind.BLOCKED, "NotVerified", "Nothing."), (1,), 0, (), {}, (), None)
    assert parse_table(to_table(off)) == off


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_truncated_file_is_refused(name: str, data: st.DataObject) -> None:
    text, parse = FILES[name]
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(FormatError, match=name):
        parse(text[:cut])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_other_format_version_is_refused(name: str, version: object) -> None:
    text, parse = FILES[name]
    with pytest.raises(FormatError, match=f"{name}: formatVersion"):
        parse(json.dumps({**json.loads(text), "formatVersion": version}))


MAY_LACK = ("gainPpm", "worstLoss", "predictionError", "capacity", "parts")  # derived, or not known to every engine


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, (text, _) in FILES.items() for f in json.loads(text) if f not in MAY_LACK])
def test_missing_field_is_refused_by_name(name: str, field: str) -> None:
    text, parse = FILES[name]
    damaged = {k: v for k, v in json.loads(text).items() if k != field}
    with pytest.raises(FormatError, match=field):
        parse(json.dumps(damaged))


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{", "\x00"])
@pytest.mark.parametrize("name", FILES)
def test_file_that_is_no_object_is_refused(name: str, text: str) -> None:
    with pytest.raises(FormatError, match=f"{name}: the whole file"):
        FILES[name][1](text)


@pytest.mark.parametrize(
    ("name", "path", "value", "field"),
    [
        pytest.param("profile.json", ["cells", 0, "stepTimeMicros"], 0, r"cells\[0\].stepTimeMicros", id="step time zero"),
        pytest.param("profile.json", ["cells", 1, "stepTimeMicros"], -5, r"cells\[1\].stepTimeMicros", id="step time negative"),
        pytest.param("profile.json", ["cells", 0, "stepTimeMicros"], 3.5, r"cells\[0\].stepTimeMicros", id="step time not an integer"),
        pytest.param("profile.json", ["cells", 0, "batchSize"], 0, r"cells\[0\].batchSize", id="batch size zero"),
        pytest.param("profile.json", ["cells", 0, "draftLength"], -1, r"cells\[0\].draftLength", id="length negative"),
        pytest.param("profile.json", ["cells", 0, "draftLength"], 3, "cells holds a batch size and draft length twice", id="cell twice"),
        pytest.param("profile.json", ["cells"], [], "cells is empty", id="no cells"),
        pytest.param("profile.json", ["skipped"], [], "cells has a hole: batchSize 8, draftLength 3", id="hole"),
        pytest.param("profile.json", ["baseline", 0, "stepTimeMicros"], 0, r"baseline\[0\].stepTimeMicros", id="baseline zero"),
        pytest.param("profile.json", ["noisePpm"], -1, "noisePpm", id="noise negative"),
        pytest.param("profile.json", ["prefill", 0, "stepTimeMicros"], 0, r"prefill\[0\].stepTimeMicros", id="prefill zero"),
        pytest.param("profile.json", ["baselinePrefill"], {}, "baselinePrefill", id="baseline prefill not a list"),
        pytest.param("profile.json", ["requests", "outputTokens"], 0, "requests.outputTokens", id="requests without output"),
        pytest.param("profile.json", ["transitions", 1, "failures"], "two", r"transitions\[1\].failures", id="failures in words"),
        pytest.param("profile.json", ["ceilings", 0, "aboveMicros"], -1, r"ceilings\[0\].aboveMicros", id="ceiling negative"),
        pytest.param("profile.json", ["fingerprint", "fields", "gpuProduct"], "H100", "fingerprint.digest", id="fingerprint edited"),
        pytest.param("profile.json", ["measurement", "repeats"], 0, "measurement.repeats", id="no repeats"),
        pytest.param("acceptance.json", ["kept", 0], 91, "drafted and kept", id="more kept than drafted"),
        pytest.param("acceptance.json", ["kept", 0], -1, "kept", id="kept negative"),
        pytest.param("acceptance.json", ["drafted"], [90], "drafted and kept", id="positions differ"),
        pytest.param("acceptance.json", ["parts", 0, "kept", 0], 34, "parts do not add up", id="parts of other counts"),
        pytest.param("acceptance.json", ["parts", 1, "kept"], [25, 10], "drafted and kept", id="a part that lacks a position"),
        pytest.param("acceptance.json", ["parts", 1, "contextTokens"], 0, r"parts\[1\].contextTokens", id="a context of nothing"),
        pytest.param("acceptance.json", ["parts", 1, "drafted", 2], -1, r"parts\[1\].drafted", id="a part below zero"),
        pytest.param("acceptance.json", ["temperatureMilli"], -1, "temperatureMilli", id="temperature negative"),
        pytest.param("acceptance.json", ["prompts"], [], "prompts", id="prompts not an object"),
        pytest.param("table.json", ["ranges"], [], "ranges", id="no ranges under a Table verdict"),
        pytest.param("table.json", ["ranges"], [[1, 4, 3], [6, 8, 1]], "ranges has a hole", id="gap between ranges"),
        pytest.param("table.json", ["ranges"], [[1, 4, 3], [3, 8, 1]], "ranges", id="ranges overlap"),
        pytest.param("table.json", ["ranges"], [[0, 4, 3]], "ranges", id="range from zero"),
        pytest.param("table.json", ["ranges"], [[1, 4, -3]], "ranges", id="negative length"),
        pytest.param("table.json", ["verdict", "kind"], "Best", "verdict.kind", id="unknown verdict"),
        pytest.param("table.json", ["launchLengths"], [1, -3], "launchLengths", id="negative launch length"),
        pytest.param("table.json", ["choices", 0, "goodput", "3"], 0, r"choices\[0\].goodput.3", id="goodput zero"),
        pytest.param("table.json", ["choices", 0, "goodput"], {"1": 5}, r"choices\[0\].goodput", id="chosen length without goodput"),
        pytest.param("table.json", ["choices", 0, "goodput", "x"], 5, r"choices\[0\].goodput.x", id="goodput of no length"),
        pytest.param("table.json", ["loads", 0, "arms", "off", "milliTokensPerSecond"], 0, r"loads\[0\].arms.off", id="load zero"),
        pytest.param("table.json", ["loads", 0, "arms", "table", "predicted"], {}, "predicted.stepTimeMicros", id="nothing predicted"),
        pytest.param("table.json", ["loads", 0, "arms", "table", "stepTimeMicros"], 0, "arms.table.stepTimeMicros", id="live step zero"),
        pytest.param("table.json", ["noiseAssumed"], 1, "noiseAssumed must be true or false", id="assumed is no boolean"),
        pytest.param("table.json", ["capacity", "offTokens"], 0, "capacity.offTokens", id="no room"),
        pytest.param("table.json", ["verdict", "loads", "ahead"], [0], "verdict.loads.ahead", id="verdict for no load"),
        pytest.param("table.json", ["gainPpm"], {"present": "5"}, "gainPpm.present", id="gain not an integer"),
        pytest.param("fleet.json", ["acceptancePpm", 1], 400_000, "acceptancePpm", id="later guesses kept more often"),
        pytest.param("fleet.json", ["acceptancePpm", 0], 1_000_001, "acceptancePpm", id="more than all kept"),
        pytest.param("fleet.json", ["acceptancePpm"], [], "acceptancePpm", id="no position"),
        pytest.param("fleet.json", ["coveragePpm"], 1_000_001, "coveragePpm", id="more than all covered"),
        pytest.param("fleet.json", ["drafted"], [1, 2], "drafted", id="evidence lacks a position"),
        pytest.param("fleet.json", ["replicas"], 0, "replicas", id="counted by nobody"),
        pytest.param("fleet.json", ["ranges"], [[1, 4, 3], [6, 8, 1]], "ranges has a hole", id="gap in the fleet's table"),
        pytest.param("fleet.json", ["ranges"], [[2, 4, 3]], "ranges", id="fleet's table from two"),
        pytest.param("fleet.json", ["updatedAt"], "yesterday", "updatedAt", id="no time"),
        pytest.param("fleet.json", ["updatedAt"], "2026-11-30T14:36:00", "updatedAt", id="a time of no place"),
    ],
)
def test_impossible_value_is_refused_by_name(name: str, path: list[Any], value: object, field: str) -> None:
    text, parse = FILES[name]
    root = copy.deepcopy(json.loads(text))
    node = root
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises(FormatError, match=f"^{name}: .*{field}.*The file is not used"):
        parse(json.dumps(root))
