"""The operator's manifests on the real API server: the Job is admitted, its rights are enough and no more, and a roll-out can be undone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from api_server import ROOT, Api, RefusedError
from chart_rights import wait_for_rights

from tabletune.profile import Fingerprint
from tabletune_operator.command import read_command
from tabletune_operator.crd import Controller, DraftTableSpec
from tabletune_operator.jobs import STOPPED_ANNOTATION, build_stop
from tabletune_operator.pods import OwnImage
from tabletune_operator.profiling import JobRequest, build_job, build_job_access
from tabletune_operator.restore import is_intact, restore, restores_exactly, rolled_digest
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import parse_target, plan_speculation

EXAMPLE = ROOT / "examples" / "llm-d-optimized-baseline"
IMAGE = OwnImage("tabletune.local/tabletune:dev", "IfNotPresent")
CONFIG = {
    "method": "eagle3",
    "model": "d",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}
PYTHON_PATH = {"name": "PYTHONPATH", "value": "/theirs"}

IN_COMMAND = {"command": ["vllm", "serve", "m", "--spec-method=ngram", "--spec-tokens=2"], "args": []}

SPOKEN = '--speculative-config \'{"method":"ngram","num_speculative_tokens":2}\''
KSERVE = 'eval "exec vllm serve /mnt/models --port 8000 ${VLLM_ADDITIONAL_ARGS} $@"'

Edit = Callable[[dict[str, Any]], Any]


def in_script(pod: dict[str, Any], script: str, **variables: str) -> None:
    """The engine started by a shell, as the wide-EP guide and KServe do."""
    env = [*engine(pod)["env"], *({"name": name, "value": value} for name, value in variables.items())]
    engine(pod).update(command=["/bin/bash", "-c", script, "--"], args=[], env=env)


def example(namespace: str, edit: Edit | None = None) -> dict[str, Any]:
    """The Deployment of examples/, changed in one thing."""
    (deployment,) = (d for d in yaml.safe_load_all((EXAMPLE / "modelserver.yaml").read_text()) if d["kind"] == "Deployment")
    deployment["metadata"]["namespace"] = namespace
    if edit is not None:
        edit(deployment["spec"]["template"]["spec"])
    return dict(deployment)


def path(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments"


def engine(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["containers"] if c["name"] == "modelserver")


def roll(api: Api, deployment: dict[str, Any], config: dict[str, Any] | None) -> dict[str, Any]:
    request = RolloutRequest("chat", parse_target(restore(deployment), None), config, Controller(), IMAGE, "")
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    rolled = api.apply(f"{path(namespace)}/{name}", build_rollout(request).apply, manager="tabletune.io")
    assert is_intact(rolled)
    assert rolled_digest(rolled) == build_rollout(request).digest
    return rolled


def give_back(api: Api, deployment: dict[str, Any]) -> dict[str, Any]:
    assert restores_exactly(deployment)
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    return api.update(f"{path(namespace)}/{name}", restore(deployment))


SHAPES: list[Any] = [
    pytest.param(None, id="as in the guide"),
    pytest.param(lambda pod: engine(pod).update(IN_COMMAND), id="all in command"),
    pytest.param(lambda pod: engine(pod).pop("command"), id="the image's entry point"),
    pytest.param(lambda pod: engine(pod)["env"].insert(1, PYTHON_PATH), id="PYTHONPATH among others"),
    pytest.param(lambda pod: engine(pod).update(env=[]), id="no environment"),
    pytest.param(lambda pod: (engine(pod).pop("volumeMounts"), pod.pop("volumes")), id="no volumes"),
    pytest.param(
        lambda pod: pod.update(initContainers=[{"name": "proxy", "image": "p", "restartPolicy": "Always"}, {"name": "load", "image": "l"}]),
        id="init containers",
    ),
    pytest.param(lambda pod: pod["containers"].insert(0, {"name": "logs", "image": "l"}), id="a container before the engine"),
    pytest.param(lambda pod: in_script(pod, f"exec vllm serve m \\\n  --port 8000 \\\n  {SPOKEN} # its flag\n"), id="a script"),
    pytest.param(lambda pod: in_script(pod, KSERVE, VLLM_ADDITIONAL_ARGS=f"{SPOKEN} --x"), id="a variable that a script reads"),
    pytest.param(lambda pod: in_script(pod, KSERVE), id="a variable that is not there yet"),
]


@pytest.mark.parametrize("edit", SHAPES)
@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
def test_restore_is_byte_for_byte(api: Api, namespace: str, edit: Edit | None, config: dict[str, Any] | None) -> None:
    before = api.create(path(namespace), example(namespace, edit))
    rolled = roll(api, before, config)
    assert read_command(engine_of(rolled)).speculation == config
    after = give_back(api, rolled)
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")


def engine_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return engine(deployment["spec"]["template"]["spec"])


@pytest.mark.parametrize("manager", ["create", "apply"])
@pytest.mark.parametrize("edit", [SHAPES[0], *SHAPES[-3:]])
def test_restore_after_other_roll_outs(api: Api, namespace: str, manager: str, edit: Edit | None) -> None:
    """Table, another table, off, and a table again: what a later apply leaves out must not take the user's own with it."""
    wanted = example(namespace, edit)
    engine_of(wanted)["env"].append(PYTHON_PATH)
    if manager == "create":
        before = api.create(path(namespace), wanted)
    else:
        before = api.apply(f"{path(namespace)}/{wanted['metadata']['name']}", wanted, manager="kubectl")
    rolled = before
    for config in (CONFIG, {"method": "ngram", "num_speculative_tokens": 2}, None, CONFIG):
        rolled = roll(api, rolled, config)
        assert read_command(engine_of(rolled)).speculation == config
        paths = [e["value"] for e in engine_of(rolled)["env"] if e["name"] == "PYTHONPATH"]
        assert paths == ["/theirs" if config is None else "/tabletune/engine:/theirs"]
    assert json.dumps(give_back(api, rolled)["spec"]) == json.dumps(before["spec"])


def test_roll_out_leaves_replicas_to_the_autoscaler(api: Api, namespace: str) -> None:
    before = api.create(path(namespace), example(namespace))
    scaled = api.update(f"{path(namespace)}/{before['metadata']['name']}", {**before, "spec": {**before["spec"], "replicas": 5}})
    rolled = roll(api, scaled, CONFIG)
    assert rolled["spec"]["replicas"] == 5
    assert give_back(api, rolled)["spec"]["replicas"] == 5


def test_roll_out_never_makes_a_workload_anew(api: Api, namespace: str) -> None:
    before = api.create(path(namespace), example(namespace))
    request = RolloutRequest("chat", parse_target(before, None), CONFIG, Controller(), IMAGE, "")
    api.delete(f"{path(namespace)}/{before['metadata']['name']}")
    with pytest.raises(RefusedError) as refused:
        api.apply(f"{path(namespace)}/{before['metadata']['name']}", build_rollout(request).apply, manager="tabletune.io")
    assert refused.value.status == 409


def test_restore_does_not_overwrite_a_change_in_between(api: Api, namespace: str) -> None:
    rolled = roll(api, api.create(path(namespace), example(namespace)), CONFIG)
    api.update(f"{path(namespace)}/{rolled['metadata']['name']}", {**rolled, "spec": {**rolled["spec"], "minReadySeconds": 3}})
    with pytest.raises(RefusedError) as refused:
        give_back(api, rolled)
    assert refused.value.status == 409


@pytest.mark.parametrize("edit", SHAPES)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="defaults"),
        pytest.param(
            {
                "nodePool": {"nodeSelector": {"pool": "spare"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
                "speculation": {"method": "ngram", "maxDraftLength": 3},
                "profile": {"prompts": {"configMapRef": {"name": "mine"}}, "maxBatchSize": 16},
            },
            id="every choice",
        ),
    ],
)
def test_job_is_admitted(api: Api, namespace: str, edit: Edit | None, fields: dict[str, Any]) -> None:
    job = job_of(api.create(path(namespace), example(namespace, edit)), **fields)
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, dry_run=True)


def test_a_running_job_can_be_stopped_with_the_reason_on_it(api: Api, namespace: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    deployment = api.create(path(namespace), example(namespace))
    job = api.create(jobs, job_of(deployment))
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    stopped = api.apply(f"{jobs}/{name}", build_stop(namespace, name, uid, "No GPU."), manager="tabletune.io")
    assert stopped["spec"] == {**job["spec"], "activeDeadlineSeconds": 1}
    assert stopped["metadata"]["annotations"].items() >= {**job["metadata"]["annotations"], STOPPED_ANNOTATION: "No GPU."}.items()
    with pytest.raises(RefusedError) as refused:
        api.apply(f"{jobs}/{name}", build_stop(namespace, name, "of-one-before", "No GPU."), manager="tabletune.io")
    assert refused.value.status == 422  # and no new object


def job_of(deployment: dict[str, Any], **fields: Any) -> dict[str, Any]:
    target = parse_target(deployment, None)
    wanted = {"targetRef": {"name": target.name}, "speculation": {"method": "ngram", "maxDraftLength": 2}, **fields}
    spec = DraftTableSpec.model_validate(wanted)
    request = JobRequest(
        draft_table="chat",
        uid="t-1",
        spec=spec,
        target=target,
        speculation=plan_speculation(target, spec),
        fingerprint=Fingerprint.of({"gpuProduct": "NVIDIA-H200"}),
        image=IMAGE,
        node_label=("nvidia.com/gpu.product", "NVIDIA-H200"),
        services=(),
        pools=(),
    )
    return build_job(request)


def test_job_may_write_its_own_job_and_config_map_only(api: Api, namespace: str) -> None:
    target = parse_target(api.create(path(namespace), example(namespace)), None)
    role, binding = build_job_access("chat", "t-1", target)
    api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles", role)
    api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    wait_for_rights(api, namespace)

    def may(verb: str, group: str, resource: str, name: str = "") -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{target.service_account}",
                "resourceAttributes": {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "name": name},
            },
        }
        return bool(api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])

    assert all(may(verb, "batch", "jobs", "chat-profile") for verb in ("get", "patch"))
    assert all(may(verb, "", "configmaps", "chat-tabletune") for verb in ("get", "patch"))
    assert may("create", "", "configmaps")
    assert not any(may(verb, "batch", "jobs", "chat-profile") for verb in ("delete", "update", "create"))
    assert not any(may(verb, "batch", "jobs", "other") for verb in ("get", "patch"))
    assert not any(may(verb, "", "configmaps", "other") for verb in ("get", "patch", "delete"))
    assert not any(may(verb, "", "secrets") for verb in ("get", "list"))
    assert not may("list", "", "configmaps")


RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def wait_for_restriction(api: Api, namespace: str) -> None:
    """Until the admission of pods knows the namespace's new label, which it reads from a cache."""
    spec = {"containers": [{"name": "c", "image": IMAGE.name}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unrestricted"}, "spec": spec}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True)
        except RefusedError:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the API server does not restrict pods of {namespace} after 30 s")


@pytest.mark.parametrize("kind", ["job", "roll-out"])
def test_our_containers_pass_the_restricted_standard(api: Api, namespace: str, kind: str) -> None:
    """Where the user's own container does; nothing of ours may be what a namespace refuses."""
    stored = api.get(f"/api/v1/namespaces/{namespace}")
    stored["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    api.update(f"/api/v1/namespaces/{namespace}", stored)
    wait_for_restriction(api, namespace)
    deployment = api.create(path(namespace), example(namespace, lambda pod: engine(pod).update(securityContext=RESTRICTED)))
    template = job_of(deployment)["spec"]["template"] if kind == "job" else roll(api, deployment, CONFIG)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "p"}, "spec": template["spec"]}
    api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True)
    engine_spec = next(c for c in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]) if c["name"] == "modelserver")
    del engine_spec["securityContext"]
    with pytest.raises(RefusedError, match='container "modelserver" must set'):
        api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True)
