"""Engines that a shell script starts, as in llm-d's wide-EP guide and in KServe: the whole way and back, byte for byte."""

from __future__ import annotations

import json

from following import QUICK, assert_follows
from place import Place, to_bytes
from workloads import DRAFT, Body, draft_table, service, stand_in, with_container

from tabletune import formats
from tabletune_operator.command import read_command

WIDE_EP = f"""\
# The engine's --speculative-config is measured by TableTune.
START_RANK=$(( ${{LWS_WORKER_INDEX:-0}} * 2 ))
echo "rank $START_RANK"

exec vllm serve \\
  $MODEL \\
  --served-model-name=replay \\
  --max-num-seqs 16 \\
  --speculative-config '{DRAFT}' \\
  --max-model-len 2048
"""
KSERVE = """\
ACCESS_LOG_ARGS=""
if [ "$(echo 0.33.0 | cut -d. -f1)" = "1" ]; then
  ACCESS_LOG_ARGS="--enable-prefix-caching"
fi
eval "exec vllm serve replay/qwen3-4b \\
  --served-model-name "replay" \\
  ${ACCESS_LOG_ARGS} \\
  ${VLLM_ADDITIONAL_ARGS} \\
  $@"
"""


def test_script_of_the_wide_ep_guide(place: Place) -> None:
    deployment = stand_in(environment={"MODEL": "replay/qwen3-4b"})
    go_and_come_back(place, with_container(deployment, command=["/bin/bash", "-c"], args=[WIDE_EP]))


def test_script_of_kserve(place: Place) -> None:
    deployment = stand_in(environment={"VLLM_ADDITIONAL_ARGS": f"--max-num-seqs 16 --speculative-config '{DRAFT}'"})
    go_and_come_back(place, with_container(deployment, command=["/bin/bash", "-c", KSERVE, "--"], args=["--max-model-len", "2048"]))


def go_and_come_back(place: Place, deployment: Body) -> None:
    place.create(service())
    place.create(deployment)
    place.wait_ready()
    place.create(draft_table(controller=QUICK))
    place.wait_proved()
    place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")

    files = place.get("ConfigMap", "tuned-tabletune")["data"]
    rolled, before = (template["spec"]["containers"][0] for template in (place.template(), place.as_created()))
    assert read_command(rolled).speculation == json.loads(files[formats.SPECULATIVE_CONFIG])
    assert read_command(rolled).argv == read_command(before).argv
    assert place.complete("def add(a, b):\n    return a + b\n") == 32

    assert_follows(place)
    assert place.revision() == 2

    place.delete_and_wait()
    assert to_bytes(place.template()) == to_bytes(place.as_created())
    place.assert_untouched()
