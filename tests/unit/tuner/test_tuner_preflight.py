"""Which engines are refused before anything is measured, and with which reason."""

from typing import Any

import pytest

from tabletune_tuner.engine import Hello
from tabletune_tuner.options import Options
from tabletune_tuner.preflight import (
    Judgement,
    build_base_config,
    build_profiling_config,
    judge_engine,
    judge_options,
    measured_lengths,
    needs_own_engine,
    reachable_batch_size,
)

EAGLE = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
EVERY = (0, 1, 2, 3)
GPU = {
    "vllm": "0.32.0",
    "runner": "v2",
    "device": "cuda",
    "maxNumSeqs": 64,
    "maxModelLen": 4096,
    "dataParallelSize": 1,
    "launchLengths": [0, 1, 2, 3],
    "graphCells": {"mismatched": [[9, 1]], "cured": True},
    "cudagraphMode": "FULL_AND_PIECEWISE",
    "enforceEager": False,
}
CPU = {**GPU, "runner": "v1", "device": "cpu", "launchLengths": [0, 1, 2, 3], "cudagraphMode": "NONE", "enforceEager": True}


def options(argv: tuple[str, ...] = ("vllm", "serve", "m", "--max-num-seqs", "64"), **changes: Any) -> Options:
    return Options(**{"serve_argv": argv, "max_draft_length": 3, "max_batch_size": 64, "present": EAGLE, **changes})


def hello(facts: dict[str, Any], **changes: Any) -> Hello:
    values = {"boot_id": "b", "active": True, "inactive_reason": None, "reject_by": "engine", "facts": facts}
    return Hello(**{**values, **changes})


def test_accepts_an_engine_that_takes_a_table() -> None:
    assert judge_engine(hello(GPU), options()) == Judgement(None, None)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param({**GPU, "vllm": "0.23.0"}, "EngineTooOld", id="no table in that version"),
        pytest.param({**GPU, "vllm": "0.30.0"}, "TableIgnored", id="V2 ignores it"),
        pytest.param({**GPU, "dataParallelSize": 2}, "DataParallel", id="data parallel"),
        pytest.param({**GPU, "launchLengths": [3]}, "TableIgnored", id="lengths dropped at start"),
        pytest.param({**GPU, "runner": "v1", "launchLengths": [0, 1, 2, 3]}, "PiecewiseGraphs", id="V1 on a GPU"),
        pytest.param({**GPU, "maxModelLen": 64}, "ContextTooShort", id="prompt and output do not fit"),
    ],
)
def test_refuses_an_engine(facts: dict[str, Any], reason: str) -> None:
    judgement = judge_engine(hello(facts), options())
    assert judgement.reason == reason
    assert judgement.message


def test_the_v1_runner_without_graphs_is_no_obstacle() -> None:
    assert judge_engine(hello({**GPU, **CPU, "device": "cuda"}), options()).reason is None
    judgement = judge_engine(hello(CPU), options())
    assert judgement.reason is None
    assert judgement.warnings == ("This engine runs on a CPU without graphs: its step times say nothing about a GPU.",)


def test_says_why_the_plugin_left_the_engine() -> None:
    judgement = judge_engine(hello(GPU, active=False, inactive_reason="no dynamic_sd_lookup"), options())
    assert judgement.reason == "PluginInactive"
    assert "no dynamic_sd_lookup" in str(judgement.message)


def test_warns_when_the_engine_takes_fewer_requests_than_asked() -> None:
    asked = options(max_batch_size=256)
    assert reachable_batch_size(hello(GPU), asked) == 64
    assert judge_engine(hello(GPU), asked).warnings[0].startswith("The largest batch size asked for is 256; the engine takes 64")


@pytest.mark.parametrize(
    ("trained", "warned"),
    [
        pytest.param(1, True, id="longer than trained"),
        pytest.param(3, False, id="as long as trained"),
        pytest.param(None, False, id="a drafter that does not say, as EAGLE"),
    ],
)
def test_warns_of_drafts_that_are_longer_than_the_drafter_was_trained_for(trained: int | None, warned: bool) -> None:
    warnings = judge_engine(hello({**GPU, "drafterTrainedLength": trained}), options()).warnings
    assert any("up to 3 tokens are asked for, and the drafter's checkpoint was trained for 1" in w for w in warnings) is warned
    assert len(warnings) == warned


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(options(present=None), "NoSpeculativeConfig", id="nothing to tune"),
        pytest.param(options(present={**EAGLE, "method": "suffix"}), "MethodCannot", id="method that cannot"),
        pytest.param(options(("vllm", "serve", "m", "--max-num-seqs", "8", "-dp", "2")), "DataParallel", id="data parallel in the command"),
        pytest.param(options(("vllm", "serve", "m", "--max-num-seqs", "1")), "BatchTooSmall", id="one request at a time"),
        pytest.param(options(), None, id="nothing against it"),
    ],
)
def test_judges_the_options_before_an_engine_is_started(given: Options, reason: str | None) -> None:
    assert judge_options(given).reason == reason


DFLASH2 = {"method": "dflash2", "model": "org/drafter", "num_speculative_tokens": 3}


def test_the_runner_is_judged_by_what_the_engine_says_not_by_the_options() -> None:
    given = options(present=DFLASH2)
    assert judge_options(given).reason is None
    assert judge_engine(hello({**GPU, "runner": "v1"}), given).reason == "MethodNeedsV2"


def test_a_cpu_engine_is_not_warned_of_what_v2_does() -> None:
    given = options(present={**EAGLE, "method": "draft_model"})
    assert any("V2" in warning for warning in judge_engine(hello(GPU), given).warnings)
    assert not any("V2" in warning for warning in judge_engine(hello({**CPU, "runner": None}), given).warnings)


def test_profiles_with_two_lengths_in_the_launch_table() -> None:
    assert build_profiling_config(options(), synthetic=True) == {
        **EAGLE,
        "num_speculative_tokens_per_batch_size": [[1, 63, 3], [64, 64, 1]],
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.0, 0.0, 0.0],
    }


@pytest.mark.parametrize("given", [{"synthetic_acceptance_rates": [0.7, 0.5, 0.3]}, {"synthetic_acceptance_length": 2.5}])
def test_a_benchmark_that_keeps_guesses_by_chance_does_so_in_service_and_is_told(given: dict[str, Any]) -> None:
    by_chance = options(present={**EAGLE, "rejection_sample_method": "synthetic", **given})
    (warning,) = judge_options(by_chance).warnings
    assert "synthetic" in warning
    assert build_profiling_config(by_chance, synthetic=False).items() >= given.items()
    timed = build_profiling_config(by_chance, synthetic=True)
    assert timed["synthetic_acceptance_rates"] == [0.0, 0.0, 0.0]
    assert "synthetic_acceptance_length" not in timed


def test_keeps_what_the_present_config_says_of_its_drafter() -> None:
    present = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 8, 3]]}
    assert build_base_config(options(present=present, max_draft_length=5)) == {**NGRAM, "num_speculative_tokens": 5}
    assert not needs_own_engine(options(present=present, method="ngram"))


def test_another_method_takes_nothing_from_the_present_one() -> None:
    other = options(present=NGRAM, method="eagle3", drafter="org/drafter")
    assert build_base_config(other) == EAGLE
    assert needs_own_engine(other)
    assert not needs_own_engine(options(present=None, method="eagle3", drafter="org/drafter"))


def test_adaptive_verification_is_a_rival_and_no_part_of_a_table() -> None:
    adaptive = {**EAGLE, "enable_adaptive_verification": True}
    assert build_base_config(options(present=adaptive)) == EAGLE
    assert needs_own_engine(options(present=adaptive))
    assert not needs_own_engine(options(present={**EAGLE, "enable_adaptive_verification": False}))
    assert judge_options(options(present=adaptive)).warnings == ()
    by_chance = {**adaptive, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    assert any("no fair rival" in warning for warning in judge_options(options(present=by_chance)).warnings)


def test_measures_every_length_where_none_has_a_graph_of_its_own() -> None:
    assert measured_lengths(hello(GPU), options()) == (1, 3)
    assert measured_lengths(hello(CPU), options()) == (0, 1, 2, 3)
