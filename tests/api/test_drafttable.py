"""A DraftTable as the API server keeps and shows it: defaults, the status subresource, columns and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api

from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.status import NEVER_OBSERVED, DraftTableStatus

TABLES = "/apis/tabletune.io/v1alpha1/namespaces/{}/drafttables"

DEFAULTS = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
    "state": "Active",
    "profile": {
        "policy": "IfMissing",
        "placement": "Spare",
        "repeats": 3,
        "promptTokens": 32,
        "outputTokens": 64,
        "promptCount": 160,
        "temperatureMilli": 700,
        "waitTimeoutSeconds": 86400,
        "timeoutSeconds": 7200,
    },
    "rollout": {
        "mode": "Patch",
        "replace": "Wait",
        "approval": "Auto",
        "ownership": "Respect",
        "guard": {"freeGPUs": "Require", "afterRollout": "RollBack"},
    },
    "controller": {
        "mode": "Track",
        "priorWeight": 2000,
        "rebuildEverySteps": 500,
        "exploreEverySteps": 50,
        "priorDecay": "Keep",
        "hysteresis": 0,
    },
}
NOW = "2026-11-30T14:36:00Z"


def table(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": "chat"},
        "spec": {"targetRef": {"name": "chat"}, **spec},
    }


def test_defaults_are_stored_and_are_those_of_the_operator(api: Api, namespace: str) -> None:
    stored = api.create(TABLES.format(namespace), table({}))
    metadata = stored.pop("metadata")
    unseen = {"observedGeneration": NEVER_OBSERVED}
    assert stored == {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "spec": DEFAULTS, "status": unseen}
    assert metadata["generation"] == 1
    read = DraftTableSpec.model_validate({"targetRef": {"name": "chat"}})
    assert read.model_dump(by_alias=True, exclude_none=True) == DEFAULTS
    assert DraftTableSpec.model_validate(stored["spec"]) == read


def test_defaults_fill_in_beside_what_is_given(api: Api, namespace: str) -> None:
    given = {
        "profile": {"repeats": 5, "prompts": {"configMapRef": {"name": "mine"}}},
        "controller": {"mode": "Observe"},
        "nodePool": {"tolerations": [{"key": "a"}]},
    }
    assert api.create(TABLES.format(namespace), table(given))["spec"] == {
        **DEFAULTS,
        "profile": {**DEFAULTS["profile"], "repeats": 5, "prompts": {"configMapRef": {"name": "mine", "key": "prompts.txt"}}},
        "controller": {**DEFAULTS["controller"], "mode": "Observe"},
        "nodePool": {"tolerations": [{"key": "a", "operator": "Equal"}]},
    }


def test_status_is_a_resource_of_its_own(api: Api, namespace: str) -> None:
    path = f"{TABLES.format(namespace)}/chat"
    stored = api.create(TABLES.format(namespace), table({}) | {"status": {"observedGeneration": 9}})
    assert stored["status"] == {"observedGeneration": NEVER_OBSERVED}, "who creates does not say what is so"
    status = DraftTableStatus.model_validate(
        {"observedGeneration": 1, "display": {"state": "Tracking"}, "table": {"launchLengths": [1, 3]}}
    )
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored = api.update(f"{path}/status", {**stored, "spec": {"targetRef": {"name": "another"}}, "status": written})
    assert stored["spec"] == DEFAULTS
    assert stored["status"] == written
    assert stored["metadata"]["generation"] == 1
    stored = api.update(path, {**stored, "spec": {**DEFAULTS, "rollout": {"mode": "Recommend", "replace": "Wait"}}, "status": {}})
    assert stored["status"] == written
    assert stored["metadata"]["generation"] == 2


def test_get_shows_one_line_and_wide_more(api: Api, namespace: str) -> None:
    path = TABLES.format(namespace)
    stored = api.create(path, table({}))
    condition = {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": NOW,
        "reason": "Tracking",
        "message": "heard 2/2",
    }
    display = {
        "target": "deploy/chat", "state": "Tracking", "verdict": "Table", "table": "1-95:3 96-128:1", "gain": "+3.6%", "gpu": "H200",
        "replicas": "2/2", "noise": "0.8%", "loads": "1..128", "profile": "new, 16 min", "reason": "Tracking", "message": "heard 2/2",
    }  # fmt: skip
    api.update(f"{path}/chat/status", {**stored, "status": {"display": display, "conditions": [condition]}})
    shown = api.get(f"{path}/chat", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [(c["name"], c["priority"]) for c in shown["columnDefinitions"]]
    (row,) = shown["rows"]
    cells = dict(zip([name for name, _ in columns], row["cells"], strict=True))
    assert [name for name, priority in columns if priority == 0] == [
        "Name", "Target", "State", "Verdict", "Table", "Gain", "Ready", "Age",
    ]  # fmt: skip
    assert [name for name, priority in columns if priority == 1] == ["GPU", "Replicas", "Noise", "Loads", "Profile", "Reason", "Message"]
    assert (cells["Name"], cells["State"], cells["Table"], cells["Ready"]) == ("chat", "Tracking", "1-95:3 96-128:1", "True")
    assert cells["Message"] == "heard 2/2"


def test_is_found_by_its_short_name_and_category(api: Api) -> None:
    resources = api.get("/apis/tabletune.io/v1alpha1")["resources"]
    (found,) = (r for r in resources if r["name"] == "drafttables")
    assert (found["shortNames"], found["categories"], found["namespaced"]) == (["dt"], ["llm-d"], True)


def test_explain_has_words_for_every_field_that_is_no_name() -> None:
    """`kubectl explain` is the reference: what is wanted must be described."""
    schema = DraftTableSpec.model_json_schema()
    bare = [
        f"{model}.{name}"
        for model, definition in schema["$defs"].items()
        for name, field in definition["properties"].items()
        if "description" not in field and "$ref" not in str(field) and model not in {"ConfigMapRef", "TargetRef", "Toleration"}
    ]
    assert bare == []


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").rglob("drafttable*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_example_is_accepted(api: Api, namespace: str, example: Path) -> None:
    body = yaml.safe_load(example.read_text())
    body["metadata"]["namespace"] = namespace
    assert (
        api.create(TABLES.format(namespace), body)["spec"]["targetRef"]
        == {"apiVersion": "apps/v1", "kind": "Deployment"} | body["spec"]["targetRef"]
    )
