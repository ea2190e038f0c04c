"""Which tables need new engines."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune_operator.launch import config_to_launch, why_restart

BASE = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}
RUNNING = {**BASE, "num_speculative_tokens_per_batch_size": [[1, 95, 3], [96, 128, 1]]}


def table(*ranges: list[int], **more: Any) -> dict[str, Any]:
    return {**BASE, "num_speculative_tokens_per_batch_size": list(ranges), **more}


@pytest.mark.parametrize(
    ("wanted", "allowed", "runner", "why"),
    [
        pytest.param(RUNNING, (1, 3), "v2", None, id="the same"),
        pytest.param(table([1, 63, 3], [64, 128, 1]), (1, 3), "v2", None, id="other edges"),
        pytest.param(table([1, 128, 1], [129, 129, 3]), (1, 3), "v2", None, id="one length, the set launched all the same"),
        pytest.param(table([1, 128, 3]), (3,), "v2", "draft length 1 must no longer", id="a length must not be used any more"),
        pytest.param(table([1, 128, 3]), (1, 3), "v2", "launched with, [1, 3], become [3]", id="other lengths on V2"),
        pytest.param(table([1, 128, 3]), (1, 3), None, "launched with", id="a runner that is not known is as V2"),
        pytest.param(table([1, 64, 3], [65, 128, 2]), (1, 2, 3), "v1", None, id="V1 runs every length up to the longest"),
        pytest.param(table([1, 128, 4], num_speculative_tokens=4), (1, 3, 4), "v1", "longest draft length 3 becomes 4", id="another K"),
        pytest.param(table([1, 95, 3], [96, 128, 1], method="mtp"), (1, 3), "v1", "method eagle3 becomes mtp", id="another method"),
        pytest.param(table([1, 95, 3], [96, 128, 1], model="other"), (1, 3), "v1", "drafter draft becomes other", id="another drafter"),
        pytest.param(table([1, 95, 3], [96, 128, 1], draft_tp=2), (1, 3), "v1", "draft_tp in the speculative", id="another option"),
        pytest.param(BASE, (1, 3), "v1", "begins or ends to follow", id="no table"),
        pytest.param({**BASE, "num_speculative_tokens_per_batch_size": "?"}, (1, 3), "v1", "begins or ends", id="unreadable"),
    ],
)
def test_only_what_an_engine_is_launched_with_needs_a_restart(
    wanted: dict[str, Any], allowed: tuple[int, ...], runner: str | None, why: str | None
) -> None:
    found = why_restart(RUNNING, wanted, allowed, runner)
    assert (found is None) == (why is None), found
    assert why is None or why in str(found)
    assert config_to_launch(RUNNING, wanted, allowed, runner) == (RUNNING if why is None else wanted)


def test_what_is_not_rolled_out_is_launched_as_the_files_say() -> None:
    assert config_to_launch(None, RUNNING, (1, 3), "v2") == RUNNING
    assert config_to_launch(RUNNING, None, (1, 3), "v2") is None, "speculation off"
