"""The command line that the operator writes into a pod."""

from __future__ import annotations

from pathlib import Path

import pytest
from sidecar_cases import settings

from tabletune_sidecar.options import Mode, Options, PriorDecay, parse_options


def test_reads_the_operators_command_line() -> None:
    line = (
        "--socket /s --files /f --state-file /st --engine-url http://127.0.0.1:8200 --mode Observe --prior-weight 500 "
        "--rebuild-every-steps 7 --explore-every-steps 0 --prior-decay Keep --hysteresis 3 --max-swaps-per-minute 2 --port 1"
    )
    expected = settings(
        mode=Mode.OBSERVE,
        prior_weight=500.0,
        rebuild_every_steps=7,
        explore_every_steps=0,
        prior_decay=PriorDecay.KEEP,
        hysteresis=3,
        max_swaps_per_minute=2,
    )
    assert parse_options(line.split()) == Options("/s", Path("/f"), Path("/st"), "http://127.0.0.1:8200", 1, expected)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("--mode Off", "choose from 'Track', 'Observe'", id="unknown mode"),
        pytest.param("--prior-weight -1", "invalid whole number from 0 up value: '-1'", id="negative weight"),
        pytest.param("--rebuild-every-steps 0", "whole number from 1 up", id="never a rebuild"),
        pytest.param("--max-swaps-per-minute 0", "whole number from 1 up", id="never a swap"),
        pytest.param("--hysteresis 1.5", "whole number from 0 up", id="half a request"),
    ],
)
def test_refuses_what_cannot_be(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(line.split())
    assert words in capsys.readouterr().err
