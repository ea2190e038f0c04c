"""From measurements to the files: table, candidates, verdict."""

from dataclasses import replace

import pytest
import yaml

from tabletune.acceptance import Estimate
from tabletune.findings import EngineFlag
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.regimes import PrefillCell, Requests, prefills_per_step, share_with_prefill
from tabletune.table import Range, Table
from tabletune.verdict import Arm, Load, Predicted, VerdictKind
from tabletune_tuner.build import (
    Candidate,
    bare_table,
    best_fixed,
    build,
    build_speculative_config,
    choose_loads,
    decide,
    fixed_here,
    predict_arms,
    predict_off,
    present_candidate,
    same_in_window,
    say_present,
    to_vllm_yaml,
)
from tabletune_tuner.noise import Noise

# T in µs: length 3 is cheap alone and dear at 8 requests. tau(1) = 1.7, tau(3) = 2.4
CELLS = tuple(
    Cell(B, k, micros, 0, 24)
    for B, row in {1: {1: 1000, 3: 1100}, 4: {1: 1100, 3: 1400}, 8: {1: 1200, 3: 2400}}.items()
    for k, micros in row.items()
)
PROFILE = Profile(
    Fingerprint.of({}), {}, Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"), CELLS, (Cell(8, 0, 1000, 0, 24),), (), 0
)
BELIEF = Estimate((0.7, 0.4, 0.3), 1.0)
BASE = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}


def load(B: int, table: float, present: float, fixed: float, off: float, *, spread: float = 0.0) -> Load:
    return Load(B, *(Arm(x, spread, name) for x, name in ((table, "t"), (present, "k=3"), (fixed, "k=3"), (off, "off"))))


def test_builds_the_table_of_highest_goodput_and_the_best_fixed_length() -> None:
    built = build(CELLS, BELIEF, noise=0.01, prefills=None)
    # G = B tau / T, tokens/ms: B=1 1.70, 2.18; B=4 6.18, 6.86; B=8 11.3, 8.0
    assert built.table == Table((Range(1, 7, 3), Range(8, 8, 1)))
    # Shares of the best: k=1 0.78, 0.90, 1; k=3 1, 1, 0.71
    assert built.fixed_length == 3


def test_a_fixed_length_must_be_there_at_every_batch_size() -> None:
    assert best_fixed({1: {1: 10.0, 3: 20.0}, 2: {1: 10.0}}) == 1
    assert best_fixed({1: {1: 10.0, 3: 10.0}}) == 1  # ties go to the smaller


def test_compares_at_the_ends_the_middle_and_the_edge() -> None:
    grid = [1, 2, 3, 4, 5, 6, 7, 8]
    assert choose_loads(grid, Table.fixed(3, 8)) == (1, 3, 8)
    assert choose_loads(grid, Table((Range(1, 5, 3), Range(6, 8, 1)))) == (1, 3, 6, 8)
    assert choose_loads([4], Table.fixed(3, 4)) == (4,)


def test_the_present_setting_is_said_in_lengths_of_the_engine() -> None:
    plain = present_candidate({"num_speculative_tokens": 3}, (1, 3), 64)
    assert (plain.table, plain.setting) == (Table.fixed(3, 64), "k=3")
    nearest = present_candidate({"num_speculative_tokens": 2}, (1, 3), 64)
    assert (nearest.table, nearest.setting) == (Table.fixed(1, 64), "k=2 (2 run as 1)")
    rows = present_candidate(
        {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]}, (0, 1, 2, 3), 64
    )
    assert (rows.table, rows.setting) == (Table((Range(1, 8, 3), Range(9, 64, 0))), "1-8:5 9-64:0")
    small = present_candidate({"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}, (1, 3), 16)
    assert (small.table, small.setting) == (Table((Range(1, 8, 3), Range(9, 16, 1))), "1-8:3 9-64:1")  # no batch is larger


def test_a_present_setting_with_an_engine_of_its_own_says_what_it_is() -> None:
    assert say_present({"method": "ngram", "num_speculative_tokens": 4}) == "ngram, k=4"
    assert say_present({**BASE, "enable_adaptive_verification": True}) == "eagle3, k=3, adaptive verification"


@pytest.mark.parametrize(
    ("batch_size", "same_as_3", "same_as_1"),
    [
        pytest.param(1, True, False, id="one request"),
        pytest.param(63, True, False, id="below the edge"),
        pytest.param(64, False, False, id="the edge: a batch is often one smaller"),
        pytest.param(70, False, False, id="near above the edge"),
        pytest.param(80, False, True, id="no window at this load falls below the edge"),
    ],
)
def test_tables_are_alike_at_a_load_when_no_batch_of_its_windows_tells_them_apart(
    batch_size: int, same_as_3: bool, same_as_1: bool
) -> None:
    table = Table((Range(1, 63, 3), Range(64, 128, 1)))
    assert same_in_window(table, Table.fixed(3, 128), batch_size) is same_as_3
    assert same_in_window(table, Table.fixed(1, 128), batch_size) is same_as_1


def test_the_best_length_of_a_load_is_compared_there_where_it_is_another() -> None:
    here = fixed_here(build(CELLS, BELIEF, noise=0.01, prefills=None), (1, 4, 8))
    assert {B: (c.table, c.setting) for B, c in here.items()} == {8: (Table.fixed(1, 8), "k=1")}


def test_predicts_each_arm_at_its_load_by_the_length_that_it_has_there() -> None:
    built = build(CELLS, BELIEF, noise=0.01, prefills=None)
    arms = [Candidate("table", built.table, ""), Candidate("fixed", Table.fixed(2, 8), "")]
    predicted = predict_arms(PROFILE, BELIEF, {4: arms, 8: arms})
    assert predicted == {
        ("off", 8): Predicted(1000, 8000.0),
        ("table", 4): Predicted(1400, pytest.approx(4 * 2.4 / 1400e-6)),
        ("table", 8): Predicted(1200, pytest.approx(8 * 1.7 / 1200e-6)),
    }  # nobody measured k=2
    busy = replace(PROFILE, prefill=(PrefillCell(8, 1, 40, 6200, 0, 16),), requests=Requests(40, 200))
    n = prefills_per_step(8, 1.7, 200)
    mean_micros = 1200 + share_with_prefill(n) * 5000
    assert predict_arms(busy, BELIEF, {8: arms})["table", 8] == Predicted(
        round(mean_micros), pytest.approx(((8 - n) * 1.7 + n) / mean_micros * 1e6)
    )


def test_a_table_of_one_length_is_the_fixed_length() -> None:
    # G of k=1 and k=3, tokens/ms: B=1 1.70, 2.16; B=8 11.3, 11.2: the smaller share of k=3 is no reason to change.
    cells = (Cell(1, 1, 1000, 0, 24), Cell(1, 3, 1110, 0, 24), Cell(8, 1, 1200, 0, 24), Cell(8, 3, 1710, 0, 24))
    built = build(cells, BELIEF, noise=0.02, prefills=None)
    assert (built.table, built.fixed_length) == (Table.fixed(3, 8), 3)


def decided(*loads: Load, speculates: bool = True) -> tuple[VerdictKind, Table | None]:
    file = decide(
        build(CELLS, BELIEF, 0.01, None), {1: 1.0}, loads, Noise(0.01, assumed=False), (1, 3), present_speculates=speculates, capacity=None
    )
    return file.verdict.kind, file.table


def test_the_table_of_each_verdict() -> None:
    assert decided(load(1, 100, 100, 100, 60), load(8, 120, 100, 100, 60)) == (VerdictKind.TABLE, Table((Range(1, 7, 3), Range(8, 8, 1))))
    assert decided(load(1, 100, 100, 100, 60), load(8, 100, 100, 100, 60)) == (VerdictKind.FIXED, Table.fixed(3, 8))
    assert decided(load(1, 100, 100, 100, 160), load(8, 120, 100, 100, 160)) == (VerdictKind.OFF, None)
    assert decided(load(1, 100, 120, 100, 60)) == (VerdictKind.PRESENT, None)
    assert decided(load(1, 100, 120, 100, 120), speculates=False) == (VerdictKind.OFF, None)
    assert decided() == (VerdictKind.BLOCKED, None)


def test_goodput_without_speculation_is_one_token_a_request_and_step() -> None:
    assert predict_off([Cell(8, 0, 4000, 0, 8)], None) == {8: 2000.0}


def test_the_config_holds_the_whole_launch_set_on_v2_and_the_plain_table_on_v1() -> None:
    table = Table.fixed(3, 8)
    v2 = build_speculative_config(BASE, table, (1, 3), {"runner": "v2"}, 64)
    assert v2 == {**BASE, "num_speculative_tokens_per_batch_size": [[1, 63, 3], [64, 64, 1]]}
    v1 = build_speculative_config(BASE, table, (0, 1, 2, 3), {"runner": "v1"}, 64)
    assert v1 == {**BASE, "num_speculative_tokens_per_batch_size": [[1, 8, 3]]}
    assert build_speculative_config(BASE, None, (1, 3), {"runner": "v2"}, 64) == {}


HOLES = {"runner": "v2", "graphCells": {"mismatched": [[6, 1], [10, 0]], "cured": True}}


def test_where_only_the_plugin_makes_lengths_safe_the_launch_table_keeps_to_one_that_needs_no_plugin() -> None:
    table = Table.parse([[1, 4, 3], [5, 64, 1]])
    config = build_speculative_config(BASE, table, (0, 1, 2, 3), HOLES, 64)
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 61, 3], [62, 62, 0], [63, 63, 1], [64, 64, 2]]


def test_an_engine_without_the_plugin_gets_one_length_where_several_need_it() -> None:
    table = Table.parse([[1, 4, 3], [5, 64, 1]])
    assert bare_table(table, (1, 3), HOLES) == Table.fixed(3, 64)
    assert bare_table(table, (1, 3), {"runner": "v2", "graphCells": {"mismatched": [], "cured": True}}) == table
    assert bare_table(table, (0, 1, 2, 3), {"runner": "v1"}) == table
    assert bare_table(Table.fixed(1, 8), (1, 3), HOLES) == Table.fixed(1, 8)


def test_the_yaml_says_the_same() -> None:
    config = build_speculative_config(BASE, Table.fixed(3, 8), (1, 3), {"runner": "v1"}, 64)
    assert yaml.safe_load(to_vllm_yaml(config, None)) == {"speculative-config": config}
    assert yaml.safe_load(to_vllm_yaml({}, None)) == {}


def test_the_config_file_names_a_flag_that_was_not_measured_as_a_comment() -> None:
    advice = EngineFlag("--compilation-config '{\"cudagraph_capture_sizes\":[2,4,5,10]}'", "would give every batch a graph. " * 8)
    text = to_vllm_yaml(BASE, advice)
    assert text.startswith("# --compilation-config '{\"cudagraph_capture_sizes\":[2,4,5,10]}' would give every batch a graph.")
    assert yaml.safe_load(text) == {"speculative-config": BASE}
