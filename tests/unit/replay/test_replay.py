"""The stand-in behind vLLM's command line and HTTP: it must refuse, time and answer as the tests that use it expect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from replay_engine import LAUNCHER, SPECULATIVE, replay_engine

PATIENCE_SECONDS = 60  # the machine may be busy
RECORDING = LAUNCHER.parent / "site/replay/h200.json"


def run_to_end(config: Mapping[str, Any] | str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    text = config if isinstance(config, str) else json.dumps(config)
    return subprocess.run(
        [sys.executable, str(LAUNCHER), "serve", "m", "--port", str(free_port()), "--speculative-config", text, *flags],
        env={"REPLAY_START_SECONDS": "0", **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@contextmanager
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as c:
        yield c


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({"1-16": 3}, "valid list", id="the dict form was never released"),
        pytest.param([[1, 16]], "tuple of 3", id="two numbers"),
        pytest.param([[1, 16, 2.5]], "valid integer", id="half a token"),
        pytest.param([[2, 16, 3]], "must start at 1", id="starts at 2"),
        pytest.param([[1, 16, 3], [16, 32, 1]], "non-overlapping", id="overlap"),
        pytest.param([], "must not be empty", id="empty, on the V2 runner"),
    ],
)
def test_refuses_the_tables_that_vllm_refuses(table: object, words: str) -> None:
    ended = run_to_end({**SPECULATIVE, "num_speculative_tokens_per_batch_size": table})
    assert ended.returncode == 1
    assert words in ended.stderr


@pytest.mark.parametrize(
    ("name", "text", "flags", "words"),
    [
        pytest.param("a.yaml", 'speculative-config: {"method": "x", "oops": 1}\n', [], "oops", id="the file's setting is read"),
        pytest.param("a.yaml", "# nothing\n", [], "NoneType", id="an empty file"),
        pytest.param("a.json", "{}", [], "yaml/yml type", id="another kind of file"),
        pytest.param("a.yaml", None, [], "Unable to read", id="no file"),
        pytest.param("a.yaml", "{}\n", ["--config", "b.yaml"], "one file", id="two files"),
    ],
)
def test_ends_at_a_config_file_where_vllm_ends(tmp_path: Path, name: str, text: str | None, flags: list[str], words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(LAUNCHER), "serve", "m", "--port", str(free_port()), "--config", str(tmp_path / name), *flags]
    environment = {"REPLAY_START_SECONDS": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 1
    assert words in ended.stderr


def test_a_flag_that_says_none_wins_over_a_config_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('speculative-config: {"method": "x", "oops": 1}\n')
    ended = run_to_end("None", "--config", str(tmp_path / "a.yaml"), "--port", "none")
    assert "expected an integer" in ended.stderr, "it came as far as the port"
    assert "oops" not in ended.stderr


def test_flags_win_over_a_config_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('# ours\nspeculative-config: {"method": "x", "oops": 1}\n')
    ended = run_to_end({**SPECULATIVE, "num_speculative_tokens_per_batch_size": []}, "--config", str(tmp_path / "a.yaml"))
    assert "must not be empty" in ended.stderr
    assert "oops" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        pytest.param([], {"REPLAY_VERSION": "0.23.0"}, "Unexpected keyword argument", id="before tables"),
        pytest.param([], {"REPLAY_FAIL_START": "1"}, "initialization failed", id="asked to fail"),
    ],
)
def test_ends_with_1_when_it_cannot_start(flags: list[str], env: Mapping[str, str], words: str) -> None:
    ended = run_to_end(SPECULATIVE, *flags, **env)
    assert ended.returncode == 1
    assert words in ended.stderr


def test_says_what_it_is_and_serves(tmp_path: Path) -> None:
    with replay_engine(tmp_path) as engine, client(engine.url) as http:
        assert http.get("/version").json()["version"] == "0.32.0"
        assert http.get("/v1/models").json()["data"][0]["id"] == "m"
        tokens = http.post("/tokenize", json={"prompt": "def f(x): return x"}).json()["tokens"]
        answer = http.post("/v1/completions", json={"prompt": tokens, "max_tokens": 7, "ignore_eos": True}).json()
        assert answer["choices"][0]["text"].startswith("[replay stand-in, not vLLM")
        assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 7, "total_tokens": 13}
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**6}).status_code == 400
        assert http.post("/v1/completions", json={"prompt": "x", "model": "other"}).status_code == 404
    assert "replay stand-in, not vLLM" in engine.log()


def test_streams(tmp_path: Path) -> None:
    body = {"prompt": "x", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
    with replay_engine(tmp_path) as engine, client(engine.url) as http, http.stream("POST", "/v1/completions", json=body) as answer:
        parts = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert parts[-1] == "[DONE]"
    assert json.loads(parts[-2])["usage"]["completion_tokens"] == 9


def accepted_share(http: httpx.Client, prompt: str) -> float:
    def counters() -> tuple[float, float]:
        rows = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
        labels = '{engine="0",model_name="m"}'
        return (
            float(rows[f"vllm:spec_decode_num_accepted_tokens_total{labels}"]),
            float(rows[f"vllm:spec_decode_num_draft_tokens_total{labels}"]),
        )

    before = counters()
    http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 400})
    after = counters()
    return (after[0] - before[0]) / (after[1] - before[1])


def test_code_is_guessed_better_than_prose(tmp_path: Path) -> None:
    with replay_engine(tmp_path, REPLAY_TIME_SCALE="0.1") as engine, client(engine.url) as http:
        code = accepted_share(http, "def mean(values):\n    return sum(values) / len(values)\n")
        prose = accepted_share(http, "The old harbour lay quiet under the morning fog.")
    assert code == pytest.approx((0.78 + 0.58 + 0.43) / 3, abs=0.12)
    assert prose == pytest.approx((0.36 + 0.13 + 0.05) / 3, abs=0.12)


@pytest.mark.parametrize(("rates", "share"), [([0, 0, 0], 0.0), ([1, 1, 1], 1.0)])
def test_honours_synthetic_rejection(tmp_path: Path, rates: list[int], share: float) -> None:
    config = {**SPECULATIVE, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    with replay_engine(tmp_path, config=config, REPLAY_TIME_SCALE="0.1") as engine, client(engine.url) as http:
        assert accepted_share(http, "x") == share


def test_dies_in_the_cell_that_was_asked_for(tmp_path: Path) -> None:
    with replay_engine(tmp_path, REPLAY_CRASH_AT="1:3") as engine, client(engine.url) as http:
        with pytest.raises(httpx.TransportError):
            http.post("/v1/completions", json={"prompt": "x", "max_tokens": 50})
        assert engine.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_ends_on_sigterm(tmp_path: Path) -> None:
    with replay_engine(tmp_path) as engine:
        engine.process.terminate()
        assert engine.process.wait(PATIENCE_SECONDS) == 0


def test_interpolates_the_recording_and_keeps_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHER.parent / "site"))
    from replay.recording import read_recording  # type: ignore[import-not-found]

    recording = read_recording(RECORDING)
    assert recording.step_seconds(96, 3, False) == pytest.approx(8530e-6)
    assert recording.step_seconds(80, None, False) == pytest.approx((4330 + 5140) / 2 * 1e-6)
    assert recording.step_seconds(8, 4, False) == pytest.approx((4820 + 350) * 1e-6)
    assert recording.step_seconds(8, 1, True) == pytest.approx((4120 + 9000) * 1e-6)
