"""What differs between the kinds of workload that can be a target."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from deployments import leader_worker_set, llm_d, stateful

from tabletune_operator.crd import Controller
from tabletune_operator.kinds import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, called, kubectl_name, owner_of, template_of
from tabletune_operator.pods import OwnImage
from tabletune_operator.restore import is_intact, restore, restores_exactly
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import TargetError, parse_target

NAME = "optimized-baseline-nvidia-gpu-vllm-decode"


def owned(name: str, *owners: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [{"uid": uid} for uid in owners]}}


def replica_set(name: str, owner: str, revision: str) -> dict[str, Any]:
    body = owned(name, owner)
    body["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": revision}
    return body


def test_pods_of_a_deployment_are_those_of_its_replica_sets() -> None:
    deployment = llm_d()
    deployment["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "2"}
    between = [replica_set("old", "d-1", "1"), replica_set("new", "d-1", "2"), replica_set("other", "d-9", "2")]
    pods = [owned("a", "uid-old"), owned("b", "uid-new"), owned("c", "uid-other"), owned("d", "d-1"), owned("e")]
    found = {pod["metadata"]["name"]: current for pod, current in DEPLOYMENT.pods_of(deployment, between, pods)}
    assert found == {"a": False, "b": True}


def test_pods_of_a_stateful_set_are_its_own_and_its_status_names_the_newest_revision() -> None:
    workload = stateful(status={"currentRevision": "x-1", "updateRevision": "x-2"})
    hashed = "controller-revision-hash"
    pods = [owned("x-0", "d-1", **{hashed: "x-1"}), owned("x-1", "d-1", **{hashed: "x-2"}), owned("x-2", "d-1"), owned("y-0", "d-2")]
    found = {pod["metadata"]["name"]: current for pod, current in STATEFUL_SET.pods_of(workload, (), pods)}
    assert found == {"x-0": False, "x-1": True, "x-2": False}
    del workload["status"]
    assert not any(current for _, current in STATEFUL_SET.pods_of(workload, (), pods))


@pytest.mark.parametrize(("observed", "seen"), [(None, False), (3, False), (4, True), (5, True)])
def test_the_newest_template_is_seen_once_the_controller_says_so(observed: int | None, seen: bool) -> None:
    status = {} if observed is None else {"observedGeneration": observed}
    assert STATEFUL_SET.is_seen(stateful(status=status), ()) is seen


def test_messages_shorten_names_and_commands_do_not() -> None:
    workload = stateful()
    workload["metadata"]["name"] = "a" * 40 + "-" + "z" * 40
    assert called(workload) == f"StatefulSet {'a' * 23}…{'z' * 24}"
    assert kubectl_name(workload) == f"sts/{'a' * 40}-{'z' * 40}"
    assert kubectl_name(llm_d()) == f"deploy/{NAME}"


def test_a_target_knows_its_kind() -> None:
    target = parse_target(stateful(), None)
    assert (target.kind, target.called) == (STATEFUL_SET, f"StatefulSet {NAME}")


def test_a_roll_out_of_a_stateful_set_applies_its_own_kind_and_can_be_undone() -> None:
    before = stateful()
    target = parse_target(before, None)
    request = RolloutRequest("chat", target, {"method": "ngram", "num_speculative_tokens": 2}, Controller(), OwnImage("i", "Always"), "")
    rollout = build_rollout(request)
    assert (rollout.apply["apiVersion"], rollout.apply["kind"]) == ("apps/v1", "StatefulSet")
    assert set(rollout.apply["spec"]) == {"template"}  # never replicas
    rolled = copy.deepcopy(before)
    rolled["metadata"]["annotations"] = {**rolled["metadata"].get("annotations", {}), **rollout.apply["metadata"]["annotations"]}
    rolled["spec"]["template"]["spec"]["containers"][0] |= {
        key: value for key, value in rollout.apply["spec"]["template"]["spec"]["containers"][0].items() if key in {"command", "args"}
    }
    assert not is_intact(rolled)  # the init containers are not there
    assert restores_exactly(rolled)
    assert json.dumps(restore(rolled)["spec"]) == json.dumps(before["spec"])


ON_DELETE = {"type": "OnDelete"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"replicas": 3}, "1 restart per replica, one at a time; 2 of 3 serve meanwhile. Nothing to do.", id="several"),
        pytest.param({"replicas": 1}, "its only replica restarts, and nothing serves until the new one is ready. Nothing to do.", id="one"),
        pytest.param(
            {"replicas": 3, "updateStrategy": ON_DELETE},
            "updateStrategy is OnDelete, so each replica gets it when you delete its pod: kubectl delete pod NAME.",
            id="OnDelete",
        ),
    ],
)
def test_a_stateful_set_says_how_its_replicas_are_replaced(spec: dict[str, Any], said: str) -> None:
    assert STATEFUL_SET.replacing(stateful(**spec)) == said


def partition(number: int) -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}


@pytest.mark.parametrize(
    ("strategy", "old", "said"),
    [
        pytest.param(None, ["x-0", "x-1"], None, id="they are replaced"),
        pytest.param(partition(0), ["x-0"], None, id="no partition"),
        pytest.param(partition(2), [], None, id="none is old"),
        pytest.param(partition(2), ["x-0", "x-1", "x-2"], None, id="one above is still to come"),
        pytest.param(
            partition(2),
            ["x-1", "x-0"],
            "updateStrategy.rollingUpdate.partition is 2: x-0 and x-1 stay as before until you lower it.",
            id="below the partition",
        ),
        pytest.param(
            ON_DELETE,
            ["x-0"],
            "updateStrategy is OnDelete: x-0 stays as before until deleted by you: kubectl delete pod x-0.",
            id="OnDelete",
        ),
        pytest.param(
            ON_DELETE,
            ["x-10", "x-9", "x-2"],
            "updateStrategy is OnDelete: x-2, x-9 and 1 more stay as before until deleted by you: kubectl delete pod x-10.",
            id="OnDelete, many",
        ),
    ],
)
def test_a_stateful_set_says_which_replicas_it_keeps(strategy: dict[str, Any] | None, old: list[str], said: str | None) -> None:
    assert STATEFUL_SET.held_back(stateful(updateStrategy=strategy), old) == said


@pytest.mark.parametrize(
    ("spec", "deletes"),
    [
        pytest.param({}, True, id="ordered, the default"),
        pytest.param({"podManagementPolicy": "OrderedReady"}, True, id="ordered"),
        pytest.param({"podManagementPolicy": "Parallel"}, False, id="parallel"),
        pytest.param({"podManagementPolicy": "Parallel", "updateStrategy": ON_DELETE}, True, id="OnDelete"),
    ],
)
def test_a_broken_replica_that_kubernetes_would_wait_for_is_to_be_deleted(spec: dict[str, Any], deletes: bool) -> None:
    assert (STATEFUL_SET.stuck(stateful(**spec), "x-1") == "kubectl delete pod x-1") is deletes
    assert DEPLOYMENT.stuck(llm_d(), "x-1") is None


LWS = "leaderworkerset.sigs.k8s.io"


def leaders(workload: dict[str, Any], revision: str = "r2", **annotations: str) -> dict[str, Any]:
    """What its controller makes of it: the template with labels and annotations of its own."""
    template = copy.deepcopy(dict(template_of(workload)))
    template["metadata"]["labels"] |= {f"{LWS}/name": NAME, f"{LWS}/worker-index": "0", f"{LWS}/template-revision-hash": revision}
    template["metadata"]["annotations"] = {**template["metadata"].get("annotations", {}), f"{LWS}/size": "1", **annotations}
    template["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"  # a default of pods
    body = owned(NAME, "d-1")
    return {**body, "kind": "StatefulSet", "spec": {"template": template}}


def test_pods_of_a_leader_worker_set_are_those_of_its_leaders() -> None:
    workload = leader_worker_set()
    workers = owned(f"{NAME}-0", "d-1")  # the StatefulSet of a group's other pods
    hashed = f"{LWS}/template-revision-hash"
    pods = [
        owned(f"{NAME}-0", f"uid-{NAME}", **{hashed: "r1"}),
        owned(f"{NAME}-1", f"uid-{NAME}", **{hashed: "r2"}),
        owned(f"{NAME}-0-1", f"uid-{NAME}-0", **{hashed: "r2"}),
    ]
    between = [workers, leaders(workload), owned("other", "d-9")]
    found = {pod["metadata"]["name"]: current for pod, current in LEADER_WORKER_SET.pods_of(workload, between, pods)}
    assert found == {f"{NAME}-0": False, f"{NAME}-1": True}
    assert list(LEADER_WORKER_SET.pods_of(workload, [workers], pods)) == []


def test_its_controller_has_seen_a_template_once_the_leaders_have_it() -> None:
    workload = leader_worker_set()
    made = leaders(workload)
    assert LEADER_WORKER_SET.is_seen(workload, [made])
    assert not LEADER_WORKER_SET.is_seen(workload, [])
    assert LEADER_WORKER_SET.is_seen(workload, [leaders(workload, **{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"})])
    assert not LEADER_WORKER_SET.is_seen(workload, [leaders(workload, **{"tabletune.io/table-digest": "abc"})]), "given back, not seen yet"
    template = copy.deepcopy(dict(template_of(workload)))
    template["spec"]["containers"][0]["args"].append("--enforce-eager")
    changed = leader_worker_set()
    changed["spec"]["leaderWorkerTemplate"]["workerTemplate"] = template
    assert not LEADER_WORKER_SET.is_seen(changed, [made])


@pytest.mark.parametrize("leader", [False, True], ids=["one template", "a leader's template"])
def test_a_roll_out_of_a_leader_worker_set_writes_the_leaders_template_and_nothing_else(leader: bool) -> None:
    before = leader_worker_set(leader=leader)
    target = parse_target(before, None)
    assert (target.called, target.replicas) == (f"LeaderWorkerSet {NAME}", 2)
    assert target.selector == {"matchLabels": {f"{LWS}/name": NAME}}
    request = RolloutRequest("chat", target, {"method": "ngram", "num_speculative_tokens": 2}, Controller(), OwnImage("i", "Always"), "")
    apply = build_rollout(request).apply
    assert (apply["apiVersion"], apply["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert list(apply["spec"]) == ["leaderWorkerTemplate"]
    assert list(apply["spec"]["leaderWorkerTemplate"]) == ["leaderTemplate" if leader else "workerTemplate"]


@pytest.mark.parametrize("size", [None, 1])
def test_groups_of_one_pod_can_have_a_table(size: int | None) -> None:
    assert parse_target(leader_worker_set(size=size), None).name == NAME


def test_larger_groups_are_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(TargetError) as refused:
        parse_target(leader_worker_set(size=4), None)
    assert refused.value.reason == "TargetKindCannot"
    assert "groups of 4 pods" in refused.value.message
    assert "Set one num_speculative_tokens" in refused.value.message
    assert len(refused.value.message) <= 300


@pytest.mark.parametrize(
    ("policy", "safe"), [("None", True), ("Default", True), ("RecreateGroupOnPodRestart", False), ("RecreateGroupAfterStart", False)]
)
def test_a_policy_that_ends_a_group_when_a_sidecar_restarts_is_a_hazard(policy: str, safe: bool) -> None:
    hazard = LEADER_WORKER_SET.restart_hazard(leader_worker_set(policy=policy))
    assert (hazard is None) is safe
    if hazard is not None:
        assert policy in hazard
        assert len(f"{called(leader_worker_set())} {hazard}") <= 340


def test_its_roll_out_strategy_is_told() -> None:
    rolling = {"rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": "50%", "partition": 1}}
    workload = leader_worker_set(rolloutStrategy=rolling)
    assert "(maxUnavailable 0, maxSurge 50%)" in LEADER_WORKER_SET.replacing(workload)
    assert "(maxUnavailable 1, maxSurge 0)" in LEADER_WORKER_SET.replacing(leader_worker_set())
    held = LEADER_WORKER_SET.held_back(workload, ["x-0"])
    assert held == "rolloutStrategy.rollingUpdateConfiguration.partition is 1: x-0 stays as before until you lower it."
    assert LEADER_WORKER_SET.held_back(workload, ["x-0", "x-1"]) is None


@pytest.mark.parametrize(
    ("references", "owner"),
    [
        ([], None),
        ([{"kind": "LLMInferenceService", "name": "chat", "controller": True}], ("LLMInferenceService", "chat")),
        ([{"kind": "LeaderWorkerSet", "name": "wide", "controller": True}], ("LeaderWorkerSet", "wide")),
        ([{"kind": "LLMInferenceService", "name": "chat"}], None),
        ([{"kind": "Something", "name": "else", "controller": True}], None),
    ],
    ids=["nobody", "KServe", "LWS", "no controller", "an unknown kind"],
)
def test_the_owner_of_a_workload_is_its_controller_of_a_known_kind(references: list[dict[str, Any]], owner: Any) -> None:
    deployment = llm_d()
    deployment["metadata"]["ownerReferences"] = references
    assert owner_of(deployment) == owner
