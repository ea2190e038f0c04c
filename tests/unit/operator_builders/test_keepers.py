"""Who keeps the number of replicas: by target, and by label selectors as Kubernetes reads them."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import llm_d

from tabletune_operator.keepers import find_keepers
from tabletune_operator.label_selector import selects

NAME = llm_d()["metadata"]["name"]
LABELS = {"app": "chat", "tier": "gpu"}


def scaler(of: str, /, **target: str) -> dict[str, Any]:
    return {"kind": of, "metadata": {"name": "s"}, "spec": {"scaleTargetRef": target}}


@pytest.mark.parametrize(
    ("found", "keeps"),
    [
        pytest.param(scaler("HorizontalPodAutoscaler", kind="Deployment", name=NAME), True, id="an autoscaler of the target"),
        pytest.param(scaler("HorizontalPodAutoscaler", kind="StatefulSet", name=NAME), False, id="of another kind"),
        pytest.param(scaler("HorizontalPodAutoscaler", kind="Deployment", name="other"), False, id="of another workload"),
        pytest.param(scaler("ScaledObject", name=NAME), True, id="KEDA's, whose default kind is Deployment"),
    ],
)
def test_finds_what_scales_the_target(found: dict[str, Any], keeps: bool) -> None:
    assert find_keepers(llm_d(), [found], []) == ((f"{found['kind']} s sets its replicas",) if keeps else ())


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param(None, False, id="none"),
        pytest.param({}, True, id="an empty one"),
        pytest.param({"matchLabels": {"app": "chat"}}, True, id="a label"),
        pytest.param({"matchLabels": {"app": "other"}}, False, id="another value"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "x"]}]}, True, id="In"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}, False, id="NotIn"),
        pytest.param({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["chat"]}]}, True, id="NotIn without the key"),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True, id="Exists"),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False, id="DoesNotExist"),
        pytest.param(
            {"matchLabels": {"app": "chat"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}, False, id="both must hold"
        ),
    ],
)
def test_selectors(selector: dict[str, Any] | None, selected: bool) -> None:
    assert selects(selector, LABELS) is selected


@pytest.mark.parametrize(("allowed", "keeps"), [(0, True), (1, False)])
def test_a_budget_keeps_replicas_while_it_allows_no_disruption(allowed: int, keeps: bool) -> None:
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": allowed}}
    assert bool(find_keepers(llm_d(), [], [budget])) is keeps
