"""An engine's page of metrics, rendered by the library that renders vLLM's: what is counted, and what an engine does not say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tabletune_operator.engine_counts import parse_served
from tabletune_operator.observation import Served

REASONS = ("stop", "length", "abort", "error", "repetition")
EDGES = (0.01, 0.05, 0.5, 1.0, 2.5)


def page(
    *,
    engines: int = 1,
    finished: Sequence[int] = (0, 0, 0, 0, 0),
    gaps: Sequence[float] = (),
    preempted: int = 0,
    edges: Sequence[float] = EDGES,
) -> str:
    """Of each engine the same; `finished` by reason, `gaps` in seconds, a step for each."""
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    success = Counter("vllm:request_success", "Count.", (*labels, "finished_reason"), registry=registry)
    latency = Histogram("vllm:inter_token_latency_seconds", "Gaps.", labels, buckets=edges, registry=registry)
    tokens = Histogram("vllm:iteration_tokens_total", "Tokens of a step.", labels, buckets=(1, 8), registry=registry)
    preemptions = Counter("vllm:num_preemptions", "Times.", labels, registry=registry)
    Counter("http_requests", "Answers.", ("handler", "status"), registry=registry).labels("/v1/completions", "5xx").inc(7)
    for at in range(engines):
        own = ('a "model",le="1.0"', str(at))
        for reason, count in zip(REASONS, finished, strict=True):
            success.labels(*own, reason).inc(count)
        for gap in gaps:
            latency.labels(*own).observe(gap)
            tokens.labels(*own).observe(4)
        preemptions.labels(*own).inc(preempted)
    return generate_latest(registry).decode()


def test_requests_are_those_that_the_engine_ended_itself() -> None:
    assert parse_served(page(finished=(50, 30, 9, 3, 1))) == Served(requests=84, errors=3)


def test_gaps_of_more_than_a_second_are_stalls() -> None:
    assert parse_served(page(gaps=(0.02, 0.02, 0.9, 1.2, 30.0))) == Served(gaps=5, stalls=2, steps=5)


def test_a_gap_that_a_preemption_explains_is_none() -> None:
    assert parse_served(page(gaps=(0.02, 1.2, 30.0), preempted=1)).stalls == 1
    assert parse_served(page(gaps=(0.02, 1.2), preempted=5)).stalls == 0


def test_all_engines_of_a_page_are_summed() -> None:
    assert parse_served(page(engines=2, finished=(5, 0, 0, 1, 0), gaps=(0.02, 3.0))) == Served(12, 2, 4, 2, 4)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html>502</html>", id="a proxy's page"),
        pytest.param("vllm:request_success_total NaN\nvllm:iteration_tokens_total_count\n", id="no numbers"),
        pytest.param(page(), id="no traffic yet"),
    ],
)
def test_what_is_not_said_counts_as_nothing(text: str) -> None:
    assert parse_served(text) == Served()


def test_a_users_own_buckets_without_an_edge_at_a_second_tell_no_stalls() -> None:
    assert parse_served(page(finished=(5, 0, 0, 0, 0), gaps=(0.02, 3.0), edges=(0.1, 2.0))) == Served(requests=5)


def test_a_page_without_steps_tells_no_stalls() -> None:
    lines = [line for line in page(gaps=(0.02, 3.0)).splitlines() if "iteration_tokens" not in line]
    assert parse_served("\n".join(lines)) == Served()


def test_every_gap_may_be_a_stall() -> None:
    assert parse_served(page(gaps=(3.0, 4.0))) == Served(gaps=2, stalls=2, steps=2)
