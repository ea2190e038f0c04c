"""Every rule of `validate`, refused and accepted; origin of each: vLLM 0.24 to 0.33 (docs/cli.md lists them)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune import speculative_config
from tabletune.speculative_config import TABLE_FIELD, parse_speculative_config, parse_vllm_version, validate

MAX_MESSAGE = 300


def config(ranges: object = None, **fields: Any) -> dict[str, Any]:
    """An EAGLE-3 config with three drafts, and what the case is about."""
    table = {} if ranges is None else {TABLE_FIELD: ranges}
    return {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3, **table, **fields}


GOOD = [[1, 64, 3], [65, 128, 1]]
Case = tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
"""Level, code, the refused config and its engine, the accepted twin and its engine."""

CASES: list[Case] = [
    ("error", "TableIsObject", config({"1-64": 3}), {}, config([[1, 64, 3]]), {}),
    ("error", "TableNotAList", config("1-64:3"), {}, config(GOOD), {}),
    ("error", "TableEmpty", config([]), {}, config(None, **{TABLE_FIELD: None}), {}),
    ("error", "RangeNotThree", config([[1, 64]]), {}, config([[1, 64, 3]]), {}),
    ("error", "RangeNotThree", config([[1, 64, 3, 0]]), {}, config([(1, 64, 3)]), {}),
    ("error", "NotAnInteger", config([["1", "64", "3"]]), {}, config([[1, 64, 3]]), {}),
    ("error", "NotAnInteger", config([[1, 64, 3.0]]), {}, config([[1, 64, 3]]), {}),
    ("error", "NotAnInteger", config([[1, 64, 2.5]]), {}, config([[1, 64, 2]], num_speculative_tokens=2), {}),
    ("error", "NotAnInteger", config([[1, 64, True]]), {}, config([[1, 64, 1]], num_speculative_tokens=1), {}),
    ("error", "BatchSizeNotPositive", config([[0, 64, 3]]), {}, config([[1, 64, 3]]), {}),
    ("error", "RangeReversed", config([[64, 1, 3]]), {}, config([[1, 1, 3]]), {}),
    ("error", "LengthNegative", config([[1, 64, -1]]), {}, config([[1, 64, 3]]), {}),
    ("error", "FirstNotOne", config([[2, 64, 3]]), {}, config([[1, 64, 3]]), {}),
    ("error", "RangesOverlap", config([[1, 64, 3], [64, 128, 1]]), {}, config(GOOD), {}),
    ("error", "LengthAboveLongest", config([[1, 64, 5]]), {}, config([[1, 64, 5]], num_speculative_tokens=5), {}),
    ("warning", "NotSorted", config([[65, 128, 1], [1, 64, 3]]), {}, config(GOOD), {}),
    ("warning", "Gap", config([[1, 64, 3], [66, 128, 1]]), {}, config(GOOD), {}),
    ("warning", "TailNotCovered", config(GOOD), {"max_num_seqs": 256}, config(GOOD), {"max_num_seqs": 128}),
    ("warning", "BeyondMaxNumSeqs", config([[1, 40, 3], [41, 60, 1]]), {"max_num_seqs": 12}, config([[1, 12, 3]]), {"max_num_seqs": 12}),
    ("warning", "BeyondMaxNumSeqs", config(GOOD), {"max_num_seqs": 100}, config(GOOD), {}),
    ("warning", "LongestUnused", config([[1, 64, 2]]), {}, config([[1, 64, 3]]), {}),
    ("warning", "ZeroIsNotOff", config([[1, 64, 3], [65, 128, 0]]), {}, config(GOOD), {}),
    (
        "warning",
        "ZeroIsNotOff",
        config([[1, 8, 3], [9, 16, 0]]),
        {},
        config([[1, 8, 3], [9, 16, 0]], method="ngram"),
        {"model_runner": "v1"},
    ),
    ("warning", "AboveCaptureCeiling", config([[1, 129, 3]]), {}, config([[1, 128, 3]]), {}),
    ("warning", "AboveCaptureCeiling", config([[1, 128, 3]]), {"max_num_seqs": 129}, config([[1, 256, 3]]), {"max_num_seqs": 128}),
    ("warning", "UnsafeLaunchSet", config([[1, 8, 3], [9, 16, 2], [17, 32, 1]]), {}, config(GOOD), {}),
    ("warning", "UnsafeLaunchSet", config([[1, 8, 2], [9, 16, 1]]), {}, config([[1, 8, 2], [9, 16, 1]]), {"model_runner": "v1"}),
    ("error", "LongestMissing", {"method": "eagle3", "model": "d"}, {}, config(), {}),
    ("error", "LongestInvalid", config(num_speculative_tokens=0), {}, config(num_speculative_tokens=1), {}),
    ("error", "LongestInvalid", config(num_speculative_tokens="3"), {}, config(), {}),
    ("error", "LongestInvalid", config(num_speculative_tokens=True), {}, config(), {}),
    ("warning", "LongestNotGiven", {"method": "mtp"}, {}, {"method": "mtp", "num_speculative_tokens": 1}, {}),
    ("warning", "ModelMissing", config(model=None), {}, config(method="ngram", model=None), {}),
    ("warning", "ModelMissing", {"num_speculative_tokens": 3}, {}, config(method="deepseek_mtp", model=None), {}),
    ("error", "EngineTooOld", config(GOOD), {"vllm_version": "0.23.0"}, config(), {"vllm_version": "0.23.0"}),
    ("error", "TableIgnored", config(GOOD), {"vllm_version": "0.31.0"}, config(GOOD), {"vllm_version": "0.32.0"}),
    (
        "error",
        "TableIgnored",
        config(GOOD),
        {"vllm_version": "0.28.0", "model_runner": "v2"},
        config(GOOD),
        {"vllm_version": "0.28.0", "model_runner": "v1"},
    ),
    (
        "error",
        "EngineCrashes",
        config(GOOD),
        {"vllm_version": "0.25.1", "model_runner": "v2"},
        config(GOOD),
        {"vllm_version": "0.25.1", "model_runner": "v1"},
    ),
    ("warning", "RunnerUnknown", config(GOOD), {"vllm_version": "0.26.1rc1.dev251"}, config(GOOD), {"vllm_version": "0.33.0"}),
    ("warning", "PiecewiseGraphs", config(GOOD), {"model_runner": "v1"}, config(GOOD), {"model_runner": "v2"}),
    ("warning", "PiecewiseGraphs", config(GOOD, parallel_drafting=True), {}, config(GOOD, method="dflash", parallel_drafting=True), {}),
    ("error", "DataParallel", config(GOOD), {"data_parallel_size": 2}, config(GOOD), {"data_parallel_size": 1}),
    ("error", "DataParallel", config(GOOD), {"data_parallel_size": 2, "vllm_version": "0.25.0"}, config(), {"data_parallel_size": 2}),
    *[
        ("error", "MethodCannot", config(GOOD, method=m), {}, config(method=m), {})
        for m in ("suffix", "medusa", "ngram_gpu", "custom_class")
    ],
    ("error", "MethodCannot", config(GOOD, method="mlp_speculator"), {}, config(GOOD, method="eagle"), {}),
    *[
        ("warning", "FullDraftCost", config(GOOD, method=m), {}, config([[1, 64, 3]], method=m), {})
        for m in ("draft_model", "dflash", "dspark", "ngram")
    ],
    ("warning", "FullDraftCost", config(GOOD, method="ngram"), {}, config(GOOD, method="ngram"), {"model_runner": "v1"}),
    ("error", "MethodNeedsV2", config(method="dspark"), {"model_runner": "v1"}, config(method="dspark"), {"model_runner": "v2"}),
    ("warning", "AsyncSchedulingOff", config(method="ngram"), {"model_runner": "v1"}, config(method="ngram"), {"model_runner": "v2"}),
    ("warning", "AsyncSchedulingOff", config(method="suffix"), {}, config(method="ngram_gpu"), {}),
    (
        "error",
        "AdaptiveVerificationTooOld",
        config(enable_adaptive_verification=True),
        {"vllm_version": "0.27.0"},
        config(enable_adaptive_verification=True),
        {"vllm_version": "0.30.0"},
    ),
    (
        "error",
        "AdaptiveVerificationMethod",
        config(enable_adaptive_verification=True),
        {"vllm_version": "0.29.0"},
        config(enable_adaptive_verification=True, method="dspark"),
        {"vllm_version": "0.29.0"},
    ),
    (
        "error",
        "AdaptiveVerificationNeedsV2",
        config(enable_adaptive_verification=True),
        {"model_runner": "v1"},
        config(enable_adaptive_verification=True),
        {"model_runner": "v2"},
    ),
    (
        "warning",
        "AdaptiveVerificationWithTable",
        config(GOOD, enable_adaptive_verification=True),
        {},
        config(enable_adaptive_verification=True),
        {},
    ),
]


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c[1]}-{i}") for i, c in enumerate(CASES)])
def test_rule_and_its_twin(case: Case) -> None:
    level, code, refused, engine, accepted, other_engine = case
    assert (level, code) in {(f.level, f.code) for f in validate(refused, **engine)}
    assert code not in {f.code for f in validate(accepted, **other_engine)}


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        pytest.param(config(GOOD), {"vllm_version": "0.33.0", "max_num_seqs": 128, "model_runner": "v2"}, id="measured table"),
        pytest.param(config([[1, 4, 1], [5, 64, 3]]), {}, id="length that rises with batch size"),
        pytest.param(config(None, **{TABLE_FIELD: None}), {}, id="null is no table"),
        pytest.param(config(), {"data_parallel_size": 8, "vllm_version": "0.23.0"}, id="no table at all"),
        pytest.param(config([[1, 3, 7], [4, 512, 0]], num_speculative_tokens=7, method="ngram"), {"vllm_version": "0.33.0"}, id="no error"),
    ],
)
def test_has_no_error(settings: dict[str, Any], engine: dict[str, Any]) -> None:
    assert [f for f in validate(settings, **engine) if f.level == "error"] == []


def test_clean_config_has_no_finding() -> None:
    assert validate(config(GOOD), vllm_version="0.32.0", max_num_seqs=128, data_parallel_size=1, model_runner="v2") == ()


def test_gives_all_findings_at_once_errors_first() -> None:
    levels = [f.level for f in validate(config([[2, 64, 5], [66, 70, 0]]), vllm_version="0.31.0", data_parallel_size=2)]
    assert levels == sorted(levels)
    assert levels.count("error") == 4


def test_object_form_is_answered_with_the_list_form() -> None:
    (finding,) = (f for f in validate(config({"64-128": 2, "1-16": 3})) if f.code == "TableIsObject")
    assert finding.message.endswith("Give [[1, 16, 3], [64, 128, 2]].")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1])
def test_messages_fit_a_condition_and_say_what_to_do(case: Case) -> None:
    for finding in validate(case[2], **case[3]):
        assert len(finding.message) <= MAX_MESSAGE
        assert finding.message.endswith(".")
        assert str(finding) == f"{finding.level} {finding.code}: {finding.message}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 600) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, JSON, st.sampled_from([None, "v1", "v2"]), st.sampled_from([None, "0.23.0", "0.25.0", "0.31.0", "0.33.0"]))
def test_never_raises_for_a_config(ranges: Any, longest: Any, method: Any, runner: str | None, version: str | None) -> None:
    settings = {TABLE_FIELD: ranges, "num_speculative_tokens": longest, "method": method}
    for finding in validate(settings, vllm_version=version, max_num_seqs=64, model_runner=runner):
        assert finding.message


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32)), ("v0.33", (0, 33)), ("0.26.1rc1.dev251", (0, 26)), ("0.32.0+cpu", (0, 32)), ("1.0", (1, 0))],
)
def test_reads_versions(text: str, version: tuple[int, int]) -> None:
    assert parse_vllm_version(text) == version


@pytest.mark.parametrize("text", ["", "latest", "0", "x0.32", "0.32 or so"])
def test_refuses_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        validate(config(), vllm_version=text)


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"data_parallel_size": 0}, {"model_runner": "v3"}])
def test_refuses_unusable_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        validate(config(), **options)


@pytest.mark.parametrize("text", ["{", "[]", "3", "null", ""])
def test_refuses_what_is_no_json_object(text: str) -> None:
    with pytest.raises(ValueError, match="--speculative-config"):
        parse_speculative_config(text)


def test_reads_a_json_object() -> None:
    assert parse_speculative_config('{"method": "ngram"}') == {"method": "ngram"}


def test_every_code_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    assert [code for _, code, *_ in CASES if f"`{code}`" not in page] == []
    source = Path(speculative_config.__file__).read_text()
    assert set(re.findall(r'_(?:error|warning)\(\s*"(\w+)"', source)) == {code for _, code, *_ in CASES}
