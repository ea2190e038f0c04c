"""The command line of the Job's container."""

import json
from pathlib import Path

import pytest

from tabletune_tuner.options import Options, Target, parse_job

OWNER = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "name": "chat", "uid": "u-1"}
JOB = ["--namespace", "llm", "--config-map", "chat-tabletune", "--job", "chat-profile", "--owner-json", json.dumps(OWNER)]
SERVE = ["--", "vllm", "serve", "org/model", "--max-num-seqs", "64"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def test_reads_a_job_and_fills_in_what_is_left_out() -> None:
    options, target = parse_job([*JOB, "--present-json", json.dumps(NGRAM), *SERVE, "--port", "8200"])
    assert target == Target("llm", "chat-tabletune", "chat-profile", OWNER)
    assert options == Options(
        serve_argv=("vllm", "serve", "org/model", "--max-num-seqs", "64", "--port", "8200"),
        max_draft_length=3,
        max_batch_size=64,
        present=NGRAM,
        engine_url="http://127.0.0.1:8200",
    )


def test_reads_every_measuring_option() -> None:
    given = "--max-draft-length 5 --method eagle3 --drafter org/d --max-batch-size 16 --repeats 2 --prompt-tokens 16 --output-tokens 12"
    more = "--prompt-count 24 --prompts-file /p.txt --temperature-milli 0 --timeout-seconds 600 --run-dir /r --engine-url http://h:1"
    more = [*more.split(), "--window-seconds", "20", "--context-tokens", "1024", "--context-tokens", "8192"]
    fingerprint = ["--fingerprint-json", '{"gpuProduct": "H200", "gpusPerReplica": 1}']
    options, _ = parse_job([*JOB, *given.split(), *more, *fingerprint, *SERVE])
    assert options == Options(
        serve_argv=tuple(SERVE[1:]),
        max_draft_length=5,
        max_batch_size=16,
        present=None,
        method="eagle3",
        drafter="org/d",
        repeats=2,
        prompt_tokens=16,
        output_tokens=12,
        prompt_count=24,
        prompts_file=Path("/p.txt"),
        context_tokens=(1024, 8192),
        temperature_milli=0,
        window_seconds=20,
        timeout_seconds=600,
        run_dir=Path("/r"),
        engine_url="http://h:1",
        fingerprint={"gpuProduct": "H200", "gpusPerReplica": "1"},
    )


def test_takes_the_present_config_out_of_the_engines_command() -> None:
    options, _ = parse_job([*JOB, *SERVE, "--speculative-config", json.dumps(NGRAM)])
    assert (options.present, options.serve_argv) == (NGRAM, tuple(SERVE[1:]))


def test_a_script_shows_no_options_so_they_are_given_beside_it() -> None:
    words = ["vllm", "serve", "m", "--api-key", "k"]
    script = ["--engine-args-json", json.dumps(words), "--explicit-off", "--max-batch-size", "8", "--max-draft-length", "3"]
    options, _ = parse_job([*JOB, *script, "--", "/bin/bash", "-c", "exec vllm serve m --api-key k", "bash"])
    assert options.shown_args == tuple(words)
    assert options.explicit_off
    assert options.serve_argv[0] == "/bin/bash"
    plain, _ = parse_job([*JOB, "--max-draft-length", "3", *SERVE])
    assert (plain.shown_args, plain.explicit_off) == (plain.serve_argv, False)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param([*JOB, "--max-draft-length", "3"], "the engine's command is missing", id="no command"),
        pytest.param([*JOB, *SERVE], "--max-draft-length is missing", id="no K"),
        pytest.param([*JOB, "--max-draft-length", "17", *SERVE], "'17' is not an integer from 1 to 16", id="K too large"),
        pytest.param([*JOB, "--max-draft-length", "3", "--", "vllm", "serve", "m"], "--max-batch-size is missing", id="no B"),
        pytest.param([*JOB, "--max-draft-length", "3", *["--context-tokens", "64"] * 3, *SERVE], "given 3 times; 2 are", id="contexts"),
        pytest.param([*JOB, "--context-tokens", "0", *SERVE], "'0' is not an integer from 16", id="a context of nothing"),
        pytest.param([*JOB, "--present-json", "[1]", *SERVE], "must be a JSON object", id="present is a list"),
        pytest.param([*JOB, "--engine-args-json", "[1]", *SERVE], "must be a JSON list of texts", id="words are numbers"),
        pytest.param([*JOB[:-1], '{"kind": "DraftTable"}', *SERVE], "--owner-json lacks apiVersion, name, uid", id="owner incomplete"),
        pytest.param([*JOB, *SERVE, "--speculative-config", "{"], "is not JSON", id="command with a broken config"),
    ],
)
def test_refuses_with_the_cause(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_job(args)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
