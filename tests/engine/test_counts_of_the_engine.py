"""What the operator reads of real vLLM's own metrics, before a roll-out and after it."""

from __future__ import annotations

import http.client
import json
import urllib.request

from live_engine import DRAFT_MODEL, Launcher, LiveEngine, eventually, prompts

from tabletune_operator.engine_counts import parse_served
from tabletune_operator.observation import Served

TOKENS = 48


def read(engine: LiveEngine) -> Served:
    with urllib.request.urlopen(f"http://127.0.0.1:{engine.port}/metrics", timeout=30) as page:
        return parse_served(page.read().decode())


def leave(engine: LiveEngine) -> None:
    """Ask for many tokens, read the first of them, and go away."""
    body = {"model": engine.model, "prompt": "w1 w2 w3", "max_tokens": 900, "temperature": 0, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()


def test_requests_gaps_and_steps_are_counted_and_who_went_away_is_not(launcher: Launcher) -> None:
    engine = launcher.use(DRAFT_MODEL)
    before = read(engine)
    replies = engine.complete_together(prompts(6, seed=5), TOKENS)
    eventually(lambda: read(engine).requests >= before.requests + 6, 60, "the six requests are counted")
    after = read(engine)
    steps = sum(len(reply.drafted) for reply in replies)  # one of a request for each verification; those without drafts come on top
    assert after.requests == before.requests + 6
    assert after.gaps - before.gaps >= steps > 0
    assert after.steps > before.steps
    assert after.stalls <= after.gaps
    assert after.errors == 0

    leave(engine)
    eventually(lambda: engine.plugin.ask("counts")["batchSizeLast"] <= 1, 60, "the engine let the request go")
    engine.complete("w4 w5", TOKENS)
    eventually(lambda: read(engine).requests > after.requests, 60, "the last request is counted")
    assert read(engine).requests == after.requests + 1
