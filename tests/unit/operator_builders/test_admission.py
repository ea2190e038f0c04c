"""A new pod gets what the roll-out gives a pod template, or is left exactly as it is; it is never refused."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from admissions import CONFIG, HASH, Body, injection, pod_of, review_of
from deployments import llm_d, with_container
from hypothesis import given
from hypothesis import strategies as st
from json_patch import patched
from server_side_apply import apply

from tabletune_operator.admission import Answer, ReviewError, answer, build_patch, selects_pod, workload_of
from tabletune_operator.crd import Controller
from tabletune_operator.injection import Injection, InjectionTable, WorkloadKey
from tabletune_operator.observation import ObjectRef
from tabletune_operator.pods import OwnImage
from tabletune_operator.restore import restore
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import TargetError, parse_target

NAMESPACE = llm_d()["metadata"]["namespace"]


def rolled_pod(deployment: Body, given: Injection) -> Body:
    """The pod that mode Patch would bring about, but for the digest, which is that of the injection."""
    target = parse_target(restore(deployment), None)
    request = RolloutRequest(given.draft_table.name, target, given.config, given.controller, given.own_image, given.python_path)
    pod = pod_of(apply(deployment, build_rollout(request).apply))
    pod["metadata"]["annotations"]["tabletune.io/table-digest"] = given.digest
    return pod


def ask(pod: Body, *given: Injection, namespace: str = NAMESPACE, **request: Any) -> Answer:
    return answer(review_of(pod, namespace, **request), {each.workload: each for each in given})


def operations(answered: Answer) -> list[dict[str, Any]]:
    response = answered.review["response"]
    assert response["allowed"] is True
    assert response["uid"] == "r-1"
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    found: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    return found


def engine(deployment: Body) -> Body:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def with_pod(**fields: Any) -> Body:
    deployment = copy.deepcopy(llm_d())
    for name, value in fields.items():
        deployment["spec"]["template"]["spec"].pop(name, None)
        if value is not None:
            deployment["spec"]["template"]["spec"][name] = value
    return deployment


SPECULATION = '{"method":"eagle3","model":"d","num_speculative_tokens":2}'
SHAPES = [
    pytest.param(llm_d(), id="as in the guide"),
    pytest.param(with_container(args=["m", "--speculative-config", SPECULATION, "--seed=1"]), id="a speculative config"),
    pytest.param(with_container(args=["m", f"--speculative-config={SPECULATION}"]), id="one with an equals sign"),
    pytest.param(with_container(command=["vllm", "serve", "m", "--spec-method=ngram", "--spec-tokens=2"], args=None), id="all in command"),
    pytest.param(with_container(command=None), id="the image's entry point"),
    pytest.param(with_container(env=[{"name": "A", "value": "1"}, {"name": "PYTHONPATH", "value": "/theirs"}]), id="PYTHONPATH"),
    pytest.param(with_container(env=[{"name": "VLLM_PLUGINS", "value": "theirs"}]), id="plugins by name"),
    pytest.param(with_container(env=None), id="no environment"),
    pytest.param(with_container(volumeMounts=None), id="no mounts"),
    pytest.param(with_pod(volumes=None), id="no volumes"),
    pytest.param(with_pod(initContainers=[{"name": "load", "image": "l"}]), id="an init container"),
    pytest.param(with_pod(containers=[{"name": "logs", "image": "l"}, engine(llm_d())]), id="a container before the engine"),
]


@pytest.mark.parametrize("deployment", SHAPES)
@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
@pytest.mark.parametrize("python_path", ["", "/image/lib:$x"])
def test_a_pod_gets_what_patch_writes_into_the_template(deployment: Body, config: Mapping[str, Any] | None, python_path: str) -> None:
    given = injection(deployment, config=config, python_path=python_path)
    pod = pod_of(deployment)
    before = copy.deepcopy(pod)
    answered = ask(pod, given)
    assert pod == before
    assert answered.refusal is None
    assert json.dumps(patched(pod, operations(answered)), sort_keys=True) == json.dumps(rolled_pod(deployment, given), sort_keys=True)


@pytest.mark.parametrize("deployment", SHAPES)
@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
def test_a_pod_that_has_everything_gets_nothing_more(deployment: Body, config: Mapping[str, Any] | None) -> None:
    """As when another webhook changed the pod after ours, and ours is asked again."""
    given = injection(deployment, config=config, python_path="/image/lib")
    once = patched(pod_of(deployment), operations(ask(pod_of(deployment), given)))
    assert operations(ask(once, given)) == []


def test_what_another_webhook_took_away_is_added_again() -> None:
    given = injection()
    pod = pod_of(llm_d())
    whole = patched(pod, build_patch(pod, given))
    for container in whole["spec"]["initContainers"]:  # as API server and other webhooks do
        container |= {
            "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": [*container["volumeMounts"], {"mountPath": "/var/t"}],
        }
    damaged = copy.deepcopy(whole)
    (container,) = damaged["spec"]["containers"]
    container["env"] = [entry for entry in container["env"] if entry["name"] != "TABLETUNE_SOCKET"]
    assert build_patch(whole, given) == []
    (added,) = build_patch(damaged, given)
    assert added == {
        "op": "add", "path": "/spec/containers/0/env/-", "value": {"name": "TABLETUNE_SOCKET", "value": "/tabletune/run/engine.sock"},
    }  # fmt: skip


def test_the_patch_is_minimal() -> None:
    paths = [(each["op"], each["path"]) for each in operations(ask(pod_of(llm_d()), injection()))]
    assert paths == [
        ("add", "/metadata/annotations"),
        ("add", "/metadata/labels/tabletune.io~1drafttable"),
        ("add", "/spec/initContainers"),
        ("replace", "/spec/containers/0/args"),
        ("add", "/spec/containers/0/env/-"),
        ("add", "/spec/containers/0/env/-"),
        ("add", "/spec/containers/0/env/-"),
        ("add", "/spec/containers/0/volumeMounts/-"),
        ("add", "/spec/containers/0/volumeMounts/-"),
        ("add", "/spec/volumes/-"),
        ("add", "/spec/volumes/-"),
        ("add", "/spec/volumes/-"),
    ]


def test_it_is_computed_from_the_pods_own_container() -> None:
    newer = copy.deepcopy(llm_d())
    container = engine(newer)
    container["args"] += ["--max-num-seqs=64"]
    newer["spec"]["template"]["spec"]["containers"] = [container]
    given = injection(llm_d())
    pod = patched(pod_of(newer), operations(ask(pod_of(newer), given)))
    assert "--max-num-seqs=64" in pod["spec"]["containers"][0]["args"]


REGISTRY = "mirror.example/docker.io/vllm/" + engine(llm_d())["image"].rpartition("/")[2]
LEFT = [
    pytest.param(with_container(image="docker.io/vllm/vllm-openai:v9.9.9"), "It runs image vllm-openai:v9.9.9", id="another image"),
    pytest.param(with_container(args=["m", "--spec-method=ngram", "--spec-tokens=4"]), "another one than that", id="another drafter"),
    pytest.param(with_container(args=["m", "--speculative-config", "{"]), "--speculative-config", id="a config that cannot be read"),
    pytest.param(with_container(name="other"), "NoSuchContainer|has other", id="no such container"),
    pytest.param(
        with_container(env=[{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        "PYTHONPATH",
        id="a path from elsewhere",
    ),
    pytest.param(with_container(command=["sh", "-c"], args=["exec vllm serve m $MORE"]), "shell", id="a shell string"),
    pytest.param(with_pod(containers=[]), "", id="no container"),
]


@pytest.mark.parametrize(("deployment", "why"), LEFT)
def test_in_doubt_a_pod_is_left_as_it_is_with_a_warning(deployment: Body, why: str) -> None:
    answered = ask(pod_of(deployment), injection())
    assert operations(answered) == []
    assert answered.refusal is not None
    assert any(each in answered.refusal for each in why.split("|"))
    (warning,) = answered.review["response"]["warnings"]
    assert warning.startswith("TableTune left this pod as it is. DraftTable chat: ")
    assert len(warning) <= 256


def test_a_mirror_of_the_same_image_is_the_same_image() -> None:
    assert operations(ask(pod_of(with_container(image=REGISTRY)), injection())) != []


@pytest.mark.parametrize(
    ("pod", "request_fields"),
    [
        pytest.param(pod_of(llm_d(), ownerReferences=[]), {}, id="no controller"),
        pytest.param(pod_of(llm_d(), labels={"app": "x", "pod-template-hash": HASH}), {}, id="labels that the target does not select"),
        pytest.param(pod_of(llm_d(), labels=dict(llm_d()["metadata"]["labels"])), {}, id="no hash"),
        pytest.param(pod_of(llm_d()), {"operation": "UPDATE"}, id="no creation"),
        pytest.param(pod_of(llm_d()), {"subResource": "ephemeralcontainers"}, id="a part of a pod"),
        pytest.param(pod_of(llm_d()), {"resource": {"resource": "replicasets"}}, id="no pod"),
        pytest.param(pod_of(llm_d()), {"namespace": "other"}, id="another namespace"),
    ],
)
def test_pods_of_nobody_are_let_through_without_a_word(pod: Body, request_fields: dict[str, Any]) -> None:
    answered = answer(review_of(pod, **({"namespace": NAMESPACE} | request_fields)), {injection().workload: injection()})
    assert answered.review["response"] == {"uid": "r-1", "allowed": True}
    assert answered.injection is None


def test_an_empty_table_changes_nothing() -> None:
    assert ask(pod_of(llm_d())).review["response"] == {"uid": "r-1", "allowed": True}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "spec", "containers", "name", "args"]), inner),
    max_leaves=10,
)


@given(pod=json_values, field=st.sampled_from(["metadata", "spec"]), value=json_values)
def test_no_request_makes_it_refuse_or_fail(pod: Any, field: str, value: Any) -> None:
    for each in (pod, {**pod_of(llm_d()), field: value}):
        assert operations(ask(each, injection())) is not None


@pytest.mark.parametrize("review", [{}, {"request": None}, {"request": {}}, {"request": {"uid": 3}}, {"request": []}])
def test_what_is_no_review_has_no_answer(review: Body) -> None:
    with pytest.raises(ReviewError, match=r"request\.uid"):
        answer(review, {})


@pytest.mark.parametrize(
    ("owner", "labels", "found"),
    [
        pytest.param(
            ("apps/v1", "ReplicaSet", "chat-decode-abc"), {"pod-template-hash": "abc"}, ("Deployment", "chat-decode"), id="Deployment"
        ),
        pytest.param(("apps/v1", "ReplicaSet", "alone"), {"pod-template-hash": "abc"}, None, id="a ReplicaSet of its own"),
        pytest.param(("apps/v1", "StatefulSet", "chat"), {}, ("StatefulSet", "chat"), id="StatefulSet"),
        pytest.param(
            ("apps/v1", "StatefulSet", "chat"),
            {"leaderworkerset.sigs.k8s.io/name": "chat"},
            ("LeaderWorkerSet", "chat"),
            id="LeaderWorkerSet",
        ),
        pytest.param(("batch/v1", "Job", "chat-profile"), {}, None, id="Job"),
        pytest.param(("example.com/v1", "ReplicaSet", "chat-abc"), {"pod-template-hash": "abc"}, None, id="another group"),
    ],
)
def test_the_workload_of_a_pod(owner: tuple[str, str, str], labels: dict[str, str], found: tuple[str, str] | None) -> None:
    reference = dict(zip(("apiVersion", "kind", "name"), owner, strict=True)) | {"controller": True, "uid": "u"}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "v"}
    pod = {"metadata": {"labels": labels, "ownerReferences": [other, reference]}}
    assert workload_of(pod, "llm") == (WorkloadKey("llm", *found) if found else None)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Like", "values": ["1"]}]}, False),
        ({}, False),
    ],
)
def test_selectors(selector: Body, selected: bool) -> None:
    assert selects_pod(selector, {"a": "1"}) is selected


def test_the_digest_is_of_the_setting_not_of_the_pod() -> None:
    given = injection()
    assert injection(image="other", speculation={}).digest == given.digest
    assert injection(own_image=OwnImage("tabletune.local/tabletune:next", "Always")).digest == given.digest
    moved = {**CONFIG, "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 1]]}
    assert injection(config=moved).digest == given.digest
    others = (
        injection(config={**CONFIG, "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 2]]}),
        injection(config=None),
        injection(controller=Controller(hysteresis=2)),
        injection(python_path="/x"),
        injection(draft_table=ObjectRef(NAMESPACE, "other")),
    )
    assert len({given.digest, *(other.digest for other in others)}) == 6


def test_the_table_holds_one_injection_for_each_drafttable() -> None:
    table, given = InjectionTable(), injection()
    moved = injection(workload=WorkloadKey(NAMESPACE, "Deployment", "other"))
    table.put(given)
    seen = table.by_workload
    table.put(moved)
    assert dict(seen) == {given.workload: given}
    assert dict(table.by_workload) == {moved.workload: moved}
    table.remove(ObjectRef(NAMESPACE, "nobody"))
    table.remove(given.draft_table)
    assert dict(table.by_workload) == {}


def test_a_refusal_is_remembered_until_the_table_changes() -> None:
    table, given = InjectionTable(), injection()
    table.put(given)
    table.refuse(given.draft_table, "why")
    table.put(injection())
    assert table.refusal(given.draft_table) == "why"
    table.put(injection(config=None))
    assert table.refusal(given.draft_table) is None


def test_a_pod_of_another_template_is_named_as_such() -> None:
    with pytest.raises(TargetError) as error:
        build_patch(pod_of(with_container(image="x/vllm-openai:v9")), injection())
    assert error.value.reason == "PodDiffers"
