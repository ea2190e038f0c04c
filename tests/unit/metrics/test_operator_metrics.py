"""What the operator tells of itself: counters from 0, states that are told apart, ages of the moment, and nothing of what is gone."""

from __future__ import annotations

import urllib.request
from datetime import timedelta

import pytest
from operator_page import LATER, busy, fail_profile, look, page, roll_out, text, value, world
from world import NAMESPACE, NOW, World
from world_gpus import full

from tabletune_operator.cluster import ClusterError
from tabletune_operator.metrics import STATES, MetricsServer
from tabletune_operator.observation import ObjectRef
from tabletune_operator.telemetry import Cause, Durations, OperatorView, Result, Telemetry, cause_of


def rollouts(telemetry: Telemetry, name: str = "one") -> dict[str, int]:
    return {str(result): count for result, count in telemetry.view.tables[ObjectRef(NAMESPACE, name)].rollouts.items() if count}


async def test_counters_of_a_drafttable_exist_from_0() -> None:
    telemetry = Telemetry(NOW)
    await look(world("one"), telemetry, "one")
    view = telemetry.view
    assert [value(view, "tabletune_rollouts_total", drafttable="one", result=result) for result in Result] == [0] * len(Result)
    assert value(view, "tabletune_profiling_gpu_seconds_total", drafttable="one") == 0
    assert value(view, "tabletune_waiting_for_gpu_seconds", drafttable="one") == 0


def test_counters_of_the_operator_exist_before_its_first_look() -> None:
    view = OperatorView()
    assert [value(view, "tabletune_reconcile_errors_total", cause=cause) for cause in Cause] == [0] * len(Cause)
    assert value(view, "tabletune_reconcile_duration_seconds_count") == 0
    assert [value(view, "tabletune_drafttables", state=state) for state in STATES] == [0] * len(STATES)


def test_states_are_told_apart() -> None:
    assert {state: count for state in STATES if (count := value(busy(), "tabletune_drafttables", state=state))} == {
        "Blocked": 2, "Failed": 1, "Profiling": 1, "RolledBack": 1, "RollingOut": 1, "Tracking": 1, "WaitingForGPU": 1,
    }  # fmt: skip
    rolled_out = {
        labels["drafttable"]: labels["reason"]
        for family in page(busy())
        for labels in family.samples.get("tabletune_drafttable_condition", ())
        if labels["type"] == "RolledOut"
    }
    assert (rolled_out["crashing"], rolled_out["refusing"], rolled_out["tracking"]) == ("RolledBack", "NotHonoured", "Proved")
    assert value(busy(), "tabletune_drafttable_condition", drafttable="crashing", type="Stalled", status="True") == 1
    assert value(busy(), "tabletune_drafttable_condition", drafttable="measuring", type="Reconciling", status="True") == 1


def test_replicas_are_counted_by_their_word() -> None:
    assert value(busy(), "tabletune_replicas", drafttable="refusing", proof="NotHonoured") == 2
    assert value(busy(), "tabletune_replicas", drafttable="tracking", proof="Proved") == 2
    assert value(busy(), "tabletune_replicas", drafttable="tracking", proof="NotHonoured") == 0


async def test_a_roll_out_is_counted_when_it_starts_and_when_it_is_proved_and_once_each() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await roll_out(made, telemetry, "one")
    assert rollouts(telemetry) == {"started": 1}
    await look(made, telemetry, "one", 5)
    assert rollouts(telemetry) == {"started": 1, "proved": 1}
    made.get("DraftTable", "one")["spec"]["rollout"] = {"mode": "Recommend"}
    await look(made, telemetry, "one", 3)
    assert rollouts(telemetry) == {"started": 1, "proved": 1, "given_back": 1}


async def test_a_roll_back_is_counted_once() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await roll_out(made, telemetry, "one", ready=False)
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await look(made, telemetry, "one", 4)
    assert rollouts(telemetry) == {"started": 1, "rolled_back": 1}


async def test_a_drafttable_that_is_gone_is_not_told_any_more() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await look(made, telemetry, "one")
    assert 'drafttable="one"' in text(telemetry.view)
    made.get("DraftTable", "one")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    await look(made, telemetry, "one", 3)
    assert 'drafttable="one"' not in text(telemetry.view)
    del made.objects["DraftTable", "one"]
    await look(made, telemetry, "one")
    assert 'drafttable="one"' not in text(telemetry.view)


async def test_a_job_is_told_while_it_runs() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await look(made, telemetry, "one", 2)
    view = telemetry.view
    assert value(view, "tabletune_profiling_job_age_seconds", NOW + timedelta(minutes=10)) == 600
    assert "tabletune_profiling_progress_ratio{" not in text(view), "it has not told yet"
    made.progress("one", percent=37)
    await look(made, telemetry, "one")
    view = telemetry.view
    assert value(view, "tabletune_profiling_progress_ratio") == 0.37
    assert value(view, "tabletune_profiling_silence_seconds", made.now + timedelta(minutes=20)) > 1200
    made.finish_profile("one")
    await look(made, telemetry, "one")
    assert "tabletune_profiling_job_age_seconds{" not in text(telemetry.view)


async def test_gpu_time_is_added_up_over_jobs_and_never_counted_twice() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await look(made, telemetry, "one", 2)
    for spent in (100, 100, 300):
        made.progress("one", gpuSeconds=spent)
        await look(made, telemetry, "one")
    assert value(telemetry.view, "tabletune_profiling_gpu_seconds_total") == 300
    made.progress("one", gpuSeconds=400, outcome="Failed", reason="EngineDied", message="The engine died.")
    made.end_job("one", failed=True)
    await look(made, telemetry, "one")
    assert value(telemetry.view, "tabletune_profiling_gpu_seconds_total") == 400

    # An operator that starts now has not seen these seconds being spent; its predecessor told them.
    younger = Telemetry(made.now)
    await look(made, younger, "one")
    assert value(younger.view, "tabletune_profiling_gpu_seconds_total") == 0

    made.now += timedelta(minutes=6)
    await look(made, telemetry, "one", 2)
    made.get("Job", "one-profile")["metadata"]["uid"] = "uid-of-the-second"
    made.progress("one", gpuSeconds=50)
    await look(made, telemetry, "one")
    assert value(telemetry.view, "tabletune_profiling_gpu_seconds_total") == 450


async def test_waiting_for_a_gpu_has_its_time_and_ends() -> None:
    telemetry, made = Telemetry(NOW), full(placement="Spare")
    await look(made, telemetry, times=2)
    assert made.condition("Profiled") == ("False", "WaitingForGPU")
    began = made.now
    assert value(telemetry.view, "tabletune_waiting_for_gpu_seconds", began + timedelta(hours=7)) >= 7 * 3600
    made.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "9"
    made.settle()
    await look(made, telemetry)
    assert value(telemetry.view, "tabletune_waiting_for_gpu_seconds", began + timedelta(hours=8)) == 0


class Refusing(World):
    """Its API server answers nothing but this."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def list_all(self, *_: object) -> tuple[dict[str, object], ...]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ClusterError(409, "modified"), "Conflict"),
        (ClusterError(403, "no"), "Forbidden"),
        (ClusterError(404, "no"), "NotFound"),
        (ClusterError(422, "no"), "Invalid"),
        (ClusterError(503, "no"), "ServerError"),
        (ClusterError(418, "no"), "Refused"),
        (ClusterError(None, "no route"), "NoAnswer"),
        (KeyError("x"), "Unexpected"),
    ],
)
async def test_a_look_that_failed_is_counted_by_its_cause(error: Exception, cause: str) -> None:
    telemetry = Telemetry(NOW)
    with pytest.raises(type(error)):
        await look(Refusing(error), telemetry)
    assert cause_of(error) == cause
    assert value(telemetry.view, "tabletune_reconcile_errors_total", cause=cause) == 1
    assert value(telemetry.view, "tabletune_reconcile_duration_seconds_count") == 1


def test_the_histogram_counts_each_look_up_to_its_edge() -> None:
    durations = Durations()
    for seconds in (0.05, 0.06, 31.0):
        durations = durations.with_one(seconds)
    view = OperatorView(durations=durations)
    name = "tabletune_reconcile_duration_seconds_bucket"
    assert [value(view, name, le=edge) for edge in ("0.05", "0.1", "30.0", "+Inf")] == [1, 2, 2, 3]
    assert value(view, "tabletune_reconcile_duration_seconds_sum") == pytest.approx(31.11)


async def test_three_failed_jobs_are_a_state_of_their_own() -> None:
    telemetry, made = Telemetry(NOW), world("one")
    await fail_profile(made, telemetry, "one")
    assert value(telemetry.view, "tabletune_drafttable_condition", type="Profiled", reason="JobFailed", status="False") == 1


def test_the_page_is_served_and_a_port_that_is_taken_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = MetricsServer(0, busy, lambda: LATER)
    assert server.port
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        assert answer.read().decode() == text(busy())
    second = MetricsServer(server.port, busy, lambda: LATER)
    assert second.port is None
    assert f"port {server.port}" in caplog.text
    second.stop()
    server.stop()
