"""KServe's LLMInferenceService as target, with KServe's own controller: the whole way and back, without a fight.

`make test-kserve` runs it: the controller is built first, for which `make test` has no time.
"""

from __future__ import annotations

import json
from typing import Any

import kserve
import pytest
from following import QUICK, assert_follows
from kube_api import Body
from place import WORK_SECONDS, Place, to_bytes
from workloads import DRAFT, IMAGE, TIME_SCALE, draft_table

from tabletune import formats
from tabletune_operator.command import read_command

KIND, DEPLOYMENT = "LLMInferenceService", "chat-kserve"
SERVICE = "chat-kserve-workload-svc"
PROBE = {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 180}


def chat(**spec: Any) -> Body:
    """The stand-in started by the script of KServe's own template, behind KServe's own step that fetches the model."""
    environment = {
        "VLLM_ADDITIONAL_ARGS": f"--max-num-seqs=16 --max-model-len=2048 --speculative-config '{DRAFT}'",
        "REPLAY_START_SECONDS": "0.5",
        "REPLAY_TIME_SCALE": TIME_SCALE,
    }
    engine = {
        "name": "main",
        "image": IMAGE,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}},
        "startupProbe": PROBE,
        "readinessProbe": PROBE,
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "hf://replay/qwen3-4b", "name": "replay"}, "replicas": 2, "template": {"containers": [engine]}, **spec},
    }


def table() -> Body:
    made = draft_table(controller=QUICK)
    made["spec"]["targetRef"] = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": KIND, "name": "chat"}
    return made


def is_seen(place: Place, generation: int) -> bool:
    """KServe has answered this generation of the resource, and counts it as ready."""
    status = place.get(KIND, "chat").get("status", {})
    ready = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    return status.get("observedGeneration") == generation and ready.get("Ready") == "True"


def generation(place: Place) -> int:
    return int(place.get(KIND, "chat")["metadata"]["generation"])


def engine_of(place: Place) -> Body:
    containers = place.get("Deployment", DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    (engine,) = (container for container in containers if container["name"] == "main")
    return dict(engine)


@pytest.mark.kserve
def test_an_llm_inference_service_whole_way_and_back(place: Place) -> None:
    with kserve.running(place.cluster) as controller, place.watched_endpoints() as served:
        place.create(chat())
        place.until(lambda: is_seen(place, 1), "KServe made the service", WORK_SECONDS)
        place.wait_ready(DEPLOYMENT)
        before = place.get(KIND, "chat")
        made = place.template(DEPLOYMENT)
        place.create(table())
        place.wait_proved()
        place.until(lambda: place.conditions()["Ready"]["status"] == "True", "Ready")

        files = place.get("ConfigMap", "tuned-tabletune")["data"]
        assert read_command(engine_of(place)).speculation == json.loads(files[formats.SPECULATIVE_CONFIG])
        assert place.template(DEPLOYMENT)["metadata"]["annotations"]["tabletune.io/drafttable"] == "tuned"
        assert place.template(DEPLOYMENT)["metadata"]["labels"] == made["metadata"]["labels"]
        assert read_command(engine_of(place)).argv == read_command(made["spec"]["containers"][0]).argv
        assert [place.complete("def add(a, b):\n    return a + b\n", SERVICE) for _ in range(4)] == [32] * 4
        status = place.get("DraftTable", "tuned")["status"]
        assert status["fleet"]["honoured"] == status["fleet"]["heard"] == 2
        assert (status["display"]["target"], status["display"]["replicas"]) == ("llmisvc/chat", "2/2")
        assert place.jobs_started() == 1
        assert_follows(place, SERVICE)

        # No fight: one write of the resource, one roll-out of what KServe made of it, and KServe starting anew changes neither.
        place.until(lambda: is_seen(place, 2), "KServe took up what was written")
        assert (generation(place), place.revision(DEPLOYMENT)) == (2, 2)
        controller.stop()
        deadline = place.get("Deployment", DEPLOYMENT)["spec"]["progressDeadlineSeconds"]
        place.edit("Deployment", DEPLOYMENT, {"spec": {"progressDeadlineSeconds": deadline - 1}})
        controller.start()
        place.until(
            lambda: place.get("Deployment", DEPLOYMENT)["spec"]["progressDeadlineSeconds"] == deadline, "KServe put its Deployment back"
        )
        assert (generation(place), place.revision(DEPLOYMENT)) == (2, 2)

        place.delete_and_wait()
        after = place.get(KIND, "chat")
        assert to_bytes(after["spec"]) == to_bytes(before["spec"])
        assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
        place.until(lambda: is_seen(place, 3), "KServe took up what was given back", WORK_SECONDS)
        place.until(lambda: to_bytes(place.template(DEPLOYMENT)) == to_bytes(made), "KServe made the same of it again")
        place.wait_ready(DEPLOYMENT)
        assert (generation(place), place.revision(DEPLOYMENT)) == (3, 3)
        assert place.leftovers() == []

        place.delete(KIND, "chat")
        place.until(lambda: place.api.get(KIND, place.namespace, "chat") is None, "the service is gone")
    assert all(name.startswith(DEPLOYMENT) for name in served)  # the profiling pod got no traffic
