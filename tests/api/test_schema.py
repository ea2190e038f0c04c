"""Every constraint of the definition has an accepted and a refused twin on the real API server, with the message of the refusal.

The constraints are read from crds/drafttables.yaml itself, so that none can be added untried: for each, one object at its limit and
one beyond it, made from a valid object that has every field.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api, RefusedError

SCHEMA = yaml.safe_load((ROOT / "crds" / "drafttables.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TABLES = "/apis/tabletune.io/v1alpha1/namespaces/default/drafttables"

Path = tuple[str | int, ...]

SPEC: dict[str, Any] = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat", "container": "modelserver"},
    "state": "Active",
    "nodePool": {
        "nodeSelector": {"pool": "spare"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60}],
    },
    "speculation": {"maxDraftLength": 3, "method": "eagle3", "model": "drafter"},
    "profile": {
        "policy": "IfMissing", "placement": "BorrowReplica", "maxBatchSize": 128, "repeats": 3, "promptTokens": 32, "outputTokens": 64,
        "promptCount": 160, "temperatureMilli": 700, "windowSeconds": 20, "contextTokens": [1024, 8192],
        "waitTimeoutSeconds": 86400, "timeoutSeconds": 7200,
        "prompts": {"configMapRef": {"name": "mine", "key": "prompts.txt"}}, "podTemplate": {"priorityClassName": "low"},
    },
    "rollout": {
        "mode": "Admission", "replace": "Wait",
        "approval": "Manual", "ownership": "Override", "guard": {"freeGPUs": "Ignore", "afterRollout": "Report"},
    },
    "controller": {
        "mode": "Track", "priorWeight": 2000, "rebuildEverySteps": 500, "exploreEverySteps": 50, "priorDecay": "Keep", "hysteresis": 0,
    },
}  # fmt: skip

NOW = "2026-11-30T14:36:00Z"
COUNTED = {"engine": "e", "finishedRequests": 1, "failedRequests": 0, "gaps": 9, "stalls": 0, "steps": 5}
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": NOW, "reason": "Tracking",
            "message": "heard 2/2",
        }
    ],
    "display": {
        "target": "deploy/chat", "state": "Tracking", "verdict": "Table", "table": "1-64:3", "gain": "+3.6%", "gpu": "H200",
        "replicas": "2/2", "noise": "0.8%", "loads": "1..128", "profile": "new, 16 min", "reason": "Tracking", "message": "heard 2/2",
    },
    "profile": {
        "jobName": "chat-profile", "fingerprint": "7c1e9f", "source": "Measured", "reusedFrom": "other", "stage": "Sweep", "cellsDone": 27,
        "cellsTotal": 72, "percent": 37, "finishAt": NOW, "lastProgressAt": NOW, "gpuMinutes": 16, "attempts": 1,
        "queue": {"pool": "NVIDIA-H200", "since": NOW, "seenAt": NOW, "place": "2nd of 3"}, "borrowedAt": NOW,
        "changed": "image (a, now b)", "reprofile": "1",
    },
    "table": {"ranges": "1-64:3", "launchLengths": [1, 3], "largestMeasuredBatchSize": 128, "generation": 3, "digest": "d"},
    "verdict": {"kind": "Table", "gainVsPresent": "+3.6%", "gainVsBestFixed": "+3.6%", "gainVsOff": "+60%", "noise": "0.8%"},
    "rollout": {
        "digest": "d", "startedAt": NOW, "completedAt": NOW, "targetUid": "u", "owner": "Argo CD application serving (keeps it)",
        "approved": "d", "reprofile": "1", "queue": {"since": NOW, "seenAt": NOW, "place": "2nd of 3"},
        "putBacks": [{"at": NOW, "by": "argocd-controller"}], "worseSince": NOW, "before": COUNTED, "worseCounted": COUNTED,
    },
    "fleet": {
        "heard": 1, "honoured": 1, "lastHeard": NOW, "tables": ["1-64:3 on 1 replica"], "tableChangedAt": NOW, "acceptance": "0.69/0.40",
        "draftedTokens": 900, "keptTokens": 500, "prior": "0.69/0.40 of 2 replicas", "startTable": "1-64:3", "trial": "1-64:3 on 1 replica",
        "outliers": ["chat-2"],
        "replicas": [
            {
                "pod": "chat-1", "node": "n", "engine": "0.32.0", "table": "gen 3", "honoured": "Proved", "draftLength": 3, "batchSize": 31,
                "acceptance": "0.69/0.40", "lastHeard": NOW, "problem": "none",
            }
        ],
    },
}  # fmt: skip

MESSAGES = {
    "minimum": "should be greater than or equal to",
    "maximum": "should be less than or equal to",
    "minLength": "should be at least",
    "maxLength": "Too long",
    "minItems": "should have at least",
    "maxItems": "Too many",
    "minProperties": "should have at least",
    "maxProperties": "Too many",
    "enum": "Unsupported value",
    "pattern": "should match",
    "format": "must be of type date-time",
    "required": "Required value",
    "type": "must be of type",
    "x-kubernetes-list-map-keys": "Duplicate value",
}
"""The API server's own words for each kind of constraint."""

DROP = object()
COMPANIONS: dict[tuple[Path, str], dict[Path, Any]] = {
    (("spec", "profile", "promptTokens"), "maximum"): {("spec", "profile", "outputTokens"): 8},
    (("spec", "nodePool", "tolerations", 0, "operator"), "enum"): {("spec", "nodePool", "tolerations", 0, "value"): DROP},
}
"""What must change with a value so that no cross-field rule refuses it."""

KIND, VERSION = ("spec", "targetRef", "kind"), ("spec", "targetRef", "apiVersion")
VALUE_COMPANIONS: dict[tuple[Path, str], dict[Path, Any]] = {
    (KIND, "LeaderWorkerSet"): {VERSION: "leaderworkerset.x-k8s.io/v1"},
    (KIND, "LLMInferenceService"): {VERSION: "serving.kserve.io/v1alpha2"},
    (VERSION, "leaderworkerset.x-k8s.io/v1"): {KIND: "LeaderWorkerSet"},
    (VERSION, "serving.kserve.io/v1alpha1"): {KIND: "LLMInferenceService"},
    (VERSION, "serving.kserve.io/v1alpha2"): {KIND: "LLMInferenceService"},
}
"""The same, for one value of an enum."""
REFUSED_WITH_A_REASON = {(KIND, "DisaggregatedSet"), (VERSION, "disaggregatedset.x-k8s.io/v1")}
"""Values that are known so that a rule can say why they are refused (test_rules.py)."""


@dataclass(frozen=True, slots=True)
class Twin:
    """One constraint: an object at its limit, and one beyond."""

    path: Path
    constraint: str
    accepted: dict[str, Any] | None  # None: the whole object as it is
    refused: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{'.'.join(map(str, self.path))} {self.constraint}"


def whole() -> dict[str, Any]:
    return {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": "chat"},
        "spec": copy.deepcopy(SPEC),
        "status": copy.deepcopy(STATUS),
    }


def changed(path: Path, value: Any, more: dict[Path, Any] | None = None) -> dict[str, Any]:
    body = whole()
    for where, what in {path: value, **(more or {})}.items():
        parent: Any = body
        for step in where[:-1]:
            parent = parent[step]
        if what is DROP:
            del parent[where[-1]]
        else:
            parent[where[-1]] = what
    return body


def value_at(path: Path) -> Any:
    found: Any = whole()
    for step in path:
        if isinstance(step, str) and step not in found:
            raise LookupError(f"SPEC and STATUS in this file must have every field; {'.'.join(map(str, path))} is not there")
        found = found[step]
    return found


def filled(count: int, like: Any) -> Any:
    """A value of exactly `count` characters, items or properties."""
    if isinstance(like, str):
        return "a" * count
    if isinstance(like, list):
        keyed = isinstance(like[0], dict) and next((k for k in ("pod", "type") if k in like[0]), None)
        return [{**like[0], keyed: f"A{n}"} if keyed else like[0] for n in range(count)]
    return {f"label-{n}": "x" for n in range(count)}


LIMITS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "minimum": lambda limit, _: (limit, limit - 1),
    "maximum": lambda limit, _: (limit, limit + 1),
    "minLength": lambda limit, like: (filled(limit, like), filled(limit - 1, like)),
    "maxLength": lambda limit, like: (filled(limit, like), filled(limit + 1, like)),
    "minItems": lambda limit, like: (filled(limit, like), filled(limit - 1, like)),
    "maxItems": lambda limit, like: (filled(limit, like), filled(limit + 1, like)),
    "minProperties": lambda limit, like: (filled(limit, like), filled(limit - 1, like)),
    "maxProperties": lambda limit, like: (filled(limit, like), filled(limit + 1, like)),
    "pattern": lambda _, like: (like, "_not this"),
    "format": lambda _, like: (like, "yesterday"),
}
WRONG_TYPE = {"string": 5, "integer": "5", "object": "5", "array": "5"}
DESCRIPTIVE = {"type", "properties", "items", "additionalProperties", "description", "default", "x-kubernetes-list-type"}
TRIED_ELSEWHERE = {"x-kubernetes-validations"}  # test_rules.py


def twins(node: dict[str, Any], path: Path) -> Iterator[Twin]:
    """Of everything below `path`."""
    yield Twin(path, "type", None, changed(path, WRONG_TYPE[node["type"]]))
    for constraint, limit in node.items():
        if constraint in DESCRIPTIVE | TRIED_ELSEWHERE:
            continue
        if constraint == "required":
            yield from (Twin((*path, field), "required", None, changed((*path, field), DROP)) for field in limit)
        elif constraint == "enum":
            for value in (value for value in limit if (path, value) not in REFUSED_WITH_A_REASON):
                more = VALUE_COMPANIONS.get((path, value), COMPANIONS.get((path, "enum")))
                yield Twin(path, "enum", changed(path, value, more), changed(path, "Nonsense"))
        elif constraint == "x-kubernetes-list-map-keys":
            yield Twin(path, constraint, None, changed(path, value_at(path) * 2))
        else:
            at_limit, beyond = LIMITS[constraint](limit, value_at(path))
            yield Twin(path, constraint, changed(path, at_limit, COMPANIONS.get((path, constraint))), changed(path, beyond))
    for name, below in node.get("properties", {}).items():
        yield from twins(below, (*path, name))
    if "items" in node:
        yield from twins(node["items"], (*path, 0))
    if "additionalProperties" in node:
        yield from twins(node["additionalProperties"], (*path, next(iter(value_at(path)))))


SPEC_TWINS = list(twins(SCHEMA["properties"]["spec"], ("spec",)))[1:]  # an object without its own spec is not worth a case
STATUS_TWINS = list(twins(SCHEMA["properties"]["status"], ("status",)))[1:]


@pytest.mark.parametrize("twin", SPEC_TWINS, ids=lambda twin: twin.name)
def test_spec(api: Api, twin: Twin) -> None:
    api.create(TABLES, twin.accepted or whole(), dry_run=True)
    with pytest.raises(RefusedError) as refused:
        api.create(TABLES, twin.refused, dry_run=True)
    expect_words(refused.value, twin)


@pytest.fixture(scope="module")
def stored(api: Api) -> Iterator[dict[str, Any]]:
    """Metadata of a DraftTable whose status can be written."""
    yield api.create(TABLES, whole())["metadata"]
    api.delete(f"{TABLES}/chat")


@pytest.mark.parametrize("twin", STATUS_TWINS, ids=lambda twin: twin.name)
def test_status(api: Api, stored: dict[str, Any], twin: Twin) -> None:
    api.update(f"{TABLES}/chat/status", {**(twin.accepted or whole()), "metadata": stored}, dry_run=True)
    with pytest.raises(RefusedError) as refused:
        api.update(f"{TABLES}/chat/status", {**twin.refused, "metadata": stored}, dry_run=True)
    expect_words(refused.value, twin)


def expect_words(refused: RefusedError, twin: Twin) -> None:
    assert refused.status == 422
    assert MESSAGES[twin.constraint] in refused.message
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in twin.path).removeprefix(".")
    assert field in refused.message


def test_spec_and_name_are_required(api: Api) -> None:
    body = whole()
    del body["spec"]
    with pytest.raises(RefusedError, match="spec: Required value"):
        api.create(TABLES, body, dry_run=True)


def test_unknown_field_is_refused_when_asked_and_dropped_otherwise(api: Api) -> None:
    with pytest.raises(RefusedError, match=r'unknown field "spec.profile.repeat"'):
        api.create(TABLES, changed(("spec", "profile", "repeat"), 3), dry_run=True)


def test_whole_object_uses_every_field() -> None:
    """Or a field's constraints would not be tried on a value beside all the others."""

    def missing(node: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        for name, below in node.get("properties", {}).items():
            if name not in value:
                yield f"{path}.{name}"
            else:
                yield from missing(below, value[name], f"{path}.{name}")
        if "items" in node:
            yield from missing(node["items"], value[0], f"{path}[0]")

    assert list(missing(SCHEMA["properties"]["spec"], SPEC, "spec")) == []
    assert list(missing(SCHEMA["properties"]["status"], STATUS, "status")) == []
