"""Folding of speculative flags against vLLM's own parser, on thousands of random argument lists."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

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


def test_folds_as_the_engine_does(engine_venv: Path) -> None:
    chance = random.Random(1)
    lists = [[item for piece in chance.sample(PIECES, chance.randint(0, 5)) for item in piece] for _ in range(LISTS)]
    script = Path(__file__).with_name("argv_run.py")
    done = subprocess.run(
        [engine_venv / "bin/python", script],
        input="".join(json.dumps(args) + "\n" for args in lists),
        capture_output=True,
        text=True,
        env={**os.environ, **CPU_ENVIRONMENT},
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "null", '"'))]
    differences = [(args, engine, folded(args)) for args, engine in zip(lists, answers, strict=True) if engine != folded(args)]
    assert differences == []
    assert sum(answer != "refused" for answer in answers) > LISTS / 2


def test_options_after_which_an_unknown_word_is_a_value_do_take_one(engine_venv: Path) -> None:
    done = subprocess.run(
        [engine_venv / "bin/python", Path(__file__).with_name("options_run.py"), *sorted(ONE_VALUE)],
        capture_output=True,
        text=True,
        env={**os.environ, **CPU_ENVIRONMENT},
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(sorted(ONE_VALUE), True)
