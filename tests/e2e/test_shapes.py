"""The ways in which llm-d's charts and guides start vLLM, rolled out and given back byte for byte.

Shell scripts and files are in tests of their own (test_shell_string.py, test_manifests_in_git.py).
"""

from __future__ import annotations

import copy
import json
from typing import Any

from following import QUICK, assert_follows
from place import WORK_SECONDS, Place, to_bytes
from workloads import DRAFT, FORWARD, Body, draft_table, proxied, service, stand_in, with_container

from tabletune import formats
from tabletune_operator.command import read_command

SIZES = ("--max-num-seqs", "16", "--max-model-len", "2048")
SCRIPT = f"""\
exec vllm serve "$MODEL_NAME" \\
  --served-model-name=replay {" ".join(SIZES)} \\
  --speculative-config='{DRAFT}'
"""


def vllm_serve(name: str) -> Body:
    """The modelservice chart's modelCommand vllmServe, with a flag in one word and underscores."""
    args = ["replay/qwen3-4b", "--port", "8000", "--served-model-name", "replay", *SIZES, f"--speculative_config={DRAFT}"]
    return with_container(stand_in(name), command=["vllm", "serve"], args=args)


def image_default(name: str) -> Body:
    """Its modelCommand imageDefault: the image's entry point gets the arguments. The config comes in dotted keys."""
    dotted = [word for key, value in json.loads(DRAFT).items() for word in (f"--speculative-config.{key}", str(value))]
    args = ["--model", "replay/qwen3-4b", "--port", "8000", "--served-model-name", "replay", *SIZES, *dotted]
    return with_container(stand_in(name), command=None, args=args)


def custom(name: str) -> Body:
    """Its modelCommand custom, as llm-d-benchmark uses it."""
    return with_container(stand_in(name, environment={"MODEL_NAME": "replay/qwen3-4b"}), command=["/bin/sh", "-c"], args=[SCRIPT])


def decode_role(name: str) -> Body:
    """The decode half of a P/D pair: a routing proxy in front of the engine, as a native sidecar."""
    return proxied(stand_in(name, args=("--port=8200", "--speculative-config", DRAFT)), engine_port=8200)


SHAPES = {"vllm-serve": vllm_serve, "image-default": image_default, "custom": custom, "pd-decode": decode_role}


def test_every_way_to_start_an_engine_goes_there_and_back(place: Place) -> None:
    for name, make in SHAPES.items():
        place.create(service(name))
        place.create(make(name))
    place.create(prefill_role("pd-prefill"))
    for name in SHAPES:
        place.wait_ready(name)
        place.create(draft_table(name, name, controller=QUICK))
    place.create(draft_table("pd-prefill", "pd-prefill"))
    place.wait("Accepted", "PrefillRole", "pd-prefill", says="Name the decode workload")

    for name in SHAPES:
        place.wait("RolledOut", "Proved", name, seconds=2 * WORK_SECONDS)
        place.wait("Tracking", "Tracking", name)
        place.wait_ready(name)
    assert place.jobs_started() == 2  # one profile for all but the custom one, which has a variable more
    for name in SHAPES:
        files = place.get("ConfigMap", f"{name}-tabletune")["data"]
        rolled, before = engine(place.template(name)), engine(place.as_created(name))
        assert read_command(rolled).speculation == json.loads(files[formats.SPECULATIVE_CONFIG])
        assert read_command(rolled).argv == read_command(before).argv
        assert proxies(place.template(name)) == proxies(place.as_created(name))
        assert place.complete("def add(a, b):\n    return a + b\n", name) == 32
        assert_follows(place, name)
        assert place.revision(name) == 2

    for name in SHAPES:
        place.delete("DraftTable", name)
    for name in SHAPES:
        place.wait_gone(name)
        assert to_bytes(place.template(name)) == to_bytes(place.as_created(name))
        place.assert_untouched(name)
    place.assert_untouched("pd-prefill")
    assert place.revision("pd-prefill") == 1
    place.delete_and_wait("pd-prefill")
    assert place.leftovers() == []


def prefill_role(name: str) -> Body:
    made = copy.deepcopy(stand_in(name))
    for labels in (made["metadata"]["labels"], made["spec"]["selector"]["matchLabels"], made["spec"]["template"]["metadata"]["labels"]):
        labels["llm-d.ai/role"] = "prefill"
    return made


def engine(template: Body) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


def proxies(template: Body) -> list[dict[str, Any]]:
    return [c for c in template["spec"].get("initContainers", ()) if c.get("args") == [FORWARD]]
