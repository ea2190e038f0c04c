"""Every CEL rule accepts its good twin and refuses its bad one, with the rule's own message."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api, RefusedError

SCHEMA = yaml.safe_load((ROOT / "crds" / "drafttables.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TABLES = "/apis/tabletune.io/v1alpha1/namespaces/{}/drafttables"
TARGET = {"name": "chat"}


def table(spec: dict[str, Any] | None = None, name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name},
        "spec": {"targetRef": copy.deepcopy(TARGET), **(spec or {})},
    }


def targeting(kind: str, api_version: str) -> dict[str, Any]:
    return table({"targetRef": {**TARGET, "kind": kind, "apiVersion": api_version}})


CASES = [
    pytest.param(
        targeting("StatefulSet", "apps/v1"),
        targeting("DisaggregatedSet", "disaggregatedset.x-k8s.io/v1"),
        "DisaggregatedSet is refused: it replaces prefill and decode together",
        id="no DisaggregatedSet",
    ),
    pytest.param(
        targeting("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"),
        targeting("LeaderWorkerSet", "apps/v1"),
        "kind LeaderWorkerSet and apiVersion leaderworkerset.x-k8s.io/v1 go together",
        id="kind and version of a LeaderWorkerSet",
    ),
    pytest.param(
        targeting("LLMInferenceService", "serving.kserve.io/v1alpha1"),
        targeting("Deployment", "serving.kserve.io/v1alpha2"),
        "kind LLMInferenceService and apiVersion serving.kserve.io/v1alpha1 or v1alpha2 go together",
        id="kind and version of an LLMInferenceService",
    ),
    pytest.param(table(name="a" * 63), table(name="a" * 64), "metadata.name has more than 63 characters", id="name fits a label"),
    pytest.param(
        table({"nodePool": {"nodeSelector": {"a": "b"}}}), table({"nodePool": {}}), "spec.nodePool is empty", id="node pool says something"
    ),
    pytest.param(
        table({"nodePool": {"tolerations": [{"key": "a", "operator": "Exists"}]}}),
        table({"nodePool": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}),
        "operator Exists takes no value",
        id="toleration Exists",
    ),
    pytest.param(
        table({"nodePool": {"tolerations": [{"key": "a"}]}}),
        table({"nodePool": {"tolerations": [{"value": "a"}]}}),
        "operator Equal needs key",
        id="toleration Equal",
    ),
    pytest.param(
        table({"speculation": {"method": "eagle3", "model": "d"}}),
        table({"speculation": {"method": "eagle3"}}),
        "set spec.speculation.model to it",
        id="method with a model of its own",
    ),
    pytest.param(
        table({"speculation": {"method": "mtp", "model": "d"}}),
        table({"speculation": {"model": "d"}}),
        "spec.speculation.model needs spec.speculation.method",
        id="model needs a method",
    ),
    pytest.param(
        table({"speculation": {"method": "ngram", "maxDraftLength": 2}}),
        table({"speculation": {"method": "ngram", "model": "d"}}),
        "ngram drafts without a model",
        id="ngram takes no model",
    ),
    pytest.param(
        table({"profile": {"promptTokens": 16320}}),
        table({"profile": {"promptTokens": 16321}}),
        "more than 16384 tokens a request",
        id="tokens of a request, the default output included",
    ),
    pytest.param(
        table({"rollout": {"mode": "Admission", "replace": "Evict"}}),
        table({"rollout": {"replace": "Evict"}}),
        "spec.rollout.replace Evict belongs to spec.rollout.mode Admission",
        id="evictions belong to mode Admission",
    ),
    pytest.param(
        table({"controller": {"exploreEverySteps": 10}}),
        table({"controller": {"exploreEverySteps": 9}}),
        "spec.controller.exploreEverySteps below 10",
        id="exploring is rare",
    ),
    pytest.param(
        table({"controller": {"exploreEverySteps": 0}}),
        table({"controller": {"exploreEverySteps": 1}}),
        "or 0 to switch exploring off",
        id="or off",
    ),
]


@pytest.mark.parametrize(("accepted", "refused", "words"), CASES)
def test_rule(api: Api, accepted: dict[str, Any], refused: dict[str, Any], words: str) -> None:
    api.create(TABLES.format("default"), accepted, dry_run=True)
    with pytest.raises(RefusedError) as answer:
        api.create(TABLES.format("default"), refused, dry_run=True)
    assert answer.value.status == 422
    assert words in answer.value.message


@pytest.mark.parametrize("change", [{"name": "other"}, {"name": "chat", "container": "modelserver"}])
def test_target_cannot_be_changed(api: Api, namespace: str, change: dict[str, str]) -> None:
    path = TABLES.format(namespace)
    stored = api.create(path, table())
    stored["spec"]["rollout"]["mode"] = "Recommend"
    stored = api.update(f"{path}/chat", stored)
    stored["spec"]["targetRef"] |= change
    with pytest.raises(RefusedError, match=r"spec.targetRef cannot be changed.*Make another DraftTable"):
        api.update(f"{path}/chat", stored)


def test_every_rule_has_a_case() -> None:
    def messages(node: dict[str, Any]) -> Iterator[str]:
        yield from (rule["message"] for rule in node.get("x-kubernetes-validations", ()))
        for below in node.get("properties", {}).values():
            yield from messages(below)
        if "items" in node:
            yield from messages(node["items"])

    tried = [str(case.values[2]) for case in CASES] + ["spec.targetRef cannot be changed"]
    assert [message for message in messages(SCHEMA) if not any(words in message for words in tried)] == []
