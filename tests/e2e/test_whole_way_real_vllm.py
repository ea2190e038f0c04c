"""The whole way once with real vLLM on the CPU: the demonstration's own manifest, with one replica and fewer cells."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from following import QUICK, Asking, in_flight, pods, state_of
from live_cluster import ROOT, is_existing
from place import Place
from workloads import A100, PRODUCT, config_map, draft_table

from tabletune import formats
from tabletune.table import Table

NAME = "gemma-decode"
SERVICE = "gemma"
REQUESTS = 6  # in flight, and the largest batch size: there a draft that is not kept costs most
FOLLOW_SECONDS = 300
START_SECONDS = 600  # a busy machine starts an engine in two minutes instead of one
# Continued alike again and again, so that looking guesses up in the prompt pays on any machine.
PROMPTS = (
    "<bos>for name in names: print('name:', name); for age in ages: print('age:', age); for town in towns: print('town:', town); for",
    "<bos>SELECT id, name FROM people WHERE town = 'Oslo'; SELECT id, name FROM people WHERE town = 'Rome'; SELECT id, name FROM",
    "<bos>1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3",
    "<bos>assert add(1, 1) == 2 and add(1, 2) == 3 and add(1, 3) == 4 and add(1, 4) == 5 and add(1, 5) == 6 and add(1, 6) ==",
)
# At a temperature, so that the small model does not repeat itself: hardly a guess is kept.
PROSE = (
    "<bos>The ferry had been gone for an hour when she noticed the second letter on the bench. It was addressed to",
    "<bos>Most people think of glaciers as still. Anyone who has slept on one knows better, because at night",
    "<bos>In the spring of that year my uncle bought a piano that nobody in the house could play, and",
    "<bos>What makes a good map is not what it shows but what it leaves out. The oldest one in the archive",
)


def serve(place: Place) -> None:
    """The target, which takes a minute to start; engine and model are made if they are not there yet."""
    if is_existing():
        return
    for body in _manifest():
        place.create(body)
    place.wait_ready(NAME, START_SECONDS)


def _manifest() -> list[dict[str, Any]]:
    engine = Path(_made_by("engine"))
    (packages,) = engine.glob("lib/python3*/site-packages")
    text = Template((ROOT / "examples" / "demo" / "vllm.yaml").read_text()).substitute(ENGINE_PACKAGES=packages, MODEL=_made_by("gemma"))
    bodies = [body for body in yaml.safe_load_all(text) if body["kind"] != "Namespace"]
    for body in bodies:
        if body["kind"] == "Deployment":
            body["spec"]["replicas"] = 1
            body["spec"]["template"]["spec"]["nodeSelector"] = {PRODUCT: A100}  # the pool that no other test needs by then
    return bodies


@pytest.mark.early(by=serve)
@pytest.mark.timeout(2400, func_only=True)
@pytest.mark.skipif(is_existing(), reason="vLLM and its model are folders of this machine, which nodes of another cluster do not have")
def test_whole_way_with_real_vllm(quiet_place: Place) -> None:
    place, name = quiet_place, NAME
    place.create(config_map("continued", {"prompts.txt": "\n".join(PROMPTS * 2)}))
    prompts = {"configMapRef": {"name": "continued"}}
    profile = {"maxBatchSize": REQUESTS, "temperatureMilli": 0, "prompts": prompts}
    place.create(draft_table(target=name, profile=profile, controller=QUICK))
    place.wait("Accepted", "TargetSupported")
    place.wait("Profiled", "Profiling", seconds=START_SECONDS)
    place.wait("Profiled", "Measured", seconds=START_SECONDS)
    place.wait("RolledOut", "Proved", seconds=START_SECONDS)
    place.wait("Tracking", "Tracking")

    files = place.get("ConfigMap", "tuned-tabletune")["data"]
    measured = formats.parse_profile(files[formats.PROFILE])
    assert measured.engine["device"] == "cpu"
    assert measured.engine["vllm"] == "0.32.0"
    assert measured.measurement.reject_by == "plugin"
    assert len(measured.cells) == REQUESTS * 4
    assert formats.parse_acceptance(files[formats.ACCEPTANCE]).counts.rates[0] > 0.3
    table = formats.parse_table(files[formats.TABLE])
    assert place.jobs_started() == 1
    assert place.revision(name) == 2

    with ThreadPoolExecutor(3) as clients:
        answers = list(clients.map(lambda prompt: place.complete(prompt, SERVICE), PROMPTS * 3))
    assert answers == [32] * len(answers)
    (pod,) = pods(place, SERVICE)
    everything = 32 * len(answers)
    state = place.until(
        lambda: _state_if(place, pod, lambda s: s["counts"]["tokens"] >= everything), "the sidecar has counted the requests"
    )
    assert state["honoured"] == "Proved"
    assert state["violations"] == 0
    assert state["problems"] == []
    assert {length for _, _, length in state["table"]["inForce"]} <= set(table.launch_lengths)

    running = place.restarts(SERVICE)
    assert list(running.values()) == [0]
    longer, boot = _follow(place, pod, Asking(SERVICE, PROMPTS, REQUESTS), lambda s: s["acceptance"]["used"][0] > 0.5)
    shorter, same = _follow(place, pod, Asking(SERVICE, PROSE, REQUESTS, temperature=1.0), lambda s: _length(s) < longer)
    assert (shorter < longer, same) == (True, boot)
    assert place.restarts(SERVICE) == running

    # That engine starts once more with its own arguments, which other tests wait for.
    place.delete("DraftTable", "tuned")
    place.until(lambda: not place.list("DraftTable"), "the DraftTable is gone")
    place.assert_untouched(name)
    place.until(lambda: not [left for left in place.leftovers() if not left.startswith("Pod ")], "nothing else of it is left")


def _follow(place: Place, pod: str, asking: Asking, seen: Callable[[dict[str, Any]], bool]) -> tuple[int, str]:
    """Keep requests in flight until the sidecar has seen them; the draft length for so many then, and the boot id."""
    with in_flight(place, asking):
        state = place.until(lambda: _state_if(place, pod, seen), "the sidecar follows the traffic", FOLLOW_SECONDS)
    return _length(state), state["engine"]["bootId"]


def _length(state: dict[str, Any]) -> int:
    return Table.parse(state["table"]["inForce"]).length_at(REQUESTS)


def _state_if(place: Place, pod: str, seen: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    state = state_of(place, pod)
    return state if seen(state) else None


def _made_by(script: str) -> str:
    """The path that `dev/models/SCRIPT` prints; it makes what is not there yet."""
    return subprocess.run([ROOT / "dev" / "models" / script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
