"""What an engine counted since it started, out of its own `/metrics`: requests that ended in an error, and stalls. Pure.

Every vLLM has these counters, with our plugin and without, so they are known before a first roll-out as well as after it. Each of them
begins at 0 with the engine. Nothing else of the page is looked at, and what a version does not have counts as nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tabletune_operator.observation import Served

STALL_SECONDS = 1.0
"""Edge of a bucket of vLLM's: no engine that people wait for has steps of a second, and a stalled one has them."""

ERROR, ABORT = "error", "abort"
"""`finished_reason`: the engine failed the request (the client got a 500), and the client went away, which says nothing of the engine."""

_FINISHED, _STEPS, _PREEMPTIONS = "vllm:request_success_total", "vllm:iteration_tokens_total_count", "vllm:num_preemptions_total"
_GAPS = "vllm:inter_token_latency_seconds_bucket"

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>[0-9.eE+]+)(?: [0-9]+)?")
_REASON, _EDGE = re.compile(r'(?:^|,)finished_reason="([^"]*)"'), re.compile(r'(?:^|,)le="([^"]*)"')


def parse_served(page: str) -> Served:
    """Sums over all engines and models of the page; a page without any of it has zeros."""
    finished = errors = gaps = steps = preemptions = 0.0
    quick: float | None = None
    for name, labels, value in _samples(page):
        if name == _FINISHED:
            reason = _found(_REASON, labels)
            finished += value if reason != ABORT else 0
            errors += value if reason == ERROR else 0
        elif name == _STEPS:
            steps += value
        elif name == _PREEMPTIONS:
            preemptions += value
        elif name == _GAPS:
            edge = _number(_found(_EDGE, labels))
            gaps += value if edge == math.inf else 0
            quick = (quick or 0.0) + value if edge == STALL_SECONDS else quick
    # No gap is told from a stall where a user's own buckets have no edge at a second; and without steps nobody knows what gaps are worth.
    if quick is None or not steps:
        return Served(int(finished), int(errors))
    # A request that had to make room gets its next token when there is room again: that is load, and no stall.
    return Served(int(finished), int(errors), int(gaps), int(max(0.0, gaps - quick - preemptions)), int(steps))


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    for line in page.splitlines():
        found = _SAMPLE.fullmatch(line) if line.startswith("vllm:") else None
        value = _number(found["value"]) if found is not None else None
        if found is not None and value is not None:
            yield found["name"], found["labels"] or "", value


def _found(pattern: re.Pattern[str], labels: str) -> str:
    match = pattern.search(labels)
    return match[1] if match is not None else ""


def _number(text: str) -> float | None:
    """`+Inf` is one, too."""
    try:
        return float(text)
    except ValueError:
        return None
