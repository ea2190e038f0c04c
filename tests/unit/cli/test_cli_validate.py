"""`tabletune validate`: exit codes and output that scripts rely on."""

from __future__ import annotations

import json

import pytest
from command_line import call, call_json, call_process

GOOD = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]]}
GOOD_TEXT = json.dumps(GOOD)
BAD_TEXT = json.dumps({**GOOD, "num_speculative_tokens_per_batch_size": {"1-64": 3}})
WARNING_TEXT = json.dumps({**GOOD, "num_speculative_tokens_per_batch_size": [[1, 64, 3], [66, 128, 1]]})


@pytest.mark.parametrize(
    ("args", "code"),
    [
        pytest.param(["--speculative-config", GOOD_TEXT], 0, id="clean"),
        pytest.param(["--speculative-config", WARNING_TEXT], 0, id="warnings only"),
        pytest.param(["--speculative-config", BAD_TEXT], 1, id="errors"),
        pytest.param(["--speculative-config", GOOD_TEXT, "--data-parallel-size", "2"], 1, id="error from another argument"),
        pytest.param(["--speculative-config", "{"], 2, id="no JSON"),
        pytest.param(["--speculative-config", "[]"], 2, id="no object"),
        pytest.param([], 2, id="nothing"),
        pytest.param(["--speculative-config", GOOD_TEXT, "--vllm-version", "new"], 2, id="no version"),
        pytest.param(["--speculative-config", GOOD_TEXT, "--max-num-seqs", "0"], 2, id="no batch size"),
        pytest.param(["--speculative-config", GOOD_TEXT, "--max-num-seqs", "many"], 2, id="no number"),
        pytest.param(["--speculative-config", GOOD_TEXT, "--model-runner", "v3"], 2, id="no runner"),
        pytest.param(["--speculative-config", GOOD_TEXT, "-o", "yaml"], 2, id="no output"),
    ],
)
def test_exit_code(args: list[str], code: int) -> None:
    assert call("validate", *args).exit_code == code


@pytest.mark.parametrize(("text", "code"), [(GOOD_TEXT, 0), (BAD_TEXT, 1), ("{", 2)], ids=["clean", "errors", "unusable"])
def test_exit_code_of_a_process(text: str, code: int) -> None:
    assert call_process("validate", "--speculative-config", text).returncode == code


def test_one_finding_a_line_on_stdout() -> None:
    result = call("validate", "--speculative-config", BAD_TEXT, "--vllm-version", "0.31.0")
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["error TableIgnored", "error TableIsObject"]
    assert result.stderr == ""


def test_json_is_a_list_of_findings() -> None:
    assert call_json("validate", "--speculative-config", GOOD_TEXT) == []
    (finding,) = call_json("validate", "--speculative-config", WARNING_TEXT)
    assert finding["message"].startswith("Batch sizes 65..65 are in no range")
    assert {k: v for k, v in finding.items() if k != "message"} == {"level": "warning", "code": "Gap"}


def test_runner_and_max_num_seqs_are_used() -> None:
    found = call_json("validate", "--speculative-config", GOOD_TEXT, "--model-runner", "v1", "--max-num-seqs", "256")
    assert [f["code"] for f in found] == ["PiecewiseGraphs", "TailNotCovered"]


@pytest.mark.parametrize("args", [["--speculative-config", "{"], [], ["--speculative-config", "{}", "--frob"]])
def test_errors_are_json_on_stderr_when_json_was_asked_for(args: list[str]) -> None:
    result = call("validate", *args, "-o", "json")
    assert result.stdout == ""
    assert set(json.loads(result.stderr)["error"]) == {"code", "message"}


def test_version_and_help() -> None:
    assert call_process("--version").stdout.startswith("tabletune 0.")
    for command in ("validate", "build", "regret", "explain", "plot", "profile"):
        assert call(command, "--help").exit_code == 0
    assert call("frob").exit_code == 2
