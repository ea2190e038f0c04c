"""After a roll-out: requests that end in an error, and stalls, against what the engines before had counted."""

from __future__ import annotations

from typing import Any

import pytest
from world import Body, World, rolled_out, serving

from tabletune.verdict import VerdictKind

FINE = {"requests": 10_000, "errors": 2, "gaps": 2_000_000, "stalls": 20, "steps": 100_000}
MINUTE = {"requests": 100, "errors": 0, "gaps": 20_000, "stalls": 0, "steps": 1_000}
"""What an engine adds in one."""
BAD = {"errors": {"errors": 3}, "stalls": {"stalls": 200}}
"""Of a minute: 3 % of the requests, 1 % of the gaps."""
APPLY = "apply Deployment"


def page(*, requests: int = 0, errors: int = 0, gaps: int = 0, stalls: int = 0, steps: int = 0) -> str:
    """The lines of vLLM's page that are read, as vLLM has them (tests/engine reads the page of a real one)."""
    own = 'engine="0",model_name="m"'
    return "\n".join(
        (
            f'vllm:request_success_total{{{own},finished_reason="stop"}} {float(requests - errors)}',
            f'vllm:request_success_total{{{own},finished_reason="error"}} {float(errors)}',
            f'vllm:request_success_total{{{own},finished_reason="abort"}} 77.0',
            f'vllm:inter_token_latency_seconds_bucket{{{own},le="1.0"}} {float(gaps - stalls)}',
            f'vllm:inter_token_latency_seconds_bucket{{{own},le="+Inf"}} {float(gaps)}',
            f"vllm:iteration_tokens_total_count{{{own}}} {float(steps)}",
            f"vllm:num_preemptions_total{{{own}}} 0.0",
        )
    )


def every(made: World, **counted: int) -> None:
    """All engines say so."""
    for pod in made.pods():
        made.pages[pod["status"]["podIP"]] = page(**counted)


def rollout(made: World) -> Body:
    found: Body = made.get("DraftTable", "chat")["status"]["rollout"]
    return found


async def counted_and_rolled_out(kind: VerdictKind = VerdictKind.TABLE, before: dict[str, int] | None = None, **spec: Any) -> World:
    made = serving(**spec)
    every(made, **(FINE if before is None else before))
    await made.until_rolling_out(kind)
    await made.turns(2)
    assert made.condition("RolledOut")[0] == "True"
    return made


async def serves(made: World, minutes: int, counted: dict[str, int], **of_a_minute: int) -> dict[str, int]:
    """Engines go on from what they counted, and time goes on."""
    for _ in range(minutes):
        counted = {name: count + (MINUTE | of_a_minute)[name] for name, count in counted.items()}
        every(made, **counted)
        await made.turn(seconds=60)
    return counted


async def test_what_the_old_engines_counted_is_remembered_with_the_roll_out() -> None:
    made = await counted_and_rolled_out()
    before = rollout(made)["before"]
    assert before | {"engine": ""} == {
        "engine": "", "finishedRequests": 20_000, "failedRequests": 4, "gaps": 4_000_000, "stalls": 40, "steps": 200_000,
    }  # fmt: skip
    await serves(made, 30, FINE)
    assert rollout(made)["before"] == before
    assert made.condition("RolledOut") == ("True", "Proved")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("errors", "3.00 % of requests end in an error (limit 0.52 %; before 0.02 %)", id="errors"),
        pytest.param("stalls", "1.00 % of tokens come more than 1 s after the one before (limit 0.10 %; before 0.00 %)", id="stalls"),
    ],
)
@pytest.mark.parametrize("kind", [VerdictKind.TABLE, VerdictKind.OFF])
async def test_more_than_before_brings_the_old_setting_back_once(what: str, said: str, kind: VerdictKind) -> None:
    made = await counted_and_rolled_out(kind)
    counted = await serves(made, 10, FINE | {what: 300 if what == "errors" else 20_000}, **BAD[what])
    assert made.condition("RolledOut")[0] == "True", "not before it was so for a quarter of an hour"
    await serves(made, 8, counted, **BAD[what])
    assert made.condition("RolledOut") == ("False", "RolledBack")
    message = made.message("RolledOut")
    assert f"2 of 2 new replicas: {said}" in message
    assert len(message) <= 300
    assert "replace Deployment" in made.writes
    writes = len(made.writes)
    await serves(made, 30, FINE)
    assert len(made.writes) == writes, "no second try until something changed"


async def test_a_bad_minute_that_is_over_is_forgiven_though_it_stays_in_the_sums() -> None:
    made = await counted_and_rolled_out()
    await serves(made, 60, FINE | {"errors": 300, "stalls": 20_000})
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_too_little_since_then_to_say_that_it_goes_on_leaves_it_undecided() -> None:
    made = await counted_and_rolled_out()
    idle = dict.fromkeys(MINUTE, 0)
    counted = await serves(made, 1, FINE | {"errors": 300}, **idle)
    counted = await serves(made, 1, counted, **idle | {"requests": 2, "errors": 1})
    await serves(made, 40, counted, **idle)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert rollout(made)["worseSince"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(FINE, FINE, id="as before"),
        pytest.param(FINE, {}, id="no traffic after"),
        pytest.param({}, FINE | {"errors": 3000, "stalls": 90_000}, id="nothing counted before"),
        pytest.param({"requests": 20, "gaps": 900, "steps": 300}, FINE | {"errors": 300, "stalls": 20_000}, id="too few before"),
        pytest.param(FINE, FINE | {"errors": 45}, id="less than half a percent more"),
        pytest.param(FINE, FINE | {"stalls": 1_900}, id="less than a thousandth more"),
        pytest.param(FINE | {"errors": 400}, FINE | {"errors": 600}, id="less than twice the errors"),
        pytest.param(FINE | {"stalls": 30_000}, FINE | {"stalls": 50_000}, id="less than twice the stalls"),
    ],
)
async def test_nothing_is_rolled_back_on_doubt(before: dict[str, int], after: dict[str, int]) -> None:
    made = await counted_and_rolled_out(before=before)
    for times in range(1, 41):  # the same share, in ever more
        every(made, **{name: times * count for name, count in after.items()})
        await made.turn(seconds=60)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_a_step_that_stalls_a_large_batch_counts_once_and_not_for_each_request() -> None:
    made = await counted_and_rolled_out()
    counted = {"requests": 10_000, "errors": 0, "gaps": 12_800_000, "stalls": 25 * 640, "steps": 20_000}  # 25 steps of 640 requests
    await serves(made, 3, counted, **dict.fromkeys(FINE, 0))
    assert "worseSince" not in rollout(made)
    await serves(made, 3, counted | {"gaps": 20_000, "stalls": 25}, **dict.fromkeys(FINE, 0))
    assert "worseSince" not in rollout(made), "so it is with 25 of single requests"
    await serves(made, 3, counted | {"stalls": 100 * 640}, **dict.fromkeys(FINE, 0))
    assert rollout(made)["worseSince"]


async def test_too_few_are_not_judged() -> None:
    made = await counted_and_rolled_out()
    await serves(made, 40, {"requests": 150, "errors": 60, "gaps": 50_000, "stalls": 9_000, "steps": 19_000}, **dict.fromkeys(FINE, 0))
    assert made.condition("RolledOut") == ("True", "Proved")
    assert "worseSince" not in rollout(made)


async def test_an_engine_of_a_version_that_counts_nothing_is_left_alone() -> None:
    made = await rolled_out()
    assert "before" not in rollout(made)
    await serves(made, 40, FINE | {"errors": 3000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_an_engine_that_starts_again_counts_from_zero_and_is_not_judged_until_it_has_served() -> None:
    made = await counted_and_rolled_out()
    await serves(made, 10, FINE | {"errors": 300}, **BAD["errors"])
    assert rollout(made)["worseSince"]
    await serves(made, 1, dict.fromkeys(FINE, 0), **BAD["errors"])
    assert "worseSince" not in rollout(made)


async def test_sums_of_other_engines_than_before_begin_anew() -> None:
    made = await counted_and_rolled_out()
    await serves(made, 3, FINE | {"errors": 300}, **BAD["errors"])
    since = rollout(made)["worseSince"]
    await serves(
        made, 20, {"requests": 10_400, "errors": 9_000, "gaps": 3_000_000, "stalls": 900_000, "steps": 200_000}, **dict.fromkeys(FINE, 0)
    )
    assert made.condition("RolledOut") == ("True", "Proved")
    assert rollout(made)["worseSince"] > since


async def test_counts_in_the_status_that_cannot_be_are_no_error() -> None:
    made = await counted_and_rolled_out()
    rollout(made)["before"] |= {"failedRequests": 90_000, "stalls": 2**40, "steps": 0}
    await serves(made, 3, FINE, **BAD["errors"])
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_one_replica_of_three_is_its_nodes_trouble() -> None:
    made = await counted_and_rolled_out()
    target = made.get("Deployment", "decode")
    target["spec"]["replicas"] = 3
    made.add_pod("decode-2-2", target["spec"]["template"], made.pods()[0]["metadata"]["ownerReferences"][0]["uid"], ready=True)
    for minutes in range(40):
        every(made, **{name: count + minutes * MINUTE[name] for name, count in FINE.items()})
        worse = {"requests": 10_000 + 100 * minutes, "errors": 3000 + 50 * minutes}
        made.pages[made.pods()[0]["status"]["podIP"]] = page(**worse)
        await made.turn(seconds=60)
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_another_image_since_then_is_another_cause() -> None:
    made = await counted_and_rolled_out()
    made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v9"
    made.roll()
    await serves(made, 40, FINE | {"errors": 3000}, **BAD["errors"])
    assert "replace Deployment" not in made.writes


async def test_a_restart_of_the_target_is_no_other_engine() -> None:
    made = await counted_and_rolled_out()
    template = made.get("Deployment", "decode")["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "2026-11-30T15:00:00Z"
    made.roll()
    await serves(made, 20, FINE | {"errors": 3000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert made.writes.count(APPLY) == 1, "the restart came before what was taken back, so it is no wish for another try"


async def test_after_two_hours_nothing_is_the_roll_outs_doing() -> None:
    made = await counted_and_rolled_out()
    await serves(made, 125, FINE)
    await serves(made, 40, FINE | {"errors": 3000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("True", "Proved")


async def test_report_only_says_so() -> None:
    made = await counted_and_rolled_out(rollout={"guard": {"afterRollout": "Report"}})
    await serves(made, 20, FINE | {"errors": 3000}, **BAD["errors"])
    assert made.condition("RolledOut") == ("False", "WorseThanBefore")
    assert "replace Deployment" not in made.writes


async def test_a_later_roll_out_is_held_against_the_engines_that_it_replaces() -> None:
    made = await counted_and_rolled_out()
    every(made, requests=500, errors=100)
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 1}
    await made.turns(4)
    assert made.writes.count(APPLY) == 2
    assert rollout(made)["before"]["failedRequests"] == 200
