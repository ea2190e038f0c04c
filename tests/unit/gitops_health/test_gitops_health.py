"""What kstatus (Flux, kubectl plugins), Argo CD and Flux' expressions make of a DraftTable, in every state that the operator can be in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from drafttable_states import ON_HOLD, body, by_reason, condition, observed
from kstatus import kstatus
from lua_health import HealthScript

from tabletune_operator.conditions import Outlook, Reason
from tabletune_operator.status import NEVER_OBSERVED

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "gitops"
SCRIPT = (EXAMPLES / "argocd-health.lua").read_text()
ARGO = HealthScript(SCRIPT)
FLUX = list(yaml.safe_load_all((EXAMPLES / "flux.yaml").read_text()))
UNSEEN = body({"observedGeneration": NEVER_OBSERVED})
EDITED = body(next(by_reason())[1]["status"], generation=2)
REASONED = [pytest.param(reason, found, id=f"{reason.type}={reason.name}") for reason, found in by_reason()]

AS_KSTATUS = {
    Outlook.GOOD: "Current",
    Outlook.WORKING: "InProgress",
    Outlook.WAITING: "InProgress",
    Outlook.HUMAN: "Failed",
}
AS_ARGO = {"Current": {"Healthy"}, "InProgress": {"Progressing", "Suspended"}, "Failed": {"Degraded"}}


@pytest.mark.parametrize(("reason", "found"), REASONED)
def test_every_reason_is_read_as_it_is_meant(reason: Reason, found: dict[str, Any]) -> None:
    assert kstatus(found) == AS_KSTATUS[reason.outlook]
    health, message = ARGO.health(found)
    if reason.state in ON_HOLD:
        assert health == "Suspended"
    else:
        assert health in AS_ARGO[kstatus(found)] - {"Suspended"}
    if reason.outlook is not Outlook.GOOD:
        assert message == f"{reason.name}: Message of {reason.name}. Nothing to do."


def test_every_observed_state_is_read_alike_by_both() -> None:
    seen = set()
    for name, found in observed().items():
        health, message = ARGO.health(found)
        assert health in AS_ARGO[kstatus(found)], name
        assert message, name
        summaries = {kind: condition(found, kind)["status"] for kind in ("Ready", "Reconciling", "Stalled")}
        assert list(summaries.values()).count("True") == 1, name
        assert (summaries["Ready"] == "True") == (health == "Healthy"), "as kubectl wait --for=condition=Ready"
        seen.add(health)
    assert seen >= {"Healthy", "Progressing", "Degraded"}


@pytest.mark.parametrize("found", [pytest.param(UNSEEN, id="not looked at yet"), pytest.param(EDITED, id="edited since")])
def test_what_the_operator_has_not_seen_is_in_progress(found: dict[str, Any]) -> None:
    assert kstatus(found) == "InProgress"
    assert ARGO.health(found)[0] == "Progressing"


def test_without_the_definitions_default_an_unseen_object_would_be_taken_for_done() -> None:
    """Why the definition has one."""
    assert kstatus(body(None)) == "Current"
    assert ARGO.health(body(None))[0] == "Progressing"


def test_a_deleted_one_is_going() -> None:
    (found,) = (found for name, found in observed().items() if name == "tracking; deleting")
    found = {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-11-30T15:00:00Z"}}
    assert kstatus(found) == "Terminating"
    assert ARGO.health(found)[0] == "Progressing"


def test_the_script_finds_no_library_that_argo_cd_withholds() -> None:
    with pytest.raises(Exception, match="string"):
        HealthScript("return { status = string.upper('healthy'), message = '' }").health(UNSEEN)


def test_the_config_map_of_argo_cd_has_the_script_itself() -> None:
    (found,) = yaml.safe_load_all((EXAMPLES / "argocd-cm.yaml").read_text())
    assert found["metadata"]["name"] == "argocd-cm"
    assert found["data"] == {"resource.customizations.health.tabletune.io_DraftTable": SCRIPT}


def test_flux_examples_name_the_kind_that_there_is() -> None:
    plain, with_expressions = (each["spec"] for each in FLUX)
    (check,) = plain["healthChecks"]
    (expressions,) = with_expressions["healthCheckExprs"]
    for named in (check, expressions):
        assert (named["apiVersion"], named["kind"]) == ("tabletune.io/v1alpha1", "DraftTable")
    assert check.keys() == {"apiVersion", "kind", "name", "namespace"}
    assert expressions.keys() == {"apiVersion", "kind", "failed", "current"}


def flux(found: dict[str, Any]) -> str:
    """As Flux does (RFC 0009): the generation, then inProgress, failed, current; else it waits."""
    if found["status"]["observedGeneration"] != found["metadata"]["generation"]:
        return "InProgress"
    (expressions,) = FLUX[1]["spec"]["healthCheckExprs"]
    environment = celpy.Environment()
    for name, answer in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if name in expressions and environment.program(environment.compile(expressions[name])).evaluate(
            {key: celpy.json_to_cel(value) for key, value in found.items()}
        ):
            return answer
    return "InProgress"


@pytest.mark.parametrize(("reason", "found"), REASONED)
def test_flux_expressions_wait_for_acceptance_only_and_fail_when_a_person_must_act(reason: Reason, found: dict[str, Any]) -> None:
    if reason.outlook is Outlook.HUMAN:
        expected = "Failed"
    elif reason.type == "Accepted" and reason.status != "True":
        expected = "InProgress"
    else:
        expected = "Current"
    assert flux(found) == expected


def test_flux_waits_for_what_has_no_conditions_yet() -> None:
    assert flux(UNSEEN) == "InProgress"
