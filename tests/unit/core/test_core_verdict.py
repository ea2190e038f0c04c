"""The verdict: what the live measurements say, whatever they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.table import Table
from tabletune.verdict import Arm, Load, Standing, Verdict, VerdictKind, WorstLoss, decide_verdict, gains, mean_gain, worst_loss

TABLE, FIXED, PRESENT, OFF = VerdictKind.TABLE, VerdictKind.FIXED, VerdictKind.PRESENT, VerdictKind.OFF
CHANGING = Table.parse([[1, 4, 3], [5, 8, 1]])
NEVER_DRAFTS = Table.fixed(0, 8)


def load(batch_size: int, table: float, present: float, fixed: float, off: float) -> Load:
    return Load(batch_size, Arm(table, 0.001, "1-4:3 5-8:1"), Arm(present, 0.001, "k=3"), Arm(fixed, 0.001, "k=2"), Arm(off, 0.001, "off"))


def decide(*loads: Load, **changes: Any) -> Verdict:
    facts: dict[str, Any] = {"noise": 0.01, "table": CHANGING, "fixed_length": 2, "present_speculates": True}
    return decide_verdict(loads, **(facts | changes))


@pytest.mark.parametrize(
    ("loads", "facts", "kind"),
    [
        pytest.param([load(1, 110, 100, 105, 60), load(8, 300, 250, 280, 200)], {}, TABLE, id="table wins"),
        pytest.param([load(1, 100, 100, 99.9, 60), load(8, 300, 250, 300, 200)], {}, FIXED, id="fixed as good"),
        pytest.param([load(1, 100, 100, 104, 60), load(8, 300, 290, 302, 200)], {}, FIXED, id="fixed better"),
        pytest.param([load(1, 106, 90, 100, 60), load(8, 95, 90, 100, 60)], {}, TABLE, id="fixed as good on average, worse at a load"),
        pytest.param([load(1, 100, 90, 95, 120), load(8, 300, 290, 295, 301)], {}, OFF, id="off wins"),
        pytest.param([load(1, 105, 100, 104, 60), load(8, 100, 90, 95, 300)], {}, OFF, id="off wins on average"),
        pytest.param([load(1, 100, 90, 95, 120), load(8, 300, 290, 290, 200)], {}, TABLE, id="off wins at one load only"),
        pytest.param([load(8, 90, 105, 110, 100)], {}, FIXED, id="off wins over the table, fixed over off"),
        pytest.param([load(8, 90, 120, 95, 100)], {}, PRESENT, id="off wins over the table, present over off"),
        pytest.param([load(1, 100, 103, 101, 60), load(8, 100, 103, 101, 60)], {}, PRESENT, id="present wins"),
        pytest.param([load(1, 100, 103, 101, 60)], {"present_speculates": False}, FIXED, id="no present setting to keep"),
        pytest.param([load(1, 100, 103, 101, 60)], {"noise": 0.04}, FIXED, id="present wins inside the noise"),
        pytest.param([load(1, 98, 101.5, 100.9, 100)], {}, FIXED, id="present wins over the table only"),
        pytest.param([load(1, 100.5, 101, 100.2, 60)], {}, FIXED, id="nobody wins"),
        pytest.param([load(1, 100.8, 101.5, 99.9, 60)], {}, TABLE, id="present wins over the fixed length only"),
        pytest.param([load(1, 104, 100, 90, 60), load(8, 97, 100, 90, 60)], {}, PRESENT, id="table level on average, worse at a load"),
        pytest.param(
            [load(1, 101.3, 100, 90, 60), load(8, 98.7, 100, 90, 60)], {}, TABLE, id="level on average, worse at a load by chance"
        ),
        pytest.param([load(1, 108, 100, 90, 60), load(8, 97, 100, 90, 60)], {}, TABLE, id="table better on average, worse at a load"),
        pytest.param([load(1, 99.5, 100, 99.5, 60), load(8, 99.5, 100, 99.2, 60)], {}, FIXED, id="all inside the noise at each load"),
        pytest.param([load(1, 104, 100, 90, 101.2), load(8, 97.3, 100, 90, 101.2)], {}, TABLE, id="off beats the present one"),
        pytest.param([load(1, 100, 90, 100, 99.5)], {"table": NEVER_DRAFTS, "fixed_length": 0}, OFF, id="a table that never drafts"),
        pytest.param([load(1, 100, 90, 100, 99.5)], {"fixed_length": 0}, OFF, id="a length that never drafts is as good"),
        pytest.param([load(1, 100, 90, 100, 80)], {"fixed_length": 0}, FIXED, id="a length that never drafts beats off"),
        pytest.param([load(1, 110, 90, 100, 100)], {"fixed_length": 0}, TABLE, id="a table beats a length that never drafts"),
        pytest.param([], {}, VerdictKind.BLOCKED, id="nothing measured live"),
    ],
)
def test_verdict(loads: list[Load], facts: dict[str, Any], kind: VerdictKind) -> None:
    verdict = decide(*loads, **facts)
    assert verdict.kind is kind
    assert verdict.message.endswith(".")


def test_says_the_numbers_and_the_next_step() -> None:
    assert decide(load(1, 100, 103, 101, 60), load(8, 300, 309, 303, 180)).message == (
        "The present setting (k=3) gives +3.0 % tokens/s over the table and +2.0 % over the best fixed length (k=2) "
        "over 2 loads (B=1, 8); noise 1.0 %. Keep it as it is. "
        "Best at B=1, 8."
    )
    kept = decide(load(1, 104, 100, 90, 60), load(8, 97, 100, 90, 60))
    assert (kept.reason, kept.message) == (
        "NothingGained",
        (
            "The table gives no more than the present setting (k=3) on average, and less at a load: -3.0 % at B=8 over 2 loads (B=1, 8); "
            "noise 1.0 %. Keep it as it is. Best at B=8; behind at B=1."
        ),
    )
    assert decide(load(1, 105, 100, 104, 60), load(8, 100, 90, 95, 300)).message == (
        "Serving without speculation gives +30.9 % tokens/s over the table over 2 loads (B=1, 8); noise 1.0 %. "
        "The table still wins at B=1 (+75.0 %). Remove --speculative-config, or keep it only for such load. "
        "Best at B=8; behind at B=1."
    )
    assert decide(load(1, 100, 90, 100, 99.5), fixed_length=0).message == (
        "The best draft length is 0, and serving without speculation is as good: -0.5 % tokens/s against the table "
        "over 1 load (B=1); noise 1.0 %. Remove --speculative-config. "
        "Level at B=1."
    )
    assert decide(load(1, 100, 100, 104, 60)).message == (
        "One length (k=2) gives +4.0 % tokens/s over the table. It gives +4.0 % tokens/s against the present setting (k=3) "
        "over 1 load; noise 1.0 %: +4.0 % at B=1. Best at B=1."
    )
    assert "; noise 3.2 % (assumed)" in decide(load(1, 100, 90, 95, 120), noise=0.032, noise_assumed=True).message


def test_says_where_it_holds() -> None:
    verdict = decide(load(1, 110, 100, 105, 60), load(4, 100.4, 100, 100, 60), load(8, 300, 250, 280, 310))
    assert (verdict.kind, verdict.loads) == (TABLE, Standing(ahead=(1,), level=(4,), behind=(8,)))
    # Without a present setting its column repeats off, and is no rival.
    assert decide(load(8, 110, 200, 105, 60), present_speculates=False).loads == Standing(ahead=(8,))
    assert decide().loads == Standing()


def test_the_worst_load_is_told_against_the_best_fixed_length_there() -> None:
    here = Arm(330, 0.001, "k=1")
    small, large = load(1, 110, 100, 100, 60), replace(load(8, 300, 250, 280, 200), fixed_here=here)
    assert worst_loss([small, large]) == WorstLoss(8, "k=1", pytest.approx(1 - 300 / 330))
    assert worst_loss([small]) == WorstLoss(1, "k=2", pytest.approx(-0.1))
    assert replace(large, fixed_here=replace(here, tokens_per_second=270)).best_fixed == large.fixed
    assert worst_loss([]) is None


RATES = st.floats(50, 200)
# Measurements near each other, where rules meet, and far from each other.
LOADS = st.lists(
    st.builds(load, st.integers(1, 256), *(RATES | st.floats(97, 103) for _ in range(4))),
    min_size=1,
    max_size=4,
    unique_by=lambda x: x.batch_size,
)


@given(LOADS, st.floats(0, 0.05), st.sampled_from([CHANGING, Table.fixed(2, 8), NEVER_DRAFTS]), st.sampled_from([0, 2]), st.booleans())
def test_nothing_is_changed_for_less_than_there_is(loads: list[Load], noise: float, table: Table, fixed: int, speculates: bool) -> None:
    verdict = decide(*loads, noise=noise, table=table, fixed_length=fixed, present_speculates=speculates)
    threshold = max(0.005, noise) + 1e-9
    assert sorted((*verdict.loads.ahead, *verdict.loads.level, *verdict.loads.behind)) == sorted(x.batch_size for x in loads)
    left = [("off", OFF)] + ([("present", PRESENT)] if speculates else [])
    chosen = verdict.kind.value.lower()
    for rival, kind in left:
        if kind is not verdict.kind:
            assert mean_gain(loads, rival, chosen) <= threshold  # type: ignore[arg-type]
    if verdict.kind is PRESENT:
        assert speculates
        beaten = [arm for arm in ("table", "fixed") if mean_gain(loads, "present", arm) > max(0.005, noise)]  # type: ignore[arg-type]
        hurt = [arm for arm in ("table", "fixed") if any(x.gain("present", arm) > 1.5 * max(0.005, noise) for x in loads)]  # type: ignore[arg-type]
        assert len(beaten) == 2 if verdict.reason == "PresentPays" else hurt
    if verdict.kind is TABLE:
        assert mean_gain(loads, "fixed", "table") <= threshold or any(
            mean_gain(loads, rival, "fixed") > threshold - 2e-9 for rival, _ in left
        )
    if verdict.kind is FIXED and fixed == 0:
        assert mean_gain(loads, "fixed", "off") > max(0.005, noise) or speculates


def test_gains_are_means_over_loads() -> None:
    result = gains([load(1, 110, 100, 100, 50), load(8, 90, 100, 100, 50)])
    assert (result.present, result.off) == pytest.approx(((1.1 * 0.9) ** 0.5 - 1, (2.2 * 1.8) ** 0.5 - 1))


def test_two_arms_do_not_both_win_on_average() -> None:
    loads = [load(1, 160, 100, 100, 100), load(8, 60, 100, 100, 100)]
    assert mean_gain(loads, "table", "off") < 0 < mean_gain(loads, "off", "table")
