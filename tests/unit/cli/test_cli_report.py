"""`tabletune report`: one whole HTML file that holds every number it promises, and nothing from outside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, call_json
from report_page import Page
from stored_example import LIVE, STEP_TIMES, write_files

from tabletune.acceptance import Counts, Part
from tabletune.formats import ACCEPTANCE, PROFILE, TABLE, parse_acceptance, parse_profile, parse_table, to_acceptance, to_profile, to_table
from tabletune.profile import Fingerprint
from tabletune.table import Table
from tabletune.verdict import Verdict, VerdictKind
from tabletune_cli.explanation import explain_table
from tabletune_cli.losses import LiveLoss, find_losses
from tabletune_cli.report import build_page
from tabletune_cli.report_sections import SECTIONS
from tabletune_cli.stored import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files")


def page_of(folder: Path) -> Page:
    page = Page(build_page(explain_table(load(folder, None, None))))
    assert page.open == []
    return page


def test_writes_one_file_and_prints_its_path(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "for-the-review.html"
    result = call("report", "--dir", str(folder), "--out", str(out))
    assert (result.exit_code, result.stdout.strip()) == (0, str(out))
    text = out.read_text(encoding="utf-8")
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert text == build_page(explain_table(load(folder, None, None))), "the same files give the same page"
    assert call_json("report", "--dir", str(folder), "--out", str(out)) == str(out)


def test_every_section_is_there_in_order_and_linked(folder: Path) -> None:
    page = page_of(folder)
    anchors = [section.anchor for section in SECTIONS]
    assert [value for tag, name, value in page.attributes if (tag, name) == ("section", "id")] == anchors
    assert [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")] == [f"#{a}" for a in anchors[1:]]
    assert anchors[0] == "verdict"


def test_nothing_comes_from_outside(folder: Path) -> None:
    page = page_of(folder)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "svg"} & set(page.tags)
    asked = [(tag, name, value) for tag, name, value in page.attributes if name in {"src", "href", "srcset", "data", "action", "poster"}]
    assert all(value.startswith(("data:image/png;base64,", "#")) for _, _, value in asked)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    styles = [value for _, name, value in page.attributes if name == "style"] + [page.sections[""]]
    assert not [style for style in styles if "url(" in style or "@import" in style]
    assert ("meta", "content", "default-src 'none'; img-src data:; style-src 'unsafe-inline'") in page.attributes


def test_begins_with_the_verdict(folder: Path) -> None:
    said = page_of(folder).sections["verdict"]
    assert "Table gives +5.5 % tokens/s against the present setting (k=3) over 3 loads; noise 0.8 %" in said
    assert "1-95:3 96-128:1" in said
    assert "[[1, 95, 3], [96, 128, 1]]" in said


def test_holds_every_step_time_with_its_multiple_and_the_pick(folder: Path) -> None:
    said = page_of(folder).sections["step-times"]
    for b, (off, k1, k3) in STEP_TIMES.items():
        one, three = f"{k1:.2f} ({k1 / off:.2f}×)", f"{k3:.2f} ({k3 / off:.2f}×)"
        picked = (f"▶ {one}", three) if b >= 96 else (one, f"▶ {three}")
        assert f"{b} | {off:.2f} | {picked[0]} | left out | {picked[1]}" in said


def test_holds_goodput_of_every_length_with_the_reason(folder: Path) -> None:
    said = page_of(folder).sections["goodput"]
    assert "96 | 18,677 | 26,925 | 25,773 | k=1 | +4.5 % | switch: above 0.8 %" in said
    assert "128 | 22,939 | 33,083 | 28,212 | k=1 | +17.3 %" in said


def test_holds_the_worst_load_of_every_option(folder: Path) -> None:
    said = page_of(folder).sections["losses"]
    for line in (
        "table: 1-95:3 96-128:1 | 0.0 % at B=1 | k=3 | 0.1 % at B=64",
        "present: k=3 | 14.7 % at B=128 | k=1 | 14.7 % at B=128",
        "fixed k=1 | 14.2 % at B=8 | k=3 | n/m",
        "fixed k=3 | 14.7 % at B=128 | k=1 | 14.7 % at B=128",
        "off: no speculation | 42.9 % at B=1 | k=3 | 43.1 % at B=1",
    ):
        assert line in said


def test_holds_acceptance_with_intervals_and_how_far_it_may_move(folder: Path) -> None:
    said = page_of(folder).sections["acceptance"]
    assert "1 | 10,000 | 6,800 | 0.680 | 0.671 to 0.689" in said
    assert "3 | 10,000 | 2,200 | 0.220 | 0.212 to 0.228" in said
    assert "off 1.00, k=1 1.68, k=3 2.29" in said
    assert "from 0.42 to 0.85" in said


def test_intervals_are_as_wide_as_parts_of_the_prompts_differ(folder: Path) -> None:
    assert "as if drafts were independent" in page_of(folder).sections["acceptance"]
    file = parse_acceptance((folder / ACCEPTANCE).read_text())
    kept = {1024: (3500, 2000, 1200), 4096: (3300, 1900, 1000)}
    halves = tuple(Part(Counts(5000, 5000, (5000,) * 3, counts), tokens) for tokens, counts in kept.items())
    (folder / ACCEPTANCE).write_text(to_acceptance(replace(file, parts=halves)))
    said = page_of(folder).sections["acceptance"]
    assert "as wide as 2 parts of the prompts differ" in said
    assert "1 | 10,000 | 6,800 | 0.680 | 0.671 to 0.689" not in said
    assert "1,024 | 0.700 | 0.400 | 0.240" in said
    assert "4,096 | 0.660 | 0.380 | 0.200" in said
    screen = " ".join(call("explain", "--dir", str(folder)).stdout.split())
    assert "(95 %, as wide as 2 parts of the prompts differ)" in screen
    assert "a, context 1024 tokens: 0.700 / 0.400 / 0.240" in screen
    assert call_json("explain", "--dir", str(folder))["acceptanceByContext"] == {"1024": [0.7, 0.4, 0.24], "4096": [0.66, 0.38, 0.2]}


def test_holds_the_live_comparison_with_the_noise_beside_each_gain(folder: Path) -> None:
    said = page_of(folder).sections["live"]
    for rates in LIVE.values():
        assert all(f"{rate:,} ± " in said for rate in rates)
    assert "128 | +17.3 % (noise 0.8 %): faster" in said
    assert "64 | -0.1 % (noise 0.8 %): no gain" in said
    assert "mean | +5.5 % (noise 0.8 %): faster | +5.5 % (noise 0.8 %): faster | +55.7 % (noise 0.8 %): faster" in said
    gains = re.findall(r"[+-]\d+\.\d %", said)
    assert len(gains) == len(re.findall("[(;] ?noise ", said)), "no gain without its noise"


def test_holds_the_conditions(folder: Path) -> None:
    said = page_of(folder).sections["conditions"]
    for fact in (
        "NVIDIA-H200",
        "vLLM 0.33.0, runner v2",
        "Qwen/Qwen3-4B",
        "qwen3-4b-eagle3",
        "longest K = 3",
        "3 of each cell, 64 steps each, after 32 prompt tokens",
        "the engine, while step times were measured",
        "160 from shipped sample (digest 5f2b1c)",
        "Temperature | 0.7",
        "16.0 GPU minutes (960 GPU seconds)",
        "0.8 % of step times, 0.8 % of the live comparison",
        "maxDraftLength | 3",
    ):
        assert fact in said


def test_says_what_was_left_out_and_what_to_know(folder: Path) -> None:
    file = parse_acceptance((folder / ACCEPTANCE).read_text())
    (folder / ACCEPTANCE).write_text(to_acceptance(replace(file, warnings=("Only 3 of 160 prompts are different.",))))
    said = page_of(folder).sections["left-out"]
    assert "k=2 at B=1..128: with 1 in the same launch set it can stall this engine" in said
    assert "Only 3 of 160 prompts are different." in said


def test_no_text_of_a_file_becomes_markup(folder: Path) -> None:
    evil = "<script>alert(1)</script>\"'&<img src=http://x>"
    profile = parse_profile((folder / PROFILE).read_text())
    profile = replace(profile, engine={**profile.engine, "model": evil}, fingerprint=Fingerprint.of({"gpuProduct": evil, evil: "x"}))
    (folder / PROFILE).write_text(to_profile(profile))
    stored = parse_table((folder / TABLE).read_text())
    (folder / TABLE).write_text(to_table(replace(stored, verdict=Verdict(VerdictKind.TABLE, evil, evil))))
    page = page_of(folder)
    assert "script" not in page.tags
    assert page.tags.count("img") == 1
    assert evil in page.sections["verdict"]
    assert evil in page.sections["conditions"]


def decide(folder: Path, kind: VerdictKind, table: Table | None, *, live: bool = True) -> None:
    stored = parse_table((folder / TABLE).read_text())
    changed = replace(stored, table=table, verdict=Verdict(kind, "Reason", "Because."))
    (folder / TABLE).write_text(to_table(changed if live else replace(changed, loads=(), gains=None)))


@pytest.mark.parametrize(
    ("kind", "table", "said"),
    [
        pytest.param(VerdictKind.FIXED, Table.fixed(3, 128), "Gain of the best fixed length", id="Fixed"),
        pytest.param(VerdictKind.PRESENT, None, "Gain of the present setting", id="Present"),
        pytest.param(VerdictKind.OFF, None, "Gain of the engine without speculation", id="Off"),
    ],
)
def test_judges_what_the_verdict_runs(folder: Path, kind: VerdictKind, table: Table | None, said: str) -> None:
    decide(folder, kind, table)
    page = page_of(folder)
    assert said in page.sections["live"]
    assert f"{kind.value}. Because." in page.sections["verdict"]
    assert "step times favour 1-95:3 96-128:1" in page.sections["goodput"]
    assert "table: 1-95:3 96-128:1" in page.sections["losses"], "the candidate is judged, whatever runs"
    assert ("▶" in page.sections["step-times"]) is (table is not None)


def test_reports_a_run_that_compared_nothing_live(folder: Path) -> None:
    decide(folder, VerdictKind.BLOCKED, None, live=False)
    page = page_of(folder)
    assert "No load was measured live" in page.sections["live"]
    assert "off: no speculation | 42.9 % at B=1 | k=3 | n/m" in page.sections["losses"]


def test_a_profile_without_the_engine_off_says_so(folder: Path) -> None:
    profile = parse_profile((folder / PROFILE).read_text())
    (folder / PROFILE).write_text(to_profile(replace(profile, baseline=())))
    stored = parse_table((folder / TABLE).read_text())
    (folder / TABLE).write_text(to_table(replace(stored, off_goodput={})))
    page = page_of(folder)
    assert "multiple of the fastest step at the same batch size" in page.sections["step-times"]
    assert "off: no speculation | n/m | - | 43.1 % at B=1" in page.sections["losses"]
    assert "no speculation at B=1, 8, 32, 64, 96, 128" in page.sections["losses"]


def test_a_length_that_a_batch_size_lacks_is_not_counted_there(folder: Path) -> None:
    profile = parse_profile((folder / PROFILE).read_text())
    kept = [c for c in profile.cells if (c.batch_size, c.draft_length) != (128, 3)]
    gone = [replace(profile.skipped[0], batch_size=128, draft_length=3, reason="the engine died here 2 times")]
    (folder / PROFILE).write_text(to_profile(replace(profile, cells=tuple(kept), skipped=(*profile.skipped, *gone))))
    losses = {x.setting: x for x in find_losses(explain_table(load(folder, None, None))) if x.name == "fixed"}
    assert losses["k=3"].unknown == (128,)
    assert losses["k=3"].predicted is not None
    assert (losses["k=3"].predicted.batch_size, losses["k=3"].live) == (96, LiveLoss(128, pytest.approx(0.147, abs=1e-3)))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param(PROFILE, None, "error FileMissing", id="file gone"),
        pytest.param(PROFILE, "{", "error FileDamaged: profile.json: the whole file", id="truncated"),
        pytest.param(TABLE, '{"formatVersion": 2}', "error FileDamaged: table.json: formatVersion is 2", id="from the future"),
        pytest.param(ACCEPTANCE, '{"formatVersion": 1}', "error FileDamaged: acceptance.json: requestSteps is missing", id="a field gone"),
    ],
)
def test_damaged_files_are_refused_and_nothing_is_written(folder: Path, tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    out = tmp_path / "report.html"
    result = call("report", "--dir", str(folder), "--out", str(out))
    assert (result.exit_code, result.stdout, out.exists()) == (2, "", False)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    result = call("report", "--dir", str(folder), "--out", str(tmp_path / "none" / "report.html"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error CannotWrite")
    assert json.loads(call("report", "--dir", str(folder), "--out", str(tmp_path), "-o", "json").stderr)["error"]["code"] == "CannotWrite"
