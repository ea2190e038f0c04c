"""LLMInferenceServices with KServe's own controller on the real API server: what it makes of a roll-out, and of one that is taken back.

No other controller runs, so there are no pods; tests/e2e/test_llm_inference_service.py has them. `make test-kserve` runs both.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import kserve
import pytest
from api_server import Api, RefusedError, cluster_binaries, kubeconfig_of, own_api_server
from live_cluster import Cluster
from test_llm_inference_service import OWN, path, service
from test_workloads import CONFIG, IMAGE

from tabletune_operator.command import read_command
from tabletune_operator.crd import Controller
from tabletune_operator.kinds import DEPLOYMENT, LLM_INFERENCE_SERVICE
from tabletune_operator.restore import is_intact, restore
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import parse_target

pytestmark = pytest.mark.kserve
SECONDS = 120


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server of its own: KServe's definitions would stay in one that other tests use."""
    folder = tmp_path_factory.mktemp("kserve")
    tools = f"{cluster_binaries()}{os.pathsep}{os.environ['PATH']}"
    with own_api_server(folder) as found:
        cluster = Cluster({**os.environ, "PATH": tools, "KUBECONFIG": str(kubeconfig_of(found, folder))})
        with kserve.started(cluster):
            yield found


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_kserve_takes_up_a_roll_out_and_what_is_given_back(api: Api, namespace: str, version: str, own: dict[str, Any]) -> None:
    where = f"{path(namespace, version)}/chat"
    api.create(path(namespace, version), service(namespace, version, **own))
    made = until(lambda: deployment(api, namespace), "KServe made a Deployment")
    before = until(lambda: (found := api.get(where))["metadata"].get("finalizers") and found, "KServe has seen it")

    for turn, config in enumerate((CONFIG, {"method": "ngram", "num_speculative_tokens": 2}, CONFIG), start=2):
        until(lambda config=config: is_written(api, where, rolled_out(api, namespace, where, config)), f"roll-out {turn - 1} is written")
        rolled = until(lambda: is_taken_up(api, namespace, where), f"KServe takes up roll-out {turn - 1}")
        assert is_intact(api.get(where))
        (engine,) = (c for c in rolled["spec"]["template"]["spec"]["containers"] if c["name"] == "main")
        assert read_command(engine).speculation == config
        assert rolled["spec"]["template"]["metadata"]["annotations"]["tabletune.io/drafttable"] == "chat"
        assert api.get(where)["metadata"]["generation"] == rolled["metadata"]["generation"] == turn

    until(lambda: is_written(api, where, restore(api.get(where))), "what was there before is written")
    until(lambda: is_taken_up(api, namespace, where), "KServe takes up what is given back")
    after = api.get(where)
    assert json.dumps(after["spec"], sort_keys=True) == json.dumps(before["spec"], sort_keys=True)
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    again = deployment(api, namespace)
    assert json.dumps(again["spec"], sort_keys=True) == json.dumps(made["spec"], sort_keys=True)


def deployment(api: Api, namespace: str) -> dict[str, Any] | None:
    items = api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
    return {"kind": "Deployment", **items[0]} if items else None


def rolled_out(api: Api, namespace: str, where: str, config: dict[str, Any]) -> Mapping[str, Any]:
    live = api.get(where)
    running = LLM_INFERENCE_SERVICE.running(live, [deployment(api, namespace)])
    assert running is not None
    target = replace(parse_target(restore(running), "main"), base=restore(live))
    return build_rollout(RolloutRequest("chat", target, config, Controller(), IMAGE, "")).apply


def is_written(api: Api, where: str, body: Mapping[str, Any]) -> bool:
    """False: KServe wrote its status meanwhile, and the operator looks anew."""
    try:
        api.update(where, body, manager="tabletune.io")
    except RefusedError as error:
        if error.status != 409:
            raise
        return False
    return True


def is_taken_up(api: Api, namespace: str, where: str) -> dict[str, Any] | None:
    """The Deployment, once it is what KServe makes of the newest resource."""
    live, made = api.get(where), deployment(api, namespace)
    assert made is not None
    # No controller of Deployments runs that would say so.
    made["status"] = {"observedGeneration": made["metadata"]["generation"]}
    assert DEPLOYMENT.is_seen(made, ())
    return made if LLM_INFERENCE_SERVICE.is_seen(live, [made]) else None


def until(check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.1)
    return found
