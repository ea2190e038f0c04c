"""Targets that others write too: refused before anything is changed, named when they put ours back, tried again when it is settled."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from world import Body, World, serving

APPROVE = "tabletune.io/approve"
ARGO = {"argocd.argoproj.io/tracking-id": "serving:apps/Deployment:llm/decode"}
FLUX = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}


def owned(labels: Any = None, annotations: Any = None, **rollout: Any) -> World:
    made = serving(rollout=rollout) if rollout else serving()
    metadata = made.get("Deployment", "decode")["metadata"]
    metadata.setdefault("labels", {}).update(labels or {})
    metadata.setdefault("annotations", {}).update(annotations or {})
    return made


def status(made: World) -> Body:
    found: Body = made.get("DraftTable", "chat")["status"]["rollout"]
    return found


@pytest.mark.parametrize(
    ("labels", "annotations", "name", "cure"),
    [
        pytest.param({}, ARGO, "Argo CD application serving", "RespectIgnoreDifferences", id="Argo CD"),
        pytest.param(FLUX, {}, "Flux Kustomization flux-system/apps", "reconcile: disabled", id="Flux"),
    ],
)
async def test_what_would_be_put_back_is_not_written(labels: Any, annotations: Any, name: str, cure: str) -> None:
    made = owned(labels, annotations)
    await made.turns(2)
    made.finish_profile()
    await made.turns(4)
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    assert made.condition("Stalled") == ("True", "ManagedElsewhere")
    assert "apply Deployment" not in made.writes
    message = made.message("RolledOut")
    assert name in message and cure in message and "nothing was changed" in message
    assert status(made)["owner"] == f"{name} (keeps it)"


async def test_a_controller_that_owns_the_target_is_named() -> None:
    made = serving()
    owner = {"kind": "ModelService", "name": "chat", "uid": "7", "controller": True}
    made.get("Deployment", "decode")["metadata"]["ownerReferences"] = [owner]
    await made.until_rolling_out()
    await made.turn()
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    assert "ModelService chat keeps" in made.message("RolledOut")


async def test_the_users_word_and_the_owners_own_switch_let_it_through() -> None:
    for made in (
        owned({}, ARGO, ownership="Override"),
        owned(FLUX, {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}),
        owned({"app.kubernetes.io/managed-by": "Helm"}, {"meta.helm.sh/release-name": "chat"}),
    ):
        await made.until_rolling_out()
        await made.turns(2)
        assert made.state() == "Tracking"
        assert status(made)["owner"]


async def test_the_owner_that_stops_lets_the_roll_out_begin_by_itself() -> None:
    made = owned(FLUX)
    await made.until_rolling_out()
    await made.turn()
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    made.get("Deployment", "decode")["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/reconcile"] = "disabled"
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_an_owner_is_shown_and_nothing_else_happens_in_mode_recommend() -> None:
    made = owned({}, ARGO, mode="Recommend")
    await made.until_rolling_out()
    await made.turn()
    assert made.condition("RolledOut") == ("False", "Recommended")
    assert status(made)["owner"] == "Argo CD application serving (keeps it)"


def put_args_back(made: World, before: Body, manager: str = "argocd-controller", *extra: str, at: str = "2026-11-30T14:30:00Z") -> None:
    """As an apply of the user's manifest does: args are a list of one writer, everything else of ours stays."""
    live = made.get("Deployment", "decode")
    container = live["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [*before["spec"]["template"]["spec"]["containers"][0]["args"], *extra]
    owned_fields = {"f:containers": {'k:{"name":"modelserver"}': {"f:args": {}}}}
    live["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": "Apply",
            "time": at,
            "fieldsV1": {"f:spec": {"f:template": {"f:spec": owned_fields}}},
        }
    ]
    live["metadata"]["generation"] += 1
    made.roll()


async def rolled(**rollout: Any) -> tuple[World, Body]:
    made = owned({}, ARGO, **rollout) if rollout else serving()
    before = copy.deepcopy(made.get("Deployment", "decode"))
    await made.until_rolling_out()
    await made.turns(2)
    assert made.state() == "Tracking"
    return made, before


async def test_a_put_back_ends_the_try_and_names_who_did_it() -> None:
    made, before = await rolled()
    put_args_back(made, before, "helm")
    writes = len(made.writes)
    await made.turns(4)
    await made.turn(seconds=3600)
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert made.message("RolledOut").startswith("helm put the old setting of Deployment decode back")
    assert len(made.writes) == writes
    assert [entry["by"] for entry in status(made)["putBacks"]] == ["helm"], "remembered once, however often it is seen"


async def test_a_put_back_of_a_gitops_controller_is_followed_by_one_try_by_itself_once_it_was_quiet() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    writes = len(made.writes)
    await made.turns(4)
    assert made.condition("RolledOut") == ("False", "TriedAgainSoon")
    assert made.condition("Reconciling") == ("True", "TriedAgainSoon")
    assert made.message("RolledOut").startswith(
        "Argo CD application serving (argocd-controller) put the old setting of Deployment decode back"
    )
    assert "once more at 14:32Z" in made.message("RolledOut")
    assert len(made.writes) == writes
    await made.turn(seconds=120)
    await made.turns(4)
    assert made.state() == "Tracking"
    assert made.writes[writes:].count("apply Deployment") == 1


async def test_a_second_put_back_within_ten_minutes_stops_what_was_tried_by_itself() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    await made.turn(seconds=121)
    await made.turns(4)
    assert made.state() == "Tracking"
    put_args_back(made, before, at="2026-11-30T14:33:00Z")
    writes = len(made.writes)
    for _ in range(30):
        await made.turn(seconds=60)
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    assert len(made.writes) == writes


async def test_a_tool_that_puts_it_back_at_each_interval_has_replicas_restarted_once_a_day_by_itself() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    await made.turn(seconds=121)
    await made.turns(4)
    made.now += timedelta(minutes=15)
    put_args_back(made, before, at="2026-11-30T14:47:00Z")
    writes = len(made.writes)
    for _ in range(30):
        await made.turn(seconds=60)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert len(made.writes) == writes
    template = made.get("Deployment", "decode")["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "now"
    await made.turns(4)
    assert made.state() == "Tracking"
    made.now += timedelta(days=1)
    put_args_back(made, before, at="2026-12-01T15:10:00Z")
    await made.turn(seconds=121)
    await made.turns(4)
    assert made.state() == "Tracking"


async def test_it_is_not_quiet_while_the_tool_writes() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    await made.turn(seconds=100)
    made.get("Deployment", "decode")["metadata"]["managedFields"][0]["time"] = "2026-11-30T14:31:30Z"
    await made.turn(seconds=30)
    assert made.condition("RolledOut") == ("False", "TriedAgainSoon")
    assert "once more at 14:33Z" in made.message("RolledOut")
    await made.turn(seconds=90)
    await made.turns(4)
    assert made.state() == "Tracking"


@pytest.mark.parametrize("manager", ["kubectl-client-side-apply", "kubectl-edit", "kubectl", "helm", "terraform"])
async def test_what_a_person_may_have_put_back_is_not_tried_again_by_itself(manager: str) -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before, manager)
    writes = len(made.writes)
    await made.turn(seconds=3600)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert len(made.writes) == writes


async def test_a_tool_that_writes_the_same_after_a_person_does_not_make_it_the_tools() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before, "kubectl-edit")
    live = made.get("Deployment", "decode")
    later = {**live["metadata"]["managedFields"][0], "manager": "argocd-controller", "time": "2026-11-30T14:31:00Z"}
    live["metadata"]["managedFields"].append(later)
    writes = len(made.writes)
    await made.turn(seconds=3600)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "PutBack")
    assert len(made.writes) == writes


async def test_put_back_twice_in_ten_minutes_is_managed_elsewhere() -> None:
    made, before = await rolled(ownership="Override")
    for _ in range(2):
        put_args_back(made, before)
        await made.turn()
        made.now += timedelta(minutes=2)
        again = made.get("Deployment", "decode")["spec"]["template"]
        again["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = str(made.now)
        await made.turns(3)
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere"), "a restart is no wish of a person where a tool writes the template"
    assert "back twice (14:30Z, 14:32Z); we stopped" in made.message("RolledOut")
    writes = len(made.writes)
    await made.turns(3)
    assert len(made.writes) == writes


async def test_put_back_again_after_ten_minutes_is_not() -> None:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    await made.turn()
    made.now += timedelta(minutes=11)
    template = made.get("Deployment", "decode")["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "now"
    await made.turns(3)
    assert made.state() == "Tracking", "kubectl rollout restart is one more try"
    put_args_back(made, before)
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "PutBack")


async def fought() -> tuple[World, Body]:
    made, before = await rolled(ownership="Override")
    put_args_back(made, before)
    await made.turn()
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 1}
    await made.turns(3)
    assert made.state() == "Tracking"
    put_args_back(made, before)
    await made.turns(2)
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    return made, before


async def test_it_goes_on_when_the_spec_changes() -> None:
    made, _ = await fought()
    made.get("DraftTable", "chat")["spec"]["controller"] = {"hysteresis": 3}
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_it_goes_on_once_when_the_annotation_asks_for_it() -> None:
    made, before = await fought()
    table = made.get("DraftTable", "chat")
    table["metadata"].setdefault("annotations", {})[APPROVE] = table["status"]["table"]["digest"]
    await made.turns(3)
    assert made.state() == "Tracking"
    put_args_back(made, before)
    writes = len(made.writes)
    await made.turns(3)
    assert made.condition("RolledOut") == ("False", "ManagedElsewhere")
    assert len(made.writes) == writes, "the same text asks for nothing a second time"


async def test_it_goes_on_when_the_owner_no_longer_keeps_the_target() -> None:
    made, _ = await fought()
    del made.get("Deployment", "decode")["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"]
    await made.turns(3)
    assert made.state() == "Tracking"


async def test_it_goes_on_after_a_measurement_that_was_asked_for() -> None:
    made, _ = await fought()
    made.get("DraftTable", "chat")["metadata"].setdefault("annotations", {})["tabletune.io/reprofile"] = "1"
    await made.turns(2)
    made.finish_profile()
    await made.turns(4)
    assert made.state() == "Tracking"


async def test_a_commit_that_changes_other_flags_is_not_overwritten_with_the_old_ones() -> None:
    made, before = await rolled()
    put_args_back(made, before, "kustomize-controller", "--uvicorn-log-level=warning")
    await made.turns(4)
    args = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--uvicorn-log-level=warning" in args


async def test_who_edited_a_field_of_ours_is_named() -> None:
    made, before = await rolled()
    put_args_back(made, before, "kubectl-edit")
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    container["args"][-1] = '{"method":"ngram","num_speculative_tokens":5}'
    await made.turn()
    assert made.condition("RolledOut") == ("False", "Drifted")
    assert "edited by kubectl-edit at 14:30Z" in made.message("RolledOut")


async def test_a_target_that_is_made_again_is_rolled_out_anew() -> None:
    made, before = await rolled()
    for key in [key for key in made.objects if key[0] in {"Deployment", "ReplicaSet", "Pod"}]:
        del made.objects[key]
    await made.turn()
    assert made.condition("Accepted") == ("False", "TargetNotFound")
    again = copy.deepcopy(before)
    again["metadata"] |= {"uid": "uid-decode", "annotations": {}}
    made.put(again)
    made.roll()
    await made.turns(4)
    assert made.state() == "Tracking"
