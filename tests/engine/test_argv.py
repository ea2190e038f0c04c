"""Folding of speculative flags against vLLM's own parser, on thousands of random argument lists."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from live_engine import CPU_ENVIRONMENT

from tabletune.argv import ArgvError, fold_speculative_config
from tabletune_operator.shell.script import ONE_VALUE

LISTS = 3000
PIECES = (
    ["--speculative-config", '{"method":"eagle3","num-speculative-tokens":3}'], ["--speculative_config={}"], ["-sc", '{"a":1}'],
    ["-sc=None"], ["--specul", "null"], ["--speculative-config.method", "ngram"],
    ["--speculative_config.num_speculative_tokens=2"], ["-sc.model", "d.e"],
    ["--speculative-config.a.b", "1"], ["--speculative-config.a.c", "[1]"], ["--speculative-config.l+", "x,y"],
    ["--speculative-config.l+=z"],
    ["--spec-method", "ngram"], ["--spec_model=m"], ["--spec-tokens", "4"], ["--spec-tok=5"], ["--spec-tokens", "x"], ["--spec-mo", "q"],
    ["--speculative-config"], ["--speculative-config", "[1]"], ["--port=1"], ["-tp", "2"], ["--enforce-eager"], ["--max-num-seqs", "3"],
)  # fmt: skip


def folded(args: list[str]) -> Any:
    try:
        return fold_speculative_config(args).config
    except ArgvError:
        return "refused"


@pytest.fixture(scope="module")
def lists() -> list[list[str]]:
    chance = random.Random(1)
    return [[item for piece in chance.sample(PIECES, chance.randint(0, 5)) for item in piece] for _ in range(LISTS)]


@pytest.fixture(scope="module")
def answers(engine_venv: Path, lists: list[list[str]]) -> list[Any]:
    """What the engine says of each list, and last of the options."""
    done = subprocess.run(
        [engine_venv / "bin/python", Path(__file__).with_name("argv_run.py"), *sorted(ONE_VALUE)],
        input="".join(json.dumps(args) + "\n" for args in lists),
        capture_output=True,
        text=True,
        env={**os.environ, **CPU_ENVIRONMENT},
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "null", '"'))]


def test_folds_as_the_engine_does(lists: list[list[str]], answers: list[Any]) -> None:
    differences = [(args, engine, folded(args)) for args, engine in zip(lists, answers[:-1], strict=True) if engine != folded(args)]
    assert differences == []
    assert sum(answer != "refused" for answer in answers[:-1]) > LISTS / 2


def test_options_after_which_an_unknown_word_is_a_value_do_take_one(answers: list[Any]) -> None:
    assert answers[-1] == dict.fromkeys(sorted(ONE_VALUE), True)
