"""The plugin and vLLM's own choice of graphs: see `graph_cells_run.py`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from live_engine import CPU_ENVIRONMENT

EVERY_LENGTH = [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 256, 3]]
TWO_LENGTHS = [[1, 48, 3], [49, 256, 1]]
NO_POWER_OF_TWO = [[1, 48, 4], [49, 256, 1]]  # K + 1 = 5
# As derived from vLLM's rules by hand, and seen as stalls on an H200 (docs/engine-safety.md).
AT_1 = [6, 9, 21, 33, 45, 57, 69, 81, 93, 105, 117, 129, 153, 177, 201, 225, 249]
AT_0 = [10, 11, 12, 17, 18, 33, 41, 42, 57, 65, 66, 81, 89, 90, 105, 113, 114, 129, 137, 138, 153, 161, 162, 177, 185, 186, 201]


@pytest.fixture(scope="module")
def seen(engine_venv: Path, packages: Path) -> list[dict[str, Any]]:
    env = {**os.environ, **CPU_ENVIRONMENT, "PYTHONPATH": str(packages)}
    script = Path(__file__).with_name("graph_cells_run.py")
    argv = [engine_venv / "bin/python", script, json.dumps([[EVERY_LENGTH, 3], [TWO_LENGTHS, 3], [NO_POWER_OF_TWO, 4]])]
    shown = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
    looked: list[dict[str, Any]] = json.loads(shown.stdout.splitlines()[-1])
    return looked


def test_every_length_side_by_side_has_mismatched_cells(seen: list[dict[str, Any]]) -> None:
    found = seen[0]["found"]
    assert {k for _, k in found} == {0, 1}
    assert [B for B, k in found if k == 1] == AT_1
    assert [B for B, k in found if k == 0 and AT_0[-1] >= B] == AT_0


def test_two_lengths_have_none(seen: list[dict[str, Any]]) -> None:
    assert {name: seen[1][name] for name in ("found", "left", "cures")} == {"found": [], "left": [], "cures": [0, 0]}
    assert seen[1]["reported"] == {"mismatched": [], "cured": True}


def test_two_lengths_of_which_the_longer_fits_no_default_size_have_some(seen: list[dict[str, Any]]) -> None:
    found = seen[2]["found"]
    assert {k for _, k in found} == {1}
    assert [B for B, _ in found][:6] == [17, 25, 29, 30, 37, 45]  # as vLLM 0.33 answered; others have no graph in either manager


def test_the_sizes_that_tabletune_names_leave_no_batch_without_its_graph(seen: list[dict[str, Any]]) -> None:
    assert [(x["withNamedSizes"], x["withoutFullGraph"]) for x in seen] == [([], [])] * 3


def test_the_plugin_leaves_none_and_says_what_it_cured(seen: list[dict[str, Any]]) -> None:
    held = seen[0]
    assert held["left"] == []
    assert held["reported"] == {"mismatched": held["found"], "cured": True}
    assert held["cures"] == [0, len(held["found"])]
