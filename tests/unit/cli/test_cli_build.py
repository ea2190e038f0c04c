"""`tabletune build` and `regret`: published grids, repeats, choice of a grid, and files that cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, call_json, call_process
from stored_example import build_profile, write_files

from tabletune.formats import to_profile
from tabletune.profile import Transition

PUBLISHED = str(Path(__file__).parent.parent / "core" / "data" / "published-grids.csv")
LLAMA = ("--grid", PUBLISHED, "--where", "model=Llama-3.1-8B EAGLE", "--acceptance", "0.68118,0.39144,0.20352,0.10140,0.05142")
MODELS = ("Qwen3-32B+EAGLE3 TP2", "Nemotron3-Super-120B MTP TP4", "gemma-4-31B-FP8+MTP assistant")
HEAD = "batch,k,value,metric\n"


def write(folder: Path, text: str) -> str:
    path = folder / "grid.csv"
    path.write_text(text)
    return str(path)


def test_prints_one_line_that_vllm_takes() -> None:
    result = call_process("build", *LLAMA)
    assert (result.stdout, result.returncode, result.stderr) == ("[[1,63,3],[64,255,1],[256,256,0]]\n", 0, "")


def test_json_has_ranges_verdict_goodput_and_worst_load() -> None:
    built = call_json("build", *LLAMA)
    assert built["ranges"] == [[1, 63, 3], [64, 255, 1], [256, 256, 0]]
    assert (built["verdict"]["kind"], built["verdict"]["reason"]) == ("Table", "TablePays")
    assert [(row["batchSize"], row["draftLength"], round(row["tokensPerSecond"])) for row in built["goodput"]] == [
        (1, 3, 257),
        (4, 3, 1014),
        (16, 3, 3826),
        (64, 1, 11142),
        (256, 0, 17666),
    ]
    assert built["worst"]["loss"] == 0
    assert (built["bestFixed"]["draftLength"], round(built["bestFixed"]["worst"]["loss"], 3)) == (3, 0.212)


@pytest.mark.parametrize("model", MODELS)
def test_built_table_loses_nothing_beyond_the_threshold(model: str) -> None:
    table = call("build", "--grid", PUBLISHED, "--where", f"model={model}").stdout
    worst = call_json("regret", "--table", table, "--grid", PUBLISHED, "--where", f"model={model}")["worst"]
    assert worst["loss"] <= 0.005


def test_regret_of_a_fixed_length() -> None:
    lost = call_json("regret", "--fixed", "3", *LLAMA)
    assert {x["batchSize"]: round(x["loss"] * 100, 1) for x in lost["losses"]} == {1: 0, 4: 0, 16: 0, 64: 3.1, 256: 21.2}
    assert (lost["worst"]["batchSize"], lost["worst"]["bestLength"], lost["unknown"]) == (256, 0, [])


def test_regret_names_the_worst_for_people() -> None:
    out = call("regret", "--table", "[[1,64,3],[65,128,1],[129,512,0]]", *LLAMA).stdout
    assert "Worst: 3.1 % at B=64, where 1 is best and 3 is used." in out


def test_regret_says_which_batch_sizes_lack_the_length(tmp_path: Path) -> None:
    grid = write(tmp_path, HEAD + "1,1,10,out_tok_s\n1,2,12,out_tok_s\n2,1,20,out_tok_s\n")
    assert call_json("regret", "--fixed", "2", "--grid", grid)["unknown"] == [2]
    assert "not measured" in call("regret", "--fixed", "2", "--grid", grid).stdout
    assert "NothingToCompare" in call("regret", "--fixed", "5", "--grid", grid).stderr


def test_repeats_count_by_their_median_and_their_spread_is_the_noise(tmp_path: Path) -> None:
    measured = [(1, 1, 100), (1, 1, 104), (1, 1, 96), (1, 3, 101), (1, 3, 101), (2, 1, 200), (2, 3, 203)]
    rows = "".join(f"{b},{k},{value},out_tok_s\n" for b, k, value in measured)
    built = call_json("build", "--grid", write(tmp_path, HEAD + rows))
    assert built["goodput"][0]["byLength"] == {"1": 100, "3": 101}
    assert built["noise"] == pytest.approx(0.02)  # median of 4/100 and 0/101
    assert built["ranges"] == [[1, 2, 3]]


def test_columns_that_describe_a_row_do_not_split_a_grid(tmp_path: Path) -> None:
    grid = write(tmp_path, "batch,k,value,metric,repeat,note\n1,1,100,out_tok_s,0,cold\n1,1,102,out_tok_s,1,\n")
    assert call("build", "--grid", grid).stdout == "[[1,1,1]]\n"


def test_step_times_in_either_unit_give_the_same_table(tmp_path: Path) -> None:
    millis = write(tmp_path, HEAD + "1,1,3.99,itl_ms\n1,3,4.68,itl_ms\n128,1,6.5,itl_ms\n128,3,10.39,itl_ms\n")
    expected = "[[1,127,3],[128,128,1]]\n"
    assert call("build", "--grid", millis, "--acceptance", "0.68,0.39,0.22").stdout == expected
    micros = write(tmp_path, HEAD + "1,1,3990,step_us\n1,3,4680,step_us\n128,1,6500,step_us\n128,3,10390,step_us\n")
    assert call("build", "--grid", micros, "--acceptance", "0.68,0.39,0.22").stdout == expected


def test_rows_without_speculation_decide_the_verdict_only(tmp_path: Path) -> None:
    grid = write(tmp_path, HEAD + "1,off,100,out_tok_s\n1,1,80,out_tok_s\n8,off,700,out_tok_s\n8,1,600,out_tok_s\n")
    built = call_json("build", "--grid", grid)
    assert (built["ranges"], built["verdict"]["kind"]) == ([[1, 8, 1]], "Off")
    assert built["goodput"][0]["byLength"] == {"off": 100, "1": 80}
    assert "warning SpeculationLoses" in call("build", "--grid", grid).stderr


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        pytest.param(
            "1,off,60,out_tok_s\n1,0,80,out_tok_s\n1,1,100,out_tok_s\n8,off,900,out_tok_s\n8,0,600,out_tok_s\n8,1,580,out_tok_s\n",
            "Table",
            id="off wins one load, loses more at another",
        ),
        pytest.param("1,off,90,out_tok_s\n1,1,100,out_tok_s\n8,off,900,out_tok_s\n8,1,600,out_tok_s\n", "Off", id="off wins on average"),
        pytest.param("1,0,100,out_tok_s\n1,1,90,out_tok_s\n8,0,600,out_tok_s\n8,1,580,out_tok_s\n", "Off", id="never drafts"),
    ],
)
def test_no_speculation_wins_on_average_or_where_nothing_is_drafted(tmp_path: Path, rows: str, kind: str) -> None:
    assert call_json("build", "--grid", write(tmp_path, HEAD + rows))["verdict"]["kind"] == kind


def test_builds_from_a_stored_profile(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    args = ("--profile", str(folder / "profile.json"), "--acceptance", str(folder / "acceptance.json"))
    assert call("build", *args).stdout == "[[1,95,3],[96,128,1]]\n"
    assert call_json("build", *args)["goodput"][0]["byLength"]["off"] == pytest.approx(279.3, abs=0.1)


def test_a_profile_whose_change_of_length_was_bad_gives_a_table_that_does_not_make_it(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    stalled = Transition(3, 1, 96, 5, 15_700_000, 0)
    (folder / "profile.json").write_text(to_profile(replace(build_profile(), transitions=(stalled,))))
    args = ("build", "--profile", str(folder / "profile.json"), "--acceptance", str(folder / "acceptance.json"))
    why = "as k went from 3 to 1 at B=96, it was without a step for 15.7 s"
    built = call(*args)
    assert built.stdout == "[[1,128,3]]\n"
    assert built.stderr == f"warning UnsafeChange: Draft length 1 is left out of the table: {why}.\n"
    assert call_json(*args)["leftOut"] == [{"draftLength": 1, "why": why}]


def test_a_cell_that_the_engine_must_not_run_is_in_no_table(tmp_path: Path) -> None:
    folder, profile = write_files(tmp_path), build_profile()
    engine = {**profile.engine, "graphCells": {"mismatched": [[96, 1], [128, 1]], "cured": False}}
    (folder / "profile.json").write_text(to_profile(replace(profile, engine=engine)))
    args = ("--profile", str(folder / "profile.json"), "--acceptance", str(folder / "acceptance.json"))
    assert call("build", *args).stdout == "[[1,128,3]]\n"


def test_several_grids_are_listed_with_what_to_say(tmp_path: Path) -> None:
    result = call("build", "--grid", PUBLISHED)
    assert result.exit_code == 2
    assert "holds 4 grids" in result.stderr
    assert "--where 'model=Qwen3-32B+EAGLE3 TP2'   (45 rows)" in result.stderr
    error = json.loads(call("build", "--grid", PUBLISHED, "-o", "json").stderr)["error"]
    assert (error["code"], len(error["grids"])) == ("SeveralGrids", 4)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param("", "ColumnMissing", "batch, k, value, metric is missing", id="empty file"),
        pytest.param("batch,k,value\n1,1,5\n", "ColumnMissing", "column metric is missing", id="no metric"),
        pytest.param(HEAD, "GridEmpty", "no row", id="header only"),
        pytest.param(HEAD + "1,off,5,out_tok_s\n", "GridEmpty", "only off", id="no length"),
        pytest.param(HEAD + "1,1,5,out_tok_s\n2,1,-5,out_tok_s\n", "BadRow", "line 3: value is '-5'", id="negative"),
        pytest.param(HEAD + "1,1,0,out_tok_s\n", "BadRow", "line 2: value is '0'", id="zero"),
        pytest.param(HEAD + "1,1,nan,out_tok_s\n", "BadRow", "line 2: value is 'nan'", id="not a number"),
        pytest.param(HEAD + "0,1,5,out_tok_s\n", "BadRow", "line 2: batch is '0'", id="batch size zero"),
        pytest.param(HEAD + "1,-1,5,out_tok_s\n", "BadRow", "line 2: k is '-1'", id="length negative"),
        pytest.param(HEAD + "1,1,5\n", "BadRow", "line 2", id="short row"),
        pytest.param(HEAD + "1,1,5,out_tok_s,9\n", "BadRow", "line 2", id="long row"),
        pytest.param(HEAD + "1,1,5,tokens\n", "UnknownMetric", "out_tok_s, itl_ms", id="metric"),
        pytest.param(HEAD + "1,3,5,itl_ms\n", "AcceptanceMissing", "Give --acceptance with 3 rates", id="step times alone"),
        pytest.param(HEAD + "1,1,5,out_tok_s\n1,1,5,itl_ms\n", "SeveralGrids", "metric=", id="two metrics"),
    ],
)
def test_grid_that_cannot_be_used_is_refused(tmp_path: Path, text: str, code: str, said: str) -> None:
    result = call("build", "--grid", write(tmp_path, text))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error {code}: ")
    assert said in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["build"], id="no source"),
        pytest.param(["build", *LLAMA, "--profile", "x.json"], id="two sources"),
        pytest.param(["build", "--profile", "x.json"], id="profile without acceptance"),
        pytest.param(["build", "--grid", "missing.csv"], id="no such file"),
        pytest.param(["build", "--grid", PUBLISHED, "--where", "model"], id="where without value"),
        pytest.param(["build", "--grid", PUBLISHED, "--where", "modle=x"], id="where of no column"),
        pytest.param(["build", "--grid", PUBLISHED, "--where", "model=x"], id="where of no row"),
        pytest.param(["build", *LLAMA[:4], "--acceptance", "0.6"], id="acceptance too short"),
        pytest.param(["build", *LLAMA[:4], "--acceptance", "0.6,0.7,0.1,0.1,0.1"], id="acceptance rises"),
        pytest.param(["build", *LLAMA[:4], "--acceptance", "1.6,0.7,0.1,0.1,0.1"], id="acceptance above one"),
        pytest.param(["build", *LLAMA[:4], "--acceptance", "high"], id="acceptance no number"),
        pytest.param(["regret", *LLAMA], id="nothing to compare"),
        pytest.param(["regret", *LLAMA, "--fixed", "3", "--table", "[[1,2,3]]"], id="two settings"),
        pytest.param(["regret", *LLAMA, "--fixed", "-1"], id="negative length"),
        pytest.param(["regret", *LLAMA, "--table", "[[2,4,1]]"], id="table not from one"),
        pytest.param(["regret", *LLAMA, "--table", "1-4:3"], id="table no JSON"),
        pytest.param(["regret", *LLAMA, "--table", "{}"], id="table no list"),
    ],
)
def test_unusable_arguments_exit_2_with_one_error(args: list[str]) -> None:
    result = call(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error ")


def test_damaged_profile_is_refused_by_file_and_field(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    path = folder / "profile.json"
    path.write_text(path.read_text().replace('"stepTimeMicros": 4680', '"stepTimeMicros": 0'))
    result = call("build", "--profile", str(path), "--acceptance", str(folder / "acceptance.json"), "-o", "json")
    error = json.loads(result.stderr)["error"]
    assert (result.exit_code, error["code"], error["file"], error["field"]) == (2, "FileDamaged", "profile.json", "cells[1].stepTimeMicros")
